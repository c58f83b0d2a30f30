"""Checkpoints in the original's format, and which of them to go on from.

A checkpoint is `model.ckpt-<step>.index`, `.data-00000-of-00001` and, written
last, `.json`: the run's identity, the little state that is no tensor, and the
hashes of the other two. The file `checkpoint` names the newest for other
programs.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files

_NAME = re.compile(r"model\.ckpt-(\d+)\.index")
_LEFTOVER = re.compile(r"model\.ckpt-\d+\..*\.tmp-")
_READ_ERRORS = (UserError, OSError, tf.errors.OpError)
_WRITE_ERRORS = (OSError, tf.errors.OpError)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
      step: Steps done.
      prefix: Its path without the suffixes.
      tensors: Name to value, in the original's names.
      metadata: What `save` was given; empty for a checkpoint of another
        program, about which nothing can be checked.
      sha256: The hashes of its files; empty as well then.
    """

    step: int
    prefix: str
    tensors: Mapping[str, np.ndarray]
    metadata: Mapping[str, Any]
    sha256: Mapping[str, str]

    def describe(self) -> str:
        """Returns what tells it from others, in a few letters."""
        hashes = json.dumps(dict(self.sha256), sort_keys=True)
        digest = hashlib.sha256(hashes.encode()).hexdigest()
        return f"that of step {self.step} ({digest[:8]})"


class CheckpointStore:
    """The checkpoints of one output directory.

    Args:
      folder: The output directory.
      keep_max: How many checkpoints to keep.
      writable: Whether this process writes there; if not, it only reads.
    """

    def __init__(self, folder: str, keep_max: int = 5, writable: bool = True):
        self.folder = folder
        self.writable = writable
        self._keep_max = keep_max

    def save(
        self,
        step: int,
        tensors: Mapping[str, np.ndarray | tf.Tensor],
        metadata: Mapping[str, Any],
    ) -> bool:
        """Writes a checkpoint and removes those that are too old.

        If it cannot be written, for instance because the disk is full, that
        is said in the log, and the earlier checkpoints stay.

        Args:
          step: Steps done.
          tensors: Name to value.
          metadata: What to keep besides; JSON values.

        Returns:
          Whether the checkpoint was written, or is another worker's to write.
        """
        if not self.writable:
            return True
        prefix = self._prefix(step)
        earlier = None
        try:
            earlier = self.steps()
            tf1_checkpoint.write(prefix, dict(tensors))
            written = {"metadata": dict(metadata), "sha256": _hashes(prefix)}
            files.write_json(_sidecar(prefix), written)
            self._write_state_file()
        except _WRITE_ERRORS as error:
            # A step may be written again; what was there is as good.
            if earlier is not None and step not in earlier:
                with _going_on("What was written of it could not be removed"):
                    self._remove(step)
            logging.error(
                "The checkpoint of step %d could not be written (%s). "
                "Training goes on; the last checkpoint is %s.",
                step,
                _first_line(error),
                f"that of step {earlier[0]}" if earlier else "none",
            )
            return False
        with _going_on("Old checkpoints could not be removed"):
            for old in self.steps()[self._keep_max :]:
                self._remove(old)
        return True

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, newest first."""
        steps = self._steps_of(self._list())
        ours = [step for step in steps if self._has_sidecar(step)]
        return ours or [step for step in steps if self._is_named(step)]

    def restore_latest(self) -> Checkpoint | None:
        """Reads the newest checkpoint that is whole.

        Returns:
          It, or None if there is no checkpoint at all.

        Raises:
          UserError: If there are checkpoints but each is damaged.
        """
        steps = self.steps()
        for step in steps:
            try:
                return self._read(step)
            except _READ_ERRORS as error:
                logging.warning(
                    "The checkpoint of step %d is damaged (%s); trying the "
                    "one before it.",
                    step,
                    _first_line(error),
                )
        if steps:
            raise UserError(
                f"All {len(steps)} checkpoints in {self.folder} are damaged; "
                "move them away to start anew, or give another --output_dir."
            )
        return None

    def clean(self) -> None:
        """Removes what a process that was killed left half-written."""
        if not self.writable:
            return
        for name in self._list():
            if _LEFTOVER.match(name):
                logging.info("Removing the half-written %s.", name)
                tf.io.gfile.remove(os.path.join(self.folder, name))

    def remove_all(self) -> None:
        """Removes all checkpoints."""
        if not self.writable:
            return
        for step in self.steps():
            self._remove(step)
        state_file = os.path.join(self.folder, "checkpoint")
        if tf.io.gfile.exists(state_file):
            tf.io.gfile.remove(state_file)

    def _prefix(self, step: int) -> str:
        return os.path.join(self.folder, f"model.ckpt-{step}")

    def _list(self) -> list[str]:
        if not tf.io.gfile.isdir(self.folder):
            return []
        return tf.io.gfile.listdir(self.folder)

    def _steps_of(self, names: list[str]) -> list[int]:
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted((int(m[1]) for m in matches if m), reverse=True)

    def _has_sidecar(self, step: int) -> bool:
        return tf.io.gfile.exists(_sidecar(self._prefix(step)))

    def _is_named(self, step: int) -> bool:
        """Whether the file `checkpoint` of another program names it."""
        try:
            state = tf.train.get_checkpoint_state(self.folder)
        except (tf.errors.OpError, ValueError):
            return False
        paths = state.all_model_checkpoint_paths if state else []
        name = os.path.basename(self._prefix(step))
        return name in {os.path.basename(path) for path in paths}

    def _read(self, step: int) -> Checkpoint:
        prefix = self._prefix(step)
        metadata, hashes = {}, {}
        if self._has_sidecar(step):
            written = files.read_json(_sidecar(prefix))
            hashes = _hashes(prefix)
            if written.get("sha256") != hashes:
                raise UserError("its files are not what was written")
            metadata = written["metadata"]
        else:
            logging.warning(
                "%s was written by another program, so nothing about its data "
                "and options could be checked.",
                prefix,
            )
        tensors = tf1_checkpoint.read(prefix)
        return Checkpoint(step, prefix, tensors, metadata, hashes)

    def _write_state_file(self) -> None:
        names = [
            os.path.basename(self._prefix(step))
            for step in self.steps()[: self._keep_max]
        ]
        files.write_text(
            os.path.join(self.folder, "checkpoint"),
            "".join(
                [f'model_checkpoint_path: "{names[0]}"\n']
                # The oldest first, as TensorFlow writes it.
                + [
                    f'all_model_checkpoint_paths: "{name}"\n'
                    for name in reversed(names)
                ]
            ),
        )

    def _remove(self, step: int) -> None:
        """Removes a checkpoint; first what makes it count as one."""
        prefix = self._prefix(step)
        for path in [_sidecar(prefix), *_parts(prefix)]:
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)


@contextlib.contextmanager
def _going_on(failure: str) -> Iterator[None]:
    """Says in the log what could not be done; training goes on without it."""
    try:
        yield
    except _WRITE_ERRORS as error:
        logging.warning("%s (%s).", failure, _first_line(error))


def _sidecar(prefix: str) -> str:
    return f"{prefix}.json"


def _parts(prefix: str) -> list[str]:
    return [f"{prefix}.index", f"{prefix}.data-00000-of-00001"]


def _hashes(prefix: str) -> dict[str, str]:
    return {
        os.path.basename(path): files.sha256(path) for path in _parts(prefix)
    }


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
