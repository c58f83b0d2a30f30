"""The serving head of classification and regression of texts or pairs.

Shapes:
  B: number of texts.
  L: number of labels; 1 for regression.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import ClassVar
from typing import Self

import tensorflow as tf

from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.tasks import registry as tasks
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.text import packing
from bert_tf.text import windows as text_windows

# The minimum probability of an assigned label in multi-label problems.
_THRESHOLD = 0.5
# Bounds the memory: a book has thousands of windows.
_MAX_ROWS_AT_ONCE = 64


@dataclasses.dataclass(eq=False)
class Classification(head.ServingHead):
    """Serves classifiers of one label or several, and regression.

    Args, in addition to those of `ServingHead`:
      labels: Label names in the order of the logits; None for regression.
      problem_type: "single_label", "multi_label" or "regression".
      pair: Whether inputs are pairs, with `text_pair` in addition to `text`.
      doc_stride: The distance in tokens between the starts of the windows of
        long texts; None truncates them.
    """

    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    flags = ("pair", "doc_stride")

    labels: Sequence[str] | None
    problem_type: str
    pair: bool
    doc_stride: int | None = None

    def __post_init__(self) -> None:
        self.inputs = ("text", "text_pair") if self.pair else ("text",)
        self.method = "regress" if self.labels is None else "classify"
        if self.doc_stride is not None:
            self.max_rows_at_once = _MAX_ROWS_AT_ONCE

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored classifier."""
        task = tasks.from_stored(source.stored)
        pair, doc_stride = source.config.pair, source.config.doc_stride
        return cls(
            *source.parts(),
            task.labels,
            task.problem_type,
            _is_pair(task) if pair is None else pair,
            task.doc_stride if doc_stride is None else doc_stride,
        )

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs texts or pairs, cutting long ones into windows."""
        texts = [strings[name] for name in self.inputs]
        if self.doc_stride is None:
            return Rows(self.pack_texts(*texts))
        tokens = [self.tokenizer.tokenize(text) for text in texts]
        windows = text_windows.cut(tokens, self.max_seq_length, self.doc_stride)
        ids = tf.concat([one.flat_values for one in tokens], 0)
        layout = packing.lay_out(windows.segments, tf.size(ids), self.buckets)
        inputs = layout.inputs(ids, self.tokenizer.vocabulary)
        return Rows(inputs, {"texts": windows.texts})

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `label` or `labels` with `probabilities`, or `score`.

        Probabilities and scores are averaged over the windows of a text.
        """
        values = self._values(outputs["logits"])
        if self.doc_stride is not None:
            values = tf.math.segment_mean(values, rows.state["texts"])
        return self._name(values)

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the outputs of `answer` and `logits`."""
        del rows  # One per text.
        logits = outputs["logits"]
        return self._name(self._values(logits)) | {"logits": logits}

    def _values(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns probabilities or scores, of the shape of `logits`."""
        if self.problem_type == "regression":
            return logits
        if self.problem_type == "multi_label":
            return tf.sigmoid(logits)
        return tf.nn.softmax(logits)

    def _name(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.problem_type == "regression":
            return {"score": values[:, 0], "outputs": values[:, 0]}
        if self.problem_type == "multi_label":
            labels = {"labels": self._assigned_labels(values)}
            return labels | all_labels(values, self.labels)
        return choose_label(values, self.labels)

    def _assigned_labels(self, probs: tf.Tensor) -> tf.Tensor:
        """Returns the assigned labels in the order of their ids, then "".

        Args:
          probs: <float32>[B, L].

        Returns:
          <string>[B, L].
        """
        count = len(self.labels)
        is_assigned = probs >= _THRESHOLD
        # Assigned labels first, then by label id.
        key = tf.range(count) + tf.where(is_assigned, 0, count)
        order = tf.argsort(key, -1)
        number = tf.where(
            tf.gather(is_assigned, order, batch_dims=1), order, count
        )
        return tf.gather(tf.constant([*self.labels, ""]), number)


def choose_label(
    probs: tf.Tensor, labels: Sequence[str]
) -> dict[str, tf.Tensor]:
    """Returns the outputs of single-label classification.

    Args:
      probs: <float32>[B, L].
      labels: L names.

    Returns:
      `label` <string>[B], `probabilities`, `classes` and `scores` [B, L].
    """
    best = tf.argmax(probs, -1, output_type=tf.int32)
    label = tf.gather(tf.constant(labels), best)
    return {"label": label} | all_labels(probs, labels)


def all_labels(probs: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns `probabilities`, and `classes` with their `scores`."""
    classes = tf.tile([list(labels)], [tf.shape(probs)[0], 1])
    return {"probabilities": probs, "classes": classes, "scores": probs}


def _is_pair(task: ClassificationTask) -> bool:
    """Returns whether a task is known to have pairs of texts."""
    if task.official is not None:
        return task.official.is_pair
    return task.columns is not None and len(task.columns.texts) > 1
