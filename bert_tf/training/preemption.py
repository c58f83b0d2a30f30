"""Stops a run on SIGTERM or Ctrl-C, once its state is saved."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from bert_tf import keras_backend
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute import packed_weights
from bert_tf.errors import INTERRUPTED
from bert_tf.errors import Preempted
from bert_tf.flags.groups import TrainingDeviceConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import run_folder
from bert_tf.io import train_log

_CAUSES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


class Preemption:
    """A context that handles SIGTERM and Ctrl-C (SIGINT).

    The first signal raises `Preempted` at once or, within `deferred`, only sets
    `requested`. A second signal ends the process at once. All files stay
    complete, as they are written atomically.

    In any thread but the main thread, the context does nothing, because Python
    does not handle signals there.

    Attributes:
      requested: Whether a signal was received.
      cause: The signal's name; "SIGTERM" if another worker received the signal.
    """

    def __init__(self) -> None:
        self.requested = False
        self.cause = _CAUSES[signal.SIGTERM]
        self._is_deferred = False
        self._before = {}

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._handle)
                for number in _CAUSES
            }
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Delays `Preempted` until the block ends; check `requested` in it."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.requested:
            raise self.stopped()

    def stopped(self, step: int | None = None) -> Preempted:
        """Returns the exception that ends the run, checkpointed at `step`."""
        where = "" if step is None else f" at step {step}"
        saved = "" if step is None else ", with a checkpoint"
        is_ctrl_c = self.cause == _CAUSES[signal.SIGINT]
        return Preempted(
            f"Stopped{where} on {self.cause}{saved}; rerun the same command "
            "to resume.",
            INTERRUPTED if is_ctrl_c else 0,
        )

    def _handle(self, number: int, frame) -> None:
        del frame
        # Do not log here, because the signal may interrupt a call that logs.
        self.requested = True
        self.cause = _CAUSES[signal.Signals(number)]
        for each in _CAUSES:
            signal.signal(each, signal.SIG_DFL)
        if not self._is_deferred:
            raise self.stopped()


@contextlib.contextmanager
def prepare(
    config: TrainingDeviceConfig,
) -> Iterator[tuple[device_setup.Devices, Preemption]]:
    """Prepares devices, handles signals and records the log in the block.

    For training, the chief locks --output_dir. It also registers the files that
    it writes there; other workers write nothing. Raises `UserError` if the
    folder is in use or not writable, or TF_ONEDNN_ASSUME_FROZEN_WEIGHTS is set.
    """
    keras_backend.require_tensorflow()
    packed_weights.refuse()
    with Preemption() as preemption, train_log.recording():
        # Workers must connect before TensorFlow computes anything.
        devices = device_setup.prepare(config)
        with devices.together(), contextlib.ExitStack() as stack:
            if devices.coordinator.is_chief:
                folder = config.output_dir
                files.require_checkpoint_folder(folder, "--output_dir")
                if config.do_train:
                    stack.enter_context(
                        locks.one_writer(folder, "--output_dir")
                    )
                stack.enter_context(run_folder.registering(folder))
            yield devices, preemption
