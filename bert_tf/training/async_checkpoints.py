"""Checkpoints that are written while training goes on."""

import copy
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.training.checkpoints import CheckpointStore

# How nice the thread is: beside a busy one it gets a tenth of a core. With 19,
# the most, it would get a hundredth, and be at a large model for ever.
_NICENESS = 10
# A wait that a log need not mention, in seconds.
_SHORT_WAIT = 1.0

# Tensors by name, and metadata; see `CheckpointStore.save`.
State = tuple[Mapping[str, tf.Tensor], Mapping[str, Any]]


class AsyncCheckpoints:
    """Writes checkpoints in a thread of its own, one after the other.

    What a checkpoint is, and when it counts as written, is the store's
    business; here it only happens later. A process that is killed meanwhile
    leaves what a killed `CheckpointStore.save` leaves.

    Args:
      store: Where checkpoints go. If it is not writable, as on the workers
        that are not the chief, nothing happens here.
      read_state: Returns the state now, as tensors that do not change when
        training goes on (`training_state.snapshot`).
      step: The step of the checkpoint that the run goes on from.
    """

    def __init__(
        self,
        store: CheckpointStore,
        read_state: Callable[[], State],
        step: int | None = None,
    ) -> None:
        self._store = store
        self._read_state = read_state
        # At the end of the process Python waits for its thread.
        self._thread = futures.ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="checkpoints",
            initializer=_lower_priority,
        )
        self._writing: futures.Future[bool] | None = None
        self._step = step

    @property
    def step(self) -> int | None:
        """The step of the last checkpoint; None if there was none."""
        return self._step

    def save(self, step: int) -> None:
        """Takes the state as it is, and has it written.

        If the checkpoint before is not written yet, waits for it, so that
        there is never more than one copy of the state.

        Args:
          step: Steps done.
        """
        self._step = step
        if not self._store.writable:
            return
        begin = time.monotonic()
        self.wait()
        waited = time.monotonic() - begin
        if waited > _SHORT_WAIT:
            logging.warning(
                "Training waited %.0f s for the checkpoint before that of step "
                "%d to be written; with a larger --save_checkpoints_steps it "
                "would not.",
                waited,
                step,
            )
        tensors, metadata = self._read_state()
        self._writing = self._thread.submit(
            self._store.save, step, tensors, copy.deepcopy(metadata)
        )

    def wait(self) -> bool:
        """Waits until nothing is being written.

        Returns:
          Whether the last checkpoint was written, or there was none to write.

        Raises:
          Exception: What writing raised that was not the disk's fault.
        """
        return True if self._writing is None else self._writing.result()


def _lower_priority() -> None:
    """Lets the calling thread run where training leaves time."""
    if hasattr(os, "setpriority"):
        # On Linux a thread has a priority of its own.
        thread = threading.get_native_id()
        # Who is nicer already may not take that back.
        niceness = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
