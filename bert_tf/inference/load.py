"""Builds a Keras model from a stored model, and its predictor of raw rows."""

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.io import progress
from bert_tf.modeling import inference
from bert_tf.modeling.bert import BertForPretraining
from bert_tf.modeling.bert import BertModel
from bert_tf.modeling.task_models import BertForClassification
from bert_tf.modeling.task_models import BertForMultipleChoice
from bert_tf.modeling.task_models import BertForQuestionAnswering
from bert_tf.modeling.task_models import BertForTagging
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
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
# Values of `new_parts`.
_PARTS = ("head", "pooler")
_ROWS_AT_ONCE = 32


def build_model(
    stored: StoredModel,
    kind: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    num_labels: int | None = None,
    new_parts: Collection[str] = (),
    **kwargs: Any,
) -> keras.Model:
    """Builds a model and loads its weights, one at a time.

    Args:
      stored: The result of `formats.read`.
      kind: As for `bert_tf.load_model`, like the arguments below.
      labels: Names of the labels.
      num_labels: The number of labels.
      new_parts: Parts to initialize randomly.
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
    model = _MODELS[chosen](stored.config, **kwargs)
    report = checkpoint_loading.load_weights(
        model, dataclasses.replace(stored, weights=weights)
    )
    new = skipped if kind is None else skipped.union(weight_map.HEADS[kind])
    missing = {weight_map.part_of(x) for x in report.missing} - new
    if missing:
        logging.warning(
            "%s has no %s: this part is initialized randomly, so train the "
            "model before you use its outputs.",
            stored.path,
            ", ".join(sorted(missing)),
        )
    if chosen in registry.TASKS:
        model.row_predictor = _row_predictor(
            model, stored, chosen, is_stored_head="head" not in new_parts
        )
    return model


class RowPredictor:
    """Predicts raw rows; builds its parts at the first call.

    Args:
      model: The model.
      values: The contents of its task.json.
      build_tokenizer: Returns the tokenizer that it was trained with.
    """

    def __init__(
        self,
        model: keras.Model,
        values: Mapping[str, Any],
        build_tokenizer: Callable[[], BertTokenizer],
    ) -> None:
        self._model = model
        self._values = values
        self._build_tokenizer = build_tokenizer
        # The inference form; gets the model's weights before each call.
        self._prepared: keras.Model | None = None
        # Batch size to predictor, each with its compiled function.
        self._predictors: dict[int, Predictor] = {}

    def __call__(
        self,
        rows: Sequence[Any],
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> list[dict[str, Any]]:
        """Returns, for each row, the JSON object that run/predict.py writes.

        Args:
          rows: The rows, as `Task.example_from_row` takes them: texts, pairs
            or dictionaries.
          batch_size: Rows computed at once; by default 32.
          show_progress: Whether to show a progress bar.

        Raises:
          UserError: If a row does not fit the task, the model has no
            vocabulary, or its task.json does not describe a task.
        """
        self._prepare()
        predictor = self._predictor(batch_size or _ROWS_AT_ONCE)
        examples = [
            _to_example(predictor.task, number, row)
            for number, row in enumerate(rows)
        ]
        if not show_progress:
            return _describe(predictor, examples)
        with progress.bar(len(examples), "predicting", "example") as bar:
            return _describe(predictor, examples, bar.update)

    def _prepare(self) -> None:
        """Copies the model's current weights to its inference form."""
        if self._prepared is None:
            self._prepared = inference.prepare(
                self._model, self._model.compute_dtype
            )
        else:
            inference.copy_weights(self._model, self._prepared)

    def _predictor(self, batch_size: int) -> Predictor:
        if batch_size not in self._predictors:
            task = registry.build_task(
                self._values,
                getattr(self._model, "num_labels", None),
                self._model.bert_config.max_position_embeddings,
            )
            self._predictors[batch_size] = Predictor(
                self._prepared, task, self._build_tokenizer(), batch_size
            )
        return self._predictors[batch_size]


def _to_example(task: Task, number: int, row: Any) -> Any:
    try:
        return task.example_from_row(row)
    except UserError as error:
        raise UserError(f"Row {number} of the list: {error}") from error


def _describe(
    predictor: Predictor,
    examples: Sequence[Any],
    on_examples: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    described = []
    for chunk in task_prediction.chunks(predictor.task, examples):
        described += predictor.describe(chunk, on_examples)
    return described


def _row_predictor(
    model: keras.Model, stored: StoredModel, kind: str, is_stored_head: bool
) -> RowPredictor:
    """Returns the model's predictor for raw rows."""
    values: dict[str, Any] = {}
    if is_stored_head and stored.task["kind"] == kind:
        values = dict(stored.task)
    labels = getattr(model, "labels", None)
    values |= {"kind": kind, "labels": None if labels is None else list(labels)}
    nothing = Tensors.from_arrays({})
    # The model holds the weights now.
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
