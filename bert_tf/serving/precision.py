"""Reads the precision of exports, and packs weights if it is bfloat16."""

import os

from absl import logging

from bert_tf.distribute import packed_weights
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.serving import model_config
from bert_tf.serving.model_config import ModelConfig

_CARD = os.path.join("assets.extra", "model_card.json")
_PACKED = "bfloat16"


def read(directory: str) -> str | None:
    """Returns the precision in a version's model card; None if it has none.

    Servers load any SavedModel, so a missing or bad model card is no error.
    """
    path = os.path.join(directory, _CARD)
    try:
        with open(stored_files.require(path), "rb") as file:
            card = stored_files.parse_json(file.read(), path)
        return card["export"]["precision"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


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


def report(name: str, version: int, directory: str) -> None:
    """Logs a version that packed weights make slower."""
    precision = read(directory)
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
    return read(versions[max(served)]) if served else None
