"""Filters that judge one document at a time, for worker processes.

Decontamination drops documents that share 13 words in a row with test data, as
in appendix C of GPT-3's paper (https://arxiv.org/abs/2005.14165). Words are
defined as in `fingerprints.hash_words`.
"""

import collections
import dataclasses
import functools
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_tf.corpus import fingerprints
from bert_tf.corpus import inputs
from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Dropped
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import compression
from bert_tf.io import tables
from bert_tf.io import text_files

EMPTY_DOCUMENT = "empty document"
SHORT_PARAGRAPH = "short paragraph"
FEW_LETTERS = "few letters"
SHORT_DOCUMENT = "short document"
OTHER_LANGUAGE = "other language"
# Language detection reads only this number of characters, to save time.
_LANGUAGE_CHARACTERS = 2000

NGRAM_LENGTH = 13
EXCLUDED = "shares 13 words in a row with --exclude_file"


def clean(
    document: Document, config: Flags
) -> tuple[Document | None, list[Dropped]]:
    """Applies the filters of run/extract_text.py to a document.

    Returns:
      The document without the dropped paragraphs, or None if the document is
      dropped; and a list of everything that was dropped.
    """
    paragraphs, dropped = [], []
    for paragraph in document.paragraphs:
        if config.fix_encoding:
            paragraph = fix_encoding(paragraph)
        if len(paragraph) < config.min_paragraph_length:
            dropped.append(Dropped(document.id, SHORT_PARAGRAPH, paragraph))
        elif (
            config.min_letter_share
            and letter_share(paragraph) < config.min_letter_share
        ):
            dropped.append(Dropped(document.id, FEW_LETTERS, paragraph))
        elif paragraph:
            paragraphs.append(paragraph)
    text = "\n".join(paragraphs)
    reason = None
    if not text:
        reason = EMPTY_DOCUMENT
    elif sum(map(len, paragraphs)) < config.min_document_length:
        reason = SHORT_DOCUMENT
    elif config.languages and detect_language(
        text
    ) not in config.languages.split(","):
        reason = OTHER_LANGUAGE
    if reason:
        return None, [*dropped, Dropped(document.id, reason, text)]
    return dataclasses.replace(document, paragraphs=tuple(paragraphs)), dropped


def fix_encoding(paragraph: str) -> str:
    """Returns the text without encoding damage, stripped and in one line.

    Quotation marks, ligatures, HTML entities and the Unicode form stay as they
    are; ftfy's defaults would change them.

    >>> fix_encoding("Der Himmel ist schÃ¶n, “sehr”")
    'Der Himmel ist schön, “sehr”'
    """
    if paragraph.isascii() and paragraph.isprintable():
        return paragraph.strip()
    import ftfy

    fixed = ftfy.fix_text(
        paragraph,
        unescape_html=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        normalization=None,
        explain=False,
    )
    return " ".join(fixed.splitlines()).strip()


def letter_share(text: str) -> float:
    """Returns the share of letters among the characters other than spaces.

    Marks, such as the vowel signs of Hindi, count as letters.

    >>> letter_share("a 1 b 2")
    0.5
    """
    letters = total = 0
    for character, count in collections.Counter(text).items():
        is_letter = unicodedata.category(character)[0] in "LM"
        letters += count * is_letter
        total += count * (not character.isspace())
    return letters / total if total else 0.0


def detect_language(text: str) -> str:
    """Returns the ISO 639-1 code of the language that py3langid detects.

    >>> detect_language("Der Himmel ist heute besonders blau.")
    'de'
    """
    return _load_identifier().classify(text[:_LANGUAGE_CHARACTERS])[0]


def check_languages(languages: str | None) -> None:
    """Raises `UserError` if py3langid cannot detect one of the languages."""
    if languages is None:
        return
    labels = _load_identifier().labels
    unknown = [name for name in languages.split(",") if name not in labels]
    if unknown:
        raise UserError(
            "--languages must be codes that py3langid detects, separated by "
            f"commas: {', '.join(sorted(labels))}. Received: {unknown[0]!r}."
        )


@functools.cache
def _load_identifier() -> Any:
    from py3langid import langid

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)


def read_ngrams(patterns: str) -> np.ndarray:
    """Returns the hashes of 13-grams to exclude, uint64 [n], sorted, distinct.

    A 13-gram is within one text: a string value in a .json, .jsonl or Parquet
    file, a cell of a .csv file, or a tab-separated cell of another file. Raises
    `UserError` if a glob matches nothing, a file cannot be read, or no text has
    13 words.
    """
    found = [np.zeros(0, np.uint64)]
    for pattern in patterns.split(","):
        for path in inputs.expand(pattern.strip(), "--exclude_file"):
            for text in _texts(path):
                words = fingerprints.hash_words(text)
                found.append(fingerprints.hash_ngrams(words, NGRAM_LENGTH))
    hashes = np.unique(np.concatenate(found))
    if not len(hashes):
        raise UserError(
            f"--exclude_file={patterns} has no text of {NGRAM_LENGTH} words in "
            "a row, so it would exclude nothing; check the files."
        )
    return hashes


def is_excluded(document: Document, hashes: np.ndarray) -> bool:
    """Returns True if a 13-gram of the document is in the sorted `hashes`."""
    words = fingerprints.hash_words("\n".join(document.paragraphs))
    own = fingerprints.hash_ngrams(words, NGRAM_LENGTH)
    places = np.searchsorted(hashes, own).clip(max=len(hashes) - 1)
    return bool((hashes[places] == own).any())


def _texts(path: str) -> Iterator[str]:
    if (ending := compression.ending(path)) not in ("", ".gz"):
        raise UserError(
            f"--exclude_file reads plain files and .gz. Received {ending}: "
            f"{path}; unpack it."
        )
    name = path.lower().removesuffix(".gz")
    if name.endswith(inputs.PARQUET_ENDINGS):
        for row in tables.parquet_rows(path):
            yield from _strings(row.values)
        return
    if name.endswith(".json"):
        yield from _strings(text_files.read_json(path))
        return
    if name.endswith(".csv"):
        for _, cells in tables.read_csv(path):
            yield from cells
        return
    for number, line in text_files.read_lines(path):
        if not name.endswith((".jsonl", ".ndjson")):
            yield from line.split("\t")
        elif line.strip():
            yield from _strings(text_files.parse_json(line, path, number))


def _strings(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, list):
        for value in values:
            yield from _strings(value)
    elif isinstance(values, dict):
        yield from _strings(list(values.values()))
