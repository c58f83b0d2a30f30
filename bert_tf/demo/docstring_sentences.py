"""Sentences with a label that is true: which library they document.

Shares of a corpus of documentation become the tables of a classification task.
"""

import collections
import csv
import io
from collections.abc import Sequence

from bert_tf.data import corpus

COLUMNS = ("sentence", "library")

# Shorter ones say too little, longer ones are mostly lists.
_MIN_WORDS = 6
_MAX_WORDS = 40

# A library and the paragraphs of one of its documents.
LabelledDocument = tuple[str, Sequence[str]]


def choose_sentences(
    shares: Sequence[Sequence[LabelledDocument]], most: Sequence[int]
) -> list[list[tuple[str, str]]]:
    """Chooses sentences of each share, equally many of each library.

    A sentence that occurs twice, anywhere, is left out: no share has one of
    another share, and none has two labels.

    Args:
      shares: The documents of each share.
      most: The most sentences of a library in each share.

    Returns:
      For each share pairs of a sentence and its library, by library.
    """
    found = [_split(documents) for documents in shares]
    occurrences = collections.Counter(
        sentence
        for share in found
        for sentences in share.values()
        for sentence in sentences
    )
    chosen = []
    for share, limit in zip(found, most, strict=True):
        usable = {
            library: [
                sentence
                for sentence in sentences
                if occurrences[sentence] == 1 and _is_whole(sentence)
            ]
            for library, sentences in share.items()
        }
        count = min([limit, *map(len, usable.values())])
        chosen.append(
            [
                (sentence, library)
                for library in sorted(usable)
                for sentence in _spread(usable[library], count)
            ]
        )
    return chosen


def to_csv(rows: Sequence[tuple[str, str]]) -> str:
    """Returns the rows as .csv, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue()


def _split(documents: Sequence[LabelledDocument]) -> dict[str, list[str]]:
    """Returns all sentences of each library."""
    sentences = collections.defaultdict(list)
    for library, paragraphs in documents:
        for paragraph in paragraphs:
            sentences[library] += corpus.split_sentences(paragraph)
    return sentences


def _is_whole(sentence: str) -> bool:
    """Returns whether it is no mere phrase and not the end of one."""
    number = len(sentence.split())
    return sentence[0].isupper() and _MIN_WORDS <= number <= _MAX_WORDS


def _spread(sentences: Sequence[str], count: int) -> list[str]:
    """Returns so many of the sentences, from all over them."""
    return [
        sentences[number * len(sentences) // count] for number in range(count)
    ]
