"""Rows of .csv, .tsv, .jsonl, .json, .txt (each also as .gz) and .parquet."""

import csv
import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import text_files

# A .txt file has only this column; each line is a text.
TEXT_COLUMN = "text"

# The standard library refuses fields of more than 131,072 characters, but texts
# may be longer, so `read_csv` raises this limit (for the whole process).
_MAX_FIELD_CHARS = (1 << 31) - 1
# If a .tsv seems to have a single column, its separator may be one of these.
_OTHER_SEPARATORS = ",;"
# In some countries, spreadsheets separate fields by one of these, not by
# commas. A line such as "sep=;" before the header may name the separator.
_SPREADSHEET_SEPARATORS = (";", "\t", "|")
_NAMED_SEPARATOR = re.compile(r'"?sep=(.)"?')
_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".parquet")
_JSON_ADVICE = (
    "; a .jsonl file holds one object per line, a .json file the same or a "
    "list of objects"
)
_HEADER_ADVICE = (
    " below its header; if each line is a text, let its name end in .txt."
)
_JSON_SEPARATORS = re.compile(r"[\s,]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Attributes:
      line: The number, from 1, of the line in which the row begins.
      values: JSON values by column; in .csv, .tsv and .txt, all are strings.
    """

    line: int
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of a file, and its rows, which are read lazily.

    Attributes:
      path: The file.
      columns: The names of the columns; in JSON, the keys of the first object.
      rows: The rows, which can be iterated over once.
      repeated: The names that two or more columns share. `columns` and rows
        omit these names, and `require` raises an error for them.
    """

    path: str
    columns: tuple[str, ...]
    rows: Iterator[Row]
    repeated: frozenset[str] = frozenset()

    def require(
        self, columns: Iterable[str], flags: Mapping[str, str] | None = None
    ) -> None:
        """Raises `UserError` if the table lacks one of the columns.

        `flags` maps a column to the flag that sets the column's name.
        """
        for column in columns:
            if column in self.repeated:
                raise UserError(
                    f"{self.path} names the column {column!r} twice in its "
                    "first line; rename one of them."
                )
            if column in self.columns:
                continue
            if file_ending(self.path) == ".txt":
                raise UserError(
                    f"{self.path} has no column {column!r}, as each of its "
                    "lines is a text; give a .csv, .tsv or .jsonl file."
                )
            flag = (flags or {}).get(column)
            form = f"{flag}={{}}" if flag else "{!r}"
            hint = f"; name another with {flag}." if flag else "; rename one."
            names = filter(str.isidentifier, self.columns)
            hint = errors.did_you_mean(column, names, form, hint)
            raise UserError(
                f"{self.path} has no column {column!r}; its first line names "
                f"the columns {', '.join(map(repr, self.columns))}{hint}"
            )


def file_ending(path: str) -> str:
    """Returns the lower-case ending of a path, without .gz."""
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def is_table(path: str) -> bool:
    """Returns True if `read_table` reads files with the path's ending."""
    return file_ending(path) in _ENDINGS


def read_table(
    path: str,
    *,
    ending: str | None = None,
    columns_without_header: Sequence[str] = (),
    columns_of_longer_rows: Sequence[str] = (),
    on_broken_row: Callable[[int], None] | None = None,
) -> Table:
    r"""Opens a file of rows.

    - .csv: the first line names the columns; fields with commas, quotation
      marks or line ends are quoted, with inner quotation marks doubled. If the
      header has semicolons, tabs or vertical bars but no comma, these separate
      the fields. A line "sep=;" before the header names a separator.
    - .tsv: the first line names the columns; tabs separate fields and quotation
      marks are ordinary characters, as in GLUE's files.
    - .jsonl: one JSON object per line.
    - .json: a list of JSON objects (all read at once), or lines as in .jsonl.
    - .txt: each line is a text, in a column named "text".
    - .parquet: needs pyarrow; `Row.line` is the number of the row.

    A byte order mark, CRs at line ends and spaces around names are removed.
    Blank lines are skipped. In a file with one column, however, a blank line
    between other lines is a row with an empty text.

    Args:
      path: The file.
      ending: The format, such as ".csv"; by default, the ending of the path.
      columns_without_header: Names for a .csv or .tsv file without a header.
        The first line is data, and no header, if it has one field for each of
        these names and no field is one of them.
      columns_of_longer_rows: Names for rows of a .csv or .tsv file that are
        longer than the header. The names apply if they include all columns of
        the header and the row has one field for each name.
      on_broken_row: Called with the line number of each row with a wrong number
        of fields, which is then skipped; with None, such a row is an error.

    Raises:
      UserError: If the file cannot be read or has no row, or a row is broken,
        repeats the header or is no JSON object; `rows` raises this error, too.
    """
    ending, repeated = ending or file_ending(path), frozenset()
    if ending in (".csv", ".tsv"):
        fields = read_csv(path) if ending == ".csv" else _read_lines(path, "\t")
        return _delimited_table(
            path,
            fields,
            tuple(columns_without_header),
            tuple(columns_of_longer_rows),
            on_broken_row,
        )
    if ending == ".txt":
        lines = _read_lines(path, "\n", 1)  # A line is one field.
        rows = (Row(line, {TEXT_COLUMN: text}) for line, (text,) in lines)
    elif ending in (".json", ".jsonl"):
        lines = text_files.read_lines(path)
        read = _read_json if ending == ".json" else _read_json_lines
        rows = read(path, lines)
    elif ending == ".parquet":
        names = open_parquet(path).schema_arrow.names
        repeated = frozenset(x for x in names if names.count(x) > 1)
        rows = parquet_rows(path)
    else:
        raise UserError(
            f"{path} must end in .csv, .tsv, .jsonl, .json or .txt, or in one "
            "of these and .gz, or in .parquet; save a spreadsheet as .csv, "
            "and rename other files by their format."
        )
    first, rows = _peek(rows, path)
    columns = tuple(name for name in first.values if name not in repeated)
    return Table(path, columns, rows, repeated)


def _peek(rows: Iterator[Row], path: str) -> tuple[Row, Iterator[Row]]:
    first = next(rows, None)
    if first is None:
        advice = _HEADER_ADVICE if file_ending(path) == ".csv" else "."
        raise UserError(f"{path} has no rows{advice}")
    return first, itertools.chain([first], rows)


def _delimited_table(
    path: str,
    fields: Iterator[tuple[int, list[str]]],
    columns_without_header: tuple[str, ...],
    columns_of_longer_rows: tuple[str, ...],
    on_broken_row: Callable[[int], None] | None,
) -> Table:
    line, first = next(fields, (0, []))
    if not first:
        raise UserError(f"{path} is empty: it must begin with a header line.")
    columns = tuple(name.strip() for name in first)
    expected = set(columns_without_header)
    has_header = len(columns) != len(expected) or not expected.isdisjoint(
        columns
    )
    if not has_header:
        columns = columns_without_header
    repeated = frozenset(x for x in columns if columns.count(x) > 1)
    by_count = {len(columns): columns}
    if set(columns) <= set(columns_of_longer_rows):
        by_count |= {len(columns_of_longer_rows): columns_of_longer_rows}

    def to_values(names: Sequence[str], fields: list[str]) -> dict[str, str]:
        pairs = zip(names, fields, strict=True)
        return {name: x for name, x in pairs if name not in repeated}

    def rows() -> Iterator[Row]:
        if not has_header:
            yield Row(line, to_values(columns, first))
        for number, values in fields:
            names = by_count.get(len(values))
            # Ignore the byte order mark that a joined file may begin with.
            stripped = [value.strip("\ufeff ") for value in values]
            if has_header and len(columns) > 1 and stripped == [*columns]:
                raise UserError(
                    f"{path}, line {number} is the header again, as if files "
                    "were joined; remove the line."
                )
            if names is not None:
                yield Row(number, to_values(names, values))
            elif on_broken_row:
                on_broken_row(number)
            else:
                raise UserError(_count_message(path, number, values, columns))

    names = tuple(name for name in columns if name not in repeated)
    return Table(path, names, _peek(rows(), path)[1], repeated)


def _count_message(
    path: str, line: int, values: Sequence[str], columns: Sequence[str]
) -> str:
    hint, ending = "", file_ending(path)
    if ending == ".csv" and len(values) > len(columns):
        hint = "; put quotation marks around a text that contains a comma"
    if ending == ".tsv" and any(x.lstrip().startswith('"') for x in values):
        hint = (
            "; quotation marks do not join fields of a .tsv; if they should, "
            "save it as .csv"
        )
    for separator in _OTHER_SEPARATORS:
        if ending == ".tsv" and len(columns) == 1 and separator in columns[0]:
            hint = (
                f"; the first line, {columns[0]!r}, seems to have "
                f"{separator!r} between its columns; save the file in the "
                "format of its ending"
            )
    return (
        f"{path}, line {line} must have {len(columns)} columns like the first "
        f"line. Received: {len(values)}{hint}."
    )


def read_csv(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the fields of each row."""
    csv.field_size_limit(_MAX_FIELD_CHARS)
    lines = (line for _, line in text_files.read_lines(path))
    separator, lines = _find_separator(lines)
    reader = csv.reader(
        (line + "\n" for line in lines), delimiter=separator, strict=True
    )

    def read() -> Iterator[tuple[int, list[str]]]:
        line = 1
        try:
            for fields in reader:
                yield line, fields
                line = reader.line_num + 1
        except csv.Error as error:
            raise UserError(
                f"{path}, line {line} is not CSV ({error}); put fields with "
                "commas or quotation marks in quotation marks, and double "
                "those inside."
            ) from error

    return _without_blanks(read())


def _find_separator(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Returns the separator of a .csv file, and the file's lines.

    A line "sep=;" becomes a blank line, so that line numbers stay correct.
    """
    first = next(lines, "")
    named = _NAMED_SEPARATOR.fullmatch(first)
    if named:
        return named[1], itertools.chain([""], lines)
    separator = ","
    if len(_split(first, ",")) == 1:
        separator = max(
            (",", *_SPREADSHEET_SEPARATORS),
            key=lambda one: len(_split(first, one)),
        )
    return separator, itertools.chain([first], lines)


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _read_lines(
    path: str, separator: str, num_columns: int = 0
) -> Iterator[tuple[int, list[str]]]:
    lines = text_files.read_lines(path)
    rows = ((number, x.split(separator) if x else []) for number, x in lines)
    return _without_blanks(rows, num_columns)


def _without_blanks(
    rows: Iterable[tuple[int, list[str]]], num_columns: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Leaves out blank rows, but not between rows of a single column."""
    blank: list[tuple[int, list[str]]] = []
    for number, fields in rows:
        if fields:
            num_columns = num_columns or len(fields)
            yield from blank
            blank = []
            yield number, fields
        elif num_columns == 1:
            blank.append((number, [""]))


def _read_json_lines(
    path: str, lines: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    for number, line in lines:
        if line.strip():
            value = text_files.parse_json(line, path, number, _JSON_ADVICE)
            yield _json_row(path, number, value, line)


def _read_json(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
    text = "\n".join(line for _, line in lines)
    position = len(text) - len(text.lstrip())
    if not text.startswith("[", position):
        yield from _read_json_lines(path, enumerate(text.split("\n"), 1))
        return
    # Check the syntax of the whole text first: the loop assumes valid JSON.
    text_files.parse_json(text, path, advice=_JSON_ADVICE)
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    while True:
        position = _JSON_SEPARATORS.match(text, position + 1).end()
        if text[position] == "]":
            return
        line += text.count("\n", counted, position)
        counted = position
        value, end = decoder.raw_decode(text, position)
        yield _json_row(path, line, value, text[position:end])
        position = end - 1


def _json_row(path: str, line: int, value: Any, text: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(
            f"{path}, line {line} must be a JSON object with a key for each "
            f"column. Received: {type(value).__name__}."
        )
    text_files.check_characters(text, value, f"{path}, line {line}")
    return Row(line, value)


def open_parquet(path: str) -> Any:
    """Opens a Parquet file with pyarrow; raises `UserError` on failure."""
    with errors.extras():
        import pyarrow as pa
        from pyarrow import parquet
    files.require_file(path, "The path")
    try:
        if paths.is_remote(path):
            with files.open_binary(path) as stored:
                return parquet.ParquetFile(pa.BufferReader(stored.read()))
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path} is not a complete Parquet file "
            f"({str(error).splitlines()[0]}); download it again."
        ) from error


def _plain(value: Any) -> Any:
    """Converts a value to JSON: bytes and dates to text, and NaN to None.

    Bytes are decoded as UTF-8, because Spark stores texts as bytes.
    """
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_plain(x) for x in value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    is_json = value is None or isinstance(value, str | int | dict)
    return value if is_json else str(value)


def parquet_rows(path: str) -> Iterator[Row]:
    """Yields the rows of a Parquet file, numbered from 1."""
    file = open_parquet(path)
    import pyarrow as pa

    try:
        batches = file.iter_batches(batch_size=1024)
        rows = itertools.chain.from_iterable(x.to_pylist() for x in batches)
        for number, values in enumerate(rows, 1):
            yield Row(number, {x: _plain(y) for x, y in values.items()})
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); download it again."
        ) from error
