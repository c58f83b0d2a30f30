"""Characters to strings, for every character that there is.

`tf.strings.unicode_encode` of TensorFlow 2.12, which stock images of
TensorFlow Serving have, replaces the 66 code points that Unicode calls
noncharacters, as U+FFFF.

Shapes:
  W: number of strings.
"""

import tensorflow as tf

# The bits of the first byte that say how many there are, by their number.
_PREFIXES = (0, 0x00, 0xC0, 0xE0, 0xF0)
_BYTES = tuple(bytes([value]) for value in range(256))


def encode(letters: tf.RaggedTensor) -> tf.Tensor:
    """Returns the strings that characters make.

    Args:
      letters: Ragged <int32>[W, None], code points, none of them a surrogate.

    Returns:
      <string>[W], in UTF-8.
    """
    codes = letters.flat_values
    lengths = 1 + sum(
        tf.cast(codes >= first, tf.int32) for first in (0x80, 0x800, 0x10000)
    )
    places = tf.ragged.range(lengths)
    letter = places.value_rowids()
    length, place = tf.gather(lengths, letter), places.flat_values
    # Each byte but the first has six bits of the code point.
    bits = tf.bitwise.right_shift(
        tf.gather(codes, letter), 6 * (length - 1 - place)
    )
    values = tf.where(
        place == 0, tf.gather(_PREFIXES, length) + bits, 0x80 + bits % 64
    )
    return tf.strings.unsorted_segment_join(
        tf.gather(_BYTES, values),
        tf.gather(letters.value_rowids(), letter),
        letters.nrows(),
    )
