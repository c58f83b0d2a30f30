"""Finds the input files of text extraction and cuts them into chunks."""

import codecs
import dataclasses
import glob
import os
import re
from collections.abc import Callable
from collections.abc import Iterator

from bert_tf.corpus.documents import Chunk
from bert_tf.errors import UserError
from bert_tf.io import compression
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import tables

_LANGUAGE = re.compile(r"(simple|[a-z]{2,3}(?:-[a-z]+)*)=(.+)")
# Decompressed bytes: size of a chunk of text, and maximum size of a document.
_CHUNK_BYTES = 1 << 22
_MAX_DOCUMENT_BYTES = 1 << 28
# Size of a chunk of Parquet rows, in decompressed bytes.
_ROWS_BYTES = 1 << 26
_SEPARATORS = {
    "text": (b"\n\n", b"\n\r\n"),
    "jsonl": (b"\n",),
    "wikipedia": (b"</page>",),
}
_ADVICE = {
    "text": "blank lines must separate documents",
    "jsonl": "each line must be one object",
    "wikipedia": "a history has each revision, pages-articles only the last",
}
_DUMP = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<mediawiki\b")
# Matches where one dump ends and the next begins, as in files joined by cat.
_NEXT_DUMP = re.compile(rb"(?<=</mediawiki>)(?=%s)" % _DUMP.pattern)
_XML_NAME = re.compile(r"\.xml(-p\d+p\d+[^.]*)?$")
_INDEX_NAME = re.compile(r"-multistream-index\d*\.txt(-p\d+p\d+)?$")
PARQUET_ENDINGS = (".parquet", ".pq")
_ENDINGS = {"jsonl": (".jsonl", ".ndjson"), "parquet": PARQUET_ENDINGS}
# --input_format=auto refuses these endings instead of reading them as text.
_REFUSED = tuple(
    ".7z .arrow .csv .doc .docx .epub .html .json .pdf .rar .sql .tar "
    ".tfrecord .tgz .tsv .zip".split()
)
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SAMPLE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file to read, local or remote.

    Attributes:
      format: One of the values of --input_format, not "auto".
      language: The language given as in --input_file=de=GLOB; else "".
    """

    path: str
    format: str
    language: str


def find(patterns: str, input_format: str) -> list[InputFile]:
    """Returns the files of --input_file, in the order of its globs.

    Raises `UserError` if a glob matches nothing, a folder has no Parquet files,
    or the format of a file is unknown.
    """
    found: dict[str, InputFile] = {}
    for pattern in map(str.strip, patterns.split(",")):
        language = ""
        given = _LANGUAGE.fullmatch(pattern)
        # In an existing path such as lg=en/part.txt, lg= is no language.
        if given and not glob.glob(pattern):
            language, pattern = given.groups()
        for path in expand(pattern, "--input_file"):
            file = InputFile(path, _format_of(path, input_format), language)
            if found.setdefault(path, file).language != language:
                raise UserError(
                    f"--input_file names {path} for two languages, "
                    f"{found[path].language or 'none'!r} and "
                    f"{language or 'none'!r}; name it for one."
                )
    return list(found.values())


def expand(pattern: str, flag: str) -> list[str]:
    """Returns the files that match a glob; for a folder, its Parquet files.

    Raises `UserError` if there is no file, or a match is a pipe or a device.
    """
    if paths.is_remote(pattern):
        return files.expand_globs(pattern, flag)
    matches = sorted(glob.glob(pattern)) if pattern else []
    found = []
    for path in matches:
        if not os.path.isdir(path):
            if not os.path.isfile(path):
                raise UserError(
                    f"{flag}: {path} is a pipe or device, and its size has to "
                    "be known; write it to a file first."
                )
            found.append(path)
            continue
        inside = [
            x
            for ending in PARQUET_ENDINGS
            for x in glob.glob(
                os.path.join(glob.escape(path), "**", f"*{ending}"),
                recursive=True,
            )
            # Skip names that start with _, such as Spark's unfinished files.
            if f"{os.sep}_" not in x.removeprefix(path)
        ]
        if not inside and len(matches) == 1:
            raise UserError(
                f"{flag}: {path} is a directory without Parquet files; "
                f"name its files, as {os.path.join(path, '*')}."
            )
        found += sorted(inside)
    if not found:
        raise paths.no_match(pattern, flag)
    return found


def _format_of(path: str, input_format: str) -> str:
    if input_format != "auto":
        return input_format
    name = path.lower().removesuffix(compression.ending(path))
    for known, endings in _ENDINGS.items():
        if name.endswith(endings):
            return known
    if _XML_NAME.search(name):
        return "wikipedia"
    if name.endswith(_REFUSED):
        raise UserError(
            f"--input_format=auto does not know the format of {path}; unpack "
            "an archive, convert it to .jsonl, Parquet or text, or set "
            "--input_format, as jsonl for .json files with one object a line."
        )
    if _INDEX_NAME.search(name):
        raise UserError(
            f"{path} is the index of a multistream dump, which has no text; "
            "leave it out, as --input_file='*-multistream*.xml*.bz2' does."
        )
    start = next(_read_utf8(path), b"")
    is_dump = _DUMP.match(start.removeprefix(codecs.BOM_UTF8))
    return "wikipedia" if is_dump else "text"


def split(
    file: InputFile, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Chunk]:
    """Cuts a file between documents: chunks of about 4 MB (Parquet: 64 MB).

    Only one chunk is in memory at a time. Raises `UserError` if the file is
    damaged, truncated, or not of its format.
    """
    if file.format == "parquet":
        yield from _split_parquet(file, on_bytes)
        return
    header, start = b"", 0
    pieces = _cut(file, on_bytes)
    is_dump = file.format == "wikipedia"
    pieces = _split_dumps(pieces) if is_dump else ((x, False) for x in pieces)
    for number, (contents, starts_dump) in enumerate(pieces):
        place = contents[:_SAMPLE_BYTES].find(b"\0") if number == 0 else -1
        if place >= 0:
            raise UserError(
                f"{file.path} has a byte of value 0 at byte {place}, as UTF-16 "
                "and binary files have; save it as UTF-8, or set "
                "--input_format."
            )
        if starts_dump:
            header, contents = _split_header(file.path, contents)
            start += len(header)
        elif number == 0 and contents.startswith(codecs.BOM_UTF8):
            contents = contents.removeprefix(codecs.BOM_UTF8)
            start += len(codecs.BOM_UTF8)
        yield Chunk(file.path, start, file.format, contents, header)
        start += len(contents)


def _cut(
    file: InputFile, on_bytes: Callable[[int], None] | None
) -> Iterator[bytes]:
    """Yields the contents of a file in pieces that end after a separator."""
    rest = bytearray()
    searched = start = 0
    for block in _read_utf8(file.path, on_bytes):
        rest += block
        while len(rest) >= _CHUNK_BYTES:
            end = _find_end(rest, _SEPARATORS[file.format], searched)
            if (end or len(rest)) > _MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"{file.path} has a document of over "
                    f"{_MAX_DOCUMENT_BYTES >> 20} MB from byte {start} of the "
                    f"decompressed file on; {_ADVICE[file.format]}."
                )
            if end is None:
                searched = len(rest)
                break
            yield bytes(rest[:end])
            start += end
            del rest[:end]
            searched = 0
    if file.format == "wikipedia":
        _check_end(file.path, rest, start)
    if rest:
        yield bytes(rest)


def _split_dumps(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Cuts pieces where dumps start; yields (contents, starts a dump)."""
    starts_dump = True
    for piece in pieces:
        # Pages write < as &lt;, so these bytes occur only where a dump starts.
        has_start = b"<mediawiki" in piece
        for contents in _NEXT_DUMP.split(piece) if has_start else [piece]:
            yield contents, starts_dump
            starts_dump = True
        starts_dump = False


def _read_utf8(
    path: str, on_bytes: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """Yields a file's bytes; UTF-16 with a byte order mark becomes UTF-8."""
    decoder = None
    on_block = on_bytes and (lambda block: on_bytes(len(block)))
    for number, block in enumerate(compression.read_blocks(path, on_block)):
        if number == 0 and block.startswith(_UTF16_MARKS):
            decoder = codecs.getincrementaldecoder("utf-16")()
        try:
            yield decoder.decode(block).encode() if decoder else block
        except UnicodeError as error:
            raise UserError(
                f"{path} is not UTF-16, as its start says: {error}; save it as "
                "UTF-8."
            ) from error
    if decoder is not None and decoder.getstate()[0]:
        raise UserError(f"{path} ends inside a character of UTF-16.")


def _find_end(
    contents: bytearray, separators: tuple[bytes, ...], searched: int
) -> int | None:
    """Returns the end of the last separator in the first 4 MB.

    If there is none, returns the end of the next separator, or None without any
    separator. The first `searched` bytes contain no whole separator.
    """

    def ends(find: Callable[..., int], *bounds: int) -> list[int]:
        places = [(find(x, *bounds), len(x)) for x in separators]
        return [place + size for place, size in places if place >= 0]

    if searched < _CHUNK_BYTES:
        if found := ends(contents.rfind, 0, _CHUNK_BYTES):
            return max(found)
    return min(ends(contents.find, max(searched - 16, 0)), default=None)


def _split_header(path: str, piece: bytes) -> tuple[bytes, bytes]:
    """Splits the first piece of a dump into header and pages."""
    place = piece.find(b"<page>")
    if place < 0:
        place = piece.find(b"</mediawiki>")
    if b"<mediawiki" not in piece[: max(place, 0)]:
        raise _no_dump(path)
    return piece[:place], piece[place:]


def _check_end(path: str, rest: bytearray, start: int) -> None:
    if not start and b"<mediawiki" not in rest:
        raise _no_dump(path)
    if not rest.rstrip().endswith(b"</mediawiki>"):
        raise UserError(
            f"{path} ends at byte {start + len(rest)} of the decompressed file "
            "without </mediawiki>, so it is truncated; download it again."
        )


def _no_dump(path: str) -> UserError:
    return UserError(
        f"{path} is no XML dump of Wikipedia: it has no <mediawiki> with a "
        "<page>; set --input_format, or download pages-articles.xml.bz2."
    )


def _split_parquet(
    file: InputFile, on_bytes: Callable[[int], None] | None
) -> Iterator[Chunk]:
    metadata = tables.open_parquet(file.path).metadata
    first = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        # Cut large row groups: some libraries write gigabytes as one group.
        size = metadata.row_group(group).total_byte_size
        pieces = min(max(-(-size // _ROWS_BYTES), 1), max(rows, 1))
        cuts = [rows * piece // pieces for piece in range(pieces + 1)]
        for start, stop in zip(cuts, cuts[1:], strict=False):
            payload = (group, start, stop)
            yield Chunk(file.path, first + start, "parquet", payload)
        first += rows
    if on_bytes:
        on_bytes(compression.stored_size(file.path))
