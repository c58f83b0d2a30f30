r"""Kills workers of a pretraining run at random and compares the results.

  python benchmarks/soak.py --minutes=30

Starts workers on this machine, kills a random worker every few minutes without
warning (kill -9), waits until the other workers have ended, and starts all
again. After the time a worker gets SIGTERM, and a last start trains a little
further, to a normal end. Then the workers make the same run undisturbed, and
both runs are compared: weights and optimizer of the last checkpoint, and the
model, bit for bit, and the metrics line by line. The slope of a process's
memory is fitted to the second half of its life, if it lived for some minutes.
The last line has the result; the exit status is 1 if a check failed.
"""

import dataclasses
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import pretraining_runs
import psutil
import runs
from absl import flags

_MINUTES = flags.DEFINE_float("minutes", 30, "Minutes of kills.")
_WORKERS = flags.DEFINE_integer("workers", 3, "Number of workers.")
_KILL_FROM = flags.DEFINE_float(
    "kill_from", 120, "Earliest kill, in seconds after a start."
)
_KILL_TO = flags.DEFINE_float(
    "kill_to", 240, "Latest kill, in seconds after a start."
)
_SAVE = flags.DEFINE_integer("save_every", 20, "Steps between checkpoints.")
_BATCH = flags.DEFINE_integer("batch_size", 24, "Sequences of a step.")
_MOST_SLOPE = flags.DEFINE_float(
    "most_slope", 2.0, "MB a minute that an undisturbed worker may grow by."
)
_SEED = flags.DEFINE_integer("seed", 1, "Seed of the kills.")

_VOCAB_SIZE = 2000
# Time that the other workers may take to end.
_PATIENCE_SECONDS = 60
_SAMPLE_SECONDS = 5
# Slopes of shorter lives mean nothing, as events that repeat may first come in
# the second half.
_LONG_SECONDS = 360
_HUNG = "hung"
_SPEED = ("examples_per_second", "tokens_per_second")


@dataclasses.dataclass
class _Life:
    """A process from its start to its end.

    Attributes:
      process: The process.
      begin: The time of its start.
      memory: (seconds since the start, bytes) of each sample.
    """

    process: subprocess.Popen
    begin: float = dataclasses.field(default_factory=time.monotonic)
    memory: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def sample(self):
        try:
            used = psutil.Process(self.process.pid).memory_info().rss
        except psutil.NoSuchProcess:
            return
        if used:  # 0 for a process that has ended.
            self.memory.append((time.monotonic() - self.begin, used))

    def slope(self):
        """Returns MB a minute, or None if the life was too short."""
        end = self.memory[-1][0]
        if end < _LONG_SECONDS:
            return None
        late = [pair for pair in self.memory if pair[0] > end / 2]
        seconds, used = np.array(late, np.float64).T
        return float(np.polyfit(seconds / 60, used / 2**20, 1)[0])

    def describe_memory(self):
        most = max(used for _, used in self.memory) / 2**20
        slope = self.slope()
        shown = "" if slope is None else f", {slope:+.2f} MB a minute"
        return f"{self.memory[-1][0] / 60:.1f} min: {most:.0f} MB{shown}"


class _Run:
    """A run of several workers, which may be started again and again."""

    def __init__(self, folder, flag_values):
        os.makedirs(folder)
        self.output_dir = os.path.join(folder, "out")
        self._folder = folder
        self._flags = flag_values
        # Every start has the same ports, like real hosts.
        ports = runs.free_ports(_WORKERS.value)
        self._hosts = ",".join(f"localhost:{port}" for port in ports)
        self.lives = []

    def start(self, **further):
        """Starts all workers; returns their lives."""
        flag_values = (
            self._flags
            | {
                "distribution_strategy": "multi_worker_mirrored",
                "worker_hosts": self._hosts,
                "output_dir": self.output_dir,
            }
            | further
        )
        lives = [
            _Life(
                pretraining_runs.start(
                    "pretrain",
                    self.log_file(index),
                    task_index=index,
                    **flag_values,
                )
            )
            for index in range(_WORKERS.value)
        ]
        self.lives += lives
        return lives

    def log_file(self, index):
        return os.path.join(self._folder, f"worker_{index}.txt")

    def metrics(self):
        """Returns the lines of the metrics without the values of speed."""
        path = os.path.join(self.output_dir, "train_metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [
            {name: x for name, x in line.items() if name not in _SPEED}
            for line in lines
        ]

    def step(self):
        """Returns the step of the last line of metrics."""
        lines = self.metrics()
        return lines[-1]["step"] if lines else 0

    def saved_step(self):
        """Returns the step of the last checkpoint."""
        names = os.listdir(self.output_dir)
        steps = [
            int(name.removeprefix("model.ckpt-").removesuffix(".json"))
            for name in names
            if name.startswith("model.ckpt-") and name.endswith(".json")
        ]
        return max(steps, default=0)

    def log_ends(self):
        """Returns the last lines of each worker's log."""
        ends = []
        for index in range(_WORKERS.value):
            with open(self.log_file(index), encoding="utf-8") as log:
                lines = log.read().splitlines()[-15:]
            ends += [f"--- worker {index}", *lines]
        return "\n".join(ends)


def _watch(lives, seconds):
    """Samples memory until a worker has ended or the time is over."""
    begin = next_sample = time.monotonic()
    while time.monotonic() < begin + seconds:
        if any(life.process.poll() is not None for life in lives):
            return
        if time.monotonic() >= next_sample:
            for life in lives:
                life.sample()
            next_sample += _SAMPLE_SECONDS
        time.sleep(0.1)


def _wait_for_end(lives):
    """Waits until all have ended; returns the seconds and the exit statuses.

    A process that does not end is killed; its status is "hung".
    """
    begin = time.monotonic()
    while time.monotonic() < begin + _PATIENCE_SECONDS:
        if all(life.process.poll() is not None for life in lives):
            break
        time.sleep(0.1)
    seconds = time.monotonic() - begin
    codes = [life.process.poll() for life in lives]
    _end(lives)
    return seconds, [_HUNG if code is None else code for code in codes]


def _end(lives):
    for life in lives:
        life.process.kill()
        life.process.wait()


class _Soak:
    """The disturbed run."""

    def __init__(self, run):
        self.run = run
        self.problems = []
        self.seconds_to_end = []
        self._random = random.Random(_SEED.value)
        self._begin = time.monotonic()

    def _print(self, text):
        minutes = (time.monotonic() - self._begin) / 60
        print(f"minute {minutes:4.1f}: {text}", flush=True)

    def _expect(self, is_right, text):
        if not is_right:
            self.problems.append(text)
            self._print(text)
            print(self.run.log_ends())

    def disturb(self):
        """Kills and restarts workers until the time is over, then stops all."""
        while not self.problems:
            lives = self.run.start()
            left = self._begin + 60 * _MINUTES.value - time.monotonic()
            wait = self._random.uniform(_KILL_FROM.value, _KILL_TO.value)
            _watch(lives, min(wait, left))
            ended = [life.process.poll() for life in lives]
            if any(code is not None for code in ended):
                self._expect(False, f"workers ended by themselves: {ended}")
                _wait_for_end(lives)
            elif wait >= left:
                self._stop(lives)
                return
            else:
                self._kill_one(lives)

    def _kill_one(self, lives):
        index = self._random.randrange(len(lives))
        step, saved = self.run.step(), self.run.saved_step()
        lives[index].process.kill()
        others = [life for life in lives if life is not lives[index]]
        seconds, codes = _wait_for_end(others)
        lives[index].process.wait()
        self.seconds_to_end.append(seconds)
        self._print(
            f"worker {index} killed at step {step}, {step - saved} after a "
            f"checkpoint; the others ended after {seconds:.1f} s with {codes}"
        )
        self._expect(
            all(code == 1 for code in codes), f"others ended with {codes}"
        )

    def _stop(self, lives):
        """Sends SIGTERM to one worker, as a preemption does."""
        # Wait for a step, as a run that has not trained saves nothing.
        while self.run.step() <= self.run.saved_step():
            _watch(lives, 1)
            if any(life.process.poll() is not None for life in lives):
                break
        index = self._random.randrange(len(lives))
        lives[index].process.send_signal(signal.SIGTERM)
        seconds, codes = _wait_for_end(lives)
        step, saved = self.run.step(), self.run.saved_step()
        self._print(
            f"worker {index} got SIGTERM; all ended after {seconds:.1f} s "
            f"with {codes}; last line {step}, checkpoint {saved}"
        )
        self._expect(not any(codes), f"after SIGTERM they ended with {codes}")
        self._expect(saved >= step, "steps were lost by SIGTERM")

    def finish(self):
        """Trains a little further; returns the last step."""
        last = self.run.saved_step() + _SAVE.value
        self._expect(*_train_to(self.run, last, "the last start ended with {}"))
        return last


def _train_to(run, step, text):
    """Trains undisturbed; returns True on success, and a sentence."""
    lives = run.start(stop_at_step=step)
    while all(life.process.poll() is None for life in lives):
        _watch(lives, 60)
    _, codes = _wait_for_end(lives)
    return not any(codes), text.format(codes)


def _hashes(run):
    """Returns the hash of each file of weights of the model directory."""
    folder = os.path.join(run.output_dir, "model")
    hashes = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _compare(disturbed, other, step):
    """Returns the differences of two runs, a sentence each."""
    import tensorflow as tf

    readers = [
        tf.train.load_checkpoint(
            os.path.join(x.output_dir, f"model.ckpt-{step}")
        )
        for x in (disturbed, other)
    ]
    names = [sorted(x.get_variable_to_shape_map()) for x in readers]
    if names[0] != names[1]:
        return ["the checkpoints have other names"]
    differing = [
        name
        for name in names[0]
        if not np.array_equal(*(x.get_tensor(name) for x in readers))
    ]
    print(f"{len(names[0])} tensors compared, {len(differing)} differ")
    problems = [f"differs: {name}" for name in differing]
    if not _hashes(other) or _hashes(disturbed) != _hashes(other):
        problems.append("the models differ")
    # SIGTERM may add a line, but no line may be missing or repeated.
    lines = disturbed.metrics()
    by_step = {line["step"]: line for line in lines}
    if len(by_step) != len(lines):
        problems.append("metrics have a step twice")
    expected = other.metrics()
    missing = [x["step"] for x in expected if by_step.get(x["step"]) != x]
    print(f"{len(expected)} lines of metrics compared, {len(missing)} differ")
    return problems + [f"metrics differ at step {step}" for step in missing]


def _report_memory(disturbed, other):
    """Prints memory; returns the problems with it."""
    longest = max(disturbed.lives, key=lambda life: life.memory[-1][0])
    print(f"memory, longest disturbed life, {longest.describe_memory()}")
    problems = []
    for index, life in enumerate(other.lives):
        print(f"memory, undisturbed worker {index}, {life.describe_memory()}")
        slope = life.slope()
        if slope is not None and slope > _MOST_SLOPE.value:
            problems.append(f"memory of worker {index} grows")
    return problems


def _write_flags(folder):
    """Makes data and a small model; returns the flags of both runs."""
    data = pretraining_runs.make_records(folder, _VOCAB_SIZE)
    path = runs.ROOT / "bert_tf/recipes/configs/tiny/bert_config.json"
    config = runs.read_json(path) | {"vocab_size": _VOCAB_SIZE}
    config_file = os.path.join(folder, "bert_config.json")
    runs.write_json(config_file, config)
    return data | {
        "bert_config_file": config_file,
        "do_train": True,
        "train_batch_size": _BATCH.value,
        # Far away, because the last step is not known yet.
        "num_train_steps": 1_000_000,
        "num_warmup_steps": 100,
        "learning_rate": 1e-3,
        "save_checkpoints_steps": _SAVE.value,
        "iterations_per_loop": 5,
    }


def main():
    with tempfile.TemporaryDirectory() as folder:
        flag_values = _write_flags(folder)
        disturbed = _Run(os.path.join(folder, "disturbed"), flag_values)
        other = _Run(os.path.join(folder, "undisturbed"), flag_values)
        try:
            problems = _soak(disturbed, other)
        finally:
            _end(disturbed.lives + other.lives)
    for problem in problems:
        print(problem)
    print(
        f"soak of {_MINUTES.value:g} minutes: "
        + ("NOT " * bool(problems))
        + "well"
    )
    sys.exit(1 if problems else 0)


def _soak(disturbed, other):
    """Makes both runs and compares them; returns the problems."""
    soak = _Soak(disturbed)
    soak.disturb()
    if soak.problems:
        return soak.problems
    last = soak.finish()
    if soak.problems:
        return soak.problems
    ended_well, text = _train_to(other, last, "undisturbed they ended with {}")
    if not ended_well:
        print(other.log_ends())
        return [text]
    killed = soak.seconds_to_end
    if killed:
        print(
            f"{len(killed)} workers killed in {_MINUTES.value:g} minutes and "
            f"{last} steps; the others ended after "
            f"{statistics.median(killed):.1f} s (median), {max(killed):.1f} s "
            "at most"
        )
    return _compare(disturbed, other, last) + _report_memory(disturbed, other)


if __name__ == "__main__":
    runs.main(main)
