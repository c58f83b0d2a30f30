"""The serving head of classification and regression of texts or pairs.

Tasks of other subclasses of `Task` with this head are served by it, too.

Shapes:
  B: number of texts.
  L: number of labels.
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
from bert_tf.tasks.task import Task
from bert_tf.text import packing
from bert_tf.text import windows as text_windows

# Bounds the memory: a book has thousands of windows.
_MAX_ROWS_AT_ONCE = 64


@dataclasses.dataclass(eq=False)
class Classification(head.ServingHead):
    """Serves classifiers of one label or several, and regression.

    Args, in addition to those of `ServingHead`:
      task: The task, which decodes the outputs.
      pair: Whether inputs are pairs, with `text_pair` in addition to `text`.
      doc_stride: The distance in tokens between the starts of the windows of
        long texts; None truncates them.
    """

    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    flags = ("pair", "doc_stride")

    task: Task
    pair: bool
    doc_stride: int | None = None

    def __post_init__(self) -> None:
        self.inputs = ("text", "text_pair") if self.pair else ("text",)
        self.method = self.task.method
        if self.doc_stride is not None:
            self.max_rows_at_once = _MAX_ROWS_AT_ONCE

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored classifier."""
        task = tasks.from_stored(source.stored)
        pair, doc_stride = source.config.pair, source.config.doc_stride
        return cls(
            *source.parts(),
            task,
            task.is_pair if pair is None else pair,
            getattr(task, "doc_stride", None)
            if doc_stride is None
            else doc_stride,
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
        """Returns what the task decodes, and what `method` returns."""
        answer = self.task.decode(outputs, rows.state.get("texts"))
        if self.method == "regress":
            return answer | {"outputs": answer["score"]}
        if self.method == "classify":
            answer |= all_labels(answer["probabilities"], self.task.labels)
        return answer

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the outputs of `answer` and `logits`."""
        return self.answer(outputs, rows) | {"logits": outputs["logits"]}


def all_labels(probs: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns `classes` <string>[B, L] with their `scores`."""
    classes = tf.tile([list(labels)], [tf.shape(probs)[0], 1])
    return {"classes": classes, "scores": probs}
