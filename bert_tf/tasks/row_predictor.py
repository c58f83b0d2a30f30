"""What `predict` of a loaded model does with raw rows."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from bert_tf.errors import UserError
from bert_tf.io import progress
from bert_tf.modeling import inference
from bert_tf.tasks import predictor
from bert_tf.tasks import registry
from bert_tf.tasks.predictor import Predictor
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

_BATCH_SIZE = 32


class RowPredictor:
    """Predicts raw rows; nothing is built before the first of them.

    Args:
      model: The model.
      values: What its task.json holds.
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
        # The form that predicts fastest; has the model's weights while it does.
        self._prepared: keras.Model | None = None
        # By batch size, each with its compiled function.
        self._predictors: dict[int, Predictor] = {}

    def __call__(
        self,
        rows: Sequence[Any],
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> list[dict[str, Any]]:
        """Returns the object that run/predict.py would write for each row.

        Args:
          rows: What `Task.parse` takes: texts, pairs, dictionaries.
          batch_size: Rows computed at once; by default 32.
          show_progress: Whether to show a progress bar.

        Raises:
          UserError: If a row is none of the task, the model has no vocabulary,
            or its task.json is not that of a task.
        """
        self._prepare()
        made = self._predictor(batch_size or _BATCH_SIZE)
        examples = [
            _parse(made.task, number, row) for number, row in enumerate(rows)
        ]
        if not show_progress:
            return _describe(made, examples)
        with progress.bar(len(examples), "predicting", "example") as bar:
            return _describe(made, examples, bar.update)

    def _prepare(self) -> None:
        """Takes the weights that the model has now."""
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


def _parse(task: Task, number: int, row: Any) -> Any:
    try:
        return task.parse(row)
    except UserError as error:
        raise UserError(f"Row {number} of the list: {error}") from error


def _describe(
    made: Predictor,
    examples: Sequence[Any],
    on_examples: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    described = []
    for chunk in predictor.chunks(made.task, examples):
        described += made.describe(chunk, on_examples)
    return described
