"""What a task is: files, features, head, loss and score, in one class.

Training, evaluation and prediction know tasks by this class alone, so a new
task is a new subclass (docs/adding_a_task.md).

Shapes:
  N: rows of features; an example has one or, where it is windowed, several.
  B: batch size.
  T: length of a batch.
"""

import abc
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import NamedTuple
from typing import Protocol

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer

# The kinds of splits; a task may have several of a kind: dev_mismatched.
TRAIN, DEV, TEST = "train", "dev", "test"
NOT_FINITE = (
    "The model computes numbers that are not finite, so it is damaged, its "
    "training has failed, or it needs --mixed_precision=float32."
)


class Features(Protocol):
    """What examples become: rows of unequal lengths, without padding."""

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], pieces of each row, special ones included."""

    def __len__(self) -> int:
        """N."""

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns some rows, padded.

        Args:
          indices: <int64>[B], which rows.
          length: T, at least the length of the longest of them.

        Returns:
          The model's inputs `input_ids`, `input_mask` and `segment_ids`
          <int32>[B, ..., T], and, where the examples have labels, what
          `Task.losses` reads, each [B, ...].
        """


class SoftTargets(NamedTuple):
    """What a model says before anything is decided, for another to learn.

    Attributes:
      logits: <float32>[B, ..., K]; `NO_LOGIT` where there is no alternative.
      form: "choice": one of the K, by a softmax; "yes_or_no": each of the K
        for itself, by a sigmoid; "score": K numbers.
    """

    logits: tf.Tensor
    form: Literal["choice", "yes_or_no", "score"]


# Far below every logit; divided by a temperature it is still a number.
NO_LOGIT = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """What is learnt, and how it is measured; immutable.

    Examples and predictions are whatever the subclass makes of them: others
    only hand them on.

    Attributes:
      name: Its name in flags and results, such as "mrpc".
      max_seq_length: The most pieces of a row.
      files: Split to file; the splits are "train", "dev" and "test", or begin
        with one of them, as "dev_mismatched" does.
    """

    # Which head: a key of `weight_map.HEADS`.
    kind: ClassVar[str]
    # What `to_json` calls it under "variant" if another task has such a head.
    variant: ClassVar[str | None] = None

    name: str
    max_seq_length: int = 128
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    @abc.abstractmethod
    def metric(self) -> str:
        """The key of `score` that chooses the best of several models."""

    @property
    def more_is_better(self) -> bool:
        """Whether a greater `metric` is better."""
        return True

    def splits(self, kind: str) -> tuple[str, ...]:
        """Returns the splits of a kind, "train", "dev" or "test", in order."""
        return tuple(s for s in self.files if s.split("_")[0] == kind)

    @abc.abstractmethod
    def read(self, split: str) -> Sequence[Any]:
        """Reads the examples of a split, and logs what was left out.

        Raises:
          UserError: If the file is not what it should be.
        """

    @abc.abstractmethod
    def featurize(
        self,
        examples: Sequence[Any],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> Features:
        """Makes rows of examples."""

    def rows_per_step(
        self, batch_size: int, num_examples: int, num_rows: int
    ) -> int:
        """Returns how many rows a step of training takes.

        By default as many as --train_batch_size says, as in the original.

        Args:
          batch_size: --train_batch_size.
          num_examples: How many examples there are to train on.
          num_rows: How many rows they make.
        """
        del num_examples, num_rows
        return batch_size

    def model_arguments(self) -> dict[str, Any]:
        """Returns what the model's constructor needs beside the config."""
        return {}

    @abc.abstractmethod
    def losses(
        self, outputs: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        """Returns the losses, in graph.

        The loss of a step is their mean over all of its examples, weighted
        with `loss_weights`.

        Args:
          outputs: What the model returns.
          batch: What `Features.batch` returned.

        Returns:
          <float32>[B] or [B, T].
        """

    def loss_weights(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the weight of each loss, in graph; by default all are 1.

        Args:
          batch: What `Features.batch` returned.

        Returns:
          <float32>, of the shape of `losses`.
        """
        return tf.ones(tf.shape(batch["input_ids"])[:1])

    def soft_targets(
        self, outputs: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor]
    ) -> tuple[SoftTargets, ...]:
        """Returns what a student learns from a teacher's outputs, in graph.

        Args:
          outputs: What a model, teacher or student, returns.
          batch: What `Features.batch` returned, maybe without labels.

        Raises:
          UserError: If the task does not say what that is.
        """
        del outputs, batch
        raise UserError(
            f"The task {self.name} cannot be distilled: its class "
            f"{type(self).__name__} has no `soft_targets`."
        )

    def soft_target_weights(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns how much each of the soft targets counts; by default 1.

        Args:
          batch: What `Features.batch` returned, maybe without labels.

        Returns:
          <float32>[B, ...], of the shape of the logits without their last
          axis.
        """
        return tf.ones(tf.shape(batch["input_ids"])[:1])

    def featurize_unlabeled(
        self, examples: Sequence[Any], tokenizer: BertTokenizer
    ) -> Features:
        """Makes rows for a teacher to label: all that its weights read.

        Args:
          examples: Examples without labels.
          tokenizer: The tokenizer.
        """
        return self.featurize(examples, tokenizer)

    @abc.abstractmethod
    def outputs(self, outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Chooses what predictions are made of, in graph.

        Args:
          outputs: What the model returns.

        Returns:
          Tensors [B, ...].
        """

    @abc.abstractmethod
    def predict(
        self,
        examples: Sequence[Any],
        features: Features,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[Any]:
        """Makes predictions.

        Args:
          examples: The examples.
          features: Their rows.
          outputs: For each name of `outputs` N arrays, one a row; where they
            have an axis of positions it may be longer than the row.
          tokenizer: The one that made the features.

        Returns:
          One prediction for each example.
        """

    @abc.abstractmethod
    def describe(self, example: Any, prediction: Any) -> dict[str, Any]:
        """Returns a prediction as the JSON object that users get."""

    @abc.abstractmethod
    def is_labelled(self, examples: Sequence[Any]) -> bool:
        """Returns whether `score` can be called."""

    @abc.abstractmethod
    def score(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Returns the metrics, `metric` among them."""

    def tune(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> "Task":
        """Returns the task with what is chosen on labelled examples.

        For instance the threshold below which there is no answer.
        """
        del examples, predictions
        return self

    def with_threshold(self, stored: Mapping[str, Any]) -> "Task":
        """Returns the task with what `tune` has chosen for a model before.

        Args:
          stored: What its task.json holds.
        """
        del stored
        return self

    def write_report(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[Any],
        predictions: Sequence[Any],
    ) -> None:
        """Writes files of the task's own: pictures, tables, official formats.

        Args:
          output_dir: Where to; it exists.
          split: What was predicted; names of files begin with it unless it is
            "dev".
          examples: Its examples, maybe without labels.
          predictions: Their predictions.
        """
        del output_dir, split, examples, predictions  # None by default.

    @abc.abstractmethod
    def read_inputs(self, path: str) -> Iterator[Any]:
        """Yields the examples of a user's file; labels are not read.

        Raises:
          UserError: If the file is not what it should be.
        """

    def must_share_chunk(self, first: Any, second: Any) -> bool:
        """Returns whether an example must be predicted with the one before.

        As where the model reads across them. Files are predicted some
        thousand rows at a time, in which all that belong together are.

        Args:
          first: An example.
          second: The one behind it.
        """
        del first, second
        return False

    def num_rows(self, example: Any) -> int:
        """Returns about how many rows an example makes; by default 1."""
        del example
        return 1

    @abc.abstractmethod
    def parse(self, row: Any) -> Any:
        """Returns the example that a value of a Python program means.

        Raises:
          UserError: If it is none.
        """

    def is_compatible_with(self, stored: Mapping[str, Any]) -> bool:
        """Returns whether a model with such a head and labels learned the same.

        Args:
          stored: What its task.json holds.
        """
        del stored
        return True

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` needs, for task.json."""

    @classmethod
    @abc.abstractmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Task":
        """Returns the task of a model directory.

        Args:
          values: What task.json holds; models that other programs trained
            lack all but the labels.
        """


def warn_of_settings(
    stored_task: Mapping[str, Any], used: Mapping[str, Any]
) -> None:
    """Says which flags are not what a model was trained with.

    Args:
      stored_task: What its task.json holds.
      used: The names of flags, which are the same there, and what they are.
    """
    for name, value in used.items():
        known = stored_task.get(name, value)
        if known != value:
            logging.warning(
                "The model was trained with --%s=%s and is used with %s.",
                name,
                known,
                value,
            )
