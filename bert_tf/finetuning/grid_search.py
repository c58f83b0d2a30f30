"""The paper's selection: several runs, of which the best on dev is kept.

Source: sections 4.1 (random restarts) and A.3 (learning rate, batch size,
epochs) of the paper.
"""

import dataclasses
import gc
import os
import statistics
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import trial as trials
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.experiment import Experiment
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import TRAIN
from bert_tf.training import checkpoints

RUNS_FOLDER = "runs"
TABLE_FILE = "runs.txt"
# Written last, in the folder of a run that is done.
_RUN_FILE = "run.json"
# Of these the best run's are not copied up: they are for going on with it.
_NOT_COPIED = ("best", "checkpoint", "model.ckpt-", "summaries", _RUN_FILE)


# What a run does, given its folder; returns split to metrics.
_Work = Callable[[TrialConfig, str], Mapping[str, Metrics]]


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run that is done, or has failed for good.

    Attributes:
      trial_config: What it had for itself.
      folder: Where it is.
      results: Split to metrics.
      evaluated: What was evaluated: split to the hash of its file.
      failure: Why there are no results, if what it computed was not finite.
    """

    trial_config: TrialConfig
    folder: str
    results: Mapping[str, Metrics]
    evaluated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    failure: str | None = None


def run_all(
    experiment: Experiment,
    runs: Sequence[TrialConfig],
    run_once: _Work,
    evaluate_again: _Work,
) -> dict[str, Metrics]:
    """Does all runs that are not done, and keeps the best.

    A run that is done, but was not asked for a dev or test set that it is
    asked for now, is only evaluated. One that fails as its numbers are not
    finite, of which it would make the same again, stops none of the others.

    Of several workers all do each run together, and the chief keeps the books.

    Args:
      experiment: What they share.
      runs: What each has for itself.
      run_once: Does one, given its folder; returns split to metrics.
      evaluate_again: Evaluates one that is done; the like.

    Returns:
      The results of the best.

    Raises:
      UserError: If all have failed.
    """
    kinds = experiment.config.asked_kinds().keys() - {TRAIN}
    asked = {
        split: value
        for split, value in experiment.data_hashes.items()
        if split.split("_")[0] in kinds
    }
    # Of all, so that what has changed is said before another one is trained.
    known = [_read_finished(experiment, trial_config) for trial_config in runs]
    finished = []
    for number, (trial_config, done) in enumerate(
        zip(runs, known, strict=True), start=1
    ):
        if done is None:
            work, what = run_once, ""
        elif done.failure is not None:
            work, what = None, " has failed before"
        elif asked.items() <= done.evaluated.items():
            work, what = None, " is done"
        else:
            work, what = evaluate_again, " is done, and is evaluated again"
        logging.info(
            "Run %d of %d%s: %s.", number, len(runs), what, trial_config.name
        )
        if work is not None:
            done = _do(
                experiment, trial_config, work, asked, may_fail=done is None
            )
            gc.collect()  # The model and its graphs refer to each other.
        finished.append(done)
    return _keep_best(experiment, finished)


def _do(
    experiment: Experiment,
    trial_config: TrialConfig,
    work: _Work,
    asked: Mapping[str, str],
    may_fail: bool,
) -> FinishedRun:
    """Does a run, or what is left of it to do, and notes what came of it."""
    coordinator = experiment.devices.coordinator
    folder = _folder(experiment, trial_config)
    failure = None
    try:
        results = dict(work(trial_config, folder))
    except NotFiniteError as error:
        if not may_fail:
            raise
        # All workers have the same numbers, so all come here.
        failure, results = str(error), {}
        logging.error("The run %s has failed: %s", trial_config.name, failure)
    # All choose by the same numbers.
    results, failure = coordinator.from_chief([results, failure])
    evaluated = asked if failure is None else {}
    done = FinishedRun(trial_config, folder, results, evaluated, failure)
    if coordinator.is_chief:
        _write_finished(experiment, done)
    return done


def _keep_best(
    experiment: Experiment, finished: Sequence[FinishedRun]
) -> dict[str, Metrics]:
    """Writes the table and copies the best run up; returns its results."""
    output_dir = experiment.config.output_dir
    coordinator = experiment.devices.coordinator
    scored = [run for run in finished if run.failure is None]
    best = _choose(experiment, scored) if scored else None
    if coordinator.is_chief:
        table = format_table(
            finished, best, experiment.task.metric, _split(experiment)
        )
        files.write_text(os.path.join(output_dir, TABLE_FILE), table)
        logging.info("The runs:\n%s", table)
    if best is None:
        raise UserError(
            f"All {len(finished)} runs in "
            f"{os.path.join(output_dir, RUNS_FOLDER)} have failed, as what "
            "they computed was not finite, so none can be kept; try a smaller "
            "--learning_rate, or another --output_dir with a longer warm-up or "
            "--mixed_precision=float32."
        )
    if coordinator.is_chief:
        _remove_others(best.folder, output_dir)
        _copy_up(best.folder, output_dir)
    logging.info(
        "The best is %s, copied to %s.", best.trial_config.name, output_dir
    )
    return dict(best.results)


def _split(experiment: Experiment) -> str:
    return experiment.task.splits(DEV)[0]


def _folder(experiment: Experiment, trial_config: TrialConfig) -> str:
    return os.path.join(
        experiment.config.output_dir, RUNS_FOLDER, trial_config.name
    )


def _read_finished(
    experiment: Experiment, trial_config: TrialConfig
) -> FinishedRun | None:
    """Returns a run if it is done, or has failed.

    Raises:
      UserError: If it was another run.
    """
    coordinator = experiment.devices.coordinator
    folder = _folder(experiment, trial_config)
    path = os.path.join(folder, _RUN_FILE)
    written = None
    if coordinator.is_chief and tf.io.gfile.exists(path):
        written = files.read_json_object(path)
    # Others may not see yet what the chief has just written.
    written = coordinator.from_chief(written)
    if written is None:
        return None
    experiments.check_identity(
        written.get("identity"),
        experiments.describe(experiment, trial_config),
        folder,
        experiment.config.allow_changed_data,
    )
    return FinishedRun(
        trial_config,
        folder,
        written["results"],
        written.get("evaluated", {}),
        written.get("failure"),
    )


def _write_finished(experiment: Experiment, run: FinishedRun) -> None:
    """Notes that a run is done, and removes what going on would need.

    Of one that has failed it stays, as it shows why.
    """
    folder = run.folder
    files.write_json(
        os.path.join(folder, _RUN_FILE),
        {
            "identity": experiments.describe(experiment, run.trial_config),
            "results": run.results,
            "evaluated": run.evaluated,
            "failure": run.failure,
        },
    )
    if run.failure is not None:
        return
    checkpoints.CheckpointStore(folder).remove_all()
    best = os.path.join(folder, trials.BEST_FOLDER)
    if tf.io.gfile.exists(best):
        tf.io.gfile.rmtree(best)


def _choose(experiment: Experiment, runs: Sequence[FinishedRun]) -> FinishedRun:
    """Returns the best run on the first dev set, of equals the first."""
    sign = 1.0 if experiment.task.more_is_better else -1.0
    split, metric = _split(experiment), experiment.task.metric
    return max(runs, key=lambda run: sign * run.results[split][metric])


def format_table(
    runs: Sequence[FinishedRun],
    best: FinishedRun | None,
    metric: str,
    split: str,
) -> str:
    """Returns a row a run, and mean and deviation over restarts.

    Args:
      runs: All runs; those that have failed have no value.
      best: The best of them; None if all have failed.
      metric: The metric that chose it.
      split: The dev set that chose it.
    """
    header = ("learning_rate", "batch", "epochs", "seed", metric, "")
    rows: list[tuple[str, ...]] = []
    groups: dict[tuple[str, ...], list[float | None]] = {}
    for run in runs:
        trial_config = run.trial_config
        failed = run.failure is not None
        value = None if failed else run.results[split][metric]
        cell = (
            f"{trial_config.learning_rate:g}",
            f"{trial_config.train_batch_size:g}",
            f"{trial_config.num_train_epochs:g}",
        )
        groups.setdefault(cell, []).append(value)
        rows.append(
            (
                *cell,
                str(trial_config.seed),
                "-" if value is None else f"{value:.4f}",
                "failed" if failed else "best" if run is best else "",
            )
        )
    every = [value for values in groups.values() for value in values]
    means = [
        (*cell, *_summarize(values))
        for cell, values in (*groups.items(), (("all",) * 3, every))
    ]
    return (
        _align([header, *rows])
        + "\nMean and standard deviation:\n"
        + _align([header, *means])
    )


def _summarize(values: Sequence[float | None]) -> tuple[str, str, str]:
    """Returns number, mean and deviation of the runs that have a value."""
    known = [value for value in values if value is not None]
    of_all = "" if len(known) == len(values) else f" of {len(values)}"
    return (
        f"{len(known)}{of_all} {'run' if len(values) == 1 else 'runs'}",
        f"{statistics.mean(known):.4f}" if known else "-",
        f"+- {statistics.stdev(known):.4f}" if len(known) > 1 else "",
    )


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(
            cell.rjust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        + "\n"
        for row in rows
    )


def _remove_others(folder: str, output_dir: str) -> None:
    """Removes what an earlier best run had and this one has not."""
    runs_folder = os.path.join(output_dir, RUNS_FOLDER)
    of_runs = {
        name.rstrip("/")
        for run in tf.io.gfile.listdir(runs_folder)
        for name in tf.io.gfile.listdir(os.path.join(runs_folder, run))
    }
    of_this = {name.rstrip("/") for name in tf.io.gfile.listdir(folder)}
    for name in of_runs - of_this:
        path = os.path.join(output_dir, name)
        if (
            not name.startswith(_NOT_COPIED)
            and tf.io.gfile.exists(path)
            and not tf.io.gfile.isdir(path)
        ):
            tf.io.gfile.remove(path)


def _copy_up(folder: str, output_dir: str) -> None:
    """Copies model, results and predictions of the best run."""
    for name in tf.io.gfile.listdir(folder):
        name = name.rstrip("/")
        if name.startswith(_NOT_COPIED) or files.is_temporary(name):
            continue
        source = os.path.join(folder, name)
        target = os.path.join(output_dir, name)
        if name == model_directory.MODEL_FOLDER:
            with files.atomic_directory(target) as temporary:
                _copy_files(source, temporary)
        elif tf.io.gfile.isdir(source):
            raise UserError(
                f"{source} is a folder that no run has made; move it away."
            )
        else:
            files.write_bytes(target, files.read_bytes(source))


def _copy_files(source: str, target: str) -> None:
    for name in tf.io.gfile.listdir(source):
        tf.io.gfile.copy(os.path.join(source, name), os.path.join(target, name))
