"""Layouts of hidden states: all positions of a batch, or its tokens alone.

A batch of sequences of unequal length is padded to [B, S]. Only attention
combines positions, so `Unpadded` keeps hidden states as a matrix [T, H] with a
row for each token. For attention it pads queries, keys and values, and then
converts the context back to [T, H]. To split rows into heads, `Padded`
transposes and `Unpadded` gathers. A token's results and dropout do not depend
on padding, so both layouts give equal results.

Each T needs a compiled program, so T may be rounded up. The additional rows are
padding positions in training, and copies of the first row in inference.

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

# A model that gets these two inputs uses the layout `Unpadded`.
TOKEN_INDICES = "token_indices"
TOKEN_PLACES = "token_places"
INPUTS = (TOKEN_INDICES, TOKEN_PLACES)
# For each length of batches, the number of rows has at most this many values,
# because TensorFlow may compile a program for each value.
_MAX_ROW_COUNTS = 32
# In inference, a row count of 256 or more is rounded up to a multiple of 16.
_MANY_ROWS = 256
_MULTIPLE = 16


def find_rows(input_mask):
    """Returns <bool>[..., S], True for positions that need a row.

    The pooler reads the first position of a sequence, so this position has a
    row even if it is padding. In a sequence without tokens, padding attends to
    padding, so all positions have rows.
    """
    is_token = input_mask > 0
    is_empty = ~tf.reduce_any(is_token, axis=-1, keepdims=True)
    return is_token | is_empty | (tf.range(shape_of(input_mask)[-1]) == 0)


def find_tokens(input_mask, for_inference=False):
    """Returns the inputs for a layout with a row for each token.

    The mask [[1, 1, 0], [1, 0, 0]] gives `token_indices` [0, 1, 3] and
    `token_places` [[0, 1, 3], [2, 3, 3]], where 3 is T: no row.

    Args:
      input_mask: <int32>[..., S], 1 for tokens and 0 for padding.
      for_inference: Whether to round T up with copies of the first row. In
        training, gradients would count the first row several times.

    Returns:
      `token_indices` <int32>[T], the position of each row among all positions
      of the batch; `token_places` <int32>[..., S], the row of each position, or
      T for a position without a row.
    """
    has_row = tf.reshape(find_rows(input_mask), [-1])
    indices = tf.cast(tf.reshape(tf.where(has_row), [-1]), tf.int32)
    if for_inference:
        # oneDNN makes and keeps kernels for each row count, so round it up.
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
    """Returns the inputs for layouts with the same T in all micro-batches.

    With `step` 1, a micro-batch with the masks 1 1 0 and 1 0 0 gives indices
    0 1 and 3 2 (2 is padding), and places 0 1 3 and 2 4 5.

    Args:
      input_mask: <int32>[R, ..., S], 1 for tokens and 0 for padding.
      part_size: Number of examples in a micro-batch; R is a multiple of it.
      step: The mean number of rows per example is rounded up to a multiple of
        `step`, but not above the number of positions.

    Returns:
      `token_indices` <int32>[R, T / part_size], the position of each row of a
      micro-batch. `token_places` <int32>[R, ..., S], the row of each position;
      T or more for padding without a row.
    """
    shape = tf.shape(input_mask)
    per_example = tf.reduce_prod(shape[1:])
    size = part_size * per_example
    is_token = tf.cast(tf.reshape(input_mask, [-1, size]) > 0, tf.int32)
    num_tokens = tf.reduce_sum(is_token, axis=-1, keepdims=True)
    # Mean tokens per example in the longest micro-batch, rounded up.
    least = -(-tf.reduce_max(num_tokens) // part_size)
    num_rows = tf.minimum(tf.maximum(-(-least // step), 1) * step, per_example)
    places = tf.where(
        is_token > 0,
        tf.cumsum(is_token, axis=-1, exclusive=True),
        num_tokens + tf.cumsum(1 - is_token, axis=-1, exclusive=True),
    )
    # `places` is a permutation of the positions; `argsort` inverts it.
    indices = tf.argsort(places, axis=-1)[:, : part_size * num_rows]
    indices = tf.reshape(indices, [shape[0], num_rows])
    return {
        TOKEN_INDICES: tf.ensure_shape(indices, [input_mask.shape[0], None]),
        TOKEN_PLACES: tf.reshape(places, shape),
    }


def row_step(longest):
    """Returns the `step` for the shape of an example's longest `input_mask`."""
    return -(-math.prod(longest) // _MAX_ROW_COUNTS)


def row_counts(shape, step):
    """Returns the possible mean numbers of rows per example.

    `shape` is the shape of an example's `input_mask`; `step` is as for
    `find_tokens_of_parts`.
    """
    size = math.prod(shape)
    return [*range(step, size, step), size]


def choose(inputs, num_heads, for_inference):
    """Returns the layout for a model's dictionary of inputs."""
    if TOKEN_INDICES not in inputs:
        return Padded(num_heads, for_inference)
    indices, places = (inputs[name] for name in INPUTS)
    return Unpadded(indices, places, num_heads, for_inference)


# In inference, one product computes a row's query, key and value side by side.
_PARTS = {False: 1, True: 3}


@dataclasses.dataclass(frozen=True)
class Padded:
    """Hidden states of all positions, <float>[B, S, H]."""

    is_padded: ClassVar[bool] = True

    num_heads: int
    for_inference: bool = False

    def select(self, values):
        """Returns the values of rows, given values of positions [B, S, ...]."""
        return values

    def select_positions(self, table):
        """Returns the values of rows, given <float>[S, H] for all sequences."""
        return table

    def restore(self, rows):
        """Returns <float>[B, S, H], 0 for positions without a row."""
        return rows

    def draw_keys(self, seeds, dropout_id, width):
        """Returns `dropout.draw_keys` for rows of `width` elements."""
        del width
        return dropout.draw_keys(seeds, dropout_id)

    def split_heads(self, rows, like=None):
        """Splits rows into heads, <float>[B, N, S, D].

        In inference, each row has a query, a key and a value side by side, and
        the result is [3, B, N, S, D].

        Args:
          rows: <float>[B, S, H or 3 * H].
          like: <float>[B, S, ...], a tensor to read B and S from; for a product
            that was reshaped, tf2onnx computes wrong sizes.
        """
        batch, length, _ = shape_of(rows if like is None else like)
        width = rows.shape[-1]
        parts, heads = _PARTS[self.for_inference], self.num_heads
        size = width // (parts * heads)
        if parts == 1:
            rows = tf.reshape(rows, [batch, length, heads, size])
            return tf.transpose(rows, [0, 2, 1, 3])
        rows = tf.reshape(rows, [batch, length, parts, heads, size])
        return tf.transpose(rows, [2, 0, 3, 1, 4])

    def merge_heads(self, heads):
        """Merges heads <float>[B, N, S, D] into rows."""
        batch, number, length, size = shape_of(heads)
        merged = tf.transpose(heads, [0, 2, 1, 3])
        return tf.reshape(merged, [batch, length, number * size])


class Unpadded:
    """Hidden states of tokens, <float>[T, H], with the methods of `Padded`.

    In training, the gradient of a gather is a gather, not a scatter. `indices`
    <int32>[...], of T elements, and `places` <int32>[B, S]: see `find_tokens`.
    """

    is_padded: ClassVar[bool] = False

    def __init__(self, indices, places, num_heads, for_inference=False):
        self._gather = _gather if for_inference else _gather_both_ways
        self._indices = indices = tf.reshape(indices, [-1])
        self._batch, self._length = shape_of(places)
        self._num_heads = num_heads
        self._num_parts = _PARTS[for_inference]
        self._sequences = indices // self._length
        self._positions = indices % self._length
        head = tf.range(num_heads)
        # <int32>[T, N], the index of each row and head in a flat [B, N, S].
        self._heads_of_rows = (
            self._sequences[:, tf.newaxis] * num_heads + head
        ) * self._length + self._positions[:, tf.newaxis]
        # For a position without a row, `restore` reads row T, which is zeros.
        # Attention reads row 0 there. Any row would do, because attention masks
        # this position as a key, and nothing reads its result.
        num_rows = tf.size(indices)
        self._places = tf.minimum(places, num_rows)
        self._heads_of_positions = self._find_heads(
            tf.where(places < num_rows, places, 0), head
        )
        self._heads_or_zeros = self._find_heads(self._places, head)

    def _find_heads(self, places, head):
        """Returns <int32>[B, N, S], indices among the heads of all rows.

        `places` <int32>[B, S] has the row of each position, `head` <int32>[N]
        the numbers 0 to N-1. In inference the result is [3, B, N, S].
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
        # Broadcast, so gradients are summed in the same order as in `Padded`.
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
    """Gathers rows without a custom gradient, for inference."""
    return tf.gather(_append_zeros(rows, zeros), there)


def _gather_both_ways(rows, there, *, back, zeros=0, zeros_back=0):
    """Gathers rows <float>[rows, width], with a gradient that gathers, too.

    Element i of the result is row `there[i]`. The gradient of row i is the
    gradient of element `back[i]`; if the result has more copies of the row,
    their gradients must be 0. The function appends `zeros` zero rows to `rows`,
    and `zeros_back` to the gradient.
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
