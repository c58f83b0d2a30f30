"""Pieces to the model's input, without ragged tensors in between.

The same rows as `bert_tf.text.packing` makes, of a tenth of the operators, so
that a graph with several signatures stays small.

Shapes:
  R: number of rows.
  T: their length, one of the buckets.
"""

from collections.abc import Sequence

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.text.vocabulary import Vocabulary


def choose_length(longest: tf.Tensor, buckets: Sequence[int]) -> tf.Tensor:
    """Returns the smallest bucket that holds the longest row, <int32>[].

    Args:
      longest: <int32>[], at most the last bucket.
      buckets: Lengths, rising.
    """
    index = tf.searchsorted(buckets, longest[tf.newaxis])[0]
    return tf.gather(buckets, index)


def pack(
    tokens_a: tf.RaggedTensor,
    tokens_b: tf.RaggedTensor | None,
    buckets: Sequence[int],
    vocabulary: Vocabulary,
) -> dict[str, tf.Tensor]:
    """Packs one or two segments a row; see `bert_tf.text.packing.pack`.

    Args:
      tokens_a: Ragged <int32>[R, None].
      tokens_b: Ragged <int32>[R, None], or None.
      buckets: Lengths that rows may have, rising; what does not fit into the
        last is truncated.
      vocabulary: Gives the ids of [CLS], [SEP] and [PAD].

    Returns:
      `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T].

    Raises:
      UserError: If the last bucket leaves no room for a piece.
    """
    least = 3 if tokens_b is None else 5
    if buckets[-1] < least:
        raise UserError(
            f"--max_seq_length must be at least {least}. Received: "
            f"{buckets[-1]}."
        )
    segments = [tokens_a] if tokens_b is None else [tokens_a, tokens_b]
    lengths = [tf.cast(x.row_lengths(), tf.int32) for x in segments]
    # A row whose segment B is empty is a single segment, with one [SEP].
    is_pair = lengths[1] > 0 if tokens_b is not None else False
    room = buckets[-1] - 2 - tf.cast(is_pair, tf.int32)
    kept = _truncate(lengths, room)
    total = buckets[-1] - room + sum(kept)
    # An empty batch has the smallest of int32 here, and so the first bucket.
    length = choose_length(tf.reduce_max(total), buckets)
    position = tf.range(length)[tf.newaxis]
    flat = [x.flat_values for x in segments]
    specials = [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]
    pad = sum(tf.size(x) for x in flat)
    index = tf.where(position == 0, pad + 1, pad)
    first_piece, before = 1, 0
    for tokens, values, count in zip(segments, flat, kept, strict=True):
        # Of each row where in it the segment stands, and where in `flat`.
        place = position - _column(first_piece)
        start = before + tf.cast(tokens.row_starts(), tf.int32)
        is_piece = (place >= 0) & (place < _column(count))
        index = tf.where(is_piece, _column(start) + place, index)
        index = tf.where(place == _column(count), pad + 2, index)
        first_piece += count + 1
        before += tf.size(values)
    is_in_row = position < _column(total)
    # Where there is no segment B its [SEP] stands behind the row's end.
    index = tf.where(is_in_row, index, pad)
    is_second = is_in_row & (position > _column(kept[0]) + 1)
    return {
        INPUT_IDS.name: tf.gather(tf.concat([*flat, specials], 0), index),
        INPUT_MASK.name: tf.cast(is_in_row, tf.int32),
        SEGMENT_IDS.name: tf.cast(is_second, tf.int32),
    }


def _truncate(lengths: Sequence[tf.Tensor], room: tf.Tensor) -> list[tf.Tensor]:
    """Returns how many pieces of each segment are kept.

    See `bert_tf.text.packing.truncate_pair`.
    """
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    half = (room + 1) // 2
    kept_a = tf.minimum(lengths[0], tf.maximum(room - lengths[1], half))
    return [kept_a, tf.minimum(lengths[1], room - kept_a)]


def _column(values: tf.Tensor | int) -> tf.Tensor:
    """Returns <int32>[R, 1] for <int32>[R], and a number as it is."""
    values = tf.convert_to_tensor(values)
    return values[:, tf.newaxis] if values.shape.rank == 1 else values
