"""Grid search: records trials, tabulates them and copies the best on dev.

Source: sections 4.1 (random restarts) and A.3 (learning rate, batch size,
epochs) of the paper.
"""

import dataclasses
import os
import statistics
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.finetuning import trial as trials
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.experiment import RUNS_FOLDER
from bert_tf.finetuning.experiment import Experiment
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.tasks import result_tables
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.training import checkpoints

TABLE_FILE = "runs.txt"
# This file is written last in a trial's folder, so it marks a finished trial.
_RUN_FILE = "run.json"
# Only resuming and TensorBoard read these files, and both read them in the
# trial's folder, so they are not copied from the best trial.
_NOT_COPIED = ("best", "checkpoint", "model.ckpt-", "summaries", _RUN_FILE)


@dataclasses.dataclass(frozen=True)
class FinishedTrial:
    """A trial that has finished, or has failed and would fail again.

    Attributes:
      results: The metrics by split.
      evaluated: The hash of each evaluated split's file, by split.
      failure: The error message about a value that is not finite, or None.
    """

    trial_config: TrialConfig
    folder: str
    results: Mapping[str, Metrics]
    evaluated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    failure: str | None = None


def read(experiment: Experiment) -> FinishedTrial | None:
    """Returns the record of a trial, or None if the trial is not finished."""
    coordinator, folder = experiment.coordinator, experiment.output_dir
    path = os.path.join(folder, _RUN_FILE)
    written = None
    if coordinator.is_chief and files.exists(path):
        written = files.read_json_object(path)
    # Other workers may not see run.json yet, so the chief sends its contents.
    written = coordinator.from_chief(written)
    if written is None:
        return None
    experiment.check_identity(written.pop("identity", None), folder)
    return FinishedTrial(experiment.trial, folder, **written)


def write(trial: FinishedTrial, identity: Mapping[str, Any]) -> None:
    """Records a trial's results, and removes its checkpoints.

    A failed trial keeps its checkpoints to help find the cause.
    """
    names = ("results", "evaluated", "failure")
    values = {x: getattr(trial, x) for x in names}
    path = os.path.join(trial.folder, _RUN_FILE)
    files.write_json(path, {"identity": identity} | values)
    if trial.failure is None:
        checkpoints.CheckpointStore(trial.folder).remove_all()
        files.remove(os.path.join(trial.folder, trials.BEST_FOLDER))


def keep_best(
    experiment: Experiment, finished: Sequence[FinishedTrial]
) -> dict[str, Metrics]:
    """Writes the table, copies the best trial and returns its results."""
    task, output_dir = experiment.task, experiment.output_dir
    split, metric = task.splits(DEV)[0], task.metric
    sign = 1.0 if task.more_is_better else -1.0
    best = max(
        (trial for trial in finished if trial.failure is None),
        key=lambda trial: sign * trial.results[split][metric],
        default=None,
    )
    if experiment.coordinator.is_chief:
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
    if experiment.coordinator.is_chief:
        _copy_up(best.folder, output_dir)
    logging.info(
        "The best trial is %s, copied to %s.",
        best.trial_config.name,
        output_dir,
    )
    return dict(best.results)


def format_table(
    finished: Sequence[FinishedTrial],
    best: FinishedTrial | None,
    metric: str,
    splits: Sequence[str],
) -> str:
    """Returns a table of trials, with mean and deviation over restarts.

    `splits` are the dev set, then test sets; unlabeled test sets have no
    column. Failed trials have "-" instead of the metric.
    """
    dev, *tests = splits
    tests = [
        split
        for split in tests
        if any(metric in trial.results.get(split, {}) for trial in finished)
    ]
    names = ["learning_rate", "batch", "epochs", "layer_combination"]
    if len({x.trial_config.layer_combination for x in finished}) == 1:
        names.pop()
    scores = [metric, *(f"{split}_{metric}" for split in tests)]
    rows: list[tuple[str, ...]] = []
    groups: dict[tuple[str, ...], list[list[float | None]]] = {}
    for trial in finished:
        own = trial.trial_config
        numbers = own.learning_rate, own.train_batch_size, own.num_train_epochs
        cell = *(f"{x:g}" for x in numbers), str(own.layer_combination)
        cell = cell[: len(names)]
        values = [
            trial.results.get(split, {}).get(metric) for split in (dev, *tests)
        ]
        groups.setdefault(cell, []).append(values)
        shown = ("-" if x is None else f"{x:.4f}" for x in values)
        state = "best" if trial is best else ""
        state = state if trial.failure is None else "failed"
        rows.append((*cell, str(own.seed), *shown, state))
    groups[("all",) * len(names)] = sum(groups.values(), [])
    means = [(*cell, *_summarize(each)) for cell, each in groups.items()]
    pairs = [x for score in scores for x in (score, "")]
    return (
        result_tables.aligned([(*names, "seed", *scores, ""), *rows], 0)
        + "\nMean and standard deviation:\n"
        + result_tables.aligned([(*names, "seed", *pairs), *means], 0)
    )


def _summarize(trials: Sequence[Sequence[float | None]]) -> tuple[str, ...]:
    """Returns the number of trials with values, then means and deviations.

    Each of `trials` has the metric's values on dev and on each test set.
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


def _copy_up(folder: str, output_dir: str) -> None:
    """Copies model, results and predictions of the best trial.

    Removes files of an earlier best trial that the new one does not have.
    """
    runs_folder = os.path.join(output_dir, RUNS_FOLDER)
    names = {
        name
        for trial in files.names_in(runs_folder)
        for name in files.names_in(os.path.join(runs_folder, trial))
    }
    for name in names:
        if name.startswith(_NOT_COPIED) or files.is_temporary(name):
            continue
        source = os.path.join(folder, name)
        target = os.path.join(output_dir, name)
        if files.is_folder(source):
            with files.atomic_directory(target) as temporary:
                files.copy_folder(source, temporary)
        elif files.exists(source):
            files.write_bytes(target, files.read_bytes(source))
        elif files.is_file(target):
            files.remove(target)
