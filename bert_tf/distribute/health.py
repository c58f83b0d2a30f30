"""Worker health: detects workers that die or hang, and stops the run.

TensorFlow notices a lost worker within ten seconds, but training sees the error
only at the next reduction, and a step may take minutes. So a thread also checks
the workers. The first worker that notices the loss reports it, and all workers
stop with the same message.
"""

import atexit
import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

# No public function checks workers, so use this internal module.
from tensorflow.python.eager import context

from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.errors import first_line

# Seconds between two checks of the other workers.
_PERIOD = 5.0
# Seconds to wait for the answer to a check.
_CHECK_TIMEOUT = 5.0
# After two failed checks, training has these seconds to notice by itself that a
# worker is gone. Then the watch ends the process.
_GRACE = 15.0
# Seconds to write the last checkpoint after other workers are gone.
_SECONDS_TO_FINISH = 600.0
# Seconds between the report of an error and the exit; the report must arrive.
_SHUTDOWN_GRACE = 4.0

# Errors that TensorFlow may raise in a training step when a worker is gone.
_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
_REPORT = re.compile(r"<bert_tf (\w+)>(.*?)</bert_tf>", re.DOTALL)
_TASK = re.compile(r"/job:worker/(?:replica:0/)?task:(\d+)")
_RERUN = (
    "rerun the same command on all workers to resume from the last checkpoint"
)


@contextlib.contextmanager
def together(
    cluster: Cluster | None, coordinator: Coordinator
) -> Iterator[None]:
    """Makes the workers of a run end together, successfully or not.

    A finished worker waits for all workers. A failing worker reports its error
    to all workers. If another worker caused an error, `UserError` or
    `Preempted` names that worker. After an error, the process exits within a
    few seconds; TensorFlow's own shutdown would take half a minute.
    """
    if cluster is None:
        yield
        return
    with Watch(cluster, lambda: coordinator.is_finishing):
        try:
            yield
            coordinator.barrier("the end")
        except BaseException as error:
            cause = explain(error, cluster)
            if isinstance(cause or error, Preempted):
                kind, status = "stop", (cause or error).status
            else:
                kind, status = "failure", 1
            own = cluster.name(cluster.index)
            text = f"{own[0].upper()}{own[1:]} stopped: {first_line(error)}"
            _report(kind, str(cause or text))
            atexit.register(_exit, status, time.monotonic())
            if cause is None:
                raise
            raise cause from error


def explain(
    error: BaseException, cluster: Cluster
) -> UserError | Preempted | None:
    """Returns the error to raise if another worker caused `error`, or None."""
    if not isinstance(error, _ERRORS):
        return None
    report = _REPORT.search(str(error))
    if report:
        kind = Preempted if report[1] == "stop" else UserError
        return kind(report[2])
    named = {int(index) for index in _TASK.findall(str(error))}
    # First check the workers that the error names, which are probably gone. One
    # of the others may be the cause, so check them, too.
    others = sorted(cluster.others, key=lambda index: index not in named)
    gone = [index for index in others if check_health(index)]
    gone = gone or [index for index in others if index in named]
    return UserError(_describe(sorted(gone), cluster)) if gone else None


def _describe(gone: list[int], cluster: Cluster) -> str:
    names = " and ".join(cluster.name(index) for index in gone)
    verb = "is" if len(gone) == 1 else "are"
    return (
        f"{names[0].upper()}{names[1:]} {verb} gone or not responding, so "
        f"the others stop too; {_RERUN}."
    )


def check_health(index: int) -> str | None:
    """Returns the error of a worker's health check; None if it responds."""
    try:
        context.context().check_collective_ops_peer_health(
            f"/job:worker/replica:0/task:{index}",
            timeout_in_ms=int(1000 * _CHECK_TIMEOUT),
        )
    except tf.errors.OpError as error:
        return str(error)
    return None


def _report(kind: str, text: str) -> None:
    """Reports to all other workers why this worker stops."""
    try:
        context.context().report_error_to_cluster(
            tf.errors.UNAVAILABLE, f"<bert_tf {kind}>{text}</bert_tf>"
        )
    except tf.errors.OpError as error:
        # The chief is gone or has a report, so the workers stop anyway.
        logging.debug("Could not report to the other workers: %s", error)


def _exit(status: int, reported_at: float) -> None:
    """Exits, once the shutdown grace since `reported_at` is over."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(max(0.0, reported_at + _SHUTDOWN_GRACE - time.monotonic()))
    os._exit(status)


class Watch:
    """Checks the other workers in its own thread.

    If a worker does not respond and training does not notice in time, the
    watch ends the process. It waits longer while `is_finishing` returns True,
    because training then writes its last checkpoint.
    """

    def __init__(
        self, cluster: Cluster, is_finishing: Callable[[], bool]
    ) -> None:
        self._cluster = cluster
        self._is_finishing = is_finishing
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="worker-health", daemon=True
        )

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        missed: list[int] = []
        while not self._is_over.wait(_PERIOD):
            # A machine may just be busy, so wait for a second failed check.
            silent = [x for x in self._cluster.others if check_health(x)]
            gone = [index for index in silent if index in missed]
            missed = silent
            if not gone or self._is_over.wait(_GRACE):
                continue
            gone = [index for index in gone if check_health(index)]
            if gone and not self._finishes():
                _end_process(_describe(gone, self._cluster))
                return

    def _finishes(self) -> bool:
        """Waits while training finishes; returns True if the watch is over."""
        if not self._is_finishing():
            return False
        deadline = time.monotonic() + _SECONDS_TO_FINISH
        while self._is_finishing() and time.monotonic() < deadline:
            if self._is_over.wait(_PERIOD):
                return True
        return self._is_over.wait(_GRACE)


def _end_process(message: str) -> None:
    """Ends the process from a thread that is not the main one."""
    _report("failure", message)
    print(f"ERROR: {message}", file=sys.stderr)  # noqa: T201
    _exit(1, time.monotonic())
