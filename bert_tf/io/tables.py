"""Rows of .csv, .tsv, .jsonl, .json and .txt files, each also as .gz."""

import csv
import dataclasses
import json
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import json_file
from bert_tf.io import text_lines

# The one column of a .txt file, in which each line is a text.
TEXT_COLUMN = "text"

# The standard library stops at 131,072 characters a field, for all of its
# users at once; texts may be longer.
_MAX_FIELD_CHARS = (1 << 31) - 1
# What stands between columns where people take one format for another.
_OTHER_SEPARATORS = {".csv": "\t;", ".tsv": ",;"}
_JSON_SEPARATORS = re.compile(r"[\s,]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Attributes:
      line: The line of the file, from 1, in which the row begins.
      values: Column to value: a string, or any JSON value of .json and .jsonl.
    """

    line: int
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of a file, and its rows, read as they are asked for.

    Attributes:
      path: The file.
      columns: The names of the columns; of .json and .jsonl, the keys of the
        first object.
      rows: The rows, once.
    """

    path: str
    columns: tuple[str, ...]
    rows: Iterator[Row]

    def require(
        self, columns: Iterable[str], flags: Mapping[str, str] | None = None
    ) -> None:
        """Raises `UserError` if the table lacks one of the columns.

        Args:
          columns: Their names.
          flags: Column to the flag that can name another one.
        """
        for column in columns:
            if column in self.columns:
                continue
            if file_ending(self.path) == ".txt":
                raise UserError(
                    f"{self.path} has no column {column!r}, as each of its "
                    "lines is a text; give a .csv, .tsv or .jsonl file."
                )
            flag = (flags or {}).get(column)
            hint = f"; say with {flag} which is meant" if flag else ""
            raise UserError(
                f"{self.path} has no column {column!r}; its first line names "
                f"the columns {', '.join(map(repr, self.columns))}{hint}."
            )


def file_ending(path: str) -> str:
    """Returns the ending of a path in lower case, that before .gz if packed."""
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


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
      marks or ends of lines are in quotation marks, doubled inside.
    - .tsv: the first line names the columns; tabs separate fields and quotation
      marks are characters like any other, as in GLUE's files.
    - .jsonl: one JSON object a line.
    - .json: a list of JSON objects (read as a whole), or as .jsonl.
    - .txt: each line is a text, in a column named "text".

    A byte order mark and CRLF are no part of the rows. Blank lines are left
    out, unless there is but one column, where one between other lines is a row
    with an empty text. Spaces around the names of columns do not count.

    Args:
      path: The file.
      ending: Overrides the file's ending, with its dot.
      columns_without_header: Names for a .csv or .tsv file without a header:
        one whose first line has as many fields, none of them such a name.
      columns_of_longer_rows: Names for the rows of a .csv or .tsv file that
        have as many fields, where all that the header names are among them.
      on_broken_row: Called with the line of each row that has too many or too
        few fields, which is then left out; by default such a row is an error.

    Raises:
      UserError: Here and from `rows`, if the file cannot be read; a row is
        broken, the header again or no JSON object; a name comes twice; or
        there is no row.
    """
    ending = ending or file_ending(path)
    if ending in (".csv", ".tsv"):
        fields = _read_csv(path) if ending == ".csv" else _read_tsv(path)
        return _delimited_table(
            path,
            fields,
            tuple(columns_without_header),
            tuple(columns_of_longer_rows),
            on_broken_row,
        )
    if ending == ".txt":
        lines = _without_blank_end(text_lines.read_lines(path))
        rows = (Row(line, {TEXT_COLUMN: text}) for line, text in lines)
        first, rows = _peek(rows, path)
        return Table(path, tuple(first.values), rows)
    if ending in (".json", ".jsonl"):
        rows = _read_json(path) if ending == ".json" else _read_json_lines(path)
        first, rows = _peek(rows, path)
        return Table(path, tuple(first.values), rows)
    raise UserError(
        f"{path} must end in .csv, .tsv, .jsonl, .json or .txt, or in one of "
        "these and .gz; rename it by what it holds."
    )


def _peek(rows: Iterator[Row], path: str) -> tuple[Row, Iterator[Row]]:
    """Returns the first row, and all of them."""
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} has no rows.")

    def chain() -> Iterator[Row]:
        yield first
        yield from rows

    return first, chain()


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
    known = set(columns_without_header)
    has_header = len(columns) != len(known) or not known.isdisjoint(columns)
    if not has_header:
        columns = columns_without_header
    for column in columns:
        if columns.count(column) > 1:
            raise UserError(
                f"{path} names the column {column!r} twice in line {line}."
            )
    by_count = {len(columns): columns}
    if set(columns) <= set(columns_of_longer_rows):
        by_count |= {len(columns_of_longer_rows): columns_of_longer_rows}

    def rows() -> Iterator[Row]:
        if not has_header:
            yield Row(line, dict(zip(columns, first, strict=True)))
        for number, values in fields:
            names = by_count.get(len(values))
            if has_header and _repeats(values, columns):
                raise UserError(
                    f"{path}, line {number} is the header again, as where "
                    "files were joined; remove the line."
                )
            if names is not None:
                yield Row(number, dict(zip(names, values, strict=True)))
            elif on_broken_row:
                on_broken_row(number)
            else:
                raise UserError(_count_message(path, number, values, columns))

    return Table(path, columns, _peek(rows(), path)[1])


def _repeats(values: Sequence[str], columns: Sequence[str]) -> bool:
    """Returns whether a row is a header of two columns or more."""
    return (
        len(columns) > 1
        and len(values) == len(columns)
        # The second file may begin with a byte order mark.
        and all(
            value.strip("\ufeff ") == column
            for value, column in zip(values, columns, strict=True)
        )
    )


def _count_message(
    path: str, line: int, values: Sequence[str], columns: Sequence[str]
) -> str:
    hint = ""
    if file_ending(path) == ".tsv" and any(
        value.lstrip().startswith('"') for value in values
    ):
        hint = (
            "; quotation marks do not join fields of a .tsv, so save it as "
            ".csv if they should"
        )
    for separator in _OTHER_SEPARATORS.get(file_ending(path), ""):
        if len(columns) == 1 and separator in columns[0]:
            hint = (
                f"; the first line, {columns[0]!r}, seems to have "
                f"{separator!r} between its columns, so save it as what its "
                "ending says"
            )
    return (
        f"{path}, line {line} must have {len(columns)} columns, as the first "
        f"line has. Received: {len(values)}{hint}."
    )


def _read_csv(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the line and the fields of each row."""
    csv.field_size_limit(_MAX_FIELD_CHARS)
    lines = (line + "\n" for _, line in text_lines.read_lines(path))
    reader = csv.reader(lines, strict=True)
    num_columns = 0
    blank: list[int] = []
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {line} is not CSV ({error}); put fields with "
                "commas or quotation marks in quotation marks, and double "
                "those inside."
            ) from error
        if fields is None:
            return
        if fields:
            num_columns = num_columns or len(fields)
            yield from ((number, [""]) for number in blank)
            blank = []
            yield line, fields
        elif num_columns == 1:
            blank.append(line)


def _read_tsv(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the line and the fields of each row."""
    num_columns = 0
    for number, line in _without_blank_end(text_lines.read_lines(path)):
        fields = line.split("\t")
        if line or num_columns == 1:
            num_columns = num_columns or len(fields)
            yield number, fields


def _without_blank_end(
    lines: Iterator[tuple[int, str]],
) -> Iterator[tuple[int, str]]:
    blank = []
    for number, line in lines:
        if line:
            yield from blank
            blank = []
            yield number, line
        else:
            blank.append((number, line))


def _read_json_lines(path: str) -> Iterator[Row]:
    for number, line in text_lines.read_lines(path):
        if line.strip():
            value = _parse_json(path, number, line)
            yield _json_row(path, number, value, line)


def _read_json(path: str) -> Iterator[Row]:
    text = "\n".join(line for _, line in text_lines.read_lines(path))
    position = len(text) - len(text.lstrip())
    if not text.startswith("[", position):
        yield from _read_json_lines(path)
        return
    # Once as a whole, so that its form needs no checks below.
    _parse_json(path, 1, text)
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


def _parse_json(path: str, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {line + error.lineno - 1} is not JSON ({error.msg} "
            f"at character {error.colno}); a .jsonl file holds one object a "
            "line, a .json file that or a list of objects."
        ) from error
    # Of numbers that are too long for Python, and of lists in lists.
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}, line {line} is not JSON that can be read: {error}."
        ) from error


def _json_row(path: str, line: int, value: Any, text: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(
            f"{path}, line {line} must be a JSON object with a key for each "
            f"column. Received: {type(value).__name__}."
        )
    json_file.check_characters(text, value, f"{path}, line {line}")
    return Row(line, value)
