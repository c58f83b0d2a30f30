"""Removes an earlier data set of the same name: --overwrite_output_dir."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.data.generators import streaming
from bert_tf.data.records import manifest
from bert_tf.data.records import report
from bert_tf.errors import UserError
from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.io import files


def start_over(
    config: CreatePretrainingDataConfig, names: Sequence[str], work_dir: str
) -> None:
    """Removes what an earlier run wrote under the names of the output.

    These are the records that its manifest or its unfinished work lists, the
    manifest, the report, the copy of the vocabulary, and the work folder. A
    file that neither of them lists stays.

    Args:
      config: The flags.
      names: The names in --output_file.
      work_dir: The folder of an unfinished run with these names.

    Raises:
      UserError: If one of the flags names a file that would be removed, or if
        another process uses the work folder.
    """
    recipe_file = os.path.join(work_dir, "recipe.json")
    is_unfinished = tf.io.gfile.exists(recipe_file)
    found = []
    for name in names:
        stored = _read_manifest(manifest.manifest_path(name))
        if stored:
            found += manifest.record_paths(name, stored["files"])
            found += [
                manifest.manifest_path(name),
                manifest.vocabulary_path(name),
                *report.paths(name),
            ]
        if is_unfinished:
            num_shards = files.read_json(recipe_file)["flags"]["num_shards"]
            found += manifest.record_files(name, num_shards)
    found = [x for x in dict.fromkeys(found) if tf.io.gfile.exists(x)]
    _check_inputs(config, found)
    is_local = "://" not in work_dir
    with contextlib.ExitStack() as stack:
        if is_unfinished and is_local:
            stack.enter_context(streaming.locked(work_dir))
        for path in found:
            tf.io.gfile.remove(path)
        if is_unfinished:
            tf.io.gfile.rmtree(work_dir)
            found.append(work_dir)
    if found:
        logging.info("Starting over: removed %s.", ", ".join(found))


def _read_manifest(path: str) -> dict[str, Any] | None:
    """Returns a manifest of any version of this project, or None."""
    values = files.read_json(path) if tf.io.gfile.exists(path) else None
    is_ours = isinstance(values, dict) and values.get("format") == (
        manifest.FORMAT
    )
    return values if is_ours and isinstance(values.get("files"), dict) else None


def _check_inputs(
    config: CreatePretrainingDataConfig, found: Sequence[str]
) -> None:
    """Raises `UserError` if a file that the flags name would be removed."""
    inputs = {config.vocab_file: "vocab_file"}
    for path in files.expand_globs(config.input_file):
        inputs[path] = "input_file"
    removed = set(map(os.path.realpath, found))
    for path, flag in inputs.items():
        if os.path.realpath(path) in removed:
            raise UserError(
                f"--overwrite_output_dir would remove --{flag}={path}; choose "
                "another --output_file, or give a copy of the file."
            )
