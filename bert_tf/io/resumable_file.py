"""A file of lines that is written in parts and can be resumed after a kill.

`<path>.partial` holds the lines so far. `<path>.partial.json` records how many
of its bytes and lines are valid, and the inputs that they were made from. It is
written after the lines, so it never counts lines that are not on the disk.
"""

import contextlib
import os
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import BinaryIO

from absl import logging

from bert_tf import errors
from bert_tf.io import files
from bert_tf.io import locks


class PartialFile:
    """A file of lines that is not complete yet.

    Attributes:
      num_lines: The number of valid lines.
    """

    def __init__(
        self, path: str, identity: Mapping[str, Any], lines: BinaryIO
    ) -> None:
        self._path = path
        self._identity = dict(identity)
        self._lines = lines
        state = self._read_state()
        self.num_lines: int = state["num_lines"]
        # Bytes after the last recorded line may be incomplete.
        lines.truncate(state["num_bytes"])
        lines.seek(0, os.SEEK_END)

    def _read_state(self) -> dict[str, Any]:
        path = _state_path(self._path)
        if os.path.exists(path):
            state = files.read_json_object(path)
            num_bytes = os.fstat(self._lines.fileno()).st_size
            if (
                state["identity"] == self._identity
                and state["num_bytes"] <= num_bytes
            ):
                return state
            logging.warning(
                "%s was started with another model, input or flags; starting "
                "over.",
                self._path,
            )
            os.remove(path)  # Before the lines that it describes change.
        return {"num_lines": 0, "num_bytes": 0}

    def append(self, lines: Sequence[str]) -> None:
        """Writes lines, given with their line ends, and records them."""
        self._lines.write("".join(lines).encode("utf-8"))
        self._lines.flush()
        os.fsync(self._lines.fileno())
        self.num_lines += len(lines)
        files.write_json(
            _state_path(self._path),
            {
                "num_lines": self.num_lines,
                "num_bytes": self._lines.tell(),
                "identity": self._identity,
            },
        )


def _state_path(path: str) -> str:
    return f"{path}.partial.json"


@contextlib.contextmanager
def open_partial(
    path: str, identity: Mapping[str, Any]
) -> Iterator[PartialFile]:
    """Yields a partial file, which is renamed to `path` on success.

    Args:
      path: A local file; missing folders are created.
      identity: The inputs of the lines, as JSON values. If they differ from
        the earlier run's, the file is started over.

    Raises:
      UserError: If another process writes the same file.
    """
    files.require_no_stream(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    partial = f"{path}.partial"
    # Not truncated before it is locked, nor removed without the lock.
    flags, lock = os.O_CREAT | os.O_RDWR | os.O_APPEND, None
    while lock is None:
        lock = locks.open_locked(partial, flags, path, "name another file")
    with open(lock, "a+b") as lines:
        try:
            with errors.naming(path):
                yield PartialFile(path, identity, lines)
        except BaseException:
            if not os.path.exists(_state_path(path)):
                os.remove(partial)
            raise
        files.sync(partial)
        # First, as the next process may lock a new file as soon as this one has
        # another name. A kill between the two makes it start over.
        with contextlib.suppress(FileNotFoundError):  # If there are no lines.
            os.remove(_state_path(path))
        os.replace(partial, path)
        files.sync(os.path.dirname(path) or ".")
