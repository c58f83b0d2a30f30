"""Words of raw text, cut as those of tagged corpora are, and where they are."""

import itertools
import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from bert_tf.text import normalizer

# The inside of a class of regular expressions.
CJK = "".join(f"{chr(a)}-{chr(b)}" for a, b in normalizer.CJK_RANGES)
LETTER = r"[^\W\d_]"
_CHUNKS = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
# "U.S." and the "W." of a name keep their full stops.
_ABBREVIATION = re.compile(rf"(?:{LETTER}\.){{2,}}|[A-Z]\.")
# "@name" and "#topic" are words in corpora of social media.
_HANDLE = re.compile(r"[@#]\w")


class Word(NamedTuple):
    """A word of a text.

    Attributes:
      text: The word.
      start: Its first character in the text.
      end: The character behind its last.
    """

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """Returns the words of a text, in their order.

    White space separates words; punctuation at either end of what is between
    is words of its own, each character one, as is each character of Chinese.
    Inside words punctuation stays, as in "Coca-Cola" and "3.5".
    """
    words = []
    for match in _CHUNKS.finditer(text):
        words += _peel(text, *match.span())
    return words


def to_byte_offsets(
    text: str, offsets: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Returns starts and ends in UTF-8 for those in characters."""
    sizes = [len(character.encode("utf-8")) for character in text]
    places = list(itertools.accumulate(sizes, initial=0))
    return [(places[start], places[end]) for start, end in offsets]


def _peel(text: str, start: int, end: int) -> list[Word]:
    """Splits what stands between spaces into words."""
    before, after = [], []
    while (
        start < end
        and is_punctuation(text[start])
        and not _HANDLE.match(text, start, end)
    ):
        before.append(Word(text[start], start, start + 1))
        start += 1
    while (
        start < end
        and is_punctuation(text[end - 1])
        and not _ABBREVIATION.fullmatch(text, start, end)
    ):
        after.append(Word(text[end - 1], end - 1, end))
        end -= 1
    middle = [Word(text[start:end], start, end)] if start < end else []
    return [*before, *middle, *reversed(after)]


def is_punctuation(character: str) -> bool:
    """Returns what tokenization.py:386-399 of the original does."""
    if character.isascii():
        return character.isprintable() and not (
            character.isalnum() or character == " "
        )
    return unicodedata.category(character).startswith("P")
