"""The rules of MediaPipe and the Task Library in plain Python.

Written to be compared with bert_preprocessor_calculator.cc and
bert_tokenizer.cc of MediaPipe.
"""

import unicodedata

_CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_MAX_BYTES = 100


def _is_delimiter(char):
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    if any(first <= ord(char) <= last for first, last in _CJK):
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
        found += _split_tokens(word, tokens)
    return found


def _split_tokens(word, tokens):
    if len(word.encode()) > _MAX_BYTES:
        return ["[UNK]"]
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
