"""Decontamination: drops documents that share word sequences with test data.

13 words in a row are shared, as in appendix C of GPT-3's paper
(https://arxiv.org/abs/2005.14165). Words are runs of letters and digits in
lower case.
"""

import csv
import json
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_tf.corpus import inputs
from bert_tf.corpus import ngrams
from bert_tf.corpus import readers
from bert_tf.corpus.documents import Document
from bert_tf.errors import UserError
from bert_tf.io import compression
from bert_tf.io import text_files

NGRAM_LENGTH = 13
EXCLUDED = "shares 13 words in a row with --exclude_file"


def read_ngrams(patterns: str) -> np.ndarray:
    """Returns the hashes of all 13-grams in the files to exclude.

    The texts are all strings of .json, .jsonl and Parquet files except keys,
    the columns of .csv, and the columns between tabs of other files. Texts of
    fewer words have no 13-gram.

    Returns:
      uint64 [n], sorted, without repetitions.

    Raises:
      UserError: If a glob matches nothing, a file cannot be read, or none has
        13 words in a row.
    """
    found = [np.zeros(0, np.uint64)]
    for pattern in patterns.split(","):
        for path in inputs.expand(pattern.strip(), "--exclude_file"):
            for text in _texts(path):
                words = ngrams.hash_words(text)
                found.append(ngrams.hash_ngrams(words, NGRAM_LENGTH))
    hashes = np.unique(np.concatenate(found))
    if not len(hashes):
        raise UserError(
            f"--exclude_file={patterns} has no text of {NGRAM_LENGTH} words in "
            "a row, so it would exclude nothing; check the files."
        )
    return hashes


def is_excluded(document: Document, hashes: np.ndarray) -> bool:
    """Returns True if a document shares a 13-gram; `hashes` are sorted."""
    words = ngrams.hash_words("\n".join(document.paragraphs))
    own = ngrams.hash_ngrams(words, NGRAM_LENGTH)
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
        for row in readers.read_rows(path):
            yield from _strings(row)
        return
    if name.endswith(".json"):
        yield from _strings(text_files.read_json(path))
        return
    lines = text_files.read_lines(path)
    if name.endswith(".csv"):
        yield from _cells(path, (f"{line}\n" for _, line in lines))
        return
    for number, line in lines:
        if name.endswith((".jsonl", ".ndjson")):
            yield from _strings(_parse(line, f"{path}, line {number}"))
        else:
            yield from line.split("\t")


def _cells(path: str, lines: Iterable[str]) -> Iterator[str]:
    try:
        for row in csv.reader(lines, strict=True):
            yield from row
    except csv.Error as error:
        raise UserError(
            f"{path} is not CSV ({error}); a quotation mark may be missing."
        ) from error


def _parse(line: str, where: str) -> Any:
    try:
        return json.loads(line) if line.strip() else None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not a line of JSON ({error}).") from error


def _strings(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, list):
        for value in values:
            yield from _strings(value)
    elif isinstance(values, dict):
        yield from _strings(list(values.values()))
