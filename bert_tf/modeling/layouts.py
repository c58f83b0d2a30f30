"""Layouts of hidden states: all positions of a batch, or its tokens alone.

A batch of sequences of unequal length is padded to [B, S]. Everything but
attention works on each position by itself, so `Unpadded` keeps hidden states as
a matrix [T, H] of the tokens. Only queries, keys and values become padded, and
their context returns to [T, H]; both ways are gathers of whole heads, in place
of the transpositions that split and merge the heads of padded states. Nothing
that is computed for a token depends on padding, dropout included, so the two
layouts compute the same.

T may exceed the number of tokens, so that programs that are compiled for each T
stay few. Rows beyond the tokens belong to padding, and are computed as those of
a padded batch are; in inference they are copies of the first row.

Shapes:
  B: batch size.
  S: sequence length.
  T: rows of unpadded hidden states.
  H: hidden size.
  N: attention heads.
  D: head size, H / N.
"""

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from bert_tf.modeling import dropout
from bert_tf.modeling.dropout import shape_of

# Optional inputs of models; together they choose `Unpadded`.
TOKEN_INDICES = "token_indices"
TOKEN_PLACES = "token_places"
INPUTS = (TOKEN_INDICES, TOKEN_PLACES)
# The most numbers of rows that micro-batches of a length should have, as a
# program may be compiled for each.
_MAX_ROW_COUNTS = 32
# In inference, larger numbers of rows are multiples, so that there are few.
_MANY_ROWS = 256
_MULTIPLE = 16


def find_tokens(input_mask, for_inference=False):
    """Returns the inputs for a layout with a row for each token.

    The first position of a sequence has a row even if it is padding, as the
    pooler reads it. A sequence without tokens has rows for all its positions,
    as its padding attends to itself.

    Args:
      input_mask: <int32>[..., S], 1 for tokens and 0 for padding.
      for_inference: Whether T may be rounded up, by copies of the first row.
        A gradient would count it several times.

    Returns:
      `token_indices` <int32>[T], the position of each row among all positions
      of the batch; `token_places` <int32>[..., S], the row of each position, T
      for a position without one.
    """
    length = shape_of(input_mask)[-1]
    is_token = input_mask > 0
    is_empty = ~tf.reduce_any(is_token, axis=-1, keepdims=True)
    has_row = tf.reshape(is_token | is_empty | (tf.range(length) == 0), [-1])
    indices = tf.cast(tf.reshape(tf.where(has_row), [-1]), tf.int32)
    if for_inference:
        # oneDNN makes and keeps kernels for each number of rows.
        num_rows = tf.size(indices)
        multiple = tf.where(num_rows < _MANY_ROWS, 1, _MULTIPLE)
        indices = tf.pad(indices, [[0, -num_rows % multiple]])
    rank = tf.cumsum(tf.cast(has_row, tf.int32), exclusive=True)
    places = tf.where(has_row, rank, tf.size(indices))
    return {
        TOKEN_INDICES: indices,
        TOKEN_PLACES: tf.reshape(places, tf.shape(input_mask)),
    }


def find_tokens_of_parts(input_mask, part_size, step):
    """Returns the inputs for a layout with as many rows in each micro-batch.

    The number of rows is rounded up, and padding has the rows beyond the
    tokens.

    Args:
      input_mask: <int32>[R, ..., S], 1 for tokens and 0 for padding.
      part_size: Examples of a micro-batch; divides R.
      step: An example has a multiple of so many rows on average, or one for
        each of its positions.

    Returns:
      `token_indices` <int32>[R, T / part_size], the position of each row among
      all positions of its micro-batch; `token_places` <int32>[R, ..., S], the
      row of each position, T or more for a position without one.
    """
    shape = tf.shape(input_mask)
    per_example = tf.reduce_prod(shape[1:])
    size = part_size * per_example
    is_token = tf.cast(tf.reshape(input_mask, [-1, size]) > 0, tf.int32)
    num_tokens = tf.reduce_sum(is_token, axis=-1, keepdims=True)
    # Rows of an example, on average.
    least = -(-tf.reduce_max(num_tokens) // part_size)
    num_rows = tf.minimum(tf.maximum(-(-least // step), 1) * step, per_example)
    places = tf.where(
        is_token > 0,
        tf.cumsum(is_token, axis=-1, exclusive=True),
        num_tokens + tf.cumsum(1 - is_token, axis=-1, exclusive=True),
    )
    # The places are a permutation of the positions, and this its inverse.
    indices = tf.argsort(places, axis=-1)[:, : part_size * num_rows]
    indices = tf.reshape(indices, [shape[0], num_rows])
    return {
        TOKEN_INDICES: tf.ensure_shape(indices, [input_mask.shape[0], None]),
        TOKEN_PLACES: tf.reshape(places, shape),
    }


def row_step(longest):
    """Returns the `step` of `find_tokens_of_parts` for the longest examples.

    Args:
      longest: The shape of the longest example's `input_mask`.
    """
    return -(-math.prod(longest) // _MAX_ROW_COUNTS)


def row_counts(shape, step):
    """Returns the rows that an example may have on average.

    Args:
      shape: The shape of an example's `input_mask`.
      step: As for `find_tokens_of_parts`.
    """
    size = math.prod(shape)
    return [*range(step, size, step), size]


def choose(inputs, num_heads, for_inference):
    """Returns the layout for the inputs of a model, a dictionary."""
    if TOKEN_INDICES not in inputs:
        return Padded(num_heads, for_inference)
    indices, places = (inputs[name] for name in INPUTS)
    return Unpadded(indices, places, num_heads, for_inference)


def _num_parts(for_inference):
    """Returns how many projections of a row are split into heads at once."""
    # In the form for inference one product makes queries, keys and values.
    return 3 if for_inference else 1


@dataclasses.dataclass(frozen=True)
class Padded:
    """Hidden states of all positions, <float>[B, S, H].

    Attributes:
      num_heads: Attention heads, N.
      for_inference: Whether the model has the form of `inference.prepare`.
    """

    is_padded: ClassVar[bool] = True

    num_heads: int
    for_inference: bool = False

    def select(self, values):
        """Returns the rows for <...>[B, S, ...], values of each position."""
        return values

    def select_positions(self, table):
        """Returns the rows for <float>[S, H], equal in all sequences."""
        return table

    def restore(self, rows):
        """Returns <float>[B, S, H], 0 for positions without a row."""
        return rows

    def draw_keys(self, seeds, dropout_id, width):
        """Returns the keys of a dropout of rows; see `dropout.draw_keys`.

        Args:
          seeds: <int32>[B], or None.
          dropout_id: As for `dropout.draw_keys`.
          width: Elements of a row.
        """
        del width
        return dropout.draw_keys(seeds, dropout_id)

    def split_heads(self, rows, like=None):
        """Returns the heads of rows, <float>[B, N, S, D].

        In the form for inference rows are queries, keys and values side by
        side, and the result is [3, B, N, S, D].

        Args:
          rows: <float>[B, S, H or 3 * H].
          like: <float>[B, S, ...], in exports the source of the rows: tf2onnx
            mistakes the shape of a product that was reshaped.
        """
        batch, length, _ = shape_of(rows if like is None else like)
        width = rows.shape[-1]
        parts, heads = _num_parts(self.for_inference), self.num_heads
        size = width // (parts * heads)
        if parts == 1:
            rows = tf.reshape(rows, [batch, length, heads, size])
            return tf.transpose(rows, [0, 2, 1, 3])
        rows = tf.reshape(rows, [batch, length, parts, heads, size])
        return tf.transpose(rows, [2, 0, 3, 1, 4])

    def merge_heads(self, heads):
        """Returns the rows of heads <float>[B, N, S, D]."""
        batch, number, length, size = shape_of(heads)
        merged = tf.transpose(heads, [0, 2, 1, 3])
        return tf.reshape(merged, [batch, length, number * size])


class Unpadded:
    """Hidden states of tokens, <float>[T, H]; the methods are `Padded`'s.

    No gradient scatters: that of a gather is the gather the other way.

    Args:
      indices: `token_indices` <int32>[...] of T elements; see `find_tokens`.
      places: `token_places` <int32>[B, S].
      num_heads: Attention heads, N.
      for_inference: Whether the model has the form of `inference.prepare`, so
        that there is no gradient.
    """

    is_padded: ClassVar[bool] = False

    def __init__(self, indices, places, num_heads, for_inference=False):
        self._gather = _gather if for_inference else _gather_both_ways
        self._indices = indices = tf.reshape(indices, [-1])
        self._batch, self._length = shape_of(places)
        self._num_heads = num_heads
        self._num_parts = _num_parts(for_inference)
        self._sequences = indices // self._length
        self._positions = indices % self._length
        head = tf.range(num_heads)
        # Among the B * N * S heads of the batch, [T, N].
        self._heads_of_rows = (
            self._sequences[:, tf.newaxis] * num_heads + head
        ) * self._length + self._positions[:, tf.newaxis]
        # Positions without a row have a row of zeros after the last one. In
        # attention the first row stands for it, which saves appending zeros:
        # such keys are masked, and nothing reads such queries.
        num_rows = tf.size(indices)
        self._places = tf.minimum(places, num_rows)
        self._heads_of_positions = self._find_heads(
            tf.where(places < num_rows, places, 0), head
        )
        self._heads_or_zeros = self._find_heads(self._places, head)

    def _find_heads(self, places, head):
        """Returns the heads of rows <int32>[B, S] among those of all rows.

        Returns:
          <int32>[B, N, S], or with several parts [parts, B, N, S].
        """
        heads = (
            places[:, tf.newaxis] * (self._num_parts * self._num_heads)
            + head[:, tf.newaxis]
        )
        if self._num_parts == 1:
            return heads
        part = tf.range(self._num_parts) * self._num_heads
        return heads + tf.reshape(part, [-1, 1, 1, 1])

    def select(self, values):
        flat = tf.reshape(values, [-1, *shape_of(values)[2:]])
        return tf.gather(flat, self._indices)

    def select_positions(self, table):
        # The gradient adds up [B, S, H], as that of padded states does.
        width = table.shape[-1]
        every = tf.broadcast_to(table, [self._batch, self._length, width])
        return self._gather(
            tf.reshape(every, [-1, width]),
            self._indices,
            back=self._places,
            zeros_back=1,
        )

    def restore(self, rows):
        return self._gather(rows, self._places, zeros=1, back=self._indices)

    def draw_keys(self, seeds, dropout_id, width):
        if seeds is None:
            return None
        return dropout.draw_keys(
            tf.gather(seeds, self._sequences),
            dropout_id,
            self._positions * width,
        )

    def split_heads(self, rows, like=None):
        del like
        size = rows.shape[-1] // (self._num_parts * self._num_heads)
        return self._gather(
            tf.reshape(rows, [-1, size]),
            self._heads_of_positions,
            back=self._heads_of_rows,
        )

    def merge_heads(self, heads):
        size = heads.shape[-1]
        merged = self._gather(
            tf.reshape(heads, [-1, size]),
            self._heads_of_rows,
            back=self._heads_or_zeros,
            zeros_back=self._num_heads,
        )
        return tf.reshape(merged, [-1, self._num_heads * size])


def _gather(rows, there, zeros=0, **_):
    """Returns gathered rows without a gradient of its own, for exports."""
    return tf.gather(_append_zeros(rows, zeros), there)


def _gather_both_ways(rows, there, *, back, zeros=0, zeros_back=0):
    """Returns gathered rows; the gradient is gathered, too.

    Args:
      rows: <float>[rows, width].
      there: <int32>[...], the row of each element of the result.
      back: <int32>[...], for each row the element of the result that it is in;
        a row may be in one at most that has a gradient.
      zeros: Rows of zeros after the last one, which `there` may name.
      zeros_back: Zeros after the last element, which `back` may name.

    Returns:
      <float>[..., width].
    """

    @tf.custom_gradient
    def gather(rows):
        def gradient(upstream):
            flat = tf.reshape(upstream, [-1, upstream.shape[-1]])
            into_rows = tf.gather(_append_zeros(flat, zeros_back), back)
            return tf.reshape(into_rows, tf.shape(rows))

        return tf.gather(_append_zeros(rows, zeros), there), gradient

    return gather(rows)


def _append_zeros(rows, number):
    """Returns <float>[rows + number, width]."""
    if not number:
        return rows
    zeros = tf.zeros([number, rows.shape[-1]], rows.dtype)
    return tf.concat([rows, zeros], axis=0)
