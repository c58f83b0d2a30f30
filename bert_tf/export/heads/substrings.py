"""Which parts of texts are equal, of any number of parts at once.

Shapes:
  N: characters of all texts, without white space.
"""

import tensorflow as tf

# Any odd number with bits of all magnitudes, and its inverse, both as <int64>.
_BASE = 0x2545F4914F6CDD1D
_MODULUS = 1 << 64
_INVERSE = pow(_BASE, -1, _MODULUS)
# Above all code points.
_BEGINS_WORD = 1 << 21


class Substrings:
    """Gives a number to each part of texts; parts are equal where these are.

    A part is words, the first and the last of which may be cut. Its number is
    a polynomial of its characters, modulo 2**64: overflow is meant.

    Args:
      codes: <int32>[N], code points.
      begins_word: <bool>[N], whether white space stands before a character.
    """

    def __init__(self, codes: tf.Tensor, begins_word: tf.Tensor) -> None:
        self._size = tf.size(codes, tf.int64)
        # No character is 0, as any number of these would be as good as one.
        symbols = 1 + tf.cast(codes, tf.int64)
        spaces = _BEGINS_WORD * tf.cast(begins_word, tf.int64)
        terms = (symbols + spaces) * _powers(_BASE, self._size)
        self._sums = tf.concat([[0], tf.cumsum(terms)], 0)
        self._inverses = _powers(_INVERSE, self._size + 1)
        self._spaces = tf.concat([spaces, [0]], 0)

    def key(self, begins: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of parts of the texts.

        Args:
          begins: <int64>[...], the first character of each.
          lengths: <int64>[...], how many it has; behind the last character
            of all there are no more.

        Returns:
          <int64>[...].
        """
        ends = tf.minimum(begins + lengths, self._size)
        sums = tf.gather(self._sums, ends) - tf.gather(self._sums, begins)
        # What stands before the part does not matter.
        return sums * tf.gather(self._inverses, begins) - tf.gather(
            self._spaces, begins
        )


def _powers(base: int, count: tf.Tensor) -> tf.Tensor:
    """Returns <int64>[count]: 1, base, base**2 and so on."""
    signed = (base + _MODULUS // 2) % _MODULUS - _MODULUS // 2
    return tf.math.cumprod(
        tf.fill([count], tf.constant(signed, tf.int64)), exclusive=True
    )
