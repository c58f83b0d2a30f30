"""Writes the output of a run: model directory, results and learning curves."""

import contextlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import learning_curves
from bert_tf.training import metrics as training_metrics

LEARNING_CURVES_FILE = "learning_curves.png"

# Flags of the original for TPUs, without effect.
MEANINGLESS_FLAGS = ("master", "num_tpu_cores", "tpu_zone", "gcp_project")

_WRITE_ERRORS = (OSError, tf.errors.OpError)


def write_model_directory(output_dir: str, *contents: Any) -> None:
    """Writes the model directory of a run.

    Args:
      output_dir: The run's directory.
      *contents: As for `model_directory.write`.

    Raises:
      UserError: If it could not be written.
    """
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    with writing("The trained model", path):
        model_directory.write(path, *contents)
    logging.info("The model is in %s.", path)


def describe_checkpoints(
    output_dir: str, bert_config: BertConfig, vocabulary: Vocabulary | None
) -> None:
    """Writes bert_config.json and vocab.txt next to the checkpoints.

    With them the output directory can be read and converted like the
    original's. Existing files stay; if a file cannot be written, an error is
    logged.
    """
    texts = {model_directory.CONFIG_FILE: bert_config.to_json()}
    if vocabulary is not None:
        texts[model_directory.VOCAB_FILE] = vocabulary.to_text()
    for name, text in texts.items():
        path = os.path.join(output_dir, name)
        try:
            if not tf.io.gfile.exists(path):
                files.write_text(path, text)
            elif not _has_contents(path, text):
                logging.warning(
                    "%s exists already and differs from what this run would "
                    "have written; compare it with the model card before "
                    "converting the checkpoints.",
                    path,
                )
        except _WRITE_ERRORS as error:
            logging.error("%s could not be written: %s", path, error)


def _has_contents(path: str, text: str) -> bool:
    """Returns whether a file has these contents, in any JSON formatting."""
    existing = files.read_bytes(path)
    if existing == text.encode():
        return True
    try:
        return BertConfig.from_json(existing.decode(), path) == (
            BertConfig.from_json(text, path)
        )
    except (UserError, UnicodeDecodeError):
        return False


def model_is_written(output_dir: str, step: int) -> bool:
    """Returns whether the model directory has the model of a step."""
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    if not model_directory.recognizes(path):
        return False
    task = files.read_json(os.path.join(path, model_directory.TASK_FILE))
    return task.get("global_step") == step


def write_results(path: str, results: Mapping[str, float | int]) -> None:
    """Writes `eval_results.txt` in the original's format, atomically.

    One line "name = value" per result, sorted by name; values that are not
    integers are written as float32, in which the original computes them
    (run_pretraining.py:484-489).
    """
    lines = []
    for name in sorted(results):
        value = results[name]
        shown = value if isinstance(value, int) else np.float32(value)
        lines.append(f"{name} = {shown!s}\n")
    files.write_text(path, "".join(lines))


def draw_learning_curves(
    output_dir: str,
    evaluations: Sequence[Mapping[str, float]],
    draw: Callable[..., None] = learning_curves.draw_pretraining,
    title: str = "",
) -> None:
    """Draws the metrics of `output_dir` and the evaluations.

    If the plot cannot be written, an error is logged.

    `draw` is a function of `learning_curves`; each evaluation has a
    `global_step`.
    """
    metrics_file = os.path.join(output_dir, training_metrics.METRICS_FILE)
    try:
        draw(
            os.path.join(output_dir, LEARNING_CURVES_FILE),
            training_metrics.read(metrics_file),
            evaluations,
            title,
        )
    except _WRITE_ERRORS as error:
        logging.error("The learning curves could not be written: %s", error)


@contextlib.contextmanager
def writing(description: str, path: str) -> Iterator[None]:
    """Raises a `UserError` if the block cannot write to `path`."""
    try:
        yield
    except _WRITE_ERRORS as error:
        raise UserError(
            f"{description} could not be written to {path} "
            f"({str(error).splitlines()[0]}); free some space and rerun the "
            "same command."
        ) from error


def warn_of_flags(config: Any, names: Sequence[str]) -> None:
    """Logs a warning for flags of the original that have no effect."""
    given = [name for name in names if getattr(config, name) is not None]
    if given:
        logging.warning(
            "These flags of the original have no effect: %s.",
            ", ".join(f"--{name}" for name in given),
        )
