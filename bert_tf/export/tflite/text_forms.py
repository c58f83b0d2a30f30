"""How heads read strings in TensorFlow Lite, and what they answer.

There it has no operators that take words out of a text, so heads that point
into texts say of each piece where it is, and leave it to who asks to cut the
words out.

Shapes:
  B: number of texts, or of pairs of texts.
  C: choices of each text.
  T: pieces of a row.
"""

from collections.abc import Mapping

import tensorflow as tf

from bert_tf.export.heads.head import Head
from bert_tf.export.heads.head import Rows
from bert_tf.text import dense_packing

_NONE = -1


class Texts:
    """Texts and pairs of texts, answered as in the SavedModel.

    Args:
      head: The head, with a `LiteTokenizer` and one length of rows.
    """

    def __init__(self, head: Head) -> None:
        self.head = head

    def input_ranks(self) -> dict[str, int]:
        """Returns the names of the inputs, and how many axes each has."""
        specs = self.head.input_specs()
        return {name: len(spec.shape) for name, spec in specs.items()}

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Returns rows for strings; see `Head.pack`."""
        return self.head.pack(strings)

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns what users get; see `Head.answer`."""
        return self.head.answer(outputs, rows)


class Tagging(Texts):
    """Probabilities of tags for each piece, and where it is in the text."""

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs texts; what is too long is truncated."""
        head = self.head
        pieces = head.tokenizer.tokenize_with_offsets(strings["text"])
        segment = (_starts(pieces[0]), _lengths(pieces[0]))
        ids, starts, ends = (x.flat_values for x in pieces)
        layout = dense_packing.lay_out([segment], tf.size(ids), head.buckets)
        return Rows(
            layout.inputs(ids, head.tokenizer.vocabulary),
            _offsets(layout, starts, ends),
        )

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `probabilities` <float32>[B, T, labels], starts and ends."""
        return self.head.answer_ids(outputs, rows) | rows.state


class QuestionAnswering(Texts):
    """Scores of each piece of the context, and where it is in it."""

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs questions with the beginning of their contexts."""
        head = self.head
        questions = head.tokenizer.tokenize(strings["question"])
        pieces = head.tokenizer.tokenize_with_offsets(strings["context"])
        num_before = tf.size(questions.flat_values)
        ids, starts, ends = (x.flat_values for x in pieces)
        longest = head.task.max_query_length

        def truncate(lengths, room):
            kept = tf.minimum(lengths[0], longest)
            return [kept, tf.minimum(lengths[1], room - kept)]

        layout = dense_packing.lay_out(
            [
                (_starts(questions), _lengths(questions)),
                (num_before + _starts(pieces[0]), _lengths(pieces[0])),
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
        """Returns `start_logits`, `end_logits` [B, T], starts and ends."""
        return self.head.answer_ids(outputs, rows) | rows.state


class MultipleChoice(Texts):
    """Choices, answered as in the SavedModel.

    A choice without pieces is none, and a text without pieces is not there;
    the SavedModel looks for characters.
    """

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs each choice behind its text; the longer is truncated first."""
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
        layout = dense_packing.lay_out(
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


def _starts(pieces: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(pieces.row_starts(), tf.int32)


def _lengths(pieces: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(pieces.row_lengths(), tf.int32)


def _offsets(
    layout: dense_packing.Layout, starts: tf.Tensor, ends: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns `starts` and `ends` <int32>[B, T], bytes of the text, or -1."""
    return {
        name: layout.place(values, _NONE, _NONE, _NONE)
        for name, values in (("starts", starts), ("ends", ends))
    }
