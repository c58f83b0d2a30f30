"""`predict` of loaded models: raw rows to the JSON objects of predictions."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from bert_tf.errors import UserError
from bert_tf.io import progress
from bert_tf.modeling import inference
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

_BATCH_SIZE = 32


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
        predictor = self._predictor(batch_size or _BATCH_SIZE)
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
