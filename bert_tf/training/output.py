"""Writes the output of a run: model directory, results and learning curves."""

import contextlib
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf import reports
from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import run_folder
from bert_tf.io import terminal
from bert_tf.io import train_log
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import metrics as training_metrics

LEARNING_CURVES_FILE = "learning_curves.png"

_WRITE_ERRORS = (OSError, tf.errors.OpError)

PRETRAINING: Sequence[reports.Panel] = (
    ("loss", "Loss", 1),
    ("masked_lm_loss", "Masked-LM loss", 1),
    ("next_sentence_loss", "Next-sentence loss", 1),
    ("learning_rate", "Learning rate", 1),
    ("masked_lm_accuracy", "Masked-LM accuracy, %", 100),
    ("next_sentence_accuracy", "Next-sentence accuracy, %", 100),
)

_FINETUNING: Sequence[reports.Panel] = (
    ("loss", "Loss", 1),
    ("learning_rate", "Learning rate", 1),
    ("grad_norm", "Norm of the gradient", 1),
    ("tokens_per_second", "Tokens per second", 1),
)

_PREDICTIONS = "_predictions.jsonl"  # Follows the name of a split.
# `print_report` lists each of these files that exists, with its description.
_FILES = (
    (model_directory.MODEL_FOLDER, "the model, for every script"),
    ("eval_results.json", "scores"),
    ("eval_results.txt", "scores, in the original's format"),
    ("runs.txt", "scores of all trials"),
    ("masked_words.json", "sentences filled in before and after training"),
    (LEARNING_CURVES_FILE, "loss and scores by step"),
    (train_log.FILE, "the log"),
)


def start_over(config: Any, coordinator: Coordinator) -> None:
    """Removes the files of earlier runs, if --overwrite_output_dir is set.

    The chief removes them while the other workers wait. Raises `UserError` if
    no run has registered any of the files, or if a flag names one to remove.
    """
    if not (config.overwrite_output_dir and config.do_train):
        return
    folder = config.output_dir
    if coordinator.is_chief and tf.io.gfile.isdir(folder):
        inputs = paths.inputs_of(config)
        removed = run_folder.remove_registered(folder.rstrip("/"), inputs)
        others = {*tf.io.gfile.listdir(folder)} - {train_log.FILE}
        if others and not removed:
            raise UserError(
                "--overwrite_output_dir replaces an earlier run. Received: "
                f"{folder}, in which none has registered "
                f"{run_folder.shown(sorted(others))}; choose another "
                "--output_dir, or drop the flag."
            )
    coordinator.from_chief(None)


def write_model_directory(output_dir: str, *contents: Any) -> None:
    """Writes the model directory of a run."""
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    with writing("The trained model", path):
        model_directory.write(path, *contents)
    logging.info("The model is in %s.", path)


def describe_checkpoints(
    output_dir: str, bert_config: BertConfig, vocabulary: Vocabulary | None
) -> None:
    """Writes bert_config.json and vocab.txt next to the checkpoints.

    So programs can read and convert the output directory like a directory of
    the original. Existing files do not change; write errors are logged.
    """
    texts = {model_directory.CONFIG_FILE: bert_config.to_json()}
    if vocabulary is not None:
        texts[model_directory.VOCAB_FILE] = vocabulary.to_text()
    for name, text in texts.items():
        path = os.path.join(output_dir, name)
        try:
            if not tf.io.gfile.exists(path):
                files.write_text(path, text)
            elif files.read_bytes(path) != text.encode():
                logging.warning(
                    "%s is not as this run would have written it; compare it "
                    "with the model card before converting checkpoints.",
                    path,
                )
        except _WRITE_ERRORS as error:
            logging.error("%s could not be written: %s", path, error)


def read_task(output_dir: str, step: int) -> dict[str, Any]:
    """Returns the task.json of the model of a step; {} without that model."""
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    if not model_directory.recognizes(path):
        return {}
    task = files.read_json(os.path.join(path, model_directory.TASK_FILE))
    return task if task.get("global_step") == step else {}


def write_results(path: str, results: Mapping[str, float | int]) -> None:
    """Writes `eval_results.txt` in the original's format, atomically.

    Each result is a line "name = value", sorted by name. As in the original,
    values that are not integers are float32 (run_pretraining.py:484-489).
    """
    lines = []
    for name in sorted(results):
        value = results[name]
        shown = value if isinstance(value, int) else np.float32(value)
        lines.append(f"{name} = {shown!s}\n")
    files.write_text(path, "".join(lines))


def print_report(
    output_dir: str,
    results: Mapping[str, Mapping[str, float]],
    commands: Sequence[str],
    notes: Mapping[str, str] | None = None,
) -> None:
    """Prints scores, files and the next commands, at the end of a run.

    `results` has the metrics of each split, `commands` have {} in place of the
    path of the model, and `notes` are other texts by title.
    """
    texts = {}
    if results:
        texts["Scores:"] = "\n".join(
            _score_line(split, metrics) for split, metrics in results.items()
        )
    for title, note in filter(all, (notes or {}).items()):
        lines = (textwrap.fill(x, 76) for x in note.splitlines())
        texts[title] = "\n".join(lines)
    names = {x.rstrip("/") for x in tf.io.gfile.listdir(output_dir)}
    files_of_run = {
        name: text
        for name, text in (
            *_FILES,
            *((f"{x}{_PREDICTIONS}", f"predictions of {x}") for x in results),
        )
        if name in names
    }
    width = max(map(len, files_of_run), default=0)
    texts[f"Files in {output_dir}:"] = "\n".join(
        f"{name:{width}}  {text}" for name, text in files_of_run.items()
    )
    model = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    lines = (x.format(shlex.quote(model)) for x in commands)
    texts["Next:"] = errors.name_programs("\n".join(lines))
    sys.stdout.write(f"\n{terminal.sections(texts)}\n")
    sys.stdout.flush()


def _score_line(split: str, metrics: Mapping[str, float]) -> str:
    text = ", ".join(
        f"{name} {value:.4g}"
        for name, value in metrics.items()
        if name != "global_step"
    )
    return textwrap.fill(
        f"{split}: {text}", 76, subsequent_indent=" " * (len(split) + 2)
    )


@contextlib.contextmanager
def writing(description: str, path: str) -> Iterator[None]:
    """Raises a `UserError` if the block cannot write to `path`."""
    try:
        yield
    except _WRITE_ERRORS as error:
        raise UserError(
            f"{description} could not be written to {path} "
            f"({errors.first_line(error)}); free some space and rerun the "
            "same command."
        ) from error


def draw_learning_curves(
    output_dir: str,
    evaluations: Sequence[Mapping[str, float]],
    panels: Sequence[reports.Panel] | None = PRETRAINING,
    title: str = "",
) -> None:
    """Draws the metrics in `output_dir` and `evaluations`, by `global_step`.

    Without `panels`, draws the `measured_panels`. If the plot cannot be
    written, an error is logged.
    """
    metrics_file = os.path.join(output_dir, training_metrics.METRICS_FILE)
    try:
        rows = training_metrics.read(metrics_file)
        prefix = training_metrics.HELD_OUT
        held_out = [
            {
                name.removeprefix(prefix): value
                for name, value in row.items()
                if name.startswith(prefix)
            }
            for row in rows
        ]
        lines = [row.get("masked_lm_frequency_loss") for row in rows]
        reports.write_learning_curves(
            os.path.join(output_dir, LEARNING_CURVES_FILE),
            panels or measured_panels(rows, evaluations),
            rows,
            [*filter(None, held_out), *evaluations],
            title,
            {"masked_lm_loss": max(filter(None, lines), default=None)},
        )
    except _WRITE_ERRORS as error:
        logging.error("The learning curves could not be written: %s", error)


def measured_panels(
    train: reports.Rows, evaluation: reports.Rows
) -> list[reports.Panel]:
    """Returns the panels for the metrics that fine-tuning measured.

    Each metric of training has a panel. After two or more evaluations, each
    evaluation metric that varies has a panel, too. SQuAD's `total`, which is
    constant, has none. If no metric varies, each evaluation metric has a panel.
    """
    panels = [
        panel
        for panel in _FINETUNING
        if any(row.get(panel[0]) is not None for row in (*train, *evaluation))
    ]
    if len(evaluation) > 1:
        names = [x for x in evaluation[-1] if x not in ("global_step", "loss")]
        varying = [
            name for name in names if len({row[name] for row in evaluation}) > 1
        ]
        panels += [
            (name, f"{name.replace('_', ' ')} on dev", 1)
            for name in varying or names
        ]
    return panels or [_FINETUNING[0]]
