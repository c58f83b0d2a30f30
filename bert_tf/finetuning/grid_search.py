"""Grid search: runs several trials and keeps the best one on dev.

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
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import trial as trials
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.experiment import Experiment
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.tasks import result_tables
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.training import checkpoints

RUNS_FOLDER = "runs"
TABLE_FILE = "runs.txt"
# Written last, in the folder of a finished trial.
_RUN_FILE = "run.json"
# Files of the best trial that are not copied: only resuming it needs them.
_NOT_COPIED = ("best", "checkpoint", "model.ckpt-", "summaries", _RUN_FILE)

# Runs or evaluates a trial in its folder; returns split to metrics.
_Work = Callable[[Experiment], Mapping[str, Metrics]]


@dataclasses.dataclass(frozen=True)
class FinishedTrial:
    """A trial that has finished or failed permanently.

    Attributes:
      results: Split to metrics.
      evaluated: The evaluated splits: split to the hash of its file.
      failure: Why there are no results, if a value was not finite.
    """

    trial_config: TrialConfig
    folder: str
    results: Mapping[str, Metrics]
    evaluated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    failure: str | None = None


def run_trials(
    config: FinetuneConfig,
    experiment: Experiment,
    trial_configs: Sequence[TrialConfig],
    run_trial: _Work,
    evaluate_finished_trial: _Work,
) -> dict[str, Metrics]:
    """Runs all trials that have not finished, and keeps the best one.

    A finished trial is only evaluated, if the flags now request a dev or test
    set that it was not evaluated on. A trial that fails because a value is not
    finite does not stop the others: it would fail again in the same way.

    All workers run each trial together; the chief records the results.
    """
    kinds = config.requested_splits().keys() - {TRAIN}
    requested = {
        split: value
        for split, value in experiment.data_hashes.items()
        if split.split("_")[0] in kinds
    }
    # Read all of them first: report changed settings before training starts.
    runs = os.path.join(config.output_dir, RUNS_FOLDER)
    experiments_of_trials = [
        experiment.for_trial(x, os.path.join(runs, x.name))
        for x in trial_configs
    ]
    stored = [_read_finished(config, x) for x in experiments_of_trials]
    finished = []
    for number, (own, trial) in enumerate(
        zip(experiments_of_trials, stored, strict=True), start=1
    ):
        if trial is None:
            work, state = run_trial, ""
        elif trial.failure is not None:
            work, state = None, " has failed before"
        elif requested.items() <= trial.evaluated.items():
            work, state = None, " is done"
        else:
            work = evaluate_finished_trial
            state = " is done and is evaluated again"
        logging.info(
            "Trial %d of %d%s: %s.",
            number,
            len(trial_configs),
            state,
            own.trial.name,
        )
        if work is not None:
            trial = _do_and_record(
                config, own, work, requested, may_fail=trial is None
            )
            gc.collect()  # The model and its graphs refer to each other.
        finished.append(trial)
    return _keep_best(config.output_dir, experiment, finished)


def _do_and_record(
    config: FinetuneConfig,
    experiment: Experiment,
    work: _Work,
    requested: Mapping[str, str],
    may_fail: bool,
) -> FinishedTrial:
    """Runs, resumes or evaluates a trial and records its results."""
    coordinator, name = experiment.devices.coordinator, experiment.trial.name
    failure = None
    try:
        results = dict(work(experiment))
    except NotFiniteError as error:
        if not may_fail:
            raise
        # All workers compute the same numbers, so all get here.
        failure, results = str(error), {}
        logging.error("The trial %s has failed: %s", name, failure)
    # All workers select the best trial by the same numbers.
    results, failure = coordinator.from_chief([results, failure])
    evaluated = requested if failure is None else {}
    trial = FinishedTrial(
        experiment.trial, experiment.output_dir, results, evaluated, failure
    )
    if coordinator.is_chief:
        identity = experiments.trial_identity(config, experiment)
        _write_finished(trial, identity)
    return trial


def _keep_best(
    output_dir: str, experiment: Experiment, finished: Sequence[FinishedTrial]
) -> dict[str, Metrics]:
    """Writes the table, copies the best trial and returns its results."""
    coordinator, task = experiment.devices.coordinator, experiment.task
    split, metric = task.splits(DEV)[0], task.metric
    sign = 1.0 if task.more_is_better else -1.0
    best = max(
        (trial for trial in finished if trial.failure is None),
        key=lambda trial: sign * trial.results[split][metric],
        default=None,
    )
    if coordinator.is_chief:
        splits = [split, *task.splits(TEST)]
        table = format_table(finished, best, metric, splits)
        files.write_text(os.path.join(output_dir, TABLE_FILE), table)
        logging.info("The trials:\n%s", table)
    if best is None:
        raise UserError(
            f"All {len(finished)} trials in "
            f"{os.path.join(output_dir, RUNS_FOLDER)} have failed with values "
            "that are not finite; try a smaller --learning_rate, or another "
            "--output_dir with a longer warm-up or --mixed_precision=float32."
        )
    if coordinator.is_chief:
        _remove_others(best.folder, output_dir)
        _copy_up(best.folder, output_dir)
    logging.info(
        "The best trial is %s, copied to %s.",
        best.trial_config.name,
        output_dir,
    )
    return dict(best.results)


def _read_finished(
    config: FinetuneConfig, experiment: Experiment
) -> FinishedTrial | None:
    """Returns a trial if it has finished or failed."""
    coordinator, folder = experiment.devices.coordinator, experiment.output_dir
    path = os.path.join(folder, _RUN_FILE)
    written = None
    if coordinator.is_chief and tf.io.gfile.exists(path):
        written = files.read_json_object(path)
    # Other workers may not see the file yet.
    written = coordinator.from_chief(written)
    if written is None:
        return None
    experiments.check_identity(
        written.get("identity"),
        experiments.trial_identity(config, experiment),
        folder,
        config,
        experiment,
    )
    return FinishedTrial(
        experiment.trial,
        folder,
        written["results"],
        written.get("evaluated", {}),
        written.get("failure"),
    )


def _write_finished(trial: FinishedTrial, identity: Mapping[str, Any]) -> None:
    """Records a trial's results, and removes its checkpoints.

    A failed trial keeps its checkpoints to help find the cause.
    """
    folder = trial.folder
    files.write_json(
        os.path.join(folder, _RUN_FILE),
        {
            "identity": identity,
            "results": trial.results,
            "evaluated": trial.evaluated,
            "failure": trial.failure,
        },
    )
    if trial.failure is not None:
        return
    checkpoints.CheckpointStore(folder).remove_all()
    best = os.path.join(folder, trials.BEST_FOLDER)
    if tf.io.gfile.exists(best):
        tf.io.gfile.rmtree(best)


def format_table(
    finished: Sequence[FinishedTrial],
    best: FinishedTrial | None,
    metric: str,
    splits: Sequence[str],
) -> str:
    """Returns a table of trials, and mean and deviation over restarts.

    Failed trials have no value.

    Args:
      finished: The trials.
      best: The best of them on dev, if any.
      metric: The name of the metric.
      splits: The dev set, then test sets; those without labels have no column.
    """
    dev, *tests = splits
    tests = [
        split
        for split in tests
        if any(metric in trial.results.get(split, {}) for trial in finished)
    ]
    layers = {trial.trial_config.layer_combination for trial in finished}
    names = (
        "learning_rate",
        "batch",
        "epochs",
        *(["layer_combination"] if len(layers) > 1 else []),
    )
    scores = [metric, *(f"{split}_{metric}" for split in tests)]
    rows: list[tuple[str, ...]] = []
    groups: dict[tuple[str, ...], list[list[float | None]]] = {}
    for trial in finished:
        trial_config = trial.trial_config
        cell = (
            f"{trial_config.learning_rate:g}",
            f"{trial_config.train_batch_size:g}",
            f"{trial_config.num_train_epochs:g}",
            str(trial_config.layer_combination),
        )[: len(names)]
        values = [
            trial.results.get(split, {}).get(metric) for split in (dev, *tests)
        ]
        groups.setdefault(cell, []).append(values)
        failed = trial.failure is not None
        rows.append(
            (
                *cell,
                str(trial_config.seed),
                *("-" if value is None else f"{value:.4f}" for value in values),
                "failed" if failed else "best" if trial is best else "",
            )
        )
    groups[("all",) * len(names)] = [
        x for each in groups.values() for x in each
    ]
    means = [(*cell, *_summarize(each)) for cell, each in groups.items()]
    return (
        result_tables.aligned([(*names, "seed", *scores, ""), *rows], 0)
        + "\nMean and standard deviation:\n"
        + result_tables.aligned(
            [(*names, "seed", *(x for y in scores for x in (y, ""))), *means], 0
        )
    )


def _summarize(trials: Sequence[Sequence[float | None]]) -> tuple[str, ...]:
    """Returns the number of trials with values, then means and deviations.

    Each trial has the value on dev and those on the test sets.
    """
    total = len(trials)
    number = sum(values[0] is not None for values in trials)
    cells = [
        f"{number}{'' if number == total else f' of {total}'} "
        f"{'run' if total == 1 else 'runs'}"
    ]
    for column in zip(*trials, strict=True):
        scores = [value for value in column if value is not None]
        cells += [
            f"{statistics.mean(scores):.4f}" if scores else "-",
            f"+- {statistics.stdev(scores):.4f}" if len(scores) > 1 else "",
        ]
    return tuple(cells)


def _remove_others(folder: str, output_dir: str) -> None:
    """Removes files that an earlier best trial had and this one does not."""
    runs_folder = os.path.join(output_dir, RUNS_FOLDER)
    every_name = {
        name.rstrip("/")
        for trial in tf.io.gfile.listdir(runs_folder)
        for name in tf.io.gfile.listdir(os.path.join(runs_folder, trial))
    }
    own_names = {name.rstrip("/") for name in tf.io.gfile.listdir(folder)}
    for name in every_name - own_names:
        path = os.path.join(output_dir, name)
        if (
            not name.startswith(_NOT_COPIED)
            and tf.io.gfile.exists(path)
            and not tf.io.gfile.isdir(path)
        ):
            tf.io.gfile.remove(path)


def _copy_up(folder: str, output_dir: str) -> None:
    """Copies model, results and predictions of the best trial."""
    for name in tf.io.gfile.listdir(folder):
        name = name.rstrip("/")
        if name.startswith(_NOT_COPIED) or files.is_temporary(name):
            continue
        source = os.path.join(folder, name)
        target = os.path.join(output_dir, name)
        if name == model_directory.MODEL_FOLDER:
            with files.atomic_directory(target) as temporary:
                for part in tf.io.gfile.listdir(source):
                    tf.io.gfile.copy(
                        os.path.join(source, part),
                        os.path.join(temporary, part),
                    )
        elif tf.io.gfile.isdir(source):
            raise UserError(
                f"Unexpected folder in a trial: {source}; move it elsewhere."
            )
        else:
            files.write_bytes(target, files.read_bytes(source))
