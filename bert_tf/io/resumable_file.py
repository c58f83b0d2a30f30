"""A file of lines that is written in parts, and goes on after a kill.

`<path>.partial` holds the lines so far; `<path>.partial.json` says how many of
its bytes count, how many lines they are, and what they were made of. It is
written after the lines, so that it never promises more than there is.
"""

import contextlib
import os
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import BinaryIO

import tensorflow as tf
from absl import logging

from bert_tf.io import files


class PartialFile:
    """The lines of a file that is not yet whole.

    Attributes:
      num_lines: How many lines are done.
    """

    def __init__(
        self, path: str, identity: Mapping[str, Any], lines: BinaryIO
    ) -> None:
        self._path = path
        self._identity = dict(identity)
        self._lines = lines
        state = self._read_state()
        self.num_lines: int = state["num_lines"]
        # What came after the last promise may be cut anywhere.
        lines.truncate(state["num_bytes"])
        lines.seek(0, os.SEEK_END)

    def _read_state(self) -> dict[str, Any]:
        path = _state_path(self._path)
        if tf.io.gfile.exists(path):
            state = files.read_json_object(path)
            num_bytes = os.fstat(self._lines.fileno()).st_size
            if (
                state["identity"] == self._identity
                and state["num_bytes"] <= num_bytes
            ):
                return state
            logging.warning(
                "%s was begun with another model, input or flags, and is "
                "written anew.",
                self._path,
            )
            os.remove(path)  # Before the lines change that it speaks of.
        return {"num_lines": 0, "num_bytes": 0}

    def append(self, lines: Sequence[str]) -> None:
        """Adds lines with their ends, which count from then on."""
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
    """Yields what there is of a file, which becomes `path` on success.

    Args:
      path: A local file; folders on the way are made.
      identity: What the lines depend on, JSON values. With others the file is
        begun anew.

    Raises:
      UserError: If another process writes the same file.
    """
    files.require_no_stream(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    partial = f"{path}.partial"
    # Neither truncated before it is locked, nor removed by who has no lock.
    with open(partial, "a+b") as lines:
        files.lock(
            lines,
            f"Another process writes {path}; wait for it, or give another "
            "file.",
        )
        try:
            yield PartialFile(path, identity, lines)
        except BaseException:
            if not tf.io.gfile.exists(_state_path(path)):
                os.remove(partial)
            raise
        files.sync(partial)
        os.replace(partial, path)
        files.sync(os.path.dirname(path) or ".")
        with contextlib.suppress(FileNotFoundError):  # Of a file without lines.
            os.remove(_state_path(path))
