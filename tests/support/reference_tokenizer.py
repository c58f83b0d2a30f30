"""The tokenization rules in plain Python, one character at a time.

Slow, but easy to compare with tokenization.py of the original. Each character
keeps the bytes of the text that it was made from, so offsets can be compared,
too. Results depend on the Unicode version of the Python that runs it.
"""

import dataclasses
import itertools
import unicodedata
from collections.abc import Collection

CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@dataclasses.dataclass(frozen=True)
class Word:
    """A normalized word and, per character, the bytes it was made from."""

    text: str
    spans: tuple[tuple[int, int], ...]


def is_punctuation(char: str) -> bool:
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def _is_cjk(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in CJK)


def _clean(text: bytes) -> list[tuple[str, int]]:
    """Returns the characters that are kept, each with its first byte."""
    kept = []
    position = 0
    while position < len(text):
        for length in (1, 2, 3, 4):
            try:
                char = text[position : position + length].decode()
            except UnicodeDecodeError:
                continue
            break
        else:
            position += 1
            continue
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            kept.append((" ", position))
        elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
            kept.append((char, position))
        position += length
    return kept


def _change(token: list, lower_case: bool, strip_accents: bool) -> list:
    """Lower-cases a white-space token and strips accents, keeping sources."""
    if lower_case:
        # The whole token at once, because a capital sigma depends on context.
        lowered = "".join(char for char, _ in token).lower()
        sources = [start for char, start in token for _ in char.lower()]
        token = list(zip(lowered, sources, strict=True))
    if strip_accents:
        token = [
            (part, start)
            for char, start in token
            for part in unicodedata.normalize("NFD", char)
            if unicodedata.category(part) != "Mn"
        ]
    return token


def split_words(
    text: str | bytes, lower_case: bool = True, strip_accents: bool = True
) -> list[Word]:
    if isinstance(text, str):
        text = text.encode()
    tokens: list[list] = [[]]
    starts = {len(text)}
    for char, start in _clean(text):
        if char.isspace():
            starts.add(start)
            tokens.append([])
        elif _is_cjk(char):
            tokens += [[(char, start)], []]
        else:
            tokens[-1].append((char, start))
    words = []
    for token in tokens:
        word: list = []
        for char, start in _change(token, lower_case, strip_accents):
            starts.add(start)
            if is_punctuation(char) or (word and is_punctuation(word[-1][0])):
                words.append(word)
                word = []
            word.append((char, start))
        words.append(word)
    # Dropped bytes belong to the character before them, or spans had gaps.
    ordered = sorted(starts)
    ends = dict(itertools.pairwise(ordered))
    return [
        Word(
            "".join(char for char, _ in word),
            tuple((start, ends[start]) for _, start in word),
        )
        for word in words
        if word
    ]


def split_tokens(word: str, tokens: dict[str, int]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    return match_longest(word, tokens)


def match_longest(word: str, tokens: Collection[str]) -> list[str]:
    """Returns the longest tokens from left to right, or [UNK]."""
    found = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            token = ("##" if start else "") + word[start:end]
            if token in tokens:
                break
        else:
            return ["[UNK]"]
        found.append(token)
        start = end
    return found
