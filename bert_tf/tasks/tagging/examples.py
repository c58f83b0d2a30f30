"""Sentences with a tag for each word, in columns of a file.

The format is that of CoNLL-2003: a word a line with its columns, an empty line
after each sentence, and a line that begins with -DOCSTART- before each
document. Tags are IOB1 or IOB2 in files, and always IOB2 here.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Literal
from typing import NamedTuple

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.io import text_lines

OUTSIDE = "O"
# The document of a sentence that shares none with any other.
ALONE = -1
DOCUMENT_START = "-DOCSTART-"
_TAG = re.compile(r"O|[BI]-\S+")
_SPACES = re.compile(" +")
_NO_COLUMNS = (".csv", ".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class TaggingExample:
    """A sentence.

    Attributes:
      words: As they are in the file.
      tags: Their tags in IOB2, or None where there are none.
      document: Sentences of one document have the same number, and follow
        each other; `ALONE` for a document of one sentence.
      line: Where in the file the first word is, from 1; 0 if in no file.
      offsets: Of words of raw text, where in it they begin and end, in
        characters; else None.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: int = ALONE
    line: int = 0
    offsets: tuple[tuple[int, int], ...] | None = None


@dataclasses.dataclass(frozen=True)
class TaggingData:
    """What a file holds.

    Attributes:
      examples: The sentences.
      scheme: How the file writes its tags: "IOB1" (an entity begins with I-,
        and with B- only right behind another of its type), "IOB2" (it always
        begins with B-), "mixed" where sentences differ, or None where there is
        no entity.
      num_changed_tags: How many tags IOB2 changed.
      has_documents: Whether there are -DOCSTART- lines. Without them each
        sentence is a document.
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
    """Reads a file of columns.

    Columns are separated by tabs if the first line with a word has one, else
    by spaces. A file whose path ends in ".gz" is unpacked.

    Args:
      path: The file.
      word_column: Which column has the words: its number from 0, or from -1
        backwards, or its name in the first line, which is then a header.
      tag_column: The same for the tags; None leaves all other columns unread.
      may_lack_tags: Whether a file without that column has no tags; else that
        is an error.

    Raises:
      UserError: If there is no word, a line has more or fewer columns than the
        one before, a word or the chosen column is missing, a tag is other than
        O, B-type or I-type, or the file's ending says that it is another kind.
    """
    _check_ending(path)
    has_documents = _has_documents(path)
    sentences = list(_read_sentences(path, has_documents))
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
    converted = [to_iob2(x) for x in tags]
    return TaggingData(
        tuple(
            dataclasses.replace(example, tags=x)
            for example, x in zip(examples, converted, strict=True)
        ),
        detect_scheme(tags),
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
    """Yields the sentences of a file of columns, as far as it is read.

    Args:
      path: The file.
      word_column: As for `read_examples`. Other columns are not read.

    Raises:
      UserError: As `read_examples`, where the mistake is.
    """
    sentences = _read_sentences(path, _has_documents(path))
    # The header may be a sentence by itself.
    first = list(itertools.islice(sentences, 2))
    header = _take_header(first) if isinstance(word_column, str) else None
    _require_sentence(first, path)
    column = _find_column(word_column, first, header, path)
    for sentence in itertools.chain(first, sentences):
        yield _to_example(sentence, column, None, path)


def is_tag(text: str) -> bool:
    """Returns whether a text is O, B-type or I-type."""
    return _TAG.fullmatch(text) is not None


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Returns a sentence's tags with B- where an entity begins.

    An entity begins, as for conlleval, with a B-, and with an I- that follows
    neither a B- nor an I- of its type.
    """
    converted = []
    for tag, previous in _with_previous(tags):
        if tag[0] == "I" and previous[1:] != tag[1:]:
            tag = f"B{tag[1:]}"
        converted.append(tag)
    return tuple(converted)


def detect_scheme(
    sentences: Iterable[Sequence[str]],
) -> Literal["IOB1", "IOB2", "mixed"] | None:
    """Returns how the tags of sentences are written; see `TaggingData`."""
    breaks_iob1 = breaks_iob2 = has_entity = False
    for tags in sentences:
        for tag, previous in _with_previous(tags):
            has_entity |= tag != OUTSIDE
            follows = previous[1:] == tag[1:]
            breaks_iob1 |= tag[0] == "B" and not follows
            breaks_iob2 |= tag[0] == "I" and not follows
    if not has_entity:
        return None
    if breaks_iob1 and breaks_iob2:
        return "mixed"
    return "IOB1" if breaks_iob2 else "IOB2"


def collect_labels(examples: Iterable[TaggingExample]) -> list[str]:
    """Returns the labels that examples need: O, then B- and I- of each type.

    Both are there for each type, in the order of the types' names, so the list
    depends on nothing but the types.

    Raises:
      UserError: If there is no entity.
    """
    types = sorted(
        {tag[2:] for x in examples for tag in x.tags or () if tag != OUTSIDE}
    )
    if not types:
        raise UserError(
            "Expected entities to learn, in tags such as B-PER. Received: no "
            "tag but O."
        )
    return [OUTSIDE, *(f"{x}-{name}" for name in types for x in "BI")]


def count_unknown_types(
    examples: Iterable[TaggingExample], labels: Sequence[str]
) -> dict[str, int]:
    """Returns how many entities have a type that no label has, by type.

    Such entities cannot be found, and count as missed.
    """
    known = set(labels)
    return dict(
        collections.Counter(
            tag[2:]
            for example in examples
            for tag in example.tags or ()
            if tag.startswith("B-") and tag not in known
        )
    )


def _with_previous(tags: Iterable[str]):
    """Yields each tag and the one before it."""
    previous = OUTSIDE
    for tag in tags:
        yield tag, previous
        previous = tag


def _check_ending(path: str) -> None:
    if (ending := tables.file_ending(path)) in _NO_COLUMNS:
        raise UserError(
            f"{path} must have a word and its tag on each line, parted by "
            f"spaces or a tab, as .conll, .tsv and .txt files. Received: a "
            f"{ending} file."
        )


def _has_documents(path: str) -> bool:
    """Returns whether there are -DOCSTART- lines."""
    return any(
        line.startswith(DOCUMENT_START)
        for _, line in text_lines.read_lines(path)
    )


def _read_sentences(path: str, has_documents: bool) -> Iterator[_Sentence]:
    """Yields the sentences; without documents each is one."""
    first = None
    has_tabs = False
    document = 0
    rows: list[_Row] = []
    for number, line in text_lines.read_lines(path):
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
        _check_width(row, first, path)
        rows.append(row)
    if rows:
        yield _Sentence(document, rows)


def _check_width(row: _Row, first: _Row, path: str) -> None:
    """Raises if a line has other columns than the file's first one."""
    if len(first.fields) != len(row.fields):
        raise UserError(
            f"{path}, line {row.line} has {len(row.fields)} columns; expected "
            f"{len(first.fields)}, as on line {first.line}."
        )


def _require_sentence(sentences: Sequence[_Sentence], path: str) -> None:
    if not sentences:
        raise UserError(
            f"{path} has no sentence: expected a word and its tag on each line,"
            " and an empty line after each sentence."
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
    """Returns whether there is no column of tags beside that of the words."""
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
            f"{path} has no column {column}: its lines have {width} columns, "
            f"numbered from 0 to {width - 1}."
        )
    return column % width


def _to_example(
    sentence: _Sentence, word_column: int, tag_column: int | None, path: str
) -> TaggingExample:
    """Returns a sentence with its tags as they are in the file."""
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
        if not is_tag(tag):
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
