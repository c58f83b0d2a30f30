"""The rules of MediaPipe and the Task Library in plain Python.

Written to be compared with bert_preprocessor_calculator.cc and
bert_tokenizer.cc of MediaPipe.
"""

import unicodedata

from tests.support.reference_tokenizer import CJK
from tests.support.reference_tokenizer import match_longest

_MAX_BYTES = 100


def _is_delimiter(char):
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    if any(first <= ord(char) <= last for first, last in CJK):
        return True
    return unicodedata.category(char)[0] == "P"


def _lower(text):
    return "".join(x.lower() if x.isascii() else x for x in text)


def split_words(text: str) -> list[str]:
    words = [""]
    for char in _lower(text.split("\0", 1)[0]):
        if char in " \t\n\f\r":
            words.append("")
        elif _is_delimiter(char):
            words += [char, ""]
        else:
            words[-1] += char
    return [word for word in words if word]


def tokenize(text: str, tokens: set[str]) -> list[str]:
    found = []
    for word in split_words(text):
        is_too_long = len(word.encode()) > _MAX_BYTES
        found += ["[UNK]"] if is_too_long else match_longest(word, tokens)
    return found
