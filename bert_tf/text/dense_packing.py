"""Pieces to the model's input, without ragged tensors in between.

The same rows as `bert_tf.text.packing` makes, of a tenth of the operators, so
that a graph with several signatures stays small.

Shapes:
  R: number of rows.
  T: their length, one of the buckets.
"""

import dataclasses
from collections.abc import Callable
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
    if len(buckets) == 1:
        return tf.constant(buckets[0])
    index = tf.searchsorted(buckets, longest[tf.newaxis])[0]
    return tf.gather(buckets, index)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which piece stands where in rows.

    Attributes:
      index: <int32>[R, T], which of all pieces; behind the last follow [PAD],
        [CLS] and [SEP].
      is_in_row: <bool>[R, T], false where there is [PAD].
      is_second: <bool>[R, T], whether it belongs to segment B or is its [SEP].
    """

    index: tf.Tensor
    is_in_row: tf.Tensor
    is_second: tf.Tensor

    def place(
        self, pieces: tf.Tensor, pad: int, cls: int, sep: int
    ) -> tf.Tensor:
        """Puts something of each piece where the piece stands, <int32>[R, T].

        Args:
          pieces: <int32>[P], of all pieces.
          pad: What stands for [PAD].
          cls: The like of [CLS].
          sep: The like of [SEP].
        """
        return tf.gather(tf.concat([pieces, [pad, cls, sep]], 0), self.index)

    def inputs(
        self, pieces: tf.Tensor, vocabulary: Vocabulary
    ) -> dict[str, tf.Tensor]:
        """Returns the model's input.

        Args:
          pieces: <int32>[P], the ids of all pieces.
          vocabulary: Gives the ids of [CLS], [SEP] and [PAD].

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T].
        """
        return {
            INPUT_IDS.name: self.place(
                pieces,
                vocabulary.pad_id,
                vocabulary.cls_id,
                vocabulary.sep_id,
            ),
            INPUT_MASK.name: tf.cast(self.is_in_row, tf.int32),
            SEGMENT_IDS.name: tf.cast(self.is_second, tf.int32),
        }


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
    tokens = [tokens_a] if tokens_b is None else [tokens_a, tokens_b]
    segments, before = [], 0
    for one in tokens:
        starts = before + tf.cast(one.row_starts(), tf.int32)
        segments.append((starts, tf.cast(one.row_lengths(), tf.int32)))
        before += tf.size(one.flat_values)
    layout = lay_out(segments, before, buckets)
    pieces = tf.concat([one.flat_values for one in tokens], 0)
    return layout.inputs(pieces, vocabulary)


def truncate(lengths: Sequence[tf.Tensor], room: tf.Tensor) -> list[tf.Tensor]:
    """Returns how many pieces of each segment are kept, <int32>[R] each.

    See `bert_tf.text.packing.truncate_pair`.

    Args:
      lengths: How many they have, <int32>[R] each.
      room: How many there is room for.
    """
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    half = (room + 1) // 2
    kept_a = tf.minimum(lengths[0], tf.maximum(room - lengths[1], half))
    return [kept_a, tf.minimum(lengths[1], room - kept_a)]


def lay_out(
    segments: Sequence[tuple[tf.Tensor, tf.Tensor]],
    num_pieces: tf.Tensor,
    buckets: Sequence[int],
    truncate: Callable[..., list[tf.Tensor]] = truncate,
) -> Layout:
    """Says which pieces stand where in rows.

    Args:
      segments: One or two: of each row, <int32>[R], where among all pieces the
        segment starts, and how many it has.
      num_pieces: <int32>[], how many pieces there are.
      buckets: Lengths that rows may have, rising.
      truncate: Says how many are kept; see above.

    Raises:
      UserError: If the last bucket leaves no room for a piece.
    """
    least = 1 + 2 * len(segments)
    if buckets[-1] < least:
        raise UserError(
            f"--max_seq_length must be at least {least}. Received: "
            f"{buckets[-1]}."
        )
    lengths = [length for _, length in segments]
    # A row whose segment B is empty is a single segment, with one [SEP].
    is_pair = lengths[1] > 0 if len(segments) > 1 else False
    room = buckets[-1] - 2 - tf.cast(is_pair, tf.int32)
    kept = truncate(lengths, room)
    total = buckets[-1] - room + sum(kept)
    # An empty batch has the smallest of int32 here, and so the first bucket.
    length = choose_length(tf.reduce_max(total), buckets)
    position = tf.range(length)[tf.newaxis]
    pad, cls, sep = num_pieces, num_pieces + 1, num_pieces + 2
    index = tf.where(position == 0, cls, pad)
    first_piece = 1
    for (start, _), count in zip(segments, kept, strict=True):
        # Where in the segment this is.
        place = position - _column(first_piece)
        is_piece = (place >= 0) & (place < _column(count))
        index = tf.where(is_piece, _column(start) + place, index)
        index = tf.where(place == _column(count), sep, index)
        first_piece += count + 1
    is_in_row = position < _column(total)
    return Layout(
        # Where there is no segment B its [SEP] stands behind the row's end.
        tf.where(is_in_row, index, pad),
        is_in_row,
        is_in_row & (position > _column(kept[0]) + 1),
    )


def _column(values: tf.Tensor | int) -> tf.Tensor:
    """Returns <int32>[R, 1] for <int32>[R], and a number as it is."""
    values = tf.convert_to_tensor(values)
    return values[:, tf.newaxis] if values.shape.rank == 1 else values
