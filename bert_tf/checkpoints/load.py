"""Loads stored weights into models: reads, checks, builds and assigns."""

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import matching
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import names
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.checkpoints.matching import Report
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.errors import require_choice
from bert_tf.io import files
from bert_tf.io import terminal
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import layers as bert_layers
from bert_tf.modeling import task_models
from bert_tf.modeling.bert import BertForPretraining
from bert_tf.modeling.bert import BertModel

MODELS = {
    "encoder": BertModel,
    "pretraining": BertForPretraining,
    "masked_lm": BertForPretraining,
    "next_sentence": BertForPretraining,
    "classification": task_models.BertForClassification,
    "question_answering": task_models.BertForQuestionAnswering,
    "tagging": task_models.BertForTagging,
    "multiple_choice": task_models.BertForMultipleChoice,
    "embeddings": task_models.BertForEmbeddings,
}
_PARTS = ("head", "pooler")  # The values that `new_parts` may have.
# Fields in which the configs may differ, as they change no shape or prediction.
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
      config: The config of the model to initialize; by default as stored.
      flag: The flag that gave `path`, for error messages.

    Raises:
      UserError: If `path` names no model, or the model is damaged or has
        another config.
    """
    path = names.resolve(path)
    if config is not None and formats.detect(path) == "tf1":
        prefix = tf1_checkpoint.find_prefix(path)
        folder = os.path.dirname(prefix)
        if not files.exists(os.path.join(folder, model_directory.CONFIG_FILE)):
            # As in the original, `config` may replace a missing config file.
            return tf1_checkpoint.read_without_texts(prefix, config)
    stored = formats.read(path)
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

    `source` names the data in the error. An unknown vocabulary is not compared.

    Raises:
      UserError: If the vocabularies differ; with `allow_change`, only a warning
        is logged.
    """
    own_hash = stored.vocabulary and stored.vocabulary.hash
    if None in (own_hash, vocabulary_hash) or own_hash == vocabulary_hash:
        return
    difference = (
        f"The vocabulary of the model in {stored.path} has the hash "
        f"{own_hash}, and that of {source} {vocabulary_hash}"
    )
    if not allow_change:
        raise UserError(
            f"{difference}; use the model's vocabulary for the data too, or "
            "add --allow_changed_data if ids mean the same tokens."
        )
    logging.warning("%s, as allowed.", difference)


def load_weights(model: keras.Model, stored: StoredModel) -> Report:
    """Assigns stored weights to a model of `bert_tf.modeling`; logs a report.

    The model or `stored` may lack a whole head. A head that `stored` lacks
    keeps its initial values.

    Raises:
      UserError: If the weights do not fit the model; then no weight changes.
    """
    report = load_into(model, stored.weights, stored.path)
    terminal.detail("%s: %s.", stored.path, report)
    for note in stored.report.notes:
        terminal.detail("%s: %s", stored.path, note)
    logging.info(
        "Model: %s, %d layers of width %d, %s parameters.",
        stored.path,
        stored.config.num_hidden_layers,
        stored.config.hidden_size,
        f"{model.count_params():,}",
    )
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


def build_model(
    stored: StoredModel,
    kind: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    num_labels: int | None = None,
    new_parts: Collection[str] = (),
    num_new_layers: int = 0,
    as_class: Callable[[type], type] = lambda cls: cls,
    **kwargs: Any,
) -> keras.Model:
    """Builds a model and loads its weights, one at a time.

    Args:
      stored: The result of `formats.read`.
      kind: As for `bert_tf.load_model`, like the next three arguments.
      labels: Names of the labels.
      num_labels: The number of labels.
      new_parts: Parts to initialize randomly.
      num_new_layers: How many of the top encoder layers to initialize randomly.
      as_class: Maps a class of `bert_tf.modeling` to the class to build.
      **kwargs: Arguments of the model's constructor.

    Raises:
      UserError: If the weights do not match the configuration, or the
        arguments do not fit the model.
    """
    chosen = stored.task["kind"] if kind is None else kind
    _check_arguments(chosen, labels, num_labels, new_parts)
    skipped = set(weight_map.HEADS[chosen]) if "head" in new_parts else set()
    skipped |= {weight_map.POOLER} if "pooler" in new_parts else set()
    weights = stored.weights.select(
        lambda name: weight_map.part_of(name) not in skipped
    )
    if chosen in huggingface.LABELLED:
        kwargs |= _choose_labels(stored, weights, chosen, labels, num_labels)
    kwargs = _choose_head(stored, weights, chosen, kwargs)
    with bert_layers.without_initial_values():
        model = as_class(MODELS[chosen])(stored.config, **kwargs)
    report = load_weights(model, dataclasses.replace(stored, weights=weights))
    layers = stored.config.num_hidden_layers
    new_layers = tuple(
        f"bert/encoder/layer_{number}/"
        for number in range(layers - num_new_layers, layers)
    )
    for name, variable in bert_model.named_variables(model).items():
        is_new = name.startswith(new_layers)
        if is_new or name in report.missing:
            bert_layers.initialize(variable, anew=is_new)
    new = skipped if kind is None else skipped.union(weight_map.HEADS[kind])
    if chosen in (*huggingface.WITHOUT_POOLER, "embeddings"):
        new = new.union({weight_map.POOLER, weight_map.NEXT_SENTENCE})
    if kwargs.get("pooling"):
        new = new.union({weight_map.POOLER})  # Unused, so give no warning.
    if missing := weight_map.parts_of(report.missing) - new:
        logging.warning(
            "%s has no %s: this part is initialized randomly, so train the "
            "model before you use its outputs.",
            stored.path,
            ", ".join(sorted(missing)),
        )
    return model


def advise_new_pooler(
    stored: StoredModel,
    model: keras.Model,
    new_parts: Collection[str],
    remedy: str,
) -> str:
    """Returns advice if a head reads a pooler that was never trained, else "".

    sentence-transformers pools tokens, but keeps a pooler that it never uses.
    """
    is_read = getattr(model, "reads_pooler", False) and (
        "pooler" not in new_parts
        and weight_map.POOLER in weight_map.parts_of(stored.weights)
    )
    if not is_read or not stored.task.get("pooling"):
        return ""
    return (
        f"The head reads the pooler of {stored.path}, a model for embeddings "
        f"that never trained its pooler; {remedy} makes a new pooler, which "
        "usually scores better."
    )


def _check_arguments(kind, labels, num_labels, new_parts) -> None:
    require_choice("kind", kind, MODELS)
    labelled = huggingface.LABELLED
    if kind not in labelled and (labels, num_labels) != (None, None):
        raise UserError(
            f"Only models for {' and '.join(labelled)} have labels; set `kind` "
            f"to one of these. Received: labels for {kind!r}."
        )
    if isinstance(new_parts, str) or not set(new_parts) <= set(_PARTS):
        raise UserError(
            f"Expected new_parts to be a list of {' and '.join(_PARTS)}. "
            f"Received: {new_parts!r}."
        )


def _choose_head(
    stored: StoredModel, weights: Tensors, kind: str, kwargs: dict[str, Any]
) -> dict[str, Any]:
    task = stored.task if stored.task["kind"] == kind else {}
    arguments = recurrent_heads.arguments(task, kind, weights.shapes)
    for name, value in arguments.items():
        actual = kwargs.get(name)
        if actual not in (None, value):
            raise UserError(
                f"The head in {stored.path} has {name}={value!r}. Received: "
                f'{actual!r}; make a new head with new_parts=["head"], or '
                "drop the argument."
            )
    return kwargs | arguments


def _choose_labels(
    stored: StoredModel,
    weights: Tensors,
    kind: str,
    labels: Sequence[str] | None,
    num_labels: int | None,
) -> dict[str, Any]:
    """Returns the arguments `labels` and `num_labels` of a model's head."""
    expected = num_labels if labels is None else len(labels)
    loaded, available = (
        stored_model.num_labels(kind, stored.config, x)
        for x in (weights, stored.weights)
    )
    if expected is None and available is None:
        raise UserError(
            f"{stored.path} has no head for {kind}, so the new one needs its "
            "labels: give labels=[...], or num_labels."
        )
    if None not in (expected, loaded) and expected != loaded:
        raise UserError(
            f"The head in {stored.path} has {loaded} labels. Received: "
            f'{expected}; make a new head with new_parts=["head"], or give '
            f"{loaded} labels."
        )
    same_kind = stored.task["kind"] == kind
    if labels is None and same_kind and expected in (None, loaded):
        labels = stored.task.get("labels")
    return {
        "labels": labels,
        "num_labels": num_labels or expected or available,
    }


def load_into(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    source: str = "the checkpoint",
) -> Report:
    """Assigns tensors to the model's weights of the same canonical name.

    The model or `tensors` may lack a whole head. Optimizer state is ignored.
    Any other difference is an error, which is raised before any weight changes.

    Args:
      model: A model of `bert_tf.modeling`.
      tensors: Canonical name -> value.
      source: Where the tensors come from, for instance a path; errors name it.

    Returns:
      A report. Its `missing` weights belong to heads that `tensors` lacks; they
      keep their initial values. Its `unused` tensors belong to the optimizer or
      to heads that the model lacks.

    Raises:
      UserError: If any other tensor is missing or unused, or of another shape.
    """
    variables = bert_model.named_variables(model)
    # Shapes are known without reading tensors, so check them first.
    shapes = Tensors.from_arrays(tensors).shapes
    missing = [name for name in variables if name not in tensors]
    unused = [name for name in tensors if name not in variables]
    # A whole head may be missing or unused, but never the encoder.
    stored = weight_map.parts_of(tensors) | {weight_map.ENCODER}
    built = weight_map.parts_of(variables) | {weight_map.ENCODER}
    matching.refuse(
        f"{source} does not fit the model",
        [n for n in missing if weight_map.part_of(n) in stored],
        [
            name
            for name in unused
            if not weight_map.is_optimizer_state(name)
            and weight_map.head_of(name) in {None, *built}
        ],
        {name: tuple(x.shape) for name, x in variables.items()},
        shapes,
    )
    loaded = [name for name in variables if name in tensors]
    for name in loaded:
        variables[name].assign(tensors[name])
    return Report(tuple(loaded), missing=tuple(missing), unused=tuple(unused))
