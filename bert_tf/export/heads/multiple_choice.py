"""The serving head of multiple choice.

Shapes:
  B: number of texts.
  C: maximum number of choices of a text.
  T: tokens per row.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar
from typing import Self

import tensorflow as tf

from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.tasks import registry as tasks
from bert_tf.tasks.task import Task
from bert_tf.text import packing


@dataclasses.dataclass(eq=False)
class MultipleChoice(head.ServingHead):
    """Serves models for multiple choice.

    Missing choices are "", and have probability 0. If the text itself is "",
    the choices are packed alone, as for models trained without a context.

    Args, in addition to those of `ServingHead`:
      task: The task, which decodes the outputs.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text", "choices")
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    method = "classify"
    # Each text has several rows.
    has_attention = False
    # Bounds the memory: a text may have thousands of choices.
    max_rows_at_once = max_ids_rows_at_once = 64

    task: Task

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored model."""
        return cls(*source.parts(), tasks.from_stored(source.stored))

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

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs each choice after its text, truncating the longer one first."""
        choices = strings["choices"]
        shape = tf.shape(choices)
        tokens = [
            self.tokenizer.tokenize(x)
            for x in (strings["text"], tf.reshape(choices, [-1]))
        ]
        (text, choice), num_tokens = packing.find_segments(tokens)
        has_text = tf.strings.length(tf.strings.strip(strings["text"])) > 0
        # Tokens of a text are not repeated for each choice, only their place.
        *text, has_text = (tf.repeat(x, shape[1]) for x in (*text, has_text))
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
        return Rows(inputs, {"is_there": tf.strings.length(choices) > 0})

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns what the task decodes, `classes` and `scores`.

        With token ids, no choice is missing.
        """
        answer = self.task.decode(outputs, rows.state.get("is_there"))
        probs = answer["probabilities"]
        shape = tf.shape(probs)
        names = tf.strings.as_string(tf.range(shape[1]))
        classes = tf.broadcast_to(names, shape)
        return answer | {"classes": classes, "scores": probs}
