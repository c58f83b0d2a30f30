"""What a finished pretraining run leaves: curves and the model directory."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_card
from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.data.records.manifest import Manifest
from bert_tf.errors import UserError
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.io import files
from bert_tf.pretraining.data import TextSettings
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import learning_curves
from bert_tf.training import metrics as training_metrics

LEARNING_CURVES_FILE = "learning_curves.png"

# The original's flags for TPUs of long ago.
MEANINGLESS_FLAGS = ("master", "num_tpu_cores", "tpu_zone", "gcp_project")

_WRITE_ERRORS = (OSError, tf.errors.OpError)


def describe_checkpoints(
    output_dir: str, bert_config: BertConfig, vocabulary: Vocabulary | None
) -> None:
    """Puts beside the checkpoints what they are checkpoints of.

    With bert_config.json and vocab.txt the output directory can be read and
    converted like the original's. Files that are there are left; if one cannot
    be written, the log says so.
    """
    texts = {model_directory.CONFIG_FILE: bert_config.to_json()}
    if vocabulary is not None:
        texts[model_directory.VOCAB_FILE] = vocabulary.to_text()
    for name, text in texts.items():
        path = os.path.join(output_dir, name)
        try:
            if not tf.io.gfile.exists(path):
                files.write_text(path, text)
            elif not _says(path, text):
                logging.warning(
                    "%s was there already and is not what this run would have "
                    "written; compare it with the model card before its "
                    "checkpoints are converted.",
                    path,
                )
        except _WRITE_ERRORS as error:
            logging.error("%s could not be written: %s", path, error)


def _says(path: str, text: str) -> bool:
    """Returns whether a file says the same; JSON may be laid out otherwise."""
    there = files.read_bytes(path)
    if there == text.encode():
        return True
    try:
        return BertConfig.from_json(there.decode(), path) == (
            BertConfig.from_json(text, path)
        )
    except (UserError, UnicodeDecodeError):
        return False


def draw_learning_curves(
    output_dir: str,
    evaluations: Sequence[Mapping[str, float]],
    draw: Callable[..., None] = learning_curves.draw_pretraining,
    title: str = "",
) -> None:
    """Draws the metrics of `output_dir` and the evaluations.

    If the picture cannot be written, the log says so.

    Args:
      output_dir: The folder of the run.
      evaluations: Each has a `global_step`.
      draw: Which of the pictures in `learning_curves`.
      title: What stands above it.
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


def model_is_written(output_dir: str, step: int) -> bool:
    """Returns whether the model directory holds the model of that step."""
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    if not model_directory.recognizes(path):
        return False
    task = files.read_json(os.path.join(path, model_directory.TASK_FILE))
    return task.get("global_step") == step


def write_model(
    config: PretrainConfig,
    bert_config: BertConfig,
    weights: Mapping[str, np.ndarray],
    step: int,
    text: TextSettings | None,
    card: str,
) -> None:
    """Writes the model directory, without which a run has failed.

    Args:
      config: The flags.
      bert_config: The shape of the model.
      weights: Canonical name to value.
      step: Steps the model was trained for.
      text: The vocabulary and how it is used, if known.
      card: The text of the model card.

    Raises:
      UserError: If it could not be written.
    """
    task = {
        "kind": "pretraining",
        "max_seq_length": config.max_seq_length,
        "max_predictions_per_seq": config.max_predictions_per_seq,
        "use_next_sentence": config.use_next_sentence,
        "global_step": step,
    }
    write_model_directory(
        config.output_dir,
        bert_config,
        weights,
        text.vocabulary if text else None,
        text.tokenizer_settings() if text else None,
        task,
        card,
    )


@contextlib.contextmanager
def writing(what: str, path: str) -> Iterator[None]:
    """Raises `UserError` where something cannot be written to a path."""
    try:
        yield
    except _WRITE_ERRORS as error:
        raise UserError(
            f"{what} could not be written to {path} "
            f"({str(error).splitlines()[0]}); make room and start the same "
            "command again."
        ) from error


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


def write_card(
    config: PretrainConfig,
    step: int,
    record_files: Sequence[str],
    manifest: Manifest | None,
    results: Mapping[str, float] | None,
    devices: Mapping[str, Any],
) -> str:
    """Returns the text of the model card."""
    flags = dataclasses.asdict(config)
    data: dict[str, Any] = {"record files": ", ".join(record_files)}
    if manifest:
        data["manifest"] = manifest.source
        data["documents"] = manifest.num_documents
    return model_card.build(
        "A pretrained BERT",
        "A BERT with its pretraining heads, trained for "
        f"{step} steps with run/pretrain.py of bert_tf.",
        {
            "Training data": data,
            "Flags": {k: v for k, v in flags.items() if v is not None},
            "Devices of the last steps": dict(devices),
            "Metrics": dict(results or {}),
        },
        'python run/fill_mask.py --model_dir=. --text="The [MASK] is here."',
    )


def warn_of_flags(config: Any, names: Sequence[str]) -> None:
    """Names the flags of the original that were given and mean nothing now."""
    given = [name for name in names if getattr(config, name) is not None]
    if given:
        logging.warning(
            "Flags of the original that mean nothing now: %s.",
            ", ".join(f"--{name}" for name in given),
        )
