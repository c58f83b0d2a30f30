"""Streaming decompression of .gz, .bz2, .xz and .zst files.

Files of several streams, as multistream dumps, are read as one. TensorFlow is
imported for remote paths only, zstandard for .zst only.
"""

import bz2
import contextlib
import io
import lzma
import os
import zlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import BinaryIO

from bert_tf import errors
from bert_tf.errors import UserError

_BLOCK_BYTES = 1 << 16
# Windows of 2 GB, as `zstd --long=31` writes.
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
_NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}


def ending(path: str) -> str:
    """Returns the ending of a compressed file's name, or "".

    >>> ending("enwiki.xml.bz2"), ending("notes.txt")
    ('.bz2', '')
    """
    return next((x for x in ENDINGS if path.lower().endswith(x)), "")


def read_blocks(
    path: str, on_bytes: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """Yields the decompressed contents of a file, block by block.

    Args:
      path: A local or remote file. The ending of its name selects the format;
        files with other endings are not compressed.
      on_bytes: Called with the number of bytes read since the last call, before
        decompression.

    Raises:
      UserError: If the file cannot be read, is damaged or is truncated.
    """
    decompress = _Decompress(path) if ending(path) else None
    with _errors_of(path), open_stored(path) as file:
        while block := file.read(_BLOCK_BYTES):
            if decompress is None:
                yield block
            else:
                yield from decompress(block)
            if on_bytes:
                on_bytes(len(block))
    if decompress is not None:
        decompress.finish()


def open_decompressed(
    path: str, on_bytes: Callable[[int], None] | None = None
) -> BinaryIO:
    """Returns a binary file with what `read_blocks` yields."""
    return io.BufferedReader(_Blocks(read_blocks(path, on_bytes)))


def stored_size(path: str) -> int:
    """Returns the size of a local or remote file, before decompression.

    Raises:
      UserError: If it cannot be read.
    """
    with _errors_of(path):
        if "://" in path:
            import tensorflow as tf

            return tf.io.gfile.stat(path).length
        return os.path.getsize(path)


@contextlib.contextmanager
def open_stored(path: str) -> Iterator[BinaryIO]:
    """Opens a local or remote file without decompression."""
    if "://" in path:
        import tensorflow as tf

        with tf.io.gfile.GFile(path, "rb") as file:
            yield file
    else:
        with open(path, "rb") as file:
            yield file


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    remote_errors = ()
    if "://" in path:
        import tensorflow as tf

        remote_errors = (tf.errors.OpError,)
    try:
        yield
    except (OSError, *remote_errors) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


class _Decompress:
    """Decompresses blocks of a file of one or more streams.

    Args:
      path: The file, for its format and for messages.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kind = ending(path)
        self._new = _DECOMPRESSORS[self._kind]
        self._stream: Any = None
        self._offset = 0
        self._has_streams = False

    def __call__(self, block: bytes) -> Iterator[bytes]:
        rest = block
        while rest:
            if self._stream is None:
                # Zeros pad .gz and .xz files.
                rest = rest.lstrip(b"\0") if self._has_streams else rest
                if not rest:
                    break
                self._stream = self._new()
                self._has_streams = True
            start = self._offset + len(block) - len(rest)
            try:
                contents = self._stream.decompress(rest)
            except (OSError, ValueError, *_library_errors(self._kind)) as error:
                raise UserError(
                    f"{self._path} is not a complete {_NAMES[self._kind]} file "
                    f"({error}), in the {_BLOCK_BYTES >> 10} KiB from byte "
                    f"{start}; download it again."
                ) from error
            if contents:
                yield contents
            rest = self._stream.unused_data if self._stream.eof else b""
            if self._stream.eof:
                self._stream = None
        self._offset += len(block)

    def finish(self) -> None:
        """Raises `UserError` if the last stream has no end."""
        if self._stream is not None or not self._has_streams:
            raise UserError(
                f"{self._path} is not a complete {_NAMES[self._kind]} file: it "
                f"ends at byte {self._offset}, inside a stream; download it "
                "again."
            )


def _library_errors(kind: str) -> tuple[type[Exception], ...]:
    if kind == ".zst":
        import zstandard

        return (zstandard.ZstdError,)
    return (zlib.error, lzma.LZMAError)


class _Blocks(io.RawIOBase):
    """A binary file of blocks from an iterator."""

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
