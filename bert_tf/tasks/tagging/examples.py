"""Tagging examples: sentences with tags in CoNLL-2003's format, or raw text.

A line has columns with a word and its tag, an empty line ends a sentence, and
-DOCSTART- starts a document. In a table, each row is a sentence. Files may have
tags of any scheme in `schemes`; examples always have IOB2.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import NamedTuple

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.tagging import schemes
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import USUAL_STEMS
from bert_tf.tasks.task_files import SplitKey
from bert_tf.tasks.task_files import TaskFiles
from bert_tf.tasks.task_files import existing_files

# Value of `document` for a sentence that is a document by itself.
ALONE = -1
# The fields of `TaggingFiles` that task.json stores if they are set.
OPTIONS = ("sentence_column", "comment_prefix", "tag_names")
# Prefixes of lines between documents in CoNLL-2003, OntoNotes and CoNLL-U.
_DOCUMENT_STARTS = (
    "-DOCSTART-",
    "#begin document",
    "#end document",
    "# newdoc",
)
# Matches comments such as "# id 7". Not every line with "#" is a comment: "# O"
# is the word "#" with the tag O.
_COMMENT = re.compile(r"#\s+(id|sent_id|text|newpar|source)\b")
_SPACES = re.compile(" +")
# Column names of tables: "text" for raw texts, others for lists of words.
TEXT = tables.TEXT_COLUMN
WORDS = ("words", "tokens")
# Column names of tags in tables of words, and of spans in tables of texts.
_TAGS = ("tags", "ner_tags", "labels")
_SPANS = ("label", "labels")
_RECORDS = (".jsonl", ".json", ".parquet")
_TABLES = (".csv", *_RECORDS)
# Maximum number of lines that are read to find the format of a .txt file.
_NUM_PEEKED_LINES = 100
# The possible names of files in --data_dir, without ending.
_STEMS = {**USUAL_STEMS, "dev": ("dev", "valid", "validation", "devel")}
_CONLL_NAMES = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".iob")


@dataclasses.dataclass(frozen=True)
class TaggingExample:
    """A sentence: its words as in the file, and their tags in IOB2 or None.

    Attributes:
      document: The document's index, equal for its consecutive sentences;
        `ALONE` if the sentence is a document by itself.
      line: The line number of the first word, from 1; 0 if there is no file.
      offsets: The start and end of each word in raw text, in characters; None
        without raw text.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: int = ALONE
    line: int = 0
    offsets: tuple[tuple[int, int], ...] | None = None


class _Row(NamedTuple):
    """The fields of a line; no fields for an empty or -DOCSTART- line."""

    line: int
    fields: list[str]
    starts_document: bool = False


def _find(values: Mapping[str, Any], names, column: int | str | None) -> Any:
    """Returns the value of `column` if it is a name, else of one of `names`."""
    names = (column,) if isinstance(column, str) else names
    return next((values[x] for x in names if values.get(x) is not None), None)


def _read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file; tabs replace the commas of a .csv file."""
    if tables.file_ending(path) != ".csv":
        yield from text_files.read_lines(path)
        return
    for number, fields in tables.read_csv(path):
        yield number, "\t".join(x.replace("\t", " ") for x in fields)


def _read_rows(
    path: str, lines: Iterator[tuple[int, str]], comment_prefix: str | None
) -> Iterator[_Row]:
    """Yields the rows of a file; skips comments only before a sentence."""
    prefix = "#" if comment_prefix is None else comment_prefix

    def is_row(line):
        return line.strip(" \t") and not line.startswith(_DOCUMENT_STARTS)

    def split(line):
        return line.split("\t") if has_tabs else _SPACES.split(line.strip())

    head = []
    for number, line in lines:
        head.append((number, line))
        if is_row(line) and not (prefix and line.startswith(prefix)):
            break
    first = next((x for x in reversed(head) if is_row(x[1])), (0, ""))
    has_tabs = "\t" in first[1]
    width = len(split(first[1]))
    at_start = True
    for number, line in itertools.chain(head, lines):
        if not is_row(line):
            yield _Row(number, [], line.startswith(_DOCUMENT_STARTS))
            at_start = True
            continue
        fields = split(line)
        if prefix and at_start and line.startswith(prefix):
            is_data = len(fields) == width and not _COMMENT.match(line)
            if comment_prefix is not None or not is_data:
                continue
        if len(fields) != width:
            raise UserError(
                f"{path}, line {number} has {len(fields)} columns; expected "
                f"{width}, as on line {first[0]}."
            )
        at_start = False
        yield _Row(number, fields)


def _require_sentence(sentences: Any, path: str) -> None:
    if not sentences:
        raise UserError(
            f"{path} has no sentence. Expected a word and its tag on each line "
            "and an empty line after each sentence."
        )


def _find_columns(
    path: str,
    columns: Sequence[int | str | None],
    header: Sequence[str],
    may_lack_tags: bool,
) -> list[int | None]:
    """Returns the indices of the columns of words, tags and sentences."""
    places, width = [], len(header)
    for column in columns:
        names = header if isinstance(column, str) else range(-width, width)
        place = names.index(column) % width if column in names else None
        may_lack = may_lack_tags and len(places) == 1
        if place is None and column is not None and not may_lack:
            raise UserError(
                f"{path} has no column {column!r}; its first line has "
                f"{width} columns, from 0: {', '.join(header)}."
            )
        places.append(place)
    if places[0] == places[1]:
        if not may_lack_tags:
            raise UserError(
                f"{path} has words and no tags in column {places[0]}."
            )
        places[1] = None
    return places


def collect_labels(examples: Iterable[TaggingExample]) -> list[str]:
    """Returns the labels of examples: O, then B- and I- of each type.

    Each type has both labels, even if only one occurs. Types are sorted by
    name, so the list depends only on the set of types.

    Raises:
      UserError: If there is no entity.
    """
    tags = {tag for x in examples for tag in x.tags or ()} - {schemes.OUTSIDE}
    types = sorted({tag[2:] for tag in tags})
    if not types:
        raise UserError(
            "Expected entities to learn, in tags such as B-PER. Received: no "
            "tag but O."
        )
    return [schemes.OUTSIDE, *(f"{x}-{name}" for name in types for x in "BI")]


def parse_row(row: Any, column: str | None = None) -> TaggingExample:
    """Converts a Python value to an example.

    The value is a raw text, a list of words, or a mapping that has one of these
    under `column`, by default under "text", "words" or "tokens".

    Raises:
      UserError: If `row` has none of these forms.
    """
    value = row
    if isinstance(row, dict):
        keys = [column] if column else _find_keys(row)
        value = row[keys[0]] if len(keys) == 1 else None
        if keys != [TEXT] and isinstance(value, str):
            raise UserError(
                f'Expected a list under "{keys[0]}", which only .jsonl and '
                f'.json files can hold, or a raw text under "{TEXT}". '
                f"Received: {value[:80]!r}."
            )
    if isinstance(value, str):
        # `words_lib` imports TensorFlow, so import it for raw texts only.
        from bert_tf.text import words as words_lib

        words = words_lib.split_words(value)
        offsets = tuple((word.start, word.end) for word in words)
        return TaggingExample(tuple(x.text for x in words), offsets=offsets)
    if isinstance(value, (list, tuple)) and all(
        isinstance(word, str) and word.strip() for word in value
    ):
        return TaggingExample(tuple(value))
    raise UserError(
        "Expected a text, a list of non-empty words, or an object with one of "
        f'these as "{TEXT}" or "{WORDS[0]}". Received: {str(row)[:80]!r}.'
    )


def _find_keys(names: Iterable[str]) -> list[str]:
    """Returns "words" and "text" if they are in `names`, else "tokens"."""
    found = [x for x in (WORDS[0], TEXT) if x in names]
    return found or [x for x in WORDS if x in names]


def _has_columns(path: str) -> bool:
    """Returns True if a .txt file has columns; see `read_inputs`."""
    widths, begins = set(), set()
    for _, line in itertools.islice(
        text_files.read_lines(path), _NUM_PEEKED_LINES
    ):
        if line.startswith(_DOCUMENT_STARTS):
            return True
        fields = line.split()
        if not fields and widths:
            break
        if not fields or (not widths and line.startswith("#")):
            continue
        widths.add(len(fields))
        begins.add(fields[-1][:2])
        if len(fields) < 2 or not schemes.is_tag(fields[-1]):
            return False
    # `is_tag` also accepts words such as "E-mail", so require O, B- or I-.
    return len(widths) == 1 and not begins.isdisjoint(("O", "B-", "I-"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingFiles(TaskFiles):
    """Files of words, each with a tag.

    Attributes:
      labels: "O" and the tags B-type and I-type of each type; empty until the
        training data are read.
      word_column: The column of words, as an index (-1 is the last column) or
        as a name in the first line, which is then a header.
      tag_column: The column of tags, as an index or a name.
      sentence_column: A column with the sentence's index or name, where a new
        value begins a sentence and an empty value continues it.
      comment_prefix: Skips lines before a sentence that begin with this prefix.
        If None, skips lines that begin with "#" and are comments such as
        "# id 7", or have another number of columns than other lines.
      tag_names: The names of the tags, if the file has their indices instead.
      context: The largest unit that a window spans, "document" or "sentence".
    """

    kind: ClassVar[str] = "tagging"

    name: str = "custom"
    labels: tuple[str, ...] = ()
    word_column: int | str = 0
    tag_column: int | str = -1
    sentence_column: int | str | None = None
    comment_prefix: str | None = None
    tag_names: tuple[str, ...] | None = None
    context: Literal["document", "sentence"] = "document"

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        labels = tuple(values.get("labels") or ())
        return super().stored(values) | {"labels": labels}

    def read(self, split: str) -> tuple[TaggingExample, ...]:
        """Reads words and tags, and logs how many tags are converted to IOB2.

        Columns are separated by commas in .csv files. In other files, they are
        separated by tabs if the first word's line has a tab, else by spaces.

        In a .jsonl, .json or .parquet file, a row is a sentence. It has a list
        "words" or "tokens" and a list "tags", "ner_tags" or "labels", or lists
        in the columns that the task names. Or it has a "text" and a list of
        [start, end, label] under "label" or "labels". Test files may lack tags.

        Raises:
          UserError: If there is no word, if the number of columns varies, if a
            word or the chosen column is missing, or if a tag fits no scheme.
        """
        path, may_lack_tags = self.files[split], split.startswith(TEST)
        ending = tables.file_ending(path)
        has_records = ending in _RECORDS
        if has_records:
            examples = self._read_records(path)
            _require_sentence(examples, path)
        elif self.sentence_column is None and ending == ".csv":
            raise UserError(
                f"{path} has no empty lines between sentences, as a .csv file; "
                "name the column of their numbers with --sentence_column."
            )
        else:
            lines = [*_read_lines(path)]  # Once, as the file may be a pipe.
            examples = [
                *self._read_columns(path, lines, self.tag_column, may_lack_tags)
            ]
        is_one = len(examples) == 1 and not has_records
        if is_one and len(examples[0].words) > 30:
            logging.warning(
                "%s is one sentence of %d words: an empty line ends a "
                "sentence, or --sentence_column names a column with numbers.",
                path,
                len(examples[0].words),
            )
        bare = [example.line for example in examples if example.tags is None]
        if not bare:
            examples = self._convert_tags(path, examples, has_records)
        elif len(bare) < len(examples) or not may_lack_tags:
            raise UserError(f"{path}, line {bare[0]} has no tags.")
        has_documents = any(
            x.document not in (ALONE, index) for index, x in enumerate(examples)
        )
        if not self.labels and self.context == "document" and not has_documents:
            logging.info(
                "%s has no -DOCSTART- lines, so each sentence is a document "
                "and its own context.",
                path,
            )
        unknown = collections.Counter(
            tag[2:]
            for example in examples
            for tag in example.tags or ()
            if tag[0] == "B" and tag not in self.labels
        )
        if unknown and self.labels:
            logging.warning(
                "%s: %d entities have types without a label in the model and "
                "count as missed: %s.",
                path,
                unknown.total(),
                ", ".join(f"{name} ({n})" for name, n in unknown.items()),
            )
        return tuple(examples)

    def _read_columns(
        self,
        path: str,
        lines: Sequence[tuple[int, str]] = (),
        tag_column: int | str | None = None,
        may_lack_tags: bool = False,
    ) -> Iterator[TaggingExample]:
        """Yields the sentences of a file of columns, with the file's tags.

        In a file without documents, each sentence is a document by itself.
        """
        columns = (self.word_column, tag_column, self.sentence_column)
        has_documents = any(
            line.startswith(_DOCUMENT_STARTS)
            for _, line in lines or _read_lines(path)
        )
        places = None
        document, name, words = 0, None, ()
        sentence: list[_Row] = []
        rows = _read_rows(
            path, iter(lines or _read_lines(path)), self.comment_prefix
        )
        # Append an empty row to end the last sentence, or it would be lost.
        for row in itertools.chain(rows, [_Row(0, [])]):
            if row.fields and places is None:
                places = _find_columns(path, columns, row.fields, may_lack_tags)
                word_place, tag_place, sentence_place = places
                if any(isinstance(column, str) for column in columns):
                    continue  # The row is a header.
            begins = not row.fields
            if row.fields and sentence_place is not None:
                # If the value is empty, the row continues the sentence before.
                key = row.fields[sentence_place].strip() or name
                begins, name = key != name, key
            if sentence and begins:
                tags = None
                if tag_place is not None:
                    tags = tuple(x.fields[tag_place].strip() for x in sentence)
                words = tuple(x.fields[word_place] for x in sentence)
                yield TaggingExample(words, tags, document, sentence[0].line)
                document += not has_documents
                sentence = []
            document += row.starts_document
            if row.fields:
                if not row.fields[word_place].strip():
                    raise UserError(
                        f"{path}, line {row.line} has no word in column "
                        f"{word_place}."
                    )
                sentence.append(row)
        _require_sentence(words, path)

    def _read_records(self, path: str) -> list[TaggingExample]:
        """Reads a sentence from each row of a table; leaves out empty rows."""
        examples, num_moved = [], 0
        for row in tables.read_table(path).rows:
            try:
                words = _find(row.values, WORDS, self.word_column)
                has_text = words is None and row.values.get(TEXT) is not None
                example = parse_row(row.values[TEXT] if has_text else words)
                names = _SPANS if has_text else _TAGS
                tags = _find(row.values, names, self.tag_column)
                if has_text and tags is not None:
                    tags, moved = schemes.from_spans(tags, example.offsets)
                    num_moved += moved
                if tags is not None and (
                    not isinstance(tags, (list, tuple))
                    or None in tags
                    or len(tags) != len(example.words)
                ):
                    raise UserError(
                        f"Expected a list of {len(example.words)} tags, one "
                        f"for each word. Received: {tags!r:.80}."
                    )
            except (TypeError, UserError) as error:
                raise UserError(f"{path}, line {row.line}: {error}") from error
            if example.words:
                tags = None if tags is None else tuple(map(str, tags))
                examples.append(
                    dataclasses.replace(example, tags=tags, line=row.line)
                )
        if num_moved:
            logging.warning(
                "%s: %d spans begin or end inside a word, which gets their tag "
                "as a whole, or overlap an earlier one, which counts.",
                path,
                num_moved,
            )
        return examples

    def _convert_tags(
        self, path: str, examples: Sequence[TaggingExample], has_records: bool
    ) -> list[TaggingExample]:
        """Converts the tags to IOB2; numbers are indices of `tag_names`."""
        names = enumerate(self.tag_names or ())
        numbers = {str(number): name for number, name in names}
        tags = [[numbers.get(tag, tag) for tag in x.tags] for x in examples]
        converted, bad = schemes.to_iob2(tags)
        if bad is not None:
            sentence, place = bad
            tag = tags[sentence][place]
            line = examples[sentence].line + (0 if has_records else place)
            hint = "; name 0, 1, ... with --labels=O,B-PER,I-PER"
            raise UserError(
                f"{path}, line {line}: expected a tag O, B-type or I-type in "
                f"column {self.tag_column}, of BIOES, BILOU or BMES, or a file "
                "with names alone. Received: "
                f"{tag!r}{hint if tag.isdecimal() else ''}."
            )
        num_changed = sum(
            old != new
            for pair in zip(tags, converted, strict=True)
            for old, new in zip(*pair, strict=True)
        )
        if num_changed:
            logging.info(
                "%s: %d tags are converted to IOB2.", path, num_changed
            )
        return [
            dataclasses.replace(example, tags=x)
            for example, x in zip(examples, converted, strict=True)
        ]

    def split_keys(self, examples: Sequence[Any]) -> list[SplitKey]:
        # Sentences of a document have one key, so they stay in one split.
        first: dict[int, tuple[str, ...]] = {}
        for x in examples if self.context == "document" else ():
            first.setdefault(x.document, x.words)
        first.pop(ALONE, None)
        return [SplitKey(first.get(x.document, x.words)) for x in examples]

    def read_inputs(self, path: str) -> Iterator[TaggingExample]:
        """Yields the sentences of a file to predict; tags are not read.

        The ending of the file (before .gz) determines its format:

        - A .csv, .jsonl, .json or .parquet file is a table, with one example
          per row. The column "text" has raw texts. Tables other than .csv may
          have lists of words instead, in the column `word_column`, "words" or
          "tokens". A .csv file without "text" has columns if there is a
          `sentence_column`.
        - A .tsv file is a table if its first line has a column "text", does not
          end with a tag, and `word_column` is not "text"; else it has columns.
        - A .txt file has columns if `sentence_column` or `comment_prefix` is
          given, if it begins with -DOCSTART-, or if its first sentence's lines
          end in tags and have equally many fields, at least two. Other .txt
          files have raw text, one example per line. Columns without tags, or
          with tags such as PER, need another ending.
        - Any other file, such as .conll, has columns, one example per sentence.

        Raises:
          UserError: If the file does not have the format of its ending.
        """
        if not self.has_texts(path):
            yield from self._read_columns(path)
            return
        table, key = self._open_texts(path)
        for row in table.rows:
            try:
                yield parse_row({key: row.values.get(key)}, key)
            except UserError as error:
                raise UserError(f"{path}, line {row.line}: {error}") from error

    def has_texts(self, path: str) -> bool:
        """Returns True for texts, not columns; see `read_inputs`."""
        ending = tables.file_ending(path)
        if ending == ".csv" and self.sentence_column is not None:
            return TEXT in tables.read_table(path).columns
        if ending == ".tsv":
            _, line = next(text_files.read_lines(path), (0, ""))
            fields = [field.strip() for field in line.split("\t")]
            is_tag = schemes.is_tag(fields[-1])
            return TEXT in fields and self.word_column != TEXT and not is_tag
        if ending == ".txt":
            options = (self.sentence_column, self.comment_prefix)
            return options == (None, None) and not _has_columns(path)
        return ending in _TABLES

    def _open_texts(self, path: str) -> tuple[tables.Table, str]:
        """Opens a table of texts or lists of words, and returns their column.

        If there is no `word_column`, the column is "text", "words" or "tokens".
        """
        table = tables.read_table(path)
        if self.word_column in table.columns:
            return table, self.word_column
        keys = _find_keys(table.columns)
        if len(keys) != 1:
            raise UserError(
                f'{path} must have a column "{TEXT}" with texts or '
                f'"{WORDS[0]}" with lists of words. Received: '
                f"{', '.join(table.columns)}."
            )
        return table, keys[0]

    def read_table(self, path: str) -> tables.Table | None:
        is_lines = tables.file_ending(path) == ".txt"
        if is_lines or not self.has_texts(path):
            return None
        return super().read_table(path)

    def check_inputs(self, path: str) -> None:
        if self.has_texts(path):
            # Check columns only: splitting texts would import TensorFlow.
            self._open_texts(path)
        else:
            super().check_inputs(path)


def find_file(folder: str, kind: str) -> str:
    """Returns the file of a split in a folder; there must be exactly one."""
    names = [_CONLL_NAMES[kind]]
    names += map("".join, itertools.product(_STEMS[kind], _ENDINGS))
    packed = (name + ending for name in names for ending in ("", ".gz"))
    existing = [*existing_files(folder, packed)]
    if len(existing) != 1:
        raise UserError(
            f"--data_dir must have one file of the {kind} set, for instance "
            f"{names[0]}, {names[1]} or {names[2]}, or name it with "
            f"--{kind}_file. Received: "
            f"{', '.join(existing) or 'none of them'} in {folder}."
        )
    return existing[0]
