"""Texts that reveal errors of an export.

Unusual texts are listed here. Texts with a given number of tokens are generated
from the vocabulary of the model.
"""

import random
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import MASK

# A string for each input, or a list of strings for inputs with another axis.
Row = Mapping[str, Any]

TEXTS = (
    "",
    " \t\n",
    "A fine film.",
    "the cat sat on the mat.",
    "Don't stop-believing, it's 3.14 o'clock (or so); \"really\"?!",
    "UPPER lower MiXeD İstanbul ΣΊΣΥΦΟΣ Straße ǅ ﬁne",
    "café cafe\u0301 naïve Ångström Å ü u\u0308 ñ o\u0302\u0323",
    "Привет, мир! Γειά σου Κόσμε. Ærøskøbing łódź",
    "東京は日本の首都です。 中国 𠮷野家 한국어 문장 각",
    "مرحبا بالعالم \u200fשלום עולם\u200e नमस्ते दुनिया สวัสดีชาวโลก",
    "👩\u200d👩\u200d👧 🇫🇷 😀😀 ❤️ ☕ ™ © ½ ² № ℝ ﷺ",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break line\u2028end \ufeffmark",
    "NUL\x00in\x01side \x7f\x85 tab\tnew\nline\r\nend \ufffd replaced",
    "[CLS] typed [SEP] tokens [MASK] [PAD] [UNK] [unused1] ##s ##",
    "<html>&amp; https://example.org/a?b=c#d user@example.org $5 50% ~`^|\\",
    "a" * 200 + " " + "a" * 201 + " " + "ab" * 5000,
    "supercalifragilisticexpialidocious antidisestablishmentarianism " * 3,
    "." * 300,
    "long ago, in a far land, the dog sat down and 東 said: hm! " * 400,
)
# Invalid UTF-8, which is ignored: a stray byte, a truncated character, an
# overlong one, a surrogate. Some heads need a [MASK].
INVALID = (
    b"a \xff b [MASK]",
    b"c \xe6\x9d [MASK]",
    b"\xc0\xaf d \xed\xa0\x80 [MASK]",
)
QUESTIONS = (
    "Where does the dog sit?",
    "What is 東京 the capital of ?",
    "Who wrote it, and when and where and why and for whom? " * 20,
    "¿Qué?",
)
CONTEXTS = (
    "The dog sat on the mat, and the cat sat by the door.",
    "東京は日本の首都です。 Tokyo (東京) is the capital of  Japan.",
    "In 1998, Zoë O\u2019Brien-Łukasz paid €1,250.50 to the cafe\u0301: twice.",
    "One two three. " * 150 + "The dog sat on the mat in the end.",
    "word",
)
SENTENCES = (
    "Angela Merkel visited Paris, France on 3 July 2019.",
    "U.N. official Ekeus heads for Baghdad.",
)


def make_rows(
    inputs: Sequence[str],
    column: Sequence[str],
    tokenizer: BertTokenizer,
    longest: int,
    is_masked: bool = False,
) -> list[Row]:
    """Returns a row for each text, with other texts for its other inputs.

    Args:
      inputs: The names of a head's input strings.
      column: The texts.
      tokenizer: The tokenizer of the model.
      longest: The maximum number of tokens of a row.
      is_masked: Whether to put one to three [MASK]s into each text.
    """
    if is_masked:
        column = [_mask(text, number) for number, text in enumerate(column)]
    if len(inputs) == 1:
        return [{inputs[0]: text} for text in column]
    first, second = inputs
    if second == "context":
        column = [*column, *CONTEXTS]
        questions = (QUESTIONS * len(column))[: len(column)]
        pairs = zip(questions, column, strict=True)
    elif second == "choices":
        typed = [text for text in column if text.strip()]
        pairs = (
            (text, [typed[(i + 5 * n) % len(typed)] for n in range(2 + i % 3)])
            for i, text in enumerate(column)
        )
    else:
        # Either text of a pair may be the longer one, or empty.
        lengths = [1 + 7 * number % longest for number in range(len(column))]
        others = of_length(tokenizer, lengths, 1)
        others[1::2] = (TEXTS * len(others))[1 : len(others) : 2]
        pairs = zip(column, others, strict=True)
    return [{first: text, second: other} for text, other in pairs]


def _mask(text: str, number: int) -> str:
    half = len(text) // 2
    return (
        f"{text} {MASK}",
        f"{MASK}{text}{MASK}",
        f"{text[:half]} {MASK}, {MASK} {text[half:]} {MASK}",
    )[number % 3]


def of_length(
    tokenizer: BertTokenizer, lengths: Sequence[int], seed: int = 0
) -> list[str]:
    """Returns texts of random words with given numbers of tokens.

    The words are entries of the vocabulary that are one token as text.

    Args:
      tokenizer: The tokenizer of the model.
      lengths: The number of tokens of each text.
      seed: The seed of the random words.
    """
    tokens = [
        token
        for token in tokenizer.vocabulary.tokens
        if token.isalpha() and not token.startswith("[")
    ] or ["."]
    counts = tokenizer.tokenize(tokens).row_lengths().numpy()
    words = [x for x, n in zip(tokens, counts, strict=True) if n == 1] or ["."]
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=length)) for length in lengths]


def of_vocabulary(tokenizer: BertTokenizer, words_per_text: int) -> list[str]:
    """Returns texts that contain all entries of the vocabulary.

    Args:
      tokenizer: The tokenizer of the model.
      words_per_text: The number of entries per text.
    """
    mark = vocabulary_lib.CONTINUATION
    words = []
    for token in tokenizer.vocabulary.tokens:
        # A continuation token needs a word to continue.
        word = token if token == mark else token.removeprefix(mark)
        words.append(f"a{word}" if word != token else word)
    return [
        " ".join(words[first : first + words_per_text])
        for first in range(0, len(words), words_per_text)
    ]


def to_inputs(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the tensors of rows, <string>[B] or [B, choices]."""
    return {name: to_array([row[name] for row in rows]) for name in rows[0]}


def to_array(values: Sequence[Any]) -> np.ndarray:
    """Returns texts as bytes [B], or lists of texts as [B, longest]."""
    is_flat = not isinstance(values[0], list)
    rows = [[x] for x in values] if is_flat else values
    found = np.full((len(rows), max(map(len, rows))), b"", object)
    for row, texts in zip(found, rows, strict=True):
        row[: len(texts)] = [*map(_to_bytes, texts)]
    return found[:, 0] if is_flat else found


def to_examples(rows: Sequence[Row]) -> np.ndarray:
    """Returns serialized tf.train.Examples of rows, <string>[B]."""
    serialized = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        example = tf.train.Example()
        for name, value in row.items():
            values = value if isinstance(value, list) else [value]
            feature = example.features.feature[name]
            feature.bytes_list.value.extend(map(_to_bytes, values))
        serialized[number] = example.SerializeToString()
    return serialized


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text
