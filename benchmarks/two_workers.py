r"""Times two workers with one core each against one process with both cores.

  python benchmarks/two_workers.py --model=base --precision=bfloat16

All train the same model on the same batches of random tokens, length 128, and
take turns, so that the machine is in the same state for all. The two workers
run with --distribution_strategy=multi_worker_mirrored on this machine. They run
the step as in training, which reduces all gradients in one pack, in packs of
--megabytes_per_pack, and without an all-reduce. The time that the all-reduce
adds includes the wait for the other worker. Base needs some 15 GB. The last
line is the ratio of the rates, two workers / one process.
"""

import contextlib
import multiprocessing
import os
import statistics
import time

import pretraining_batches
import runs
from absl import flags

_MODEL = flags.DEFINE_enum("model", "base", ["tiny", "base"], "Model size.")
_PRECISION = flags.DEFINE_enum(
    "precision", "bfloat16", ["float32", "bfloat16"], "Compute precision."
)
_BATCH = flags.DEFINE_integer("batch_size", 32, "Sequences of a step.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each.")
_STEPS = flags.DEFINE_integer("steps", 2, "Steps in a turn.")
_PACKS = flags.DEFINE_list(
    "megabytes_per_pack",
    ["32"],
    "Sizes of a pack to try; each needs a compiled step and its memory.",
)

_LENGTH = pretraining_batches.LENGTH
_ALONE = "one process, 2 cores"
_WORKERS = "2 workers, 1 core each"
_LOCAL = "the same without all-reduce"


def _packed(megabytes):
    return f"the same, packs of {megabytes} MB"


def _build_parts(device_flags, model_name, batch_size):
    """Returns the strategy, a function that makes a step, and an iterator."""
    from bert_tf.distribute import batches as batches_lib
    from bert_tf.distribute import devices as device_setup
    from bert_tf.flags.groups import DeviceConfig
    from bert_tf.io import files
    from bert_tf.training import step as training_step
    from bert_tf.training.losses import PretrainingObjective

    devices = device_setup.prepare(DeviceConfig(**device_flags))
    strategy = devices.strategy
    config = files.read_bert_config(f"configs/{model_name}/bert_config.json")
    model, optimizer = pretraining_batches.build_model(
        strategy, config, devices.fuse, devices.precision.policy
    )
    plan = batches_lib.StepPlan(batch_size, strategy.num_replicas_in_sync)
    batch = pretraining_batches.random_batch(config.vocab_size, batch_size)
    iterator = pretraining_batches.repeat(batch, strategy, plan)

    def make_training_step():
        return training_step.TrainingStep(
            strategy, model, PretrainingObjective(), optimizer, plan
        )

    return strategy, make_training_step, iterator


@contextlib.contextmanager
def _reduced_otherwise(strategy, how):
    """Changes the all-reduce in graphs that are made inside the block."""
    import tensorflow as tf

    extended = strategy.extended
    reduce, batch_reduce_to = strategy.reduce, extended.batch_reduce_to
    if how == _LOCAL:
        strategy.reduce = lambda operation, value, axis: value
        extended.batch_reduce_to = lambda operation, pairs: [
            value for value, _ in pairs
        ]
    elif how != _WORKERS:
        megabytes = int(how.split()[-2])
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=megabytes << 20
        )
        extended.batch_reduce_to = lambda operation, pairs: batch_reduce_to(
            operation, pairs, options
        )
    try:
        yield
    finally:
        strategy.reduce, extended.batch_reduce_to = reduce, batch_reduce_to


def _serve(cores, device_flags, variants, model_name, batch_size, pipe):
    """Runs the number of steps from the pipe; sends back the seconds."""
    # Set the cores before TensorFlow counts them.
    os.sched_setaffinity(0, cores)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(len(cores))
    strategy, make_training_step, iterator = _build_parts(
        device_flags, model_name, batch_size
    )
    loops = {}
    for name in variants:
        loops[name] = make_training_step()
        with _reduced_otherwise(strategy, name):
            loops[name].run(iterator, 1)
        loops[name].run(iterator, 1)
    pipe.send(0.0)
    while request := pipe.recv():
        name, steps = request
        start = time.perf_counter()
        loops[name].run(iterator, steps)
        pipe.send(time.perf_counter() - start)
    pipe.send(0.0)
    # Both end at once, or else one would report that the other is missing.
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)


class _Team:
    """Processes that run the same steps at the same time."""

    def __init__(self, cores, device_flags, variants):
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for own_cores, own_flags in zip(cores, device_flags, strict=True):
            ours, theirs = context.Pipe()
            arguments = (
                own_cores,
                own_flags,
                variants,
                _MODEL.value,
                _BATCH.value,
                theirs,
            )
            context.Process(target=_serve, args=arguments, daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def wait(self):
        """Returns the seconds of the slowest process."""
        return max(pipe.recv() for pipe in self._pipes)

    def run(self, name, steps):
        for pipe in self._pipes:
            pipe.send((name, steps))
        return self.wait()

    def end(self):
        for pipe in self._pipes:
            pipe.send(None)
        self.wait()
        for pipe in self._pipes:
            pipe.close()


def _measure():
    """Returns the seconds of a step, a list for each variant."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    packs = [_packed(megabytes) for megabytes in _PACKS.value if megabytes]
    hosts = ",".join(f"localhost:{port}" for port in runs.free_ports(2))
    precision = {"mixed_precision": _PRECISION.value}
    workers = [
        precision
        | {
            "distribution_strategy": "multi_worker_mirrored",
            "worker_hosts": hosts,
            "task_index": index,
        }
        for index in range(2)
    ]
    variants = [_WORKERS, _LOCAL, *packs]
    two = _Team([cores[:1], cores[1:]], workers, variants)
    two.wait()
    one = _Team([cores], [precision], [_ALONE])
    one.wait()
    seconds = {name: [] for name in (_ALONE, *variants)}
    for turn in range(_ROUNDS.value):
        # The order alternates, in case a turn heats the CPU for the next.
        for name in sorted(seconds, reverse=bool(turn % 2)):
            team = one if name == _ALONE else two
            taken = team.run(name, _STEPS.value) / _STEPS.value
            seconds[name].append(taken)
            print(f"round {turn + 1}: {taken:7.3f} s  {name}", flush=True)
    one.end()
    two.end()
    return seconds


def main():
    seconds = _measure()
    tokens = _BATCH.value * _LENGTH
    print(f"\n{_MODEL.value}, {_PRECISION.value}, {_BATCH.value} x {_LENGTH}")
    for name, taken in seconds.items():
        step = statistics.median(taken)
        print(f"{step:7.3f} s a step, {tokens / step:6.0f} tokens/s: {name}")
    paired = zip(seconds[_WORKERS], seconds[_LOCAL], strict=True)
    adding = statistics.median(all_ - local for all_, local in paired)
    share = adding / statistics.median(seconds[_WORKERS])
    print(f"{adding:7.3f} s, {100 * share:.0f}% of a step: in the all-reduce")
    ratios = runs.ratios(seconds[_ALONE], seconds[_WORKERS])
    print(
        f"2 workers / one process, {_MODEL.value}, {_PRECISION.value}: median "
        f"{ratios}"
    )


if __name__ == "__main__":
    runs.main(main)
