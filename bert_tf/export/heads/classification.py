"""The serving heads of classification, regression and multiple choice.

Shapes:
  B: number of texts.
  L: number of labels.
  C: maximum number of choices of a text.
  T: tokens per row.
"""

import dataclasses
from typing import ClassVar
from typing import Self

import tensorflow as tf

from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.heads.head import Source
from bert_tf.tasks import registry
from bert_tf.tasks.task import Task
from bert_tf.tasks.task import TensorMap
from bert_tf.text import packing
from bert_tf.text import windows as text_windows

# Maximum windows per call, to save memory: a book has thousands of windows.
_MAX_ROWS_AT_ONCE = 64


@dataclasses.dataclass(eq=False)
class Classification(ServingHead):
    """Serves single-label classifiers, multi-label classifiers and regression.

    Args, in addition to the arguments of `ServingHead`:
      task: The task, which decodes the outputs.
      pair: Whether inputs are pairs, with `text_pair` in addition to `text`.
      doc_stride: The distance in tokens between the starts of a long text's
        windows; None to truncate long texts.
    """

    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    flags = ("pair", "doc_stride")

    task: Task
    pair: bool
    doc_stride: int | None = None

    def __post_init__(self) -> None:
        self.inputs = ("text", "text_pair") if self.pair else ("text",)
        self.method = self.task.method
        if getattr(self.task, "pooling", None):
            self.model_values = {"has_pooler": False}
        if self.doc_stride is not None:
            self.max_rows_at_once = _MAX_ROWS_AT_ONCE

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored classifier."""
        task = registry.from_stored(source.stored)
        pair, doc_stride = source.config.pair, source.config.doc_stride
        return cls(
            *source.parts(),
            task,
            task.is_pair if pair is None else pair,
            getattr(task, "doc_stride", None)
            if doc_stride is None
            else doc_stride,
        )

    def pack(self, strings: TensorMap) -> Rows:
        """Packs texts or pairs, cutting long ones into windows."""
        if self.doc_stride is None:
            return super().pack(strings)
        tokens = [self.tokenizer.tokenize(strings[x]) for x in self.inputs]
        windows = text_windows.cut(tokens, self.max_seq_length, self.doc_stride)
        ids = tf.concat([one.flat_values for one in tokens], 0)
        layout = packing.lay_out(windows.segments, tf.size(ids), self.buckets)
        inputs = layout.inputs(ids, self.tokenizer.vocabulary)
        return Rows(inputs, {"texts": windows.texts})

    def answer_ids(
        self, outputs: TensorMap, rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the outputs of `answer` and `logits`."""
        return self.answer(outputs, rows) | {"logits": outputs["logits"]}


@dataclasses.dataclass(eq=False)
class MultipleChoice(ServingHead):
    """Serves models for multiple choice.

    A missing choice is "" and gets the probability 0. In requests with token
    ids, no choice can be missing. If the text itself is "", the choices are
    packed alone, as for models trained without a context.

    Args, in addition to the arguments of `ServingHead`:
      task: The task, which decodes the outputs.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text", "choices")
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    method = "classify"
    # A text has a row per choice, but the signature `attention` needs one row.
    has_attention = False
    # Maximum rows per call, to save memory: a text may have many choices.
    max_rows_at_once = max_ids_rows_at_once = 64

    task: Task

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns `text` <string>[B] and `choices` <string>[B, C]."""
        return {
            "text": tf.TensorSpec([None], tf.string, name="text"),
            "choices": tf.TensorSpec([None, None], tf.string, name="choices"),
        }

    def ids_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of the token ids, <int32>[B, C, T] each."""
        return {
            name: tf.TensorSpec([None, None, None], spec.dtype, name=name)
            for name, spec in super().ids_specs().items()
        }

    def pack(self, strings: TensorMap, by_tokens: bool = False) -> Rows:
        """Packs each choice after its text, truncating the longer one first.

        With `by_tokens`, finds missing texts and choices by their number of
        tokens; TensorFlow Lite cannot count characters.
        """
        choices = strings["choices"]
        shape = tf.shape(choices)
        tokens = [
            self.tokenizer.tokenize(x)
            for x in (strings["text"], tf.reshape(choices, [-1]))
        ]
        (text, choice), num_tokens = packing.find_segments(tokens)
        if by_tokens:
            has_text = text[1] > 0
            is_there = tf.reshape(choice[1] > 0, shape)
        else:
            stripped = tf.strings.strip(strings["text"])
            has_text = tf.strings.length(stripped) > 0
            is_there = tf.strings.length(choices) > 0
        # To save memory, repeat only the text's start and length for each
        # choice. Use `tf.tile`, as TensorFlow Lite has no `tf.repeat`.
        *text, has_text = (
            tf.reshape(tf.tile(x[:, tf.newaxis], [1, shape[1]]), [-1])
            for x in (*text, has_text)
        )
        starts, lengths = choice
        first = [tf.where(has_text, *x) for x in zip(text, choice, strict=True)]
        second = (starts, tf.where(has_text, lengths, 0))
        layout = packing.lay_out([first, second], num_tokens, self.buckets)
        ids = tf.concat([x.flat_values for x in tokens], 0)
        packed = layout.inputs(ids, self.tokenizer.vocabulary)
        inputs = {}
        for name, value in packed.items():
            shape_of_rows = tf.concat([shape, tf.shape(value)[1:]], 0)
            rows = tf.reshape(value, shape_of_rows)
            inputs[name] = tf.ensure_shape(rows, [None, None, None])
        return Rows(inputs, {"is_there": is_there})
