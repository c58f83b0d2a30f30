"""Which of its choices goes with a text.

Shapes:
  B: number of texts.
  C: the most choices that a text has.
  T: pieces of a row.
"""

from collections.abc import Mapping
from typing import ClassVar
from typing import Self

import tensorflow as tf

from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source


class MultipleChoice(head.Head):
    """Serves models for multiple choice.

    A text with fewer choices than others has "" in place of those it lacks,
    which get no probability. Where the text itself is "" the choices stand
    alone, as for models that were trained without a context.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text", "choices")
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    method = "classify"
    # A text has several rows.
    has_attention = False

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored model for multiple choice."""
        return cls(
            source.stored.build_tokenizer(),
            source.max_seq_length,
            source.buckets,
        )

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns `text` <string>[B] and `choices` <string>[B, C]."""
        return {
            "text": tf.TensorSpec([None], tf.string, name="text"),
            "choices": tf.TensorSpec([None, None], tf.string, name="choices"),
        }

    def ids_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns what the model takes, <int32>[B, C, T] each."""
        return {
            name: tf.TensorSpec([None, None, None], spec.dtype, name=name)
            for name, spec in super().ids_specs().items()
        }

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs each choice behind its text; the longer is truncated first."""
        choices = strings["choices"]
        shape = tf.shape(choices)
        text = tf.repeat(strings["text"], shape[1])
        choice = tf.reshape(choices, [-1])
        has_text = tf.strings.length(tf.strings.strip(text)) > 0
        packed = self.pack_texts(
            tf.where(has_text, text, choice), tf.where(has_text, choice, "")
        )
        inputs = {}
        for name, value in packed.items():
            shape_of_rows = tf.concat([shape, tf.shape(value)[1:]], 0)
            rows = tf.reshape(value, shape_of_rows)
            inputs[name] = tf.ensure_shape(rows, [None, None, None])
        return Rows(inputs, {"is_there": tf.strings.length(choices) > 0})

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `index` <int32>[B] and `probabilities` <float32>[B, C]."""
        logits, is_there = outputs["logits"], rows.state["is_there"]
        # A text without any choice, whose answer means nothing, gets numbers.
        is_there |= ~tf.reduce_any(is_there, -1, keepdims=True)
        return self._answer(tf.where(is_there, logits, tf.float32.min))

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns what `answer` does where no choice is lacking."""
        del rows
        return self._answer(outputs["logits"])

    def _answer(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        probs = tf.nn.softmax(logits)
        shape = tf.shape(probs)
        names = tf.strings.as_string(tf.range(shape[1]))
        # No Examples have no choices, and of none there is no best.
        missing = tf.cast(shape[1] == 0, tf.int32)
        padded = tf.pad(probs, [[0, 0], [0, missing]])
        return {
            "index": tf.argmax(padded, -1, output_type=tf.int32),
            "probabilities": probs,
            "classes": tf.broadcast_to(names, shape),
            "scores": probs,
        }
