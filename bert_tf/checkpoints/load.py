"""Loads stored weights into models: reads, checks, builds and assigns."""

import dataclasses
import os
from collections.abc import Iterable
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import names
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model

# Fields of the config that do not change weights or outputs.
_FREE = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
)


def read(
    path: str, config: BertConfig | None = None, flag: str = "--init_checkpoint"
) -> StoredModel:
    """Reads a model of any format, to initialize another model from it.

    Args:
      path: A path for `formats.read` or, if `config` is given, a checkpoint of
        TensorFlow 1 without bert_config.json beside it.
      config: The shape of the model to initialize; by default the stored one.
      flag: The flag that `path` came from, for the error.

    Raises:
      UserError: If there is no model, it is damaged, or not the model that
        `config` describes.
    """
    path = names.resolve(path)
    weights_format = formats.detect(path)
    if weights_format == "tf1" and config is not None:
        prefix = tf1_checkpoint.find_prefix(path)
        folder = os.path.dirname(prefix)
        if not tf.io.gfile.exists(
            os.path.join(folder, model_directory.CONFIG_FILE)
        ):
            # The original has a separate flag for the config.
            weights, state, report = tf1_checkpoint.read_weights(prefix, config)
            return StoredModel(
                path=prefix,
                config=config,
                weights=weights,
                vocabulary=None,
                tokenizer_settings=None,
                task={"kind": weight_map.kind_of(weights)},
                optimizer_state=state,
                report=report,
            )
    stored = formats.read(path, weights_format)
    if config is not None:
        _check_config(stored, config, flag)
    return stored


def check_vocabulary(
    stored: StoredModel,
    vocabulary_hash: str | None,
    source: str,
    allow_change: bool = False,
) -> None:
    """Compares the vocabularies of a stored model and of training data.

    Args:
      stored: The stored model.
      vocabulary_hash: Hash of the data's vocabulary, or None if unknown.
      source: The data, for the error.
      allow_change: Whether to only log a difference.

    Raises:
      UserError: If they differ, as ids would then mean other tokens.
    """
    if stored.vocabulary is None or vocabulary_hash is None:
        return
    if stored.vocabulary.hash == vocabulary_hash:
        return
    difference = (
        f"The vocabulary of the model in {stored.path} has the hash "
        f"{stored.vocabulary.hash}, and that of {source} {vocabulary_hash}"
    )
    if not allow_change:
        raise UserError(
            f"{difference}; use the model's vocabulary for the data too, or "
            "add --allow_changed_data if ids mean the same tokens."
        )
    logging.warning("%s, as allowed.", difference)


def load_weights(model: keras.Model, stored: StoredModel) -> "LoadReport":
    """Assigns stored weights to a model of `bert_tf.modeling`; logs a report.

    A head may be missing on either side as a whole: a new head keeps its
    initial values.

    Raises:
      UserError: If the weights do not fit; then no weight is changed.
    """
    report = load_into(model, stored.weights, stored.path)
    logging.info("%s: %s.", stored.path, report)
    for note in stored.report.notes:
        logging.info("%s: %s", stored.path, note)
    return report


def _check_config(stored: StoredModel, config: BertConfig, flag: str) -> None:
    differing = [
        field.name
        for field in dataclasses.fields(BertConfig)
        if field.name not in _FREE
        and getattr(stored.config, field.name) != getattr(config, field.name)
    ]
    if not differing:
        return
    clauses = [
        f"{name} is {getattr(stored.config, name)!r} there and "
        f"{getattr(config, name)!r} here"
        for name in differing
    ]
    if "hidden_act" in differing:
        clauses.append(
            'here, as in the original, "gelu" is the tanh form and "gelu_erf" '
            'the exact one, which Hugging Face calls "gelu"'
        )
    raise UserError(
        f"The model in {flag}={stored.path} is not the one that "
        f"--bert_config_file describes: {'; '.join(clauses)}; use the "
        "configuration that belongs to the weights."
    )


# === Models in memory ===


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Canonical names of the weights that were loaded, missing or unused.

    Attributes:
      loaded: Weights of the model that got a value.
      missing: Weights of heads that keep their initial values.
      unused: Tensors of heads that the model does not have, and optimizer
        state.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        slots = [x for x in self.unused if weight_map.is_optimizer_state(x)]
        others = [x for x in self.unused if x not in set(slots)]
        parts = [f"loaded {len(self.loaded)} weights"]
        if self.missing:
            parts.append(f"new: {', '.join(self.missing)}")
        else:
            parts[0] += ", all of the model's"
        if others:
            reason = "not needed, as this model has no such part"
            parts.append(f"{reason}: {', '.join(others)}")
        if slots:
            parts.append(f"not needed: {len(slots)} tensors of the optimizer")
        return "; ".join(parts)


def load_into(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    source: str = "the checkpoint",
    expected_missing: Iterable[str] = (),
    expected_unused: Iterable[str] = (),
) -> LoadReport:
    """Assigns tensors to the model's weights of the same canonical name.

    A head may be missing on either side as a whole; optimizer state is
    ignored. Every other difference is an error, and then no weight is changed.

    Args:
      model: A model of `bert_tf.modeling`.
      tensors: Canonical name to value.
      source: The name of the tensors in an error, for instance a path.
      expected_missing: Further weights that need not be in `tensors`.
      expected_unused: Further tensors that need not be in `model`.

    Raises:
      UserError: Listing everything unmatched, missing or of another shape.
    """
    variables = bert_model.named_variables(model)
    # Those of `Tensors` are known before they are read.
    shapes = getattr(tensors, "shapes", None)
    if shapes is None:
        shapes = {name: np.shape(value) for name, value in tensors.items()}
    missing = [name for name in variables if name not in tensors]
    unused = [name for name in tensors if name not in variables]
    # Parts may be missing as a whole, except for the encoder.
    stored = {weight_map.ENCODER, *map(weight_map.part_of, tensors)}
    built = {weight_map.ENCODER, *map(weight_map.part_of, variables)}
    lacks = {n for n in missing if weight_map.part_of(n) in stored}
    has = {
        name
        for name in unused
        if not weight_map.is_optimizer_state(name)
        and weight_map.head_of(name) in {None, *built}
    }
    misshapen = {
        f"{name} {shapes[name]}, expected {tuple(variable.shape)}"
        for name, variable in variables.items()
        if name in tensors and shapes[name] != tuple(variable.shape)
    }
    problems = {
        "lacks": lacks - set(expected_missing),
        "also has": has - set(expected_unused),
        "has in another shape": misshapen,
    }
    if any(problems.values()):
        listed = "; ".join(
            f"it {verb} {', '.join(sorted(names))}"
            for verb, names in problems.items()
            if names
        )
        raise UserError(f"{source} does not fit the model: {listed}.")
    loaded = [name for name in variables if name in tensors]
    for name in loaded:
        variables[name].assign(tensors[name])
    return LoadReport(tuple(loaded), tuple(missing), tuple(unused))
