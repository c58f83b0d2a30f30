"""Restores, removes and writes training checkpoints, also in the background.

A checkpoint is a TF1 checkpoint, as in the original, and a JSON file. The TF1
files are `model.ckpt-<step>.index` and `.data-00000-of-00001`. The JSON file is
written last and has the run's identity, all state except tensors, and hashes of
the TF1 files. A file `checkpoint` names the newest prefix for other programs.
"""

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.training import checkpoint_state_pb2

from bert_tf import errors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files

_NAME = re.compile(r"model\.ckpt-(\d+)\.index")
_LEFTOVER = re.compile(r"model\.ckpt-\d+\..*\.tmp-")
_READ_ERRORS = (UserError, OSError, tf.errors.OpError)
_WRITE_ERRORS = (OSError, tf.errors.OpError)
# If training keeps a core busy, a writer with this niceness gets a tenth of the
# core. With niceness 19 it would get a hundredth, too little for big models.
_NICENESS = 10

# The arguments `tensors` and `metadata` of `CheckpointStore.save`.
State = tuple[Mapping[str, tf.Tensor], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint.

    Attributes:
      prefix: The path without the suffixes of the files.
      tensors: The values, by the original's names.
      metadata: The `metadata` of `save`; empty if another program wrote it.
      sha256: Hashes of the files; empty if another program wrote them.
    """

    step: int
    prefix: str
    tensors: Mapping[str, np.ndarray]
    metadata: Mapping[str, Any]
    sha256: Mapping[str, str]

    def describe(self) -> str:
        """Returns the step and a short hash of the files, for messages."""
        hashes = json.dumps(dict(self.sha256), sort_keys=True)
        digest = hashlib.sha256(hashes.encode()).hexdigest()
        return f"the one of step {self.step} ({digest[:8]})"


class CheckpointStore:
    """The checkpoints in an output directory, read-only unless `writable`."""

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
        """Writes a checkpoint and removes the oldest; returns False on errors.

        If the checkpoint cannot be written, as on a full disk, an error is
        logged and earlier checkpoints stay. Without `writable`, does nothing
        and returns True.
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
            # Remove incomplete files. An earlier checkpoint of the step stays.
            if earlier is not None and step not in earlier:
                with _log_failure("The incomplete files could not be removed"):
                    self._remove(step)
            logging.error(
                "The checkpoint of step %d could not be written (%s). "
                "Training continues; the last checkpoint is %s.",
                step,
                errors.first_line(error),
                f"the one of step {earlier[0]}" if earlier else "none",
            )
            return False
        with _log_failure("Old checkpoints could not be removed"):
            for old in self.steps()[self._keep_max :]:
                self._remove(old)
        return True

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, newest first.

        A complete checkpoint has a JSON file. If none has, returns the steps
        that the file `checkpoint` names: another program wrote them.
        """
        matches = (_NAME.fullmatch(name) for name in self._list())
        steps = sorted((int(m[1]) for m in matches if m), reverse=True)
        with_sidecar = [step for step in steps if self._has_sidecar(step)]
        return with_sidecar or [step for step in steps if self._is_named(step)]

    def restore_latest(self) -> Checkpoint | None:
        """Reads the newest undamaged checkpoint; returns None without any.

        Raises `UserError` if there are checkpoints but all are damaged.
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
                    errors.first_line(error),
                )
        if steps:
            raise UserError(
                f"All {len(steps)} checkpoints in {self.folder} are damaged; "
                "move them away to train from scratch, or give another "
                "--output_dir."
            )
        return None

    def clean(self) -> None:
        """Removes half-written files of a process that was killed."""
        if not self.writable:
            return
        for name in self._list():
            if _LEFTOVER.match(name):
                logging.info("Removing the half-written %s.", name)
                tf.io.gfile.remove(os.path.join(self.folder, name))

    def remove_all(self) -> None:
        if not self.writable:
            return
        for step in self.steps():
            self._remove(step)
        files.remove(os.path.join(self.folder, "checkpoint"))

    def _prefix(self, step: int) -> str:
        return os.path.join(self.folder, f"model.ckpt-{step}")

    def _list(self) -> list[str]:
        # The chief may remove the folder at any time, so do not check it first.
        try:
            return tf.io.gfile.listdir(self.folder)
        except tf.errors.NotFoundError:
            return []

    def _has_sidecar(self, step: int) -> bool:
        return tf.io.gfile.exists(_sidecar(self._prefix(step)))

    def _is_named(self, step: int) -> bool:
        """Returns whether the file `checkpoint` names the step."""
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
                raise UserError(
                    "its files have changed since they were written"
                )
            metadata = written["metadata"]
        else:
            logging.warning(
                "%s was written by another program, so nothing about its data "
                "and options can be checked.",
                prefix,
            )
        tensors = tf1_checkpoint.read(prefix)
        return Checkpoint(step, prefix, tensors, metadata, hashes)

    def _write_state_file(self) -> None:
        names = [
            os.path.basename(self._prefix(step))
            for step in self.steps()[: self._keep_max]
        ]
        state = checkpoint_state_pb2.CheckpointState(
            model_checkpoint_path=names[0],
            # List the oldest checkpoint first, as TensorFlow does.
            all_model_checkpoint_paths=reversed(names),
        )
        files.write_text(os.path.join(self.folder, "checkpoint"), str(state))

    def _remove(self, step: int) -> None:
        """Removes a checkpoint, first the file that marks it as complete."""
        prefix = self._prefix(step)
        for path in [_sidecar(prefix), *_parts(prefix)]:
            files.remove(path)


class AsyncCheckpoints:
    """Writes checkpoints in a background thread, one at a time.

    The thread calls `CheckpointStore.save`, so a kill during a write does no
    more harm than in the main thread. `read_state` must return tensors that do
    not change when training continues.

    Attributes:
      step: The step of the last checkpoint; None if there is none.
    """

    def __init__(
        self,
        store: CheckpointStore,
        read_state: Callable[[], State],
        step: int | None = None,
    ) -> None:
        self._store = store
        self._read_state = read_state
        # Python waits for the thread at exit, so no checkpoint is cut off.
        self._thread = futures.ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="checkpoints",
            initializer=_lower_priority,
        )
        self._writing: futures.Future[bool] | None = None
        self.step = step

    @property
    def is_writing(self) -> bool:
        """True while the last checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, step: int) -> None:
        """Takes a snapshot of the state and writes it in the background.

        Waits first until the previous checkpoint is written, so that there is
        at most one snapshot.
        """
        self.step = step
        if not self._store.writable:
            return
        self.wait()
        tensors, metadata = self._read_state()
        self._writing = self._thread.submit(
            self._store.save, step, tensors, copy.deepcopy(metadata)
        )

    def wait(self) -> bool:
        """Waits for the last write; returns False if it failed."""
        return True if self._writing is None else self._writing.result()


@contextlib.contextmanager
def _log_failure(failure: str) -> Iterator[None]:
    """Logs a warning if the file system fails, and continues."""
    try:
        yield
    except _WRITE_ERRORS as error:
        logging.warning("%s (%s).", failure, errors.first_line(error))


def _sidecar(prefix: str) -> str:
    return f"{prefix}.json"


def _parts(prefix: str) -> list[str]:
    return [f"{prefix}.index", f"{prefix}.data-00000-of-00001"]


def _hashes(prefix: str) -> dict[str, str]:
    return {
        os.path.basename(path): files.sha256(path) for path in _parts(prefix)
    }


def _lower_priority() -> None:
    """Lowers the priority of the calling thread below training's."""
    if hasattr(os, "setpriority"):
        # On Linux, priorities are per thread, so only this thread slows down.
        thread = threading.get_native_id()
        # A process may only raise its niceness, so keep a higher niceness.
        niceness = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
