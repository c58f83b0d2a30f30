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

from bert_tf import files
from bert_tf import model_directory
from bert_tf.errors import UserError
from bert_tf.finetune_config import RunSettings
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import TRAIN
from bert_tf.training import checkpoints
from bert_tf.training import finetuning_run
from bert_tf.training import finetuning_setting
from bert_tf.training.finetuning_setting import Setting
from bert_tf.training.task_evaluation import Metrics

RUNS_FOLDER = "runs"
TABLE_FILE = "runs.txt"
# Written last, in the folder of a run that is done.
_RUN_FILE = "run.json"
# Of these the best run's are not copied up: they are for going on with it.
_NOT_COPIED = ("best", "checkpoint", "model.ckpt-", "summaries", _RUN_FILE)


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run that is done.

    Attributes:
      settings: What it had for itself.
      folder: Where it is.
      results: Split to metrics.
      evaluated: What was evaluated: split to the hash of its file.
    """

    settings: RunSettings
    folder: str
    results: Mapping[str, Metrics]
    evaluated: Mapping[str, str] = dataclasses.field(default_factory=dict)


def run_all(
    setting: Setting,
    runs: Sequence[RunSettings],
    run_once: Callable[[RunSettings, str], Mapping[str, Metrics]],
    evaluate_again: Callable[[RunSettings, str], Mapping[str, Metrics]],
) -> dict[str, Metrics]:
    """Does all runs that are not done, and keeps the best.

    A run that is done, but was not asked for a dev or test set that it is
    asked for now, is only evaluated.

    Of several workers all do each run together, and the chief keeps the books.

    Args:
      setting: What they share.
      runs: What each has for itself.
      run_once: Does one, given its folder; returns split to metrics.
      evaluate_again: Evaluates one that is done; the like.

    Returns:
      The results of the best.
    """
    output_dir = setting.config.output_dir
    coordinator = setting.devices.coordinator
    asked = {
        split: value
        for split, value in setting.data_hashes.items()
        if split.split("_")[0] != TRAIN
    }
    # Of all, so that what has changed is said before another one is trained.
    known = [_read_finished(setting, settings) for settings in runs]
    finished = []
    for number, (settings, done) in enumerate(
        zip(runs, known, strict=True), start=1
    ):
        folder = _folder(setting, settings)
        if done is None:
            doing, what = run_once, ""
        elif asked.items() <= done.evaluated.items():
            doing, what = None, " is done"
        else:
            doing, what = evaluate_again, " is done, and is evaluated again"
        logging.info(
            "Run %d of %d%s: %s.", number, len(runs), what, settings.name
        )
        if doing is not None:
            # All choose by the same numbers.
            results = coordinator.from_chief(dict(doing(settings, folder)))
            done = FinishedRun(settings, folder, results, asked)
            if coordinator.is_chief:
                _write_finished(setting, done)
            gc.collect()  # The model and its graphs refer to each other.
        finished.append(done)
    best = _choose(setting, finished)
    if coordinator.is_chief:
        table = format_table(
            finished, best, setting.task.metric, _split(setting)
        )
        files.write_text(os.path.join(output_dir, TABLE_FILE), table)
        logging.info("The runs:\n%s", table)
        _copy_up(best.folder, output_dir)
    logging.info(
        "The best is %s, copied to %s.", best.settings.name, output_dir
    )
    return dict(best.results)


def _split(setting: Setting) -> str:
    return setting.task.splits(DEV)[0]


def _folder(setting: Setting, settings: RunSettings) -> str:
    return os.path.join(setting.config.output_dir, RUNS_FOLDER, settings.name)


def _read_finished(
    setting: Setting, settings: RunSettings
) -> FinishedRun | None:
    """Returns a run if it is done.

    Raises:
      UserError: If it was another run.
    """
    coordinator = setting.devices.coordinator
    folder = _folder(setting, settings)
    path = os.path.join(folder, _RUN_FILE)
    written = None
    if coordinator.is_chief and tf.io.gfile.exists(path):
        written = files.read_json_object(path)
    # Others may not see yet what the chief has just written.
    written = coordinator.from_chief(written)
    if written is None:
        return None
    finetuning_setting.check_identity(
        written.get("identity"),
        finetuning_setting.describe(setting, settings),
        folder,
        setting.config.allow_changed_data,
    )
    return FinishedRun(
        settings, folder, written["results"], written.get("evaluated", {})
    )


def _write_finished(setting: Setting, run: FinishedRun) -> None:
    """Notes that a run is done, and removes what going on would need."""
    folder = run.folder
    files.write_json(
        os.path.join(folder, _RUN_FILE),
        {
            "identity": finetuning_setting.describe(setting, run.settings),
            "results": run.results,
            "evaluated": run.evaluated,
        },
    )
    checkpoints.CheckpointStore(folder).remove_all()
    best = os.path.join(folder, finetuning_run.BEST_FOLDER)
    if tf.io.gfile.exists(best):
        tf.io.gfile.rmtree(best)


def _choose(setting: Setting, runs: Sequence[FinishedRun]) -> FinishedRun:
    """Returns the best run on the first dev set, of equals the first."""
    sign = 1.0 if setting.task.more_is_better else -1.0
    split, metric = _split(setting), setting.task.metric
    return max(runs, key=lambda run: sign * run.results[split][metric])


def format_table(
    runs: Sequence[FinishedRun], best: FinishedRun, metric: str, split: str
) -> str:
    """Returns a row a run, and mean and deviation over restarts.

    Args:
      runs: All runs.
      best: The best of them.
      metric: The metric that chose it.
      split: The dev set that chose it.
    """
    header = ("learning_rate", "batch", "epochs", "seed", metric, "")
    rows: list[tuple[str, ...]] = []
    groups: dict[tuple[float, int, float], list[float]] = {}
    for run in runs:
        settings = run.settings
        value = run.results[split][metric]
        cell = (
            settings.learning_rate,
            settings.train_batch_size,
            settings.num_train_epochs,
        )
        groups.setdefault(cell, []).append(value)
        rows.append(
            (
                *(f"{number:g}" for number in cell),
                str(settings.seed),
                f"{value:.4f}",
                "best" if run is best else "",
            )
        )
    means = [
        (
            *(f"{number:g}" for number in cell),
            _count(values),
            f"{statistics.mean(values):.4f}",
            f"+- {statistics.stdev(values):.4f}" if len(values) > 1 else "",
        )
        for cell, values in groups.items()
    ]
    every = [value for values in groups.values() for value in values]
    means.append(
        (
            *("all",) * 3,
            _count(every),
            f"{statistics.mean(every):.4f}",
            f"+- {statistics.stdev(every):.4f}",
        )
    )
    return (
        _align([header, *rows])
        + "\nMean and standard deviation:\n"
        + _align([header, *means])
    )


def _count(values: Sequence[float]) -> str:
    return "1 run" if len(values) == 1 else f"{len(values)} runs"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(
            cell.rjust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        + "\n"
        for row in rows
    )


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
