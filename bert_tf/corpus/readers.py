"""Readers of text, .jsonl and Parquet: a chunk's documents, one by one."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from bert_tf.corpus.documents import Chunk
from bert_tf.corpus.documents import Document
from bert_tf.errors import UserError
from bert_tf.io import tables

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEYS_SHOWN = 9


def paragraphs_of(text: str) -> tuple[str, ...]:
    r"""Returns the lines of a text, stripped; empty lines are left out.

    >>> paragraphs_of("One. \n\n\tTwo.\r\n")
    ('One.', 'Two.')
    """
    lines = (line.replace("\r", " ").strip() for line in text.split("\n"))
    return tuple(line for line in lines if line)


def id_of_text(text: str) -> str:
    """Returns an id for a document that has none: a hash of its text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_text(chunk: Chunk, replace_invalid: bool) -> Iterator[Document]:
    """Yields the documents of a text chunk; blank lines separate documents."""
    text = decode(chunk, replace_invalid).replace("\r\n", "\n")
    for piece in _BLANK_LINE.split(text):
        paragraphs = paragraphs_of(piece)
        if paragraphs:
            yield Document(id_of_text("\n".join(paragraphs)), paragraphs)


def decode(chunk: Chunk, replace_invalid: bool) -> str:
    """Decodes a chunk's payload, a text.

    Bytes that are not UTF-8 are replaced, or raise `UserError`.
    """
    try:
        return chunk.payload.decode(
            "utf-8", "replace" if replace_invalid else "strict"
        )
    except UnicodeDecodeError as error:
        raise UserError(
            f"{chunk.path} is not UTF-8 at byte {chunk.start + error.start} of "
            f"the decompressed file (0x{chunk.payload[error.start]:02x}); "
            "convert it, or set --replace_invalid_utf8 to read such bytes as "
            "U+FFFD."
        ) from error


def read_jsonl(
    chunk: Chunk,
    text_column: str,
    id_column: str | None,
    replace_invalid: bool,
) -> Iterator[Document]:
    """Yields the documents of a .jsonl chunk, one for each line.

    Raises `UserError` for a line that is not an object with the columns.
    """
    decode(chunk, replace_invalid)
    start = chunk.start
    for line in chunk.payload.split(b"\n"):
        if line.strip():
            where = f"{chunk.path}, byte {start} of the decompressed file,"
            row = _parse(line.decode("utf-8", "replace"), where)
            text = _column(row, text_column, "--text_column", where)
            text = _clean(text, where, replace_invalid)
            yield _document(row, text, id_column, where)
        start += len(line) + 1


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not a line of JSON ({error}); expected one object a "
            "line."
        ) from error
    if not isinstance(row, dict):
        raise UserError(
            f'{where} must be a JSON object, as {{"text": ...}}. Received: '
            f"{line[:40]}."
        )
    return row


def _column(row: dict[str, Any], name: str, flag: str, where: str) -> Any:
    if name not in row:
        names = ", ".join(sorted(row)[:_KEYS_SHOWN])
        raise UserError(
            f"{where} has no column {name!r}, only {names or 'none'}; set "
            f"{flag}."
        )
    return row[name]


def _clean(text: Any, where: str, replace_invalid: bool) -> str:
    """Returns the text of a row, or "" for null."""
    if text is None:
        return ""
    if not isinstance(text, str):
        raise UserError(
            f"{where} has {type(text).__name__} {text!r:.40} where the text "
            "should be, a string; set --text_column."
        )
    if half := _SURROGATE.search(text):
        if not replace_invalid:
            raise UserError(
                f"{where} has half of a character, {half[0]!a}; correct it, or "
                "set --replace_invalid_utf8 to read it as U+FFFD."
            )
        text = _SURROGATE.sub("\ufffd", text)
    return text


def _document(
    row: dict[str, Any], text: str, id_column: str | None, where: str
) -> Document:
    if id_column is None:
        name = id_of_text(text)
    else:
        name = str(_column(row, id_column, "--id_column", where))
    return Document(name, paragraphs_of(text))


def read_parquet(
    chunk: Chunk, text_column: str, id_column: str | None
) -> Iterator[Document]:
    """Yields the documents of a Parquet chunk: rows of one row group.

    Raises `UserError` if a column is missing or the text is not a string.
    """
    import pyarrow as pa

    file = tables.open_parquet(chunk.path)
    names = dict.fromkeys(x for x in (text_column, id_column) if x)
    columns = dict.fromkeys(file.schema_arrow.names)
    where = f"{chunk.path}, row {chunk.start},"
    _column(columns, text_column, "--text_column", where)
    if id_column:
        _column(columns, id_column, "--id_column", where)
    group, first, stop = chunk.payload
    try:
        batches = file.iter_batches(
            row_groups=[group], columns=[*names], batch_size=1024
        )
        end = 0
        for batch in batches:
            begin, end = end, end + batch.num_rows
            skipped = max(first - begin, 0)
            rows = batch.slice(
                skipped, max(min(stop, end) - begin - skipped, 0)
            )
            for number, row in enumerate(rows.to_pylist(), begin + skipped):
                where = f"{chunk.path}, row {chunk.start + number - first},"
                text = _clean(row[text_column], where, False)
                yield _document(row, text, id_column, where)
            if end >= stop:
                break
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{chunk.path} is damaged in row group {group} ({error}); "
            "download it again."
        ) from error
