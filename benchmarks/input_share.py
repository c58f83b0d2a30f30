r"""Times pretraining steps with real input and with the same batch each time.

  python benchmarks/input_share.py --model=base --steps=5
  python benchmarks/input_share.py --model=tiny --steps=50

Both train the same model and take turns. One reads made-up records like
run/pretrain.py, the other has one batch in memory. As reading may continue in
the other's turn, the input is also read alone, and its processor time is
printed as a share of a step's. The last line is the median ratio of a step's
time, real / same batch.
"""

import os
import statistics
import tempfile
import time

import pretraining_runs
import runs
from absl import flags

_MODEL = flags.DEFINE_enum("model", "base", ["tiny", "base"], "Model size.")
_PRECISION = flags.DEFINE_string(
    "precision", "auto", "--mixed_precision of both."
)
_BATCH = flags.DEFINE_integer("batch_size", 32, "Sequences of a step.")
_PAIRS = flags.DEFINE_integer("pairs", 10, "Turns of each.")
_STEPS = flags.DEFINE_integer("steps", 5, "Steps in a turn.")

_REAL, _SAME = "real input", "same batch"
_BATCHES_ALONE = 200


def _build(config):
    """Returns the training step, the iterators by input, and the reader."""
    import tensorflow as tf

    from bert_tf.distribute import batches as batches_lib
    from bert_tf.distribute import devices as device_setup
    from bert_tf.io import files
    from bert_tf.pretraining import data as pretraining_input
    from bert_tf.pretraining import run as pretraining

    devices = device_setup.prepare(config)
    bert_config = pretraining_input.read_model_config(config)
    training_step = pretraining.build_training(config, bert_config, devices)
    source = pretraining_input.build_input(
        config, files.expand_globs(config.input_file, ""), None, None
    )

    def read(first_row=0, num_rows=config.train_batch_size):
        dataset = source.dataset(0, (first_row, num_rows))
        dataset = pretraining_input.check_ids(dataset, bert_config.vocab_size)
        return batches_lib.add_dropout_seeds(dataset, config.seed)

    def repeat():
        return tf.data.Dataset.from_tensors(next(iter(read()))).repeat()

    iterators = {
        _REAL: batches_lib.distribute_batches(
            devices.strategy, read, training_step.plan
        ),
        _SAME: batches_lib.distribute_batches(
            devices.strategy, repeat(), training_step.plan
        ),
    }
    return training_step, iterators, read


def _time_input(read):
    """Returns seconds of processor time for a batch, read alone."""
    iterator = iter(read())
    next(iterator)
    begin = sum(os.times()[:2])
    for _ in range(_BATCHES_ALONE):
        next(iterator)
    return (sum(os.times()[:2]) - begin) / _BATCHES_ALONE


def _measure(config):
    """Returns seconds of a step, a list for each input, and of a batch."""
    training, iterators, read = _build(config)
    for iterator in iterators.values():
        training.run(iterator, 1)
        training.run(iterator, 2)
    seconds = {name: [] for name in iterators}
    for pair in range(_PAIRS.value):
        # The order alternates, in case a turn heats the CPU for the next.
        for name in sorted(iterators, reverse=bool(pair % 2)):
            start = time.perf_counter()
            training.run(iterators[name], _STEPS.value)
            taken = (time.perf_counter() - start) / _STEPS.value
            seconds[name].append(taken)
        print(
            f"pair {pair + 1}: {_REAL} {seconds[_REAL][-1]:.4f} s, {_SAME} "
            f"{seconds[_SAME][-1]:.4f} s",
            flush=True,
        )
    return seconds, _time_input(read)


def _make_config(folder):
    from bert_tf.commands.pretrain import PretrainConfig

    data = pretraining_runs.make_records(folder, vocab_size=30522)
    return PretrainConfig(
        bert_config_file=os.path.join(
            runs.ROOT,
            f"bert_tf/recipes/configs/{_MODEL.value}/bert_config.json",
        ),
        output_dir=os.path.join(folder, "out"),
        do_train=True,
        max_predictions_per_seq=20,
        train_batch_size=_BATCH.value,
        mixed_precision=_PRECISION.value,
        **data,
    )


def main():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory() as folder:
        seconds, alone = _measure(_make_config(folder))
    step = statistics.median(seconds[_REAL])
    share = alone / (step * len(os.sched_getaffinity(0)))
    print(
        f"the input alone: {1000 * alone:.1f} ms of a processor for a batch, "
        f"{100 * share:.2f}% of what a step of {step:.3f} s has"
    )
    ratios = runs.ratios(seconds[_REAL], seconds[_SAME])
    print(f"{_REAL} / {_SAME}, {_MODEL.value}: median {ratios}")


if __name__ == "__main__":
    runs.main(main)
