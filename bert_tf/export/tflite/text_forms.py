"""Adapts serving heads that read strings to the operators of TensorFlow Lite.

TensorFlow Lite has no operators that cut words out of a text. So heads that
point into texts return the offsets of each token, and clients cut out the
words.

Shapes:
  B: number of texts or pairs of texts.
  C: choices per text.
  T: tokens per row.
"""

from collections.abc import Mapping

import tensorflow as tf

from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.text import packing

_NONE = -1


class Texts:
    """Texts and pairs of texts, with the answers of the SavedModel.

    Args:
      head: The head, with a `LiteTokenizer` and a fixed row length.
    """

    def __init__(self, head: ServingHead) -> None:
        self.head = head

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs strings; see `ServingHead.pack`."""
        return self.head.pack(strings)

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the answer; see `ServingHead.answer`."""
        return self.head.answer(outputs, rows)


class Tagging(Texts):
    """Tag probabilities of each token, and its offsets in the text."""

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs texts, truncating long ones."""
        head = self.head
        tokens = head.tokenizer.tokenize_with_offsets(strings["text"])
        segment = (_starts(tokens[0]), _lengths(tokens[0]))
        ids, starts, ends = (x.flat_values for x in tokens)
        layout = packing.lay_out([segment], tf.size(ids), head.buckets)
        return Rows(
            layout.inputs(ids, head.tokenizer.vocabulary),
            _offsets(layout, starts, ends),
        )

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `probabilities` <float32>[B, T, labels] and offsets."""
        return self.head.answer_ids(outputs, rows) | rows.state


class QuestionAnswering(Texts):
    """Logits of each token of the context, and its offsets in it."""

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs questions with the beginnings of their contexts."""
        head = self.head
        questions = head.tokenizer.tokenize(strings["question"])
        tokens = head.tokenizer.tokenize_with_offsets(strings["context"])
        num_before = tf.size(questions.flat_values)
        ids, starts, ends = (x.flat_values for x in tokens)
        longest = head.task.max_query_length

        def truncate(lengths, room):
            kept = tf.minimum(lengths[0], longest)
            return [kept, tf.minimum(lengths[1], room - kept)]

        layout = packing.lay_out(
            [
                (_starts(questions), _lengths(questions)),
                (num_before + _starts(tokens[0]), _lengths(tokens[0])),
            ],
            num_before + tf.size(ids),
            head.buckets,
            truncate,
        )
        nowhere = tf.fill([num_before], _NONE)
        return Rows(
            layout.inputs(
                tf.concat([questions.flat_values, ids], 0),
                head.tokenizer.vocabulary,
            ),
            _offsets(
                layout,
                tf.concat([nowhere, starts], 0),
                tf.concat([nowhere, ends], 0),
            ),
        )

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `start_logits` and `end_logits` [B, T], and offsets."""
        return self.head.answer_ids(outputs, rows) | rows.state


class MultipleChoice(Texts):
    """Choices, with the answers of the SavedModel.

    Choices and texts without tokens count as missing; in the SavedModel, those
    without characters do.
    """

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs each choice after its text, truncating the longer one first."""
        head = self.head
        shape = tf.shape(strings["choices"])
        texts = head.tokenizer.tokenize(strings["text"])
        choices = head.tokenizer.tokenize(tf.reshape(strings["choices"], [-1]))
        num_before = tf.size(texts.flat_values)
        ids = tf.concat([texts.flat_values, choices.flat_values], 0)
        choice = (num_before + _starts(choices), _lengths(choices))
        text = [
            tf.reshape(tf.tile(x[:, tf.newaxis], [1, shape[1]]), [-1])
            for x in (_starts(texts), _lengths(texts))
        ]
        has_text = text[1] > 0
        layout = packing.lay_out(
            [
                tuple(map(lambda a, b: tf.where(has_text, a, b), text, choice)),
                (choice[0], tf.where(has_text, choice[1], 0)),
            ],
            tf.size(ids),
            head.buckets,
        )
        inputs = layout.inputs(ids, head.tokenizer.vocabulary)
        rows_shape = tf.concat([shape, [head.max_seq_length]], 0)
        return Rows(
            {name: tf.reshape(x, rows_shape) for name, x in inputs.items()},
            {"is_there": tf.reshape(choice[1] > 0, shape)},
        )


def _starts(tokens: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(tokens.row_starts(), tf.int32)


def _lengths(tokens: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(tokens.row_lengths(), tf.int32)


def _offsets(
    layout: packing.Layout, starts: tf.Tensor, ends: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the offsets `starts` and `ends` <int32>[B, T] in bytes, or -1."""
    return {
        name: layout.place(values, _NONE, _NONE, _NONE)
        for name, values in (("starts", starts), ("ends", ends))
    }
