"""Estimates the memory of training steps, for docs/scaling.md.

python -m tools.memory_table
"""

from bert_tf.training import memory
from tools import scaling_table

_MODELS = ("base", "large")
# Length of a sequence and its predictions.
_LENGTHS = {128: 20, 512: 77}
# Bytes of a number between the layers.
_PRECISIONS = {"float32": 4, "bfloat16": 2}
_BATCHES = (1, 8, 32, 128, 256)


def table(remat: bool) -> str:
    """Returns GB of a step by model, length, precision and batch.

    Args:
      remat: Whether layers are computed again in the backward pass.
    """
    header = ["model", "length", "precision", *map(str, _BATCHES)]
    rows = [
        [name, str(length), precision, *_cells(name, length, precision, remat)]
        for name in _MODELS
        for length in _LENGTHS
        for precision in _PRECISIONS
    ]
    return scaling_table.layout(header, rows)


def _cells(name: str, length: int, precision: str, remat: bool) -> list[str]:
    """Returns the GB for each number of sequences at once."""
    config = scaling_table.read_config(name)
    estimate = memory.estimate(
        config,
        scaling_table.parameters(config),
        length,
        _LENGTHS[length],
        _PRECISIONS[precision],
        remat=remat,
    )
    return [f"{estimate.total(batch) / 1e9:.1f}" for batch in _BATCHES]


def main() -> None:
    for remat in (False, True):
        print(f"{'With' if remat else 'Without'} --remat\n\n{table(remat)}")


if __name__ == "__main__":
    main()
