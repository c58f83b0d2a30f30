r"""Times a pretraining step against KerasHub's BertMaskedLM, in turns.

  python benchmarks/pretraining_step.py --precision=bfloat16

All ways train a BERT of base size on the same batch of random tokens with 20
predictions a sequence, dropout on, one process each. They take turns, so that
the machine is in the same state for all. Our ways also have the next-sentence
head, the original's optimizer and the gradient clipping of a real run. Rates
count tokens without padding, and with padding in parentheses. The last lines
are the median ratios of the first way's rate to each other rate.

The unpadded layout against padding, at the share of tokens of real records:

  python benchmarks/pretraining_step.py --ways=unpadded,padded --fill=0.82 \
      --length=512 --batch_size=4
"""

import dataclasses
import functools
import multiprocessing
import os
import time

import pretraining_batches
import runs
from absl import flags

_PRECISION = flags.DEFINE_enum(
    "precision", "bfloat16", ["float32", "bfloat16"], "Precision of both."
)
_PAIRS = flags.DEFINE_integer("pairs", 7, "Turns of each.")
_STEPS = flags.DEFINE_integer("steps", 2, "Steps in a turn.")
_WAYS = flags.DEFINE_list(
    "ways", ["unpadded", "padded", "KerasHub"], "Ways to compare."
)
_LAYERS = flags.DEFINE_integer("layers", 12, "Encoder layers.")
_LENGTH = flags.DEFINE_integer("length", 128, "Length of a sequence.")
_BATCH = flags.DEFINE_integer("batch_size", 16, "Sequences of a batch.")
_FILL = flags.DEFINE_float(
    "fill",
    None,
    "Share of positions without padding (default: rows have random lengths, "
    "at least half of --length).",
)
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of each.")

_VOCAB = 30522


@dataclasses.dataclass(frozen=True)
class _Work:
    """The model and the batch; each field has the value of its flag."""

    precision: str
    layers: int
    batch_size: int
    length: int
    fill: float | None

    def batch(self):
        """Returns the features of the batch."""
        return pretraining_batches.random_batch(
            _VOCAB, self.batch_size, self.length, fill=self.fill
        )

    @property
    def policy(self):
        return "float32" if self.precision == "float32" else "mixed_bfloat16"


def _build_ours(work, unpad):
    import tensorflow as tf

    from bert_tf.config import BertConfig
    from bert_tf.distribute import batches as batches_lib
    from bert_tf.distribute import devices as device_setup
    from bert_tf.training import step as training_step
    from bert_tf.training import unpad as unpadding
    from bert_tf.training.losses import PretrainingObjective

    tf.config.experimental.enable_op_determinism()
    strategy = device_setup.build_strategy("one_device")
    config = BertConfig(
        vocab_size=_VOCAB, type_vocab_size=2, num_hidden_layers=work.layers
    )
    model, optimizer = pretraining_batches.build_model(
        strategy, config, True, work.policy
    )
    plan = batches_lib.StepPlan(work.batch_size)
    training = training_step.TrainingStep(
        strategy, model, PretrainingObjective(), optimizer, plan
    )
    transform = unpadding.token_finder(plan, [work.length]) if unpad else None
    iterator = pretraining_batches.repeat(
        work.batch(), strategy, plan, transform
    )
    return lambda steps: training.run(iterator, steps)


def _build_keras_hub(work):
    import keras
    import keras_hub

    keras.config.set_dtype_policy(work.policy)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=_VOCAB,
        num_layers=work.layers,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        dropout=0.1,
        max_sequence_length=512,
    )
    model = keras_hub.models.BertMaskedLM(backbone, preprocessor=None)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batch = work.batch()
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }

    def run(steps):
        for _ in range(steps):
            model.train_on_batch(
                inputs, batch["masked_lm_ids"], batch["masked_lm_weights"]
            )

    return run


_BUILDERS = {
    "unpadded": functools.partial(_build_ours, unpad=True),
    "padded": functools.partial(_build_ours, unpad=False),
    "KerasHub": _build_keras_hub,
}


def _serve(name, work, threads, pipe):
    """Runs the number of steps from the pipe; sends back the seconds."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    run = _BUILDERS[name](work)
    run(1)
    run(1)
    pipe.send(0.0)
    while steps := pipe.recv():
        start = time.perf_counter()
        run(steps)
        pipe.send(time.perf_counter() - start)


def main():
    work = _Work(
        _PRECISION.value,
        _LAYERS.value,
        _BATCH.value,
        _LENGTH.value,
        _FILL.value,
    )
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for name in _WAYS.value:
        pipes[name], theirs = context.Pipe()
        arguments = (name, work, _THREADS.value, theirs)
        context.Process(target=_serve, args=arguments, daemon=True).start()
        pipes[name].recv()
    tokens = int(work.batch()["input_mask"].sum())
    positions = work.batch_size * work.length
    rates = {name: [] for name in pipes}
    for turn in range(_PAIRS.value):
        # The order alternates, in case a turn heats the CPU for the next.
        for name in sorted(pipes, reverse=bool(turn % 2)):
            pipes[name].send(_STEPS.value)
            seconds = pipes[name].recv() / _STEPS.value
            rates[name].append(tokens / seconds)
        shown = "  ".join(
            f"{name} {rate[-1]:6.0f} ({rate[-1] * positions / tokens:.0f})"
            for name, rate in rates.items()
        )
        print(f"turn {turn + 1}, tokens/s: {shown}", flush=True)
    for pipe in pipes.values():
        pipe.send(0)
    print(
        f"{work.precision}, {work.layers} layers, {work.batch_size} x "
        f"{work.length}, {tokens / positions:.2f} of the positions are tokens"
    )
    first, *others = rates
    for name in others:
        ratios = runs.ratios(rates[first], rates[name])
        print(f"{first} / {name}: median {ratios}")


if __name__ == "__main__":
    runs.main(main)
