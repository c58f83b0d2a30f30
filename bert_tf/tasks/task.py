"""The base class of tasks: files, features, head, loss, predictions, metrics.

Training, evaluation and prediction use every task through this class, so a new
task needs only a new subclass (docs/adding_a_task.md).

Shapes:
  N: number of rows; an example has several rows if it is cut into windows.
  B: batch size.
  T: row length.
"""

import abc
import dataclasses
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import NamedTuple
from typing import Protocol
from typing import Self

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TaskFiles
from bert_tf.text.tokenizer import BertTokenizer

NOT_FINITE = (
    "The model computes numbers that are not finite. Its weights are damaged, "
    "its training diverged, or it needs --mixed_precision=float32."
)

TensorMap = Mapping[str, tf.Tensor]


class Features(Protocol):
    """Featurized examples: token rows of unequal lengths, without padding."""

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of each row, special ones included."""

    def __len__(self) -> int:
        """The number of rows, N."""

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns a batch of rows, padded.

        Args:
          indices: <int64>[B], the rows.
          length: T, at least the length of the longest row.

        Returns:
          The model's inputs `input_ids`, `input_mask` and `segment_ids`
          <int32>[B, ..., T] and, if the examples have labels, the tensors
          [B, ...] that `Task.losses` reads.
        """


class SoftTargets(NamedTuple):
    """Teacher logits for distillation, before argmax or thresholding.

    Attributes:
      logits: <float32>[B, ..., K]; `NO_LOGIT` for classes that do not exist.
      form: "choice" means a softmax over K classes, "yes_or_no" a sigmoid for
        each class, and "score" K numbers.
    """

    logits: tf.Tensor
    form: Literal["choice", "yes_or_no", "score"]


# A class with this logit has probability 0. Unlike -inf, the logit stays finite
# when it is divided by a temperature, so no loss becomes NaN.
NO_LOGIT = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(TaskFiles):
    """A task: its data, model head, loss and metrics. Immutable.

    Each subclass has its own types of examples and predictions, which no other
    code inspects. `TaskFiles` describes the files.
    """

    # The name of an output that a step computes for all rows before the loss of
    # any row, for in-batch negatives; None if the losses are independent.
    coupled: ClassVar[str | None] = None
    # True if a greater `metric` is better.
    more_is_better: ClassVar[bool] = True
    # True if the loss or predictions depend on outputs of padding. If False,
    # `--unpad` may skip padding; its hidden states are then 0.
    reads_padding: ClassVar[bool] = False
    # True if rows are pairs of texts; export's --pair overrides it.
    is_pair: ClassVar[bool] = False
    # The TensorFlow Serving method that exports add to `predict`.
    method: ClassVar[Literal["classify", "regress"] | None] = None

    max_seq_length: int = 128  # The maximum number of tokens in a row.

    @property
    @abc.abstractmethod
    def metric(self) -> str:
        """The metric in `score` that selects the best of several models."""

    @abc.abstractmethod
    def featurize(
        self,
        examples: Sequence[Any],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> Features:
        """Converts examples to rows of token ids."""

    def rows_per_step(
        self, batch_size: int, num_examples: int, num_rows: int
    ) -> int:
        """Returns the number of rows in a training step.

        The default is --train_batch_size, as in the original.
        """
        return batch_size

    def model_arguments(self) -> dict[str, Any]:
        """Returns the model constructor's arguments besides the config."""
        return {}

    @abc.abstractmethod
    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        """Returns the losses of rows or tokens, <float32>[B] or [B, T].

        A step's loss is the mean of these losses, weighted by `loss_weights`.
        """

    def loss_weights(self, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>, the weight of each loss; by default all are 1."""
        return tf.ones(tf.shape(batch["input_ids"])[:1])

    def soft_targets(
        self, outputs: TensorMap, batch: TensorMap
    ) -> tuple[SoftTargets, ...]:
        """Returns the soft targets of a teacher or student.

        `batch` may have no labels.

        Raises:
          UserError: If the task does not support distillation.
        """
        raise UserError(
            f"The task {self.name} cannot be distilled: its class "
            f"{type(self).__name__} has no `soft_targets`."
        )

    def soft_target_weights(self, batch: TensorMap) -> tf.Tensor:
        """Returns the weight of each soft target; by default all are 1.

        The weights <float32>[B, ...] have the shape of the logits without the
        last axis. `batch` may have no labels.
        """
        return tf.ones(tf.shape(batch["input_ids"])[:1])

    def featurize_unlabeled(
        self, examples: Sequence[Any], tokenizer: BertTokenizer
    ) -> Features:
        """Converts unlabeled examples to rows for a teacher to label.

        The rows include the features that `soft_target_weights` reads.
        """
        return self.featurize(examples, tokenizer)

    def select_outputs(self, outputs: TensorMap) -> dict[str, tf.Tensor]:
        """Returns outputs [B, ...] for `predict`; by default the logits."""
        return {"logits": outputs["logits"]}

    def decode(
        self, outputs: TensorMap, texts: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Returns the answers of an exported model, eagerly or in graph.

        By default, an answer is the mean of `select_outputs` over a text's
        rows. `texts` <int>[N], ascending, is the index of each row's text; None
        if each text has one row.
        """
        selected = self.select_outputs(outputs)
        if texts is None:
            return selected
        return {x: tf.math.segment_mean(t, texts) for x, t in selected.items()}

    @abc.abstractmethod
    def predict(
        self,
        examples: Sequence[Any],
        features: Features,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[Any]:
        """Returns a prediction for each example from the model's outputs.

        `outputs` has N arrays, one per row of `features`, for each name of
        `select_outputs`. An array with a value per token may have padding after
        the row's end.
        """

    @abc.abstractmethod
    def prediction_to_json(
        self, example: Any, prediction: Any
    ) -> dict[str, Any]:
        """Returns a prediction as the JSON object written for users."""

    def example_to_json(self, example: Any) -> dict[str, Any]:
        """Returns texts and gold labels for prediction files; by default {}."""
        return {}

    def is_labeled(self, examples: Sequence[Any]) -> bool:
        """Returns True if the examples have the labels that `score` needs."""
        return bool(examples) and examples[0].label is not None

    @abc.abstractmethod
    def score(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Returns the metrics, including `metric`."""

    def select_threshold(
        self, examples: Sequence[Any], predict: Callable[..., Sequence[Any]]
    ) -> "Task":
        """Returns the task with a decision threshold chosen on dev.

        SQuAD 2.0, for instance, chooses the threshold of "no answer".
        `predict(task)` returns the predictions of this task, or of a copy of it
        with, for instance, another threshold.
        """
        return self

    def with_threshold(self, stored: Mapping[str, Any]) -> "Task":
        """Returns the task with the threshold in a model's task.json."""
        return self

    def write_report(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[Any],
        predictions: Sequence[Any],
    ) -> None:
        """Writes task-specific files: plots, tables; by default none.

        File names begin with the split unless it is "dev". The examples may
        have no labels.
        """

    def report_path(self, output_dir: str, split: str, name: str) -> str:
        """Returns the path of a split's report, without ending."""
        prefix = "" if split == DEV else f"{split}_"
        return os.path.join(output_dir, prefix + name)

    def must_share_chunk(self, first: Any, second: Any) -> bool:
        """Returns True if one window may span two consecutive examples.

        Prediction then reads both in one chunk of some thousand rows.
        """
        return False

    def num_rows(self, example: Any) -> int:
        """Returns about how many rows an example has; by default 1."""
        return 1

    @abc.abstractmethod
    def example_from_row(self, row: Any) -> Any:
        """Converts a raw Python value, such as a text, to an example.

        Raises:
          UserError: If the value is not in a supported form.
        """

    def add_label(self, example: Any, label: Any) -> Any:
        """Returns an example with a label, in a form that `fit` accepts.

        Raises:
          UserError: If the label does not fit the task or the example.
        """
        raise UserError(
            f"The task {self.name} is not trained on rows with labels: its "
            f"class {type(self).__name__} has no `add_label`."
        )

    def is_compatible_with(self, stored: Mapping[str, Any]) -> bool:
        """Returns True if the task.json `stored` is of an equivalent task.

        The caller compares head and labels.
        """
        return True

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the contents of task.json, which `from_json` reads."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns the task that task.json describes.

        If another program trained the model, `values` has only labels.
        """
        return cls(**cls.stored(values))


def warn_of_settings(
    stored_task: Mapping[str, Any], used: Mapping[str, Any]
) -> None:
    """Logs a warning for each used flag that differs from task.json."""
    for name, value in used.items():
        stored = stored_task.get(name, value)
        if stored != value:
            logging.warning(
                "The model was trained with --%s=%s and is used with %s.",
                name,
                stored,
                value,
            )


def warn_of_truncated(
    count: int, total: str, limit: str, reason: str = ""
) -> None:
    """Logs a warning if texts were truncated; `total` is "9 texts have"."""
    if count:
        logging.warning(
            "%d of %s more than --%s tokens and were truncated%s.",
            count,
            total,
            limit,
            reason,
        )
