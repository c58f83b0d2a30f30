"""Models prepared for predicting raw rows, with their compiled functions."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.distribute import packed_weights
from bert_tf.modeling import inference
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.training import unpad as unpadding


class PreparedModel:
    """A model's form for inference, with its compiled functions."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._copy: keras.Model | None = None
        # By task and batch size.
        self._predictors: dict[tuple[int, int], Predictor] = {}

    def update(self) -> None:
        """Copies the model's current weights.

        Raises:
          UserError: If TensorFlow is to ignore updates of weights.
        """
        if self._copy is None:
            self._copy = inference.prepare(self.model, self.model.compute_dtype)
        else:
            packed_weights.refuse()
            inference.copy_weights(self.model, self._copy)

    def predictor(
        self, task: Task, tokenizer: BertTokenizer, batch_size: int
    ) -> Predictor:
        """Returns the predictor, the same one for the same arguments."""
        key = (id(task), batch_size)
        if key not in self._predictors:
            self._predictors[key] = Predictor(
                self._copy, task, tokenizer, batch_size, unpad=_unpads(task)
            )
        return self._predictors[key]


def describe(
    predictor: Predictor,
    examples: Sequence[Any],
    on_examples: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """Returns a JSON object for each example; reports their numbers."""
    described = []
    for chunk in task_prediction.chunks(predictor.task, examples):
        described += predictor.describe(chunk, on_examples)
    return described


def _unpads(task: Task) -> bool:
    """Returns the choice of --unpad=auto of run/predict.py."""
    kind = next(
        kind
        for kind in ("TPU", "GPU", "CPU")
        if tf.config.list_logical_devices(kind)
    )
    return unpadding.choose(
        "auto", kind, lambda: True, reads_padding=task.reads_padding
    )
