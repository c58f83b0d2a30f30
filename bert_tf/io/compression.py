"""Streaming decompression of .gz, .bz2, .xz and .zst files.

A file of several streams, such as a multistream dump, is read to its end.
TensorFlow is imported for remote paths only, zstandard for .zst only.
"""

import bz2
import contextlib
import io
import lzma
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import BinaryIO

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import files

_BLOCK_BYTES = 1 << 16
# `zstd --long=31` writes windows of 2 GB, which the default limit refuses.
_ZSTD_WINDOW = 1 << 31


def _zstd_decompressor() -> Any:
    with errors.extras():
        import zstandard
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    return decompressor.decompressobj()


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": _zstd_decompressor,
}
ENDINGS = tuple(_DECOMPRESSORS)
# First bytes of compressed and binary files, which are refused as text.
_NO_TEXTS = {
    b"\x1f\x8b\x08": "compressed; rename it to end in .gz",
    b"BZh91AY&SY": "compressed; rename it to end in .bz2",
    b"\xfd7z": "compressed; rename it to end in .xz",
    b"\x28\xb5\x2f": "compressed; rename it to end in .zst",
    b"PK\3": "an archive or a spreadsheet; unpack it, or save it as CSV",
    b"\xd0\xcf\x11": "a spreadsheet or a document; save it as CSV or text",
    b"%PDF-": "a PDF; save its text in a file of its own",
    b"PAR1\x15": "a Parquet file; rename it to end in .parquet",
    b"\x89PNG": "a picture; give a file of text",
    b"\xff\xd8\xff": "a picture; give a file of text",
    b"\x93NUMPY": "an array of NumPy; give a file of text",
}
_NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}


def ending(path: str) -> str:
    """Returns the ending that shows a file's compression, "" if none does.

    >>> ending("enwiki.xml.bz2"), ending("notes.txt")
    ('.bz2', '')
    """
    return next((x for x in ENDINGS if path.lower().endswith(x)), "")


def read_blocks(
    path: str, on_block: Callable[[bytes], object] | None = None
) -> Iterator[bytes]:
    """Yields the decompressed contents of a file, block by block.

    Args:
      path: A local or remote file. The ending of its name selects the format;
        files with other endings must not be compressed.
      on_block: Called with each block of the file, still compressed, after the
        block's contents were yielded.

    Raises:
      UserError: If the file cannot be read, is damaged or is truncated.
    """
    blocks = _stored_blocks(path, on_block)
    return _decompress(path, blocks) if ending(path) else blocks


def open_decompressed(
    path: str, on_block: Callable[[bytes], object] | None = None
) -> BinaryIO:
    """Returns a binary file with the contents that `read_blocks` yields."""
    blocks = _Blocks(read_blocks(path, on_block))
    return io.BufferedReader(blocks, _BLOCK_BYTES)


def stored_size(path: str) -> int:
    """Returns the stored size of a file; `UserError` if it is not readable."""
    with _errors_of(path):
        return files.size(path)


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, *files.remote_errors(path)) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _stored_blocks(
    path: str, on_block: Callable[[bytes], object] | None
) -> Iterator[bytes]:
    with _errors_of(path), files.open_binary(path) as file:
        while block := file.read(_BLOCK_BYTES):
            if not ending(path):
                refuse_binary(path, block)
            yield block
            if on_block:
                on_block(block)


def refuse_binary(path: str, start: bytes) -> None:
    """Raises `UserError` if a file's first bytes are those of no text."""
    for first, kind in _NO_TEXTS.items():
        if start.startswith(first):
            raise UserError(f"{path} is {kind}.")


def _decompress(path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    kind = ending(path)
    stream, has_streams, offset = None, False, 0
    for block in blocks:
        rest = block
        while rest:
            if stream is None:
                # Skip zeros between streams: they are padding, not a stream.
                rest = rest.lstrip(b"\0") if has_streams else rest
                if not rest:
                    break
                stream, has_streams = _DECOMPRESSORS[kind](), True
            start = offset + len(block) - len(rest)
            try:
                contents = stream.decompress(rest)
            except (OSError, ValueError, *_library_errors(kind)) as error:
                raise UserError(
                    f"{path} is not a complete {_NAMES[kind]} file ({error}), "
                    f"in the {_BLOCK_BYTES >> 10} KiB from byte {start}; "
                    "download it again."
                ) from error
            if contents:
                yield contents
            rest = stream.unused_data if stream.eof else b""
            stream = None if stream.eof else stream
        offset += len(block)
    if stream is not None or not has_streams:
        raise UserError(
            f"{path} is not a complete {_NAMES[kind]} file: it ends at byte "
            f"{offset}, inside a stream; download it again."
        )


def _library_errors(kind: str) -> tuple[type[Exception], ...]:
    if kind == ".zst":
        import zstandard

        return (zstandard.ZstdError,)
    return (zlib.error, lzma.LZMAError)


class _Blocks(io.RawIOBase):
    """A binary file whose contents are the blocks of an iterator."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
