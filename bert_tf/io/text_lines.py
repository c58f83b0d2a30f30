"""Lines of a text file that people made: with a mark, CRLF, or packed."""

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO

from bert_tf.errors import UserError
from bert_tf.io import files

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    r"""Yields the lines of a UTF-8 text file, and their numbers from 1.

    Lines end at \n or \r\n, which are left off, as is a byte order mark at the
    beginning. A path that ends in ".gz" is unpacked.

    Args:
      path: The file.

    Raises:
      UserError: If there is no such file, it is damaged or not UTF-8, or its
        lines end in \r alone.
    """
    files.require_file(path, "The path")
    try:
        with _open(path) as file:
            for number, contents in enumerate(file, start=1):
                if number == 1:
                    contents = contents.removeprefix(_BYTE_ORDER_MARK)
                    _check_first(contents, path)
                yield number, _decode(contents, path, number)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is no whole gzip file ({error}); copy it again."
        ) from error


def _open(path: str) -> IO[bytes]:
    # Not line by line from `GFile`, which loses each \r of a line.
    file = path if "://" not in path else io.BytesIO(files.read_bytes(path))
    if path.lower().endswith(".gz"):
        return gzip.open(file, "rb")
    return file if isinstance(file, io.BytesIO) else open(file, "rb")


def _check_first(contents: bytes, path: str) -> None:
    """Raises for what would be read as other lines than the writer meant."""
    if b"\0" in contents:
        raise UserError(
            f"{path}, line 1 has characters of value 0, as UTF-16 has; save "
            "the file as UTF-8."
        )
    is_only_line = not contents.endswith(b"\n")
    if is_only_line and b"\r" in contents[:-1]:
        raise UserError(
            f"{path} ends its lines with CR alone; save it with LF or CRLF."
        )


def _decode(contents: bytes, path: str, number: int) -> str:
    contents = contents.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number} is not UTF-8 at byte {error.start} of the "
            "line; save the file as UTF-8."
        ) from error
