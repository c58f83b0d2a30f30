r"""Times pretraining steps while a checkpoint is written, and other steps.

  python benchmarks/checkpoint_stall.py --model=base

Runs run/pretrain.py on made-up text with a line of metrics for each step, and
records when each line and each whole checkpoint appear. A step belongs to a
save if it overlaps with the time from the saving step to the checkpoint's last
file. The last line is the slowest of these steps, over all saves, divided by
the median of all other steps.
"""

import dataclasses
import glob
import os
import statistics
import tempfile
import time

import pretraining_runs
import runs
from absl import flags

_MODEL = flags.DEFINE_enum(
    "model", "base", ["tiny", "base", "large"], "Model size."
)
_PRECISION = flags.DEFINE_string(
    "precision", "auto", "--mixed_precision of the run."
)
_BATCH = flags.DEFINE_integer("batch_size", 16, "Sequences of a step.")
_SAVES = flags.DEFINE_integer("saves", 3, "Checkpoints to wait for.")
_EVERY = flags.DEFINE_integer("save_every", 12, "Steps between them.")

_VOCAB_SIZE = 30522
# The first steps are not counted: they compile, and allocate new memory.
_SKIPPED = 3
_POLL_SECONDS = 0.005


@dataclasses.dataclass
class _Watch:
    """Times in seconds at which steps ended and checkpoints were whole.

    Attributes:
      steps: Step -> the time at which its line appeared.
      saved: Step -> the time at which its checkpoint was whole.
    """

    steps: dict[int, float]
    saved: dict[int, float]


def _count_lines(path):
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as file:
        return file.read().count(b"\n")


def _watch(process, output_dir):
    """Records the times of lines and checkpoints until the process ends."""
    watch = _Watch({}, {})
    metrics = os.path.join(output_dir, "train_metrics.jsonl")
    # The sidecar is written last, so its checkpoint is whole.
    sidecars = os.path.join(output_dir, "model.ckpt-*.json")
    while process.poll() is None:
        now = time.monotonic()
        for step in range(len(watch.steps) + 1, _count_lines(metrics) + 1):
            watch.steps[step] = now
        for path in glob.glob(sidecars):
            step = int(path.rpartition("-")[2].removesuffix(".json"))
            watch.saved.setdefault(step, now)
        time.sleep(_POLL_SECONDS)
    return watch


def _divide(watch, last_step):
    """Returns the seconds of steps during saves, and of all other steps."""
    spans = [
        (watch.steps[step], end)
        for step, end in watch.saved.items()
        # No step runs during the last save, so it does not count.
        if step < last_step
    ]
    during, others = [], []
    for step in range(_SKIPPED + 1, last_step + 1):
        begin, end = watch.steps[step - 1], watch.steps[step]
        touches = any(begin < last and end > first for first, last in spans)
        (during if touches else others).append(end - begin)
    for first, last in spans:
        print(f"a checkpoint took {last - first:.1f} s")
    return during, others


def main():
    last_step = _EVERY.value * (_SAVES.value + 1)
    with tempfile.TemporaryDirectory() as folder:
        data = pretraining_runs.make_records(folder, _VOCAB_SIZE)
        output_dir = os.path.join(folder, "out")
        log_file = os.path.join(folder, "log.txt")
        process = pretraining_runs.start(
            "pretrain",
            log_file,
            flagfile=f"{_MODEL.value}.flags",
            output_dir=output_dir,
            train_batch_size=_BATCH.value,
            micro_batch_size=0,
            mixed_precision=_PRECISION.value,
            num_train_steps=last_step,
            stop_at_step=last_step,
            num_warmup_steps=1,
            save_checkpoints_steps=_EVERY.value,
            iterations_per_loop=1,
            do_eval=False,
            **data,
        )
        watch = _watch(process, output_dir)
        if process.returncode:
            with open(log_file, encoding="utf-8") as log:
                print(log.read())
            raise SystemExit("Training failed.")
    during, others = _divide(watch, last_step)
    median = statistics.median(others)
    print(
        f"{len(others)} other steps: median {median:.3f} s, from "
        f"{min(others):.3f} to {max(others):.3f}"
    )
    print(
        f"{len(during)} steps of saves: median "
        f"{statistics.median(during):.3f} s, from {min(during):.3f} to "
        f"{max(during):.3f}"
    )
    print(
        f"slowest step of a save / median of the others, {_MODEL.value}: "
        f"{max(during) / median:.2f}"
    )


if __name__ == "__main__":
    runs.main(main)
