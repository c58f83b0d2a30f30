"""From pieces to the model's input: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.text.vocabulary import Vocabulary


def truncate_pair(
    tokens_a: tf.RaggedTensor, tokens_b: tf.RaggedTensor, max_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Drops pieces from the end of the longer segment until both fit.

    Of two segments of one length B loses the piece. Source:
    _truncate_seq_pair (run_classifier.py:557-571 of the original), without
    its loop: a segment is either kept whole or ends at its half.

    Args:
      tokens_a: Ragged <int32>[n, None].
      tokens_b: Ragged <int32>[n, None].
      max_length: The most pieces the two may have together.

    Returns:
      The two, shortened.
    """
    length_a = tokens_a.row_lengths()
    length_b = tokens_b.row_lengths()
    half = (max_length + 1) // 2
    keep_a = tf.minimum(length_a, tf.maximum(max_length - length_b, half))
    keep_b = tf.minimum(length_b, max_length - keep_a)
    return _keep_first(tokens_a, keep_a), _keep_first(tokens_b, keep_b)


def pack(
    tokens_a: tf.RaggedTensor,
    tokens_b: tf.RaggedTensor | None,
    max_seq_length: int,
    vocabulary: Vocabulary,
) -> dict[str, tf.Tensor]:
    """Packs one or two segments a row into fixed length.

    Source: convert_single_example (run_classifier.py:377-453 of the
    original). As there, a row whose segment B is empty is a single segment: it
    gets one [SEP].

    Args:
      tokens_a: Ragged <int32>[n, None].
      tokens_b: Ragged <int32>[n, None], or None.
      max_seq_length: The length of every row, at least 3 (pairs: 5).
      vocabulary: Gives the ids of [CLS], [SEP] and [PAD].

    Returns:
      `input_ids`, `input_mask` (1 for tokens) and `segment_ids` (1 for B and
      its [SEP]), each <int32>[n, max_seq_length].

    Raises:
      UserError: If `max_seq_length` leaves no room for a piece.
    """
    least = 3 if tokens_b is None else 5
    if max_seq_length < least:
        raise UserError(
            f"`max_seq_length` must be at least {least}. Received: "
            f"{max_seq_length}."
        )
    if tokens_b is None:
        tokens_b = _rows_of(tokens_a, 0, 0)
    is_pair = tf.cast(tokens_b.row_lengths() > 0, tf.int64)
    short_a, short_b = truncate_pair(tokens_a, tokens_b, max_seq_length - 3)
    single_a = _keep_first(tokens_a, max_seq_length - 2)
    a_rows = tf.where(
        is_pair > 0, short_a.row_lengths(), single_a.row_lengths()
    )
    first = tf.concat(
        [
            _rows_of(tokens_a, vocabulary.cls_id, 1),
            _keep_first(tokens_a, a_rows),
            _rows_of(tokens_a, vocabulary.sep_id, 1),
        ],
        axis=1,
    )
    second = tf.concat(
        [short_b, _rows_of(tokens_a, vocabulary.sep_id, is_pair)], axis=1
    )
    packed = tf.concat([first, second], axis=1)
    shape = [None, max_seq_length]
    position = tf.range(max_seq_length, dtype=tf.int64)
    length = packed.row_lengths()[:, tf.newaxis]
    in_row = position < length
    in_first = position < first.row_lengths()[:, tf.newaxis]
    return {
        "input_ids": packed.to_tensor(vocabulary.pad_id, shape=shape),
        "input_mask": tf.cast(in_row, tf.int32),
        "segment_ids": tf.cast(in_row & ~in_first, tf.int32),
    }


def _rows_of(like: tf.RaggedTensor, token_id: int, length: tf.Tensor):
    """Returns rows of `token_id`, as many as `like` has, of given length(s)."""
    lengths = tf.broadcast_to(tf.cast(length, tf.int64), [like.nrows()])
    return tf.RaggedTensor.from_row_lengths(
        tf.fill([tf.reduce_sum(lengths)], tf.cast(token_id, tf.int32)), lengths
    )


def _keep_first(
    tokens: tf.RaggedTensor, length: tf.Tensor | int
) -> tf.RaggedTensor:
    """Returns the first `length` pieces of each row."""
    position = tf.ragged.range(tokens.row_lengths()).flat_values
    limit = tf.broadcast_to(tf.cast(length, tf.int64), [tokens.nrows()])
    keep = position < tf.gather(limit, tokens.value_rowids())
    return tf.ragged.boolean_mask(tokens, tokens.with_flat_values(keep))
