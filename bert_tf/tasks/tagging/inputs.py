"""Sentences to tag, from a user's files and from Python values."""

import itertools
from collections.abc import Iterator
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.io import text_lines
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text import words as words_lib

# The columns of tables, of which each row has one.
TEXT = tables.TEXT_COLUMN
WORDS = "words"

_TABLES = (".csv", ".jsonl", ".json")
# How much of a .txt file says what it is.
_LINES_TO_LOOK_AT = 100


def read_inputs(path: str, word_column: int | str) -> Iterator[TaggingExample]:
    """Yields the sentences of a file, whose tags are not read.

    What is in the file goes by its ending (before .gz):

    - .csv, .jsonl, .json: a table with a column "text" of raw texts or, of
      .jsonl and .json, "words" of lists of words; one example a row.
    - .tsv: a table, if its first line names the column "text", has no tag as
      its last field, and "text" is not `word_column`; else columns.
    - .txt: raw text, one example a line; but columns, if a line begins with
      -DOCSTART-, or all lines up to the first empty one have as many fields,
      two at least, of which the last is a tag. So a file of untagged columns
      must have another ending.
    - .conll and all others: columns, one example a sentence.

    Args:
      path: The file.
      word_column: Of columns: which of them has the words.

    Raises:
      UserError: If the file cannot be read as what its ending says.
    """
    ending = tables.file_ending(path)
    if (
        ending in _TABLES
        or (ending == ".tsv" and _is_table(path, word_column))
        or (ending == ".txt" and not _has_columns(path))
    ):
        yield from _read_table(path)
    else:
        yield from tagging_examples.read_untagged(path, word_column)


def parse(row: Any) -> TaggingExample:
    """Returns the sentence that a Python value means.

    Args:
      row: A raw text; a list of words; or a mapping with one of these under
        "text" or "words".

    Raises:
      UserError: If it is none of these.
    """
    value = row
    if isinstance(row, dict):
        keys = [key for key in (WORDS, TEXT) if key in row]
        value = row[keys[0]] if len(keys) == 1 else None
        if keys == [WORDS] and isinstance(value, str):
            raise UserError(
                f'Expected a list under "{WORDS}", which only .jsonl and .json '
                f'files can hold, or a raw text under "{TEXT}". Received: '
                f"{value[:80]!r}."
            )
    if isinstance(value, str):
        return from_text(value)
    if isinstance(value, (list, tuple)) and all(
        isinstance(word, str) and word.strip() for word in value
    ):
        return TaggingExample(tuple(value))
    raise UserError(
        "Expected a text, a list of words that are not empty, or an object "
        f'with one of these as "{TEXT}" or "{WORDS}". Received: '
        f"{str(row)[:80]!r}."
    )


def from_text(text: str) -> TaggingExample:
    """Returns a raw text's words, with where they are."""
    words = words_lib.split_words(text)
    return TaggingExample(
        tuple(word.text for word in words),
        offsets=tuple((word.start, word.end) for word in words),
    )


def _read_table(path: str) -> Iterator[TaggingExample]:
    table = tables.read_table(path)
    keys = [key for key in (WORDS, TEXT) if key in table.columns]
    if len(keys) != 1:
        raise UserError(
            f'{path} must have a column "{TEXT}" with texts or "{WORDS}" with '
            f"lists of words. Received: {', '.join(table.columns)}."
        )
    for row in table.rows:
        try:
            yield parse({keys[0]: row.values.get(keys[0])})
        except UserError as error:
            raise UserError(f"{path}, line {row.line}: {error}") from error


def _is_table(path: str, word_column: int | str) -> bool:
    """Returns whether a .tsv has a column of raw texts; see `read_inputs`."""
    for _, line in text_lines.read_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        return (
            TEXT in fields
            and word_column != TEXT
            and not tagging_examples.is_tag(fields[-1])
        )
    return False


def _has_columns(path: str) -> bool:
    """Returns whether a .txt file looks like one of columns."""
    widths = set()
    for _, line in itertools.islice(
        text_lines.read_lines(path), _LINES_TO_LOOK_AT
    ):
        if line.startswith(tagging_examples.DOCUMENT_START):
            return True
        fields = line.split()
        if not fields:
            if widths:
                break
            continue
        widths.add(len(fields))
        if len(fields) < 2 or not tagging_examples.is_tag(fields[-1]):
            return False
    return len(widths) == 1
