"""Tagging examples: sentences with tags in CoNLL-2003's format, or raw text.

Each line has a word and its other columns, an empty line ends a sentence, and
-DOCSTART- starts a document. Tags are IOB1 or IOB2 in files, always IOB2 here.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import NamedTuple

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.tagging import schemes

# The document of a sentence that shares it with no other.
ALONE = -1
DOCUMENT_START = "-DOCSTART-"
_SPACES = re.compile(" +")
# The columns of tables; a table has one of them.
TEXT = tables.TEXT_COLUMN
WORDS = "words"
_TABLES = (".csv", ".jsonl", ".json")
# The number of lines that determine the format of a .txt file.
_NUM_PEEKED_LINES = 100


@dataclasses.dataclass(frozen=True)
class TaggingExample:
    """A sentence.

    Attributes:
      words: The words, as they are in the file.
      tags: Their tags in IOB2, or None.
      document: The number of the document, whose sentences are consecutive;
        `ALONE` for a document of one sentence.
      line: The line of the first word, from 1; 0 without a file.
      offsets: The start and end of each word in raw text, in characters; None
        without raw text.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: int = ALONE
    line: int = 0
    offsets: tuple[tuple[int, int], ...] | None = None


@dataclasses.dataclass(frozen=True)
class TaggingData:
    """The sentences of a file and the format of its tags.

    Attributes:
      examples: The sentences.
      scheme: The tagging scheme: "IOB1" (an entity begins with I-, or with B-
        directly after another entity of its type), "IOB2" (it always begins
        with B-), "mixed" if sentences differ, or None without entities.
      num_changed_tags: The number of tags that differ in IOB2.
      has_documents: Whether there are -DOCSTART- lines.
    """

    examples: tuple[TaggingExample, ...]
    scheme: Literal["IOB1", "IOB2", "mixed"] | None
    num_changed_tags: int
    has_documents: bool


class _Row(NamedTuple):
    """A line with a word; `fields` are its columns."""

    line: int
    fields: list[str]


@dataclasses.dataclass
class _Sentence:
    document: int
    rows: list[_Row]


def read_examples(
    path: str,
    word_column: int | str = 0,
    tag_column: int | str | None = -1,
    may_lack_tags: bool = False,
) -> TaggingData:
    """Reads a file with columns of words and tags.

    Columns are separated by tabs if the first line with a word has one, else
    by spaces. A file whose path ends in ".gz" is decompressed.

    Args:
      path: The file.
      word_column: The column of the words: its number from 0, or from -1
        backwards, or its name in the first line, which is then a header.
      tag_column: The column of the tags, in the same form; None reads none.
      may_lack_tags: If True, a file may lack the column of the tags.

    Raises:
      UserError: If there is no word, the number of columns varies, a word or
        the chosen column is missing, a tag is not O, B-type or I-type, or the
        file has the ending of another format.
    """
    _check_ending(path)
    lines = list(text_files.read_lines(path))
    has_documents = _has_documents(lines)
    sentences = list(_read_sentences(path, lines, has_documents))
    header = None
    if isinstance(word_column, str) or isinstance(tag_column, str):
        header = _take_header(sentences)
    _require_sentence(sentences, path)
    if may_lack_tags and _lacks_tags(
        word_column, tag_column, sentences, header
    ):
        tag_column = None
    columns = [
        None
        if column is None
        else _find_column(column, sentences, header, path)
        for column in (word_column, tag_column)
    ]
    examples = [_to_example(x, *columns, path) for x in sentences]
    if tag_column is None:
        return TaggingData(tuple(examples), None, 0, has_documents)
    tags = [example.tags for example in examples]
    converted = [schemes.to_iob2(x) for x in tags]
    return TaggingData(
        tuple(
            dataclasses.replace(example, tags=x)
            for example, x in zip(examples, converted, strict=True)
        ),
        schemes.detect_scheme(tags),
        sum(
            old != new
            for pair in zip(tags, converted, strict=True)
            for old, new in zip(*pair, strict=True)
        ),
        has_documents,
    )


def read_untagged(
    path: str, word_column: int | str = 0
) -> Iterator[TaggingExample]:
    """Yields the sentences of a file with columns, without their tags.

    Columns other than `word_column` are not read.

    Raises:
      UserError: As for `read_examples`, when it reaches the mistake.
    """
    has_documents = _has_documents(text_files.read_lines(path))
    lines = text_files.read_lines(path)
    sentences = _read_sentences(path, lines, has_documents)
    # The header may be followed by an empty line.
    first = list(itertools.islice(sentences, 2))
    header = _take_header(first) if isinstance(word_column, str) else None
    _require_sentence(first, path)
    column = _find_column(word_column, first, header, path)
    for sentence in itertools.chain(first, sentences):
        yield _to_example(sentence, column, None, path)


def _check_ending(path: str) -> None:
    if (ending := tables.file_ending(path)) in _TABLES:
        raise UserError(
            f"{path} must have a word and its tag on each line, separated by "
            "spaces or a tab, like .conll, .tsv and .txt files. Received: a "
            f"{ending} file."
        )


def _has_documents(lines: Iterable[tuple[int, str]]) -> bool:
    """Returns True if there are -DOCSTART- lines."""
    return any(line.startswith(DOCUMENT_START) for _, line in lines)


def _read_sentences(
    path: str, lines: Iterable[tuple[int, str]], has_documents: bool
) -> Iterator[_Sentence]:
    """Yields the sentences; without documents each is its own document."""
    first = None
    has_tabs = False
    document = 0
    rows: list[_Row] = []
    for number, line in lines:
        is_start = line.startswith(DOCUMENT_START)
        if is_start or not line.strip(" \t"):
            if rows:
                yield _Sentence(document, rows)
                document += not has_documents
                rows = []
            document += is_start
            continue
        if first is None:
            has_tabs = "\t" in line
        fields = line.split("\t") if has_tabs else _SPACES.split(line.strip())
        row = _Row(number, fields)
        first = first or row
        if len(first.fields) != len(row.fields):
            raise UserError(
                f"{path}, line {row.line} has {len(row.fields)} columns; "
                f"expected {len(first.fields)}, as on line {first.line}."
            )
        rows.append(row)
    if rows:
        yield _Sentence(document, rows)


def _require_sentence(sentences: Sequence[_Sentence], path: str) -> None:
    if not sentences:
        raise UserError(
            f"{path} has no sentence. Expected a word and its tag on each line "
            "and an empty line after each sentence."
        )


def _take_header(sentences: list[_Sentence]) -> list[str]:
    """Removes the first line of the first sentence, and returns its fields."""
    if not sentences:
        return []
    header = sentences[0].rows.pop(0)
    if not sentences[0].rows:
        sentences.pop(0)
    return header.fields


def _lacks_tags(word_column, tag_column, sentences, header) -> bool:
    """Returns True if there is no tag column besides the word column."""
    if isinstance(tag_column, str):
        return tag_column not in header
    width = len(sentences[0].rows[0].fields)
    places = [x + width if x < 0 else x for x in (word_column, tag_column)]
    return places[0] == places[1] or not 0 <= places[1] < width


def _find_column(column, sentences, header, path) -> int:
    """Returns the number of a column from 0."""
    if isinstance(column, str):
        if column not in header:
            raise UserError(
                f"{path} has no column {column!r}; its first line has: "
                f"{', '.join(header)}."
            )
        return header.index(column)
    width = len(sentences[0].rows[0].fields)
    if not -width <= column < width:
        raise UserError(
            f"{path} has no column {column}; its lines have {width} columns, "
            f"numbered from 0 to {width - 1}."
        )
    return column % width


def _to_example(
    sentence: _Sentence, word_column: int, tag_column: int | None, path: str
) -> TaggingExample:
    """Returns a sentence with its tags as in the file."""
    words, tags = [], []
    for line, fields in sentence.rows:
        word = fields[word_column]
        if not word.strip():
            raise UserError(
                f"{path}, line {line} has no word in column {word_column}."
            )
        words.append(word)
        if tag_column is None:
            continue
        tag = fields[tag_column].strip()
        if not schemes.is_tag(tag):
            raise UserError(
                f"{path}, line {line}: expected a tag O, B-type or I-type in "
                f"column {tag_column}. Received: {tag!r}."
            )
        tags.append(tag)
    return TaggingExample(
        tuple(words),
        None if tag_column is None else tuple(tags),
        sentence.document,
        sentence.rows[0].line,
    )


def read_inputs(path: str, word_column: int | str) -> Iterator[TaggingExample]:
    """Yields the sentences of a file to predict; tags are not read.

    The ending of the file (before .gz) determines its format:

    - .csv, .jsonl, .json: a table with a column "text" of raw texts or, in
      .jsonl and .json, "words" of lists of words; one example per row.
    - .tsv: a table if its first line has a column "text", does not end with a
      tag, and "text" is not `word_column`; else columns.
    - .txt: raw text, one example per line. It is columns if a line begins with
      -DOCSTART-, or if all lines up to the first empty one have the same
      number of fields, at least two, and end with a tag. So a file of untagged
      columns needs another ending.
    - .conll and all others: columns, one example per sentence.

    Raises:
      UserError: If the file is invalid for its ending.
    """
    if has_texts(path, word_column):
        yield from _read_table(path)
    else:
        yield from read_untagged(path, word_column)


def has_texts(path: str, word_column: int | str) -> bool:
    """Returns True for a file of texts, not of columns; see `read_inputs`."""
    ending = tables.file_ending(path)
    return (
        ending in _TABLES
        or (ending == ".tsv" and is_table(path, word_column))
        or (ending == ".txt" and not _has_columns(path))
    )


def parse_row(row: Any) -> TaggingExample:
    """Converts a Python value to an example.

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
        "Expected a text, a list of non-empty words, or an object with one of "
        f'these as "{TEXT}" or "{WORDS}". Received: {str(row)[:80]!r}.'
    )


def from_text(text: str) -> TaggingExample:
    """Splits a raw text into words with offsets."""
    # Imported here, as it imports TensorFlow.
    from bert_tf.text import words as words_lib

    words = words_lib.split_words(text)
    return TaggingExample(
        tuple(word.text for word in words),
        offsets=tuple((word.start, word.end) for word in words),
    )


def open_texts(path: str) -> tuple[tables.Table, str]:
    """Opens a table of raw texts or of lists of words.

    Returns:
      The table, and the column to read, "text" or "words".

    Raises:
      UserError: If it has none of these columns, or both.
    """
    table = tables.read_table(path)
    keys = [key for key in (WORDS, TEXT) if key in table.columns]
    if len(keys) != 1:
        raise UserError(
            f'{path} must have a column "{TEXT}" with texts or "{WORDS}" with '
            f"lists of words. Received: {', '.join(table.columns)}."
        )
    return table, keys[0]


def _read_table(path: str) -> Iterator[TaggingExample]:
    table, key = open_texts(path)
    for row in table.rows:
        try:
            yield parse_row({key: row.values.get(key)})
        except UserError as error:
            raise UserError(f"{path}, line {row.line}: {error}") from error


def is_table(path: str, word_column: int | str) -> bool:
    """Returns True if a .tsv is a table of raw texts; see `read_inputs`."""
    for _, line in text_files.read_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        return (
            TEXT in fields
            and word_column != TEXT
            and not schemes.is_tag(fields[-1])
        )
    return False


def _has_columns(path: str) -> bool:
    """Returns True if a .txt file has columns; see `read_inputs`."""
    widths = set()
    for _, line in itertools.islice(
        text_files.read_lines(path), _NUM_PEEKED_LINES
    ):
        if line.startswith(DOCUMENT_START):
            return True
        fields = line.split()
        if not fields:
            if widths:
                break
            continue
        widths.add(len(fields))
        if len(fields) < 2 or not schemes.is_tag(fields[-1]):
            return False
    return len(widths) == 1
