"""Stateless random numbers: a pure function of integer keys.

A resumed run draws the same numbers without any stored state. The mixing
function is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014). Unlike TensorFlow's generators, these
functions accept a different key for each element of a batch.
"""

import tensorflow as tf

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, made odd.
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
_SECOND_MULTIPLIER = 0x94D049BB133111EB


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _xor_with_shifted(bits: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(
        bits, tf.bitwise.right_shift(bits, _uint64(shift))
    )


def random_bits(*keys: tf.Tensor | int) -> tf.Tensor:
    """Returns 64 random bits <uint64>[...] for each combination of keys.

    The keys are integers or integer tensors that broadcast against each other,
    for instance a seed, an epoch <int64>[] and positions <int64>[n].
    """
    state = _uint64(0)
    for key in keys:
        if isinstance(key, int):
            key = tf.constant(key, tf.int64)
        state = state + _uint64(_GOLDEN_GAMMA) + tf.cast(key, tf.uint64)
        state = _xor_with_shifted(state, 30) * _uint64(_FIRST_MULTIPLIER)
        state = _xor_with_shifted(state, 27) * _uint64(_SECOND_MULTIPLIER)
        state = _xor_with_shifted(state, 31)
    return state


def uniform(*keys: tf.Tensor | int) -> tf.Tensor:
    """Returns <float64>[...] in [0, 1) for each combination of keys."""
    bits = tf.bitwise.right_shift(random_bits(*keys), _uint64(11))
    return tf.cast(bits, tf.float64) * 2.0**-53


def below(limit: int, *keys: tf.Tensor | int) -> tf.Tensor:
    """Returns <int32>[...] in [0, limit) for each combination of keys."""
    remainder = tf.math.floormod(random_bits(*keys), _uint64(limit))
    return tf.cast(remainder, tf.int32)


def permutation(size: tf.Tensor | int, *keys: tf.Tensor | int) -> tf.Tensor:
    """Returns 0 .. size-1 <int32>[size], in an order determined by keys."""
    drawn = random_bits(*keys, tf.range(tf.cast(size, tf.int64)))
    # Sort as int64: as uint64, permutations would differ from earlier versions,
    # so their runs could not resume.
    return tf.argsort(tf.bitcast(drawn, tf.int64), stable=True)
