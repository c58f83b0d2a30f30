"""Removes an earlier run's output from --output_dir: --overwrite_output_dir."""

import dataclasses
import os
import re
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.io import files

# Files that training, evaluation and prediction write.
_FILES = re.compile(
    r"model\.ckpt-\d+\..+|checkpoint|train_metrics\.jsonl|learning_curves\.png"
    r"|eval_results\.(txt|json)|runs\.txt|(dev|test)\w*_predictions\.\w+"
    r"|(\w+_)?(nbest_)?predictions\.json|(\w+_)?null_odds\.json"
    r"|test(_\w+)?_results\.tsv|(\w+_)?(confusion_matrix|label_scores"
    r"|score_scatter|entity_scores)\.(png|txt)|not_finite_batch_\d+\.npz"
)
_TRIAL = re.compile(r"rate_.+_seed_\d+")
# Folders of a run, each with the names of which one is in it.
_FOLDERS = {
    model_directory.MODEL_FOLDER: re.compile(
        re.escape(model_directory.CHECKSUMS_FILE)
    ),
    "best": _FILES,
    "summaries": re.compile("train|eval|events.+"),
    "triviaqa": re.compile(r"conversion\.json"),
}
# Copies of files in the model directory, beside the checkpoints.
_COPIES = (model_directory.CONFIG_FILE, model_directory.VOCAB_FILE)
_NAMES_SHOWN = 5


def start_over(config: Any, coordinator: Coordinator) -> None:
    """Removes the output of an earlier run, if --overwrite_output_dir is set.

    Only checkpoints, model, results, predictions, plots and metrics are
    removed, as this project writes them; other files stay. All workers wait.

    Args:
      config: The flags of a training script.
      coordinator: The workers; the chief removes.

    Raises:
      UserError: If the folder has other files alone, or if one of the flags
        names a path that would be removed.
    """
    if not (config.overwrite_output_dir and config.do_train):
        return
    if coordinator.is_chief:
        _remove_run(config)
    coordinator.from_chief(None)


def _remove_run(config: Any) -> None:
    folder = config.output_dir
    if not tf.io.gfile.isdir(folder):
        return
    found = _find(folder)
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    # The log of this run may be there already.
    others = [x for x in names if x not in ("train.log", "record_counts.json")]
    if others and not found:
        raise UserError(
            f"--overwrite_output_dir replaces an earlier run. Received: "
            f"{folder}, which has no output of one, but "
            f"{_shown(sorted(others))}; choose another --output_dir, or drop "
            "the flag."
        )
    _check_inputs(config, found)
    for path in found:
        if tf.io.gfile.isdir(path):
            tf.io.gfile.rmtree(path)
        else:
            tf.io.gfile.remove(path)
    if found:
        shown = _shown([os.path.relpath(path, folder) for path in found])
        logging.info("Starting over: removed %s from %s.", shown, folder)


def _find(folder: str) -> list[str]:
    """Returns the files and folders of an earlier run, sorted."""
    found = []
    for name in sorted(x.rstrip("/") for x in tf.io.gfile.listdir(folder)):
        path = os.path.join(folder, name)
        if not tf.io.gfile.isdir(path):
            if _FILES.fullmatch(name) or _is_copy(folder, name):
                found.append(path)
            continue
        inner = [x.rstrip("/") for x in tf.io.gfile.listdir(path)]
        if name == "runs":
            trials = filter(_TRIAL.fullmatch, inner)
            found += [os.path.join(path, x) for x in sorted(trials)]
        elif name in _FOLDERS and any(map(_FOLDERS[name].fullmatch, inner)):
            found.append(path)
    return found


def _is_copy(folder: str, name: str) -> bool:
    """Returns True for a copy of a file in the model directory."""
    path = os.path.join(folder, model_directory.MODEL_FOLDER, name)
    return (
        name in _COPIES
        and files.is_file(path)
        and files.read_bytes(path)
        == files.read_bytes(os.path.join(folder, name))
    )


def _check_inputs(config: Any, found: list[str]) -> None:
    """Raises `UserError` if a path of the flags would be removed."""
    removed = {os.path.realpath(path): path for path in found}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not field.metadata["reads"] or not value:
            continue
        for path in value.split(","):
            above = os.path.realpath(path)
            while above not in removed and above != os.path.dirname(above):
                above = os.path.dirname(above)
            # Also the prefix of a checkpoint.
            prefix = os.path.realpath(path) + "."
            if above in removed or any(x.startswith(prefix) for x in removed):
                raise UserError(
                    f"--overwrite_output_dir would remove --{field.name}="
                    f"{path}; choose another --output_dir."
                )


def _shown(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    text = ", ".join(names[:_NAMES_SHOWN])
    return f"{text} and {more} more" if more > 0 else text
