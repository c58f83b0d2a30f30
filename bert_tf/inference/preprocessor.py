"""Raw rows to a model's inputs, and predictions of raw rows to JSON values."""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.data import length_buckets
from bert_tf.errors import UserError
from bert_tf.inference import raw_rows
from bert_tf.io import progress
from bert_tf.modeling import inference
from bert_tf.tasks import packed_rows
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.predict import MODEL_INPUTS
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

_ROWS_AT_ONCE = 32
# For models whose task.json does not have one.
_MAX_SEQ_LENGTH = 128


class Preprocessor:
    """The text side of a model: its tokenizer and its task.

    `bert_tf.load_model` sets it as `model.preprocessor`. Its parts are built
    when they are needed first.

    Args:
      task_values: The contents of the model's task.json, `kind` at least.
      build_tokenizer: Returns the tokenizer that the model was trained with.
      config: The model's configuration.
      num_labels: The number of labels of its head, or None.
      max_seq_length: The maximum number of tokens in a row; by default as in
        `task_values`, or the task's own.

    Attributes:
      task_values: The contents of task.json.

    Raises:
      UserError: If `max_seq_length` is more than the model can read.

    Example:
      >>> model = bert_tf.load_model("output/sst-2/model")
      >>> features = model.preprocessor(["A fine film."])
      >>> model(features)["logits"].shape
      TensorShape([1, 2])
    """

    def __init__(
        self,
        task_values: Mapping[str, Any],
        build_tokenizer: Callable[[], BertTokenizer],
        config: BertConfig,
        num_labels: int | None = None,
        max_seq_length: int | None = None,
    ) -> None:
        self.task_values = dict(task_values)
        self._build_tokenizer = build_tokenizer
        self._longest = config.max_position_embeddings
        self._num_labels = num_labels
        if max_seq_length is not None:
            if not 3 <= max_seq_length <= self._longest:
                raise UserError(
                    "Expected max_seq_length to be from 3 to "
                    f"{self._longest}, the tokens that the model can read. "
                    f"Received: {max_seq_length}."
                )
            self.task_values["max_seq_length"] = max_seq_length
        self._prepared: _Prepared | None = None

    @functools.cached_property
    def tokenizer(self) -> BertTokenizer:
        """The tokenizer that the model was trained with.

        Raises:
          UserError: If the model has no vocabulary.
        """
        return self._build_tokenizer()

    @property
    def has_task(self) -> bool:
        """True if the model has the head of a task."""
        values = self.task_values
        return (values.get("variant") or values["kind"]) in registry.TASKS

    @functools.cached_property
    def task(self) -> Task:
        """The task of `task_values`, with the labels of the model.

        Raises:
          UserError: If there is none, or the values do not describe a task.
        """
        if not self.has_task:
            raise UserError(
                "Expected a model with the head of a task, one of "
                f"{', '.join(registry.TASKS)}. Received: a model of "
                f"kind={self.task_values['kind']!r}."
            )
        return registry.build_task(
            self.task_values, self._num_labels, self._longest
        )

    @property
    def max_seq_length(self) -> int:
        """The maximum number of tokens in a row."""
        if self.has_task:
            return self.task.max_seq_length
        stored = self.task_values.get("max_seq_length") or _MAX_SEQ_LENGTH
        return min(stored, self._longest)

    def __call__(self, x: Any) -> dict[str, np.ndarray]:
        """Tokenizes and packs raw rows, padded to one length.

        The length is that of the longest row, rounded up to a multiple of 8
        and at most `max_seq_length`. Rows of a task that reads long texts in
        windows become several rows.

        Args:
          x: Raw rows, as `raw_rows.to_rows` reads them.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[N, S]; for
          multiple choice [N, C, S].

        Raises:
          UserError: If a row does not fit the task, or the model has no
            vocabulary.
        """
        rows = raw_rows.to_rows(x)
        if self.has_task:
            examples = self.examples(rows)
            features = self.task.featurize(examples, self.tokenizer)
        else:
            features = packed_rows.pack_texts(
                *raw_rows.to_texts(rows), self.tokenizer, self.max_seq_length
            )
        batch = pad(features, self.max_seq_length)
        return {name: batch[name] for name in MODEL_INPUTS}

    def examples(self, rows: Sequence[Any]) -> list[Any]:
        """Returns the task's examples; a `UserError` names the row."""
        return [
            _to_example(self.task, number, row)
            for number, row in enumerate(rows)
        ]

    def predict(
        self,
        model: keras.Model,
        rows: Any,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> list[dict[str, Any]]:
        """Returns, for each row, the JSON object that run/predict.py writes.

        Args:
          model: The model; predicts with its current weights.
          rows: The rows, as `raw_rows.to_rows` reads them.
          batch_size: Rows computed at once; by default 32.
          show_progress: Whether to show a progress bar.

        Raises:
          UserError: If a row does not fit the task, the model has no
            vocabulary, or its task.json does not describe a task.
        """
        if self._prepared is None or self._prepared.model is not model:
            self._prepared = _Prepared(model)
        self._prepared.update()
        predictor = self._prepared.predictor(
            self.task, self.tokenizer, batch_size or _ROWS_AT_ONCE
        )
        examples = self.examples(raw_rows.to_rows(rows))
        if not show_progress:
            return _describe(predictor, examples)
        with progress.bar(len(examples), "predicting", "example") as bar:
            return _describe(predictor, examples, bar.update)


def pad(features: Features, max_seq_length: int) -> dict[str, np.ndarray]:
    """Returns all rows as one batch; see `Preprocessor.__call__`."""
    longest = int(max(features.lengths, default=1))
    allowed = length_buckets.every_multiple(max_seq_length)
    length = next(one for one in allowed if one >= longest)
    return features.batch(np.arange(len(features)), length)


class _Prepared:
    """A model's form for inference, with its compiled functions."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._copy: keras.Model | None = None
        # By task and batch size.
        self._predictors: dict[tuple[int, int], Predictor] = {}

    def update(self) -> None:
        """Copies the model's current weights."""
        if self._copy is None:
            self._copy = inference.prepare(self.model, self.model.compute_dtype)
        else:
            inference.copy_weights(self.model, self._copy)

    def predictor(
        self, task: Task, tokenizer: BertTokenizer, batch_size: int
    ) -> Predictor:
        """Returns the predictor, the same one for the same arguments."""
        key = (id(task), batch_size)
        if key not in self._predictors:
            self._predictors[key] = Predictor(
                self._copy, task, tokenizer, batch_size
            )
        return self._predictors[key]


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
