"""Reads files of run/serve.py before TensorFlow is imported."""

import glob
import itertools
import os
from collections.abc import Iterable

from absl import logging

from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.io import tables
from bert_tf.io import terminal
from bert_tf.serving import model_config
from bert_tf.serving.model_config import ModelConfig
from bert_tf.tasks.embeddings.examples import EmbeddingsFiles

_CARD = os.path.join("assets.extra", "model_card.json")
_PACKED = "bfloat16"
# A .txt file counts as wrapped if no line exceeds `_MAX_CHARACTERS`, and if on
# average a blank line follows `_MAX_LINES` lines (256 tokens) or fewer.
_MAX_CHARACTERS, _MAX_LINES = 100, 20


def check(config: ServeConfig) -> None:
    """Checks the files of flags before models are loaded, which takes long.

    Raises:
      UserError: If a file cannot be used.
    """
    # Import late: export scripts import this module, and may lack Starlette.
    from bert_tf.serving import access

    access.read_tls(config)
    if config.api_key_file:
        access.ApiKeys(config.api_key_file)
    if config.model_config_file:
        for model in model_config.of_flags(config):
            model_config.check_base_path(model, lambda path: "")
    patterns = config.search_file or ""
    found = [
        path
        for pattern in map(str.strip, patterns.split(","))
        for path in glob.iglob(pattern, include_hidden=True)
        if not os.path.isdir(path)
    ]
    # The server reads remote files with TensorFlow, and a pipe only once, so
    # their texts are checked when the model is loaded.
    if not found or paths.is_remote(patterns):
        return
    if all(map(os.path.isfile, found)):
        with terminal.below(logging.WARNING):
            read_texts(patterns, found)


def read_texts(patterns: str, found: Iterable[str]) -> list[dict[str, str]]:
    """Returns the texts of --search_file, each with its place in its file.

    A text is a row or a line; in a wrapped .txt file, it is a paragraph.

    Args:
      patterns: The value of the flag.
      found: The files that match the patterns.

    Raises:
      UserError: If a file is no table of texts, or there is no text.
    """
    texts = []
    for path in found:
        rows = list(EmbeddingsFiles().read_inputs(path, keep_empty=True))
        runs = itertools.groupby(rows, lambda x: bool(x.text_a.strip()))
        paragraphs = [[*run] for has_text, run in runs if has_text]
        groups = [[row] for row in itertools.chain(*paragraphs)]
        if (
            tables.file_ending(path) == ".txt"
            and len(groups) <= _MAX_LINES * (len(paragraphs) - 1)
            and all(len(x.text_a.strip()) <= _MAX_CHARACTERS for x in rows)
        ):
            text = "%s has a blank line for each %d short lines or fewer: each "
            logging.info(text + "paragraph is a text.", path, _MAX_LINES)
            groups = paragraphs
        for group in groups:
            text = " ".join(row.text_a.strip() for row in group)
            texts.append({"text": text, "place": group[0].guid})
    if not texts:
        raise UserError(f"--search_file={patterns} has no text.")
    return texts


def read_precision(directory: str) -> str | None:
    """Returns the precision in a version's model card; None if it has none.

    Servers load any SavedModel, so a missing or bad model card is no error.
    """
    card = stored_files.peek_object(os.path.join(directory, _CARD))
    export = card.get("export")
    return export.get("precision") if isinstance(export, dict) else None


def pack_weights(config: ServeConfig) -> None:
    """Makes TensorFlow pack weights if all newest versions are in bfloat16.

    This function must be called before TensorFlow is imported.

    Raises:
      UserError: If --model_config_file is invalid.
    """
    if config.engine != "savedmodel":
        return
    models = model_config.of_flags(config)
    # Without a model, do not pack: packing would slow a later float32 model.
    if models and all(_newest(model) == _PACKED for model in models):
        packed_weights.assume()


def report_precision(name: str, version: int, directory: str) -> None:
    """Logs a version that packed weights make slower."""
    precision = read_precision(directory)
    if packed_weights.are_assumed() and precision != _PACKED:
        logging.info(
            "Version %d of model %s is not marked bfloat16 (precision: %s), "
            "and slower than by itself: this server packs weights for bfloat16 "
            "(%s=1).",
            version,
            name,
            precision or "unknown",
            packed_weights.VARIABLE,
        )


def _newest(model: ModelConfig) -> str | None:
    """Returns the precision of the newest version to serve; None if unknown."""
    if paths.is_remote(model.base_path):
        return None  # A remote path needs TensorFlow, not imported yet.
    try:
        versions = model_config.find_versions(model.base_path)
    except (OSError, ValueError):
        return None  # The server reports the error later.
    served = model.policy.choose(versions)
    return read_precision(versions[max(served)]) if served else None
