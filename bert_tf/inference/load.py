"""Loads a trained model, and its tokenizer, from wherever they lie."""

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.modeling.bert import BertForPretraining
from bert_tf.modeling.bert import BertModel
from bert_tf.modeling.task_models import BertForClassification
from bert_tf.modeling.task_models import BertForMultipleChoice
from bert_tf.modeling.task_models import BertForQuestionAnswering
from bert_tf.modeling.task_models import BertForTagging
from bert_tf.tasks import registry
from bert_tf.tasks.row_predictor import RowPredictor
from bert_tf.text.tokenizer import BertTokenizer

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
# What `new_parts` may name.
_PARTS = ("head", "pooler")


def load_model(
    path: str,
    kind: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    num_labels: int | None = None,
    new_parts: Collection[str] = (),
    **kwargs: Any,
) -> keras.Model:
    """Returns the model that lies at `path`, whatever its format.

    A model of another kind is that model's encoder and a new head, ready for
    fine-tuning.

    Args:
      path: A model directory, a Hugging Face directory, a KerasHub preset, or
        a checkpoint of the original or of the Model Garden: its directory or
        its prefix, with its configuration in the same directory.
      kind: Which model to build: "encoder", "pretraining", "classification",
        "question_answering", "tagging" or "multiple_choice"; by default the
        one that was stored.
      labels: Names of the labels of a new head for classification or tagging.
      num_labels: Their number, where they have no names.
      new_parts: What begins anew even though it was stored: "head", "pooler".
      **kwargs: For the model's constructor, for instance
        `return_all_layers=True` or `dtype="mixed_bfloat16"`.

    Returns:
      A `BertModel`, `BertForPretraining`, `BertForClassification`,
      `BertForQuestionAnswering`, `BertForTagging` or `BertForMultipleChoice`.
      All but the first have the encoder in `bert`, and those for
      classification and tagging the names of the labels, or None, in `labels`.
      The `predict` of those with the head of a task takes also a list of raw
      rows, such as texts, and returns what run/predict.py writes for them.

    Raises:
      UserError: If there is no model, it is damaged, its weights are not
        those that its configuration asks for, or the arguments do not fit it.

    Example:
      >>> model = load_model("uncased_L-12_H-768_A-12", "classification",
      ...                    labels=["negative", "positive"])
      >>> load_model("output/sst-2/model").predict(["A fine film."])
      [{'label': '1', 'probability': 0.99, 'probabilities': {...}}]
    """
    return build_model(
        formats.read(path),
        kind,
        labels=labels,
        num_labels=num_labels,
        new_parts=new_parts,
        **kwargs,
    )


def load_tokenizer(
    path: str, preserve_special_tokens: bool | None = None
) -> BertTokenizer:
    """Returns the tokenizer of the model that lies at `path`.

    Args:
      path: As for `load_model`.
      preserve_special_tokens: Whether [MASK] and its like, typed in a text,
        stay whole; by default as it was stored.

    Raises:
      UserError: If there is no model, or it has no vocabulary.
    """
    return formats.read(path).build_tokenizer(preserve_special_tokens)


def build_model(
    stored: StoredModel,
    kind: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    num_labels: int | None = None,
    new_parts: Collection[str] = (),
    **kwargs: Any,
) -> keras.Model:
    """Returns the model that was read; one weight at a time is in memory.

    Args:
      stored: What `formats.read` returns.
      kind: As for `load_model`, like all that follows.
      labels: Names of the labels.
      num_labels: Their number.
      new_parts: What begins anew.
      **kwargs: For the model's constructor.

    Raises:
      UserError: If the weights are not those that the config asks for, or the
        arguments do not fit the model.
    """
    chosen = stored.task["kind"] if kind is None else kind
    _check(chosen, labels, num_labels, new_parts)
    left = set(weight_map.HEADS[chosen]) if "head" in new_parts else set()
    left |= {weight_map.POOLER} if "pooler" in new_parts else set()
    weights = stored.weights.select(
        lambda name: weight_map.part_of(name) not in left
    )
    kwargs = _choose_head(stored, weights, chosen, kwargs)
    if chosen in _WITH_LABELS:
        kwargs |= _choose_labels(stored, weights, chosen, labels, num_labels)
    model = _MODELS[chosen](stored.config, **kwargs)
    report = checkpoint_loading.load_weights(
        model, dataclasses.replace(stored, weights=weights)
    )
    asked_for = left if kind is None else left.union(weight_map.HEADS[kind])
    lacking = {weight_map.part_of(x) for x in report.missing} - asked_for
    if lacking:
        logging.warning(
            "%s has no %s: the model begins anew there, so train it before "
            "you rely on what that part says.",
            stored.path,
            ", ".join(sorted(lacking)),
        )
    if chosen in registry.TASKS:
        model.row_predictor = _row_predictor(
            model, stored, chosen, is_stored_head="head" not in new_parts
        )
    return model


def _row_predictor(
    model: keras.Model, stored: StoredModel, kind: str, is_stored_head: bool
) -> RowPredictor:
    """Returns what predicts raw rows with the model."""
    values: dict[str, Any] = {}
    if is_stored_head and stored.task["kind"] == kind:
        values = dict(stored.task)
    labels = getattr(model, "labels", None)
    values |= {"kind": kind, "labels": None if labels is None else list(labels)}
    nothing = Tensors.from_arrays({})
    # The weights are in the model now.
    rest = dataclasses.replace(stored, weights=nothing, optimizer_state=nothing)
    return RowPredictor(model, values, rest.build_tokenizer)


def _check(kind, labels, num_labels, new_parts) -> None:
    if kind not in _MODELS:
        raise UserError(
            f"The kind of a model is one of {', '.join(_MODELS)}. Received: "
            f"{kind!r}."
        )
    if kind not in _WITH_LABELS and (labels, num_labels) != (None, None):
        raise UserError(
            f"Only models for {' and '.join(_WITH_LABELS)} have labels; name "
            f"the kind that is meant. Received: labels for {kind!r}."
        )
    if isinstance(new_parts, str) or not set(new_parts) <= set(_PARTS):
        raise UserError(
            f"Expected new_parts to be a list of {' and '.join(_PARTS)}. "
            f"Received: {new_parts!r}."
        )


def _choose_head(
    stored: StoredModel, weights: Tensors, kind: str, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns `kwargs` with the form of the head that is loaded."""
    task = stored.task if stored.task["kind"] == kind else {}
    found = recurrent_heads.arguments(task, kind, weights.shapes)
    for name, value in found.items():
        wanted = kwargs.get(name)
        if wanted not in (None, value):
            raise UserError(
                f"The head in {stored.path} has {name}={value!r}. Received: "
                f'{wanted!r}; have a new head with new_parts=["head"], or '
                "leave that out."
            )
    return kwargs | found


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

    wanted = num_labels if labels is None else len(labels)
    loaded, known = count(weights.shapes), count(stored.weights.shapes)
    if wanted is None and known is None:
        raise UserError(
            f"{stored.path} has no head for {kind}, so the new one needs its "
            "labels: give labels=[...], or num_labels."
        )
    if None not in (wanted, loaded) and wanted != loaded:
        raise UserError(
            f"The head in {stored.path} has {loaded} labels. Received: "
            f'{wanted}; have a new head with new_parts=["head"], or give as '
            "many."
        )
    same_kind = stored.task["kind"] == kind
    if labels is None and same_kind and wanted in (None, loaded):
        labels = stored.task.get("labels")
    return {
        "labels": labels,
        "num_labels": num_labels or wanted or known,
    }
