"""Packs token ids into model input: [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

Exported models and `pack` make padded rows. Featurizing makes rows without
padding, and batches then pad these rows.

Padded rows are computed without ragged tensors, which would need ten times as
many operators in each signature of an exported graph.

Shapes:
  P: number of tokens in all segments of a batch.
  R: number of rows.
  T: row length.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.text.vocabulary import Vocabulary

# A segment (A or B) is a pair of tensors <int32>[R]: for each row, the index of
# the segment's first token among all tokens, and the number of its tokens.
Segments = Sequence[tuple[tf.Tensor, tf.Tensor]]


class Layout(NamedTuple):
    """Maps each position of the packed rows to a token.

    Attributes:
      index: <int32>[R, T], the index of the token among all P tokens; the
        indices P, P + 1 and P + 2 stand for [PAD], [CLS] and [SEP].
      is_in_row: <bool>[R, T], false for padding.
      is_second: <bool>[R, T], true for segment B and its [SEP].
    """

    index: tf.Tensor
    is_in_row: tf.Tensor
    is_second: tf.Tensor

    def place(
        self, values: tf.Tensor, pad: int, cls: int, sep: int
    ) -> tf.Tensor:
        """Arranges one value per token in packed rows, <int32>[R, T].

        `values` is <int32>[P]. [PAD], [CLS] and [SEP] get `pad`, `cls`, `sep`.
        """
        return tf.gather(tf.concat([values, [pad, cls, sep]], 0), self.index)

    def inputs(
        self, ids: tf.Tensor, vocabulary: Vocabulary
    ) -> dict[str, tf.Tensor]:
        """Returns the model input for ids <int32>[P], each <int32>[R, T]."""
        return {
            INPUT_IDS.name: self.place(
                ids, vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id
            ),
            INPUT_MASK.name: tf.cast(self.is_in_row, tf.int32),
            SEGMENT_IDS.name: tf.cast(self.is_second, tf.int32),
        }


class RaggedLayout(NamedTuple):
    """Maps each position of packed rows without padding to a token.

    Attributes:
      index: <int32>[sum of lengths], the index of the token among all P tokens;
        P + 1 stands for [CLS], P + 2 for [SEP]; P, for [PAD], does not occur.
      lengths: <int32>[R], number of tokens in each row.
      first_lengths: <int32>[R], number of tokens in [CLS] A [SEP].
      is_truncated: <bool>[R], whether a row has lost tokens.
    """

    index: tf.Tensor
    lengths: tf.Tensor
    first_lengths: tf.Tensor
    is_truncated: tf.Tensor


def pack(
    tokens_a: tf.RaggedTensor,
    tokens_b: tf.RaggedTensor | None,
    max_seq_length: int,
    vocabulary: Vocabulary,
) -> dict[str, tf.Tensor]:
    """Packs one or two segments per row, padded to a fixed length.

    Source: convert_single_example (run_classifier.py:377-453 of the original).
    As in the original, a row with an empty segment B gets only one [SEP].

    Args:
      tokens_a: Ragged <int32>[R, None].
      tokens_b: Ragged <int32>[R, None], or None.
      max_seq_length: The length of every row, at least 3.
      vocabulary: Provides the ids of [CLS], [SEP] and [PAD].

    Returns:
      `input_ids`, `input_mask` (1 for tokens) and `segment_ids` (1 for B and
      its [SEP]), each <int32>[R, max_seq_length].

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.

    Example:
      >>> tokenizer = bert_tf.load_tokenizer("bert-base-uncased")
      >>> a = tokenizer.tokenize(["the match"])
      >>> b = tokenizer.tokenize(["it was the match"])
      >>> packed = bert_tf.pack(a, b, 10, tokenizer.vocabulary)
      >>> packed["segment_ids"].numpy().tolist()
      [[0, 0, 0, 0, 1, 1, 1, 1, 1, 0]]
    """
    tokens = [tokens_a] if tokens_b is None else [tokens_a, tokens_b]
    return pack_to_bucket(tokens, [max_seq_length], vocabulary)


def pack_to_bucket(
    tokens: Sequence[tf.RaggedTensor],
    buckets: Sequence[int],
    vocabulary: Vocabulary,
) -> dict[str, tf.Tensor]:
    """Packs segments like `pack`, padded to the shortest bucket that fits.

    `tokens` has the tokens of A, or of A and of B. `buckets` has the allowed
    row lengths, ascending; longer rows are truncated to the last bucket.
    """
    segments, num_tokens = find_segments(tokens)
    layout = lay_out(segments, num_tokens, buckets)
    ids = tf.concat([one.flat_values for one in tokens], 0)
    return layout.inputs(ids, vocabulary)


def find_segments(
    tokens: Sequence[tf.RaggedTensor],
) -> tuple[Segments, tf.Tensor]:
    """Returns the segments of `tokens`, and P, <int32>[].

    Each of `tokens` is ragged <int32>[R, None]. The P tokens are numbered from
    the first tensor to the last. The tensors [[1, 2], [3]] and [[4], [5, 6]]
    give ([0, 2], [2, 1]), ([3, 4], [1, 2]) and P = 6.
    """
    segments, before = [], 0
    for one in tokens:
        starts = before + tf.cast(one.row_starts(), tf.int32)
        segments.append((starts, tf.cast(one.row_lengths(), tf.int32)))
        before += tf.size(one.flat_values)
    return segments, before


def choose_length(longest: tf.Tensor, buckets: Sequence[int]) -> tf.Tensor:
    """Returns the smallest bucket that holds the longest row, <int32>[]."""
    if len(buckets) == 1:
        return tf.constant(buckets[0])
    index = tf.searchsorted(buckets, longest[tf.newaxis])[0]
    return tf.gather(buckets, index)


def truncate(lengths: Sequence[tf.Tensor], room: tf.Tensor) -> list[tf.Tensor]:
    """Returns how many tokens of each segment are kept, <int32>[R] each.

    Tokens are dropped from the end of the longer segment until both segments
    fit into `room`; of equally long segments, B loses a token. For a room of 7,
    lengths 10 and 2 become 5 and 2; lengths 10 and 9 become 4 and 3.
    Source: _truncate_seq_pair (run_classifier.py:557-571 of the original). No
    loop is needed: each segment gets half of the room, and also any room that
    the other segment does not need.
    """
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    half = (room + 1) // 2
    kept_a = tf.minimum(lengths[0], tf.maximum(room - lengths[1], half))
    return [kept_a, tf.minimum(lengths[1], room - kept_a)]


def lay_out(
    segments: Segments,
    num_tokens: tf.Tensor,
    buckets: Sequence[int],
    truncate: Callable[..., list[tf.Tensor]] = truncate,
) -> Layout:
    """Computes the positions of all tokens in the packed rows.

    Args:
      segments: One or two segments of each row.
      num_tokens: <int32>[], P.
      buckets: Allowed row lengths, ascending.
      truncate: A function to call in place of the module's `truncate`.

    Raises:
      UserError: If the last bucket leaves no room for a token.
    """
    kept, total = _truncate_rows(segments, buckets[-1], truncate)
    # Without rows, reduce_max is the lowest int32 and gives the first bucket.
    length = choose_length(tf.reduce_max(total), buckets)
    position = tf.range(length)[tf.newaxis]
    index = _find_tokens(segments, kept, num_tokens, position, _column)
    is_in_row = position < _column(total)
    return Layout(
        # `index` has a [SEP] even after an empty B: turn this [SEP] into [PAD].
        tf.where(is_in_row, index, num_tokens),
        is_in_row,
        is_in_row & (position > _column(kept[0]) + 1),
    )


def lay_out_ragged(
    segments: Segments, num_tokens: tf.Tensor | int, max_seq_length: int
) -> RaggedLayout:
    """Computes what `lay_out` computes, for rows without padding.

    Rows have at most `max_seq_length` tokens. Tensors must be eager.
    """
    kept, total = _truncate_rows(segments, max_seq_length, truncate)

    def repeat(values):
        # np.repeat is 30 times as fast here as tf.repeat or tf.gather.
        is_one = isinstance(values, int)
        return values if is_one else np.repeat(values.numpy(), total.numpy())

    position = tf.ragged.range(total).flat_values
    index = _find_tokens(segments, kept, num_tokens, position, repeat)
    is_truncated = sum(kept) < sum(length for _, length in segments)
    return RaggedLayout(index, total, kept[0] + 2, is_truncated)


def _truncate_rows(
    segments: Segments,
    max_seq_length: int,
    truncate: Callable[..., list[tf.Tensor]],
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns how many tokens of each segment are kept, and row lengths.

    All tensors are <int32>[R]. Row lengths include special tokens.
    """
    if max_seq_length < 3:
        raise UserError(
            f"--max_seq_length must be at least 3. Received: {max_seq_length}."
        )
    lengths = [length for _, length in segments]
    # An empty segment B has no [SEP], so its row has room for one more token.
    is_pair = lengths[1] > 0 if len(segments) > 1 else False
    room = max_seq_length - 2 - tf.cast(is_pair, tf.int32)
    kept = truncate(lengths, room)
    if len(segments) > 1:  # Rows of at most 4 tokens may lose all of B.
        is_pair = kept[1] > 0
    return kept, 2 + tf.cast(is_pair, tf.int32) + sum(kept)


def _find_tokens(
    segments: Segments,
    kept: Sequence[tf.Tensor],
    num_tokens: tf.Tensor | int,
    position: tf.Tensor,
    spread: Callable[[tf.Tensor | int], tf.Tensor],
) -> tf.Tensor:
    """Returns the index of the token at each position; see `Layout.index`.

    If A is tokens 0 and 1, B is token 2, and P is 3, a row of length 7 becomes
    4 0 1 5 2 5 3. The row's tokens are [CLS] A A [SEP] B [SEP] [PAD]. Each
    segment keeps `kept` <int32>[R] tokens. `position` may have any shape, and
    `spread` broadcasts <int32>[R] or one number to it.
    """
    pad, cls, sep = num_tokens, num_tokens + 1, num_tokens + 2
    index = tf.where(position == 0, cls, pad)
    first_token = 1
    for (start, _), count in zip(segments, kept, strict=True):
        place = position - spread(first_token)  # Position in the segment.
        is_token = (place >= 0) & (place < spread(count))
        index = tf.where(is_token, spread(start) + place, index)
        index = tf.where(place == spread(count), sep, index)
        first_token += count + 1
    return index


def _column(values: tf.Tensor | int) -> tf.Tensor:
    """Returns <int32>[R, 1] for <int32>[R]; returns a number unchanged."""
    values = tf.convert_to_tensor(values)
    return values[:, tf.newaxis] if values.shape.rank == 1 else values
