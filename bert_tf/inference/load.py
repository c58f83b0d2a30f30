"""Builds a Keras model from a stored model."""

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.modeling import bert
from bert_tf.modeling.bert import BertForPretraining
from bert_tf.modeling.bert import BertModel
from bert_tf.modeling.heads import require_names
from bert_tf.modeling.task_models import BertForClassification
from bert_tf.modeling.task_models import BertForMultipleChoice
from bert_tf.modeling.task_models import BertForQuestionAnswering
from bert_tf.modeling.task_models import BertForTagging

_MODELS = {
    "encoder": BertModel,
    "pretraining": BertForPretraining,
    "masked_lm": BertForPretraining,
    "next_sentence": BertForPretraining,
    "classification": BertForClassification,
    "question_answering": BertForQuestionAnswering,
    "tagging": BertForTagging,
    "multiple_choice": BertForMultipleChoice,
}
_WITH_LABELS = ("classification", "tagging")
# Values of `new_parts`.
_PARTS = ("head", "pooler")


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
      kind: As for `bert_tf.load_model`, like the arguments below.
      labels: Names of the labels.
      num_labels: The number of labels.
      new_parts: Parts to initialize randomly.
      num_new_layers: Number of encoder layers to initialize randomly, from the
        top.
      as_class: Returns the class to build in place of that of `modeling`.
      **kwargs: Arguments of the model's constructor.

    Raises:
      UserError: If the weights do not match the configuration, or the
        arguments do not fit the model.
    """
    chosen = stored.task["kind"] if kind is None else kind
    _check(chosen, labels, num_labels, new_parts)
    skipped = set(weight_map.HEADS[chosen]) if "head" in new_parts else set()
    skipped |= {weight_map.POOLER} if "pooler" in new_parts else set()
    weights = stored.weights.select(
        lambda name: weight_map.part_of(name) not in skipped
    )
    kwargs = _choose_head(stored, weights, chosen, kwargs)
    if chosen in _WITH_LABELS:
        kwargs |= _choose_labels(stored, weights, chosen, labels, num_labels)
    model = as_class(_MODELS[chosen])(stored.config, **kwargs)
    layers = stored.config.num_hidden_layers
    new_layers = tuple(
        f"bert/encoder/layer_{number}/"
        for number in range(layers - num_new_layers, layers)
    )
    initial = [
        (variable, keras.ops.convert_to_numpy(variable))
        for name, variable in bert.named_variables(model).items()
        if name.startswith(new_layers)
    ]
    report = checkpoint_loading.load_weights(
        model, dataclasses.replace(stored, weights=weights)
    )
    for variable, value in initial:
        variable.assign(value)
    new = skipped if kind is None else skipped.union(weight_map.HEADS[kind])
    if chosen in huggingface.WITHOUT_POOLER:
        new = new.union({weight_map.POOLER, weight_map.NEXT_SENTENCE})
    missing = {weight_map.part_of(x) for x in report.missing} - new
    if missing:
        logging.warning(
            "%s has no %s: this part is initialized randomly, so train the "
            "model before you use its outputs.",
            stored.path,
            ", ".join(sorted(missing)),
        )
    return model


def _check(kind, labels, num_labels, new_parts) -> None:
    if kind not in _MODELS:
        raise UserError(
            f"The kind of a model is one of {', '.join(_MODELS)}. Received: "
            f"{kind!r}."
        )
    if kind not in _WITH_LABELS and (labels, num_labels) != (None, None):
        raise UserError(
            f"Only models for {' and '.join(_WITH_LABELS)} have labels; set "
            f"`kind` to one of these. Received: labels for {kind!r}."
        )
    if isinstance(new_parts, str) or not set(new_parts) <= set(_PARTS):
        raise UserError(
            f"Expected new_parts to be a list of {' and '.join(_PARTS)}. "
            f"Received: {new_parts!r}."
        )


def _choose_head(
    stored: StoredModel, weights: Tensors, kind: str, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns `kwargs` with the arguments of the stored head."""
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

    def count(shapes):
        return next(
            (
                shape[0]
                for name, shape in shapes.items()
                if weight_map.part_of(name) in weight_map.HEADS[kind]
                and name.endswith("output_bias")
            ),
            None,
        )

    require_names(labels)
    expected = num_labels if labels is None else len(labels)
    loaded, available = count(weights.shapes), count(stored.weights.shapes)
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
