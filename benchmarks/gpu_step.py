r"""Times pretraining steps on a GPU: tokens/s and the share of its peak.

  python benchmarks/gpu_step.py --size=base --batch_size=256
  python benchmarks/gpu_step.py --size=large --batch_size=56 --xla=on,off

The steps of each value of --xla take turns in one process, on one batch, with
dropout, clipping and the update. The share counts only matrix products, three
times the forward pass's number (`tools/scaling_table.py`). A sequence
counts with its padding, as in published numbers. Without a GPU, the CPU is
timed; its peak is unknown unless --peak gives it.
"""

import os
import statistics
import time

import pretraining_batches
import runs
from absl import flags

from tools import scaling_table

_SIZE = flags.DEFINE_enum("size", "base", ["tiny", "base", "large"], "Model.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens of a sequence.")
_BATCH = flags.DEFINE_integer("batch_size", 256, "Sequences of a step.")
_MICRO = flags.DEFINE_string(
    "micro_batch_size", "0", "--micro_batch_size of run/pretrain.py."
)
_XLA = flags.DEFINE_list("xla", ["auto", "off"], "Values of --xla to compare.")
_DETERMINISTIC = flags.DEFINE_bool(
    "deterministic", False, "--deterministic of run/pretrain.py."
)
_PRECISION = flags.DEFINE_string(
    "mixed_precision", "auto", "--mixed_precision of run/pretrain.py."
)
_STEPS = flags.DEFINE_integer("steps", 50, "Steps in a turn.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each.")
_PEAK = flags.DEFINE_float(
    "peak", None, "The device's dense TFLOP/s in the precision."
)

# Dense TFLOP/s in bfloat16 or float16, from NVIDIA's data sheets.
_PEAKS = {
    "V100": 125.0,
    "A100": 312.0,
    "L4": 121.0,
    "L40S": 362.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
}


def peak_of(name: str, precision: str) -> float | None:
    """Returns the peak of a GPU in TFLOP/s; None if it is not known."""
    if precision == "float32":
        return None
    found = [model for model in _PEAKS if model in name]
    # The longest match: "NVIDIA L40S" has "L4" in it, too.
    return _PEAKS[max(found, key=len)] if found else None


def main():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    steps = {}
    for xla in _XLA.value:
        devices, step, iterator = pretraining_batches.build_step(
            _SIZE.value,
            _LENGTH.value,
            _BATCH.value,
            xla=xla,
            mixed_precision=_PRECISION.value,
            micro_batch_size=_MICRO.value,
            deterministic=_DETERMINISTIC.value,
            num_gpus=1 if tf.config.list_physical_devices("GPU") else 0,
        )
        begin = time.perf_counter()
        step.run(iterator, 1)
        seconds = time.perf_counter() - begin
        print(f"--xla={xla}: the first step took {seconds:.1f} s", flush=True)
        step.run(iterator, 2)
        steps[xla] = step, iterator
    gpus = tf.config.list_physical_devices("GPU")
    name = "CPU"
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        name = details.get("device_name", "GPU")
    peak = _PEAK.value or peak_of(name, devices.precision.name)
    flop = _BATCH.value * scaling_table.operations(
        scaling_table.read_config(_SIZE.value),
        _LENGTH.value,
        pretraining_batches.predictions_of(_LENGTH.value),
    )
    times = {xla: [] for xla in steps}
    for _ in range(_ROUNDS.value):
        for xla, (step, iterator) in steps.items():
            begin = time.perf_counter()
            step.run(iterator, _STEPS.value)  # Waits for the last metrics.
            seconds = time.perf_counter() - begin
            times[xla].append(seconds / _STEPS.value)
    for xla, seconds in times.items():
        median = statistics.median(seconds)
        tokens = _BATCH.value * _LENGTH.value / median
        rate = flop / median / 1e12
        share = f", {100 * rate / peak:.1f}% of {peak:g}" if peak else ""
        print(
            f"{name}, {_SIZE.value}, {_BATCH.value} x {_LENGTH.value}, "
            f"{devices.precision.name}, --xla={xla}: {1000 * median:.1f} ms a "
            f"step (from {1000 * min(seconds):.1f} to "
            f"{1000 * max(seconds):.1f}), {tokens:,.0f} tokens/s, "
            f"{tokens / _LENGTH.value:,.1f} sequences/s, {rate:.1f} TFLOP/s"
            f"{share}"
        )


if __name__ == "__main__":
    runs.main(main)
