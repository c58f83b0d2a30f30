"""Stateless dropout: masks depend only on seeds, dropout ids and positions.

A mask's bit is a hash of the example's seed, the id of the dropout in the model
and the position of the element within the example. So an example gets the same
masks in every batch, micro-batch or replica, and in a resumed run. The forward
pass keeps no masks, because the backward pass draws them again.
"""

import tensorflow as tf

# Multipliers of the `lowbias32` integer hash (Wellons, "Hash function
# prospector", 2018). If an input bit flips, each output bit flips with
# probability 1/2 to within 0.2%.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B
_GOLDEN_RATIO = 0x9E3779B9  # 2**32 / golden ratio, rounded to odd.

# Dropout ids from here on belong to heads; the encoder uses smaller ids.
HEAD_DROPOUT_ID = 1 << 16


def shape_of(x):
    """Returns the dimensions of `x`: integers, or tensors if unknown."""
    dynamic = None
    dimensions = x.shape.as_list()
    for axis, dimension in enumerate(dimensions):
        if dimension is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            dimensions[axis] = dynamic[axis]
    return dimensions


def _uint32(value):
    return tf.constant(value, tf.uint32)


def _xor_shift(x, bits):
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _uint32(bits)))


def _mix(x):
    """Returns the `lowbias32` hash of each element of a <uint32> tensor."""
    x = _xor_shift(x, 16) * _uint32(_MULTIPLIER_1)
    x = _xor_shift(x, 15) * _uint32(_MULTIPLIER_2)
    return _xor_shift(x, 16)


def draw_keys(seeds, dropout_id, first_positions=None):
    """Returns the keys of one dropout in the model, a pair for each example.

    Args:
      seeds: <int32>[batch], the examples' seeds, or None.
      dropout_id: An integer or <uint32>[], unique among the model's dropouts.
      first_positions: <int32>[batch], the position of each row's first element
        within its example; None if each row is a whole example.

    Returns:
      <uint32>[batch, 2], or [batch, 3] with `first_positions`. None, which
      means no dropout, if `seeds` is None.
    """
    if seeds is None:
        return None
    seeds = tf.cast(seeds, tf.uint32)
    place = tf.convert_to_tensor(dropout_id, tf.uint32) * _uint32(_GOLDEN_RATIO)
    # Hash both keys in one call of `_mix`: each call adds operations to the
    # graph, and a model makes keys for dozens of dropouts.
    mixed = _mix(tf.stack([seeds, seeds ^ _uint32(_GOLDEN_RATIO)], axis=-1))
    first, second = mixed[..., 0] + place, mixed[..., 1] ^ place
    keys = _mix(tf.stack([first, second], axis=-1))
    if first_positions is None:
        return keys
    positions = tf.cast(first_positions, tf.uint32)
    return tf.concat([keys, positions[..., tf.newaxis]], axis=-1)


def derive_seeds(seeds, number):
    """Returns seeds for the parts of each example.

    The `seeds` are <int32>[batch], the result <int32>[batch, number], at least
    0. A larger `number` (an integer or <int32>[]) only appends seeds.
    """
    part = tf.cast(tf.range(number), tf.uint32) * _uint32(_GOLDEN_RATIO)
    mixed = _mix(tf.cast(seeds, tf.uint32))[:, tf.newaxis]
    derived = tf.bitwise.right_shift(_mix(mixed + part), _uint32(1))
    return tf.cast(derived, tf.int32)


def draw_mask(shape, rate, keys):
    """Draws the mask <bool>[batch, ...] of the elements to keep.

    Args:
      shape: [batch, ...], a list of integers or scalar tensors.
      rate: Probability of dropping an element, below 1.
      keys: <uint32>[batch, 2 or 3] from `draw_keys`.
    """
    position = tf.range(tf.reduce_prod(shape[1:]))
    x = tf.cast(position, tf.uint32)[tf.newaxis, :]
    if keys.shape[-1] == 3:
        x += keys[:, 2:]
    # Add the second key between the two hash rounds. With the first key alone,
    # every mask would be a reordering of one mask, by XOR of the positions.
    x = tf.bitwise.bitwise_xor(x, keys[:, :1])
    x = _xor_shift(x, 16) * _uint32(_MULTIPLIER_1)
    x = _xor_shift(x, 15) + keys[:, 1:2]
    x = _xor_shift(x * _uint32(_MULTIPLIER_2), 16)
    threshold = min(round(rate * 2**32), 2**32 - 1)
    return tf.reshape(x >= _uint32(threshold), shape)


def draw_factor(x, rate, keys):
    """Returns the factors of dropout for `x` <float32>: 0 or 1 / (1 - rate).

    Without dropout, returns the number 1.0.
    """
    if keys is None or rate == 0.0:
        return 1.0
    kept = draw_mask(shape_of(x), rate, keys)
    return tf.where(kept, 1.0 / (1.0 - rate), 0.0)


def dropout(x, rate, seeds, dropout_id):
    """Drops elements of `x` with probability `rate`, and scales the rest.

    Args:
      x: <float>[batch, ...]; the result has the same dtype.
      rate: Probability of dropping an element, at least 0 and below 1.
      seeds: <int32>[batch], one per example, or None for no dropout.
      dropout_id: As for `draw_keys`.
    """
    if seeds is None or rate == 0.0:
        return x
    factor = draw_factor(x, rate, draw_keys(seeds, dropout_id))
    # Multiply in float32: bfloat16 would round the factor by up to 0.4%.
    return tf.cast(tf.cast(x, tf.float32) * factor, x.dtype)
