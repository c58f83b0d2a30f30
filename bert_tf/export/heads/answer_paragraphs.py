"""Paragraphs in the graph: their characters, words and pieces.

Words are those of `squad_examples`: what stands between spaces, tabs, line ends
and narrow no-break spaces. Each is cut into pieces by itself, as there.

Shapes:
  B: number of paragraphs.
  C: characters of all paragraphs.
  N: those of them that are in words.
  W: words of all paragraphs.
  P: pieces of all paragraphs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

import tensorflow as tf

from bert_tf.text.tokenizer import BertTokenizer

# What parts words: see `squad_examples`.
_WHITE_SPACE = " \t\r\n\u202f"


@dataclasses.dataclass(frozen=True)
class Paragraphs:
    r"""The parts of paragraphs, one paragraph after the other.

    Attributes:
      texts: <string>[B], the paragraphs. Bytes that are not UTF-8 count for
        nothing, as in `bytes.decode("utf-8", "ignore")`.
      codes: <int32>[C], code points.
      starts: <int64>[B], the first character of each paragraph.
      places: <int64>[N], which characters are in words.
      begins_word: <bool>[N], whether a word begins there.
      word_splits: <int64>[W + 1], where in `places` each word begins, and N.
      words: <string>[W].
      piece_ids: <int32>[P].
      piece_words: <int64>[P], rising, the word that each piece is of.
      piece_splits: <int64>[B + 1], where in `piece_ids` each paragraph begins,
        and P.
    """

    texts: tf.Tensor
    codes: tf.Tensor
    starts: tf.Tensor
    places: tf.Tensor
    begins_word: tf.Tensor
    word_splits: tf.Tensor
    words: tf.Tensor
    piece_ids: tf.Tensor
    piece_words: tf.Tensor
    piece_splits: tf.Tensor

    @classmethod
    def read(cls, text: tf.Tensor, tokenizer: BertTokenizer) -> Self:
        """Returns the parts of paragraphs.

        Args:
          text: <string>[B].
          tokenizer: Cuts words into pieces.
        """
        text = tf.strings.unicode_transcode(
            text, "UTF-8", "UTF-8", errors="ignore"
        )
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        codes, rows = decoded.flat_values, decoded.value_rowids()
        is_space = tf.reduce_any(
            codes[:, tf.newaxis] == [ord(char) for char in _WHITE_SPACE], axis=1
        )
        places = tf.where(~is_space)[:, 0]
        rows = tf.gather(rows, places)
        begins_word = _differs(places, 1) | _differs(rows, 0)
        words = _split(text)
        pieces = tokenizer.tokenize(words)
        piece_words = pieces.value_rowids()
        piece_rows = tf.gather(tf.boolean_mask(rows, begins_word), piece_words)
        return cls(
            texts=text,
            codes=codes,
            starts=decoded.row_starts(),
            places=places,
            begins_word=begins_word,
            word_splits=tf.concat(
                [tf.where(begins_word)[:, 0], [tf.size(places, tf.int64)]], 0
            ),
            words=words,
            piece_ids=pieces.flat_values,
            piece_words=piece_words,
            piece_splits=tf.searchsorted(
                piece_rows,
                tf.range(tf.size(text, tf.int64) + 1),
                out_type=tf.int64,
            ),
        )

    @classmethod
    def from_state(cls, state: Mapping[str, tf.Tensor]) -> Self:
        """Returns what `state` was made of."""
        return cls(**{x.name: state[x.name] for x in dataclasses.fields(cls)})

    def state(self) -> dict[str, tf.Tensor]:
        """Returns the attributes by name."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}

    def slice(
        self, paragraphs: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns parts of paragraphs.

        White space between words is one space in the text, whatever it is in
        the paragraph.

        Args:
          paragraphs: <int64>[n].
          begins: <int64>[n], a part's first character among `places`.
          ends: <int64>[n], the one behind its last.

        Returns:
          The texts <string>[n], and where they begin and end, <int32>[n]
          each, in characters of the paragraph.
        """
        shift = tf.gather(self.starts, paragraphs)
        starts = tf.cast(tf.gather(self.places, begins) - shift, tf.int32)
        ends = tf.cast(tf.gather(self.places, ends - 1) - shift, tf.int32) + 1
        text = tf.strings.substr(
            tf.gather(self.texts, paragraphs),
            starts,
            ends - starts,
            unit="UTF8_CHAR",
        )
        text = tf.strings.regex_replace(text, f"[{_WHITE_SPACE}]+", " ")
        return text, starts, ends


def _split(text: tf.Tensor) -> tf.Tensor:
    """Returns the words of all paragraphs, <string>[W], of <string>[B]."""
    # Encoding characters anew would not do, as TensorFlow 2.12 replaces those
    # that Unicode calls noncharacters.
    spaced = tf.strings.regex_replace(text, f"[{_WHITE_SPACE}]", " ")
    words = tf.strings.split(spaced, " ").flat_values
    return tf.boolean_mask(words, words != "")


def _differs(x: tf.Tensor, step: int) -> tf.Tensor:
    """Returns <bool>[n], whether elements are not the one before plus `step`.

    The first one always differs.
    """
    return tf.concat([[True], x[1:] != x[:-1] + step], 0)[: tf.size(x)]
