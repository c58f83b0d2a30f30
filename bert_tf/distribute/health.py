"""Workers that die or fall silent: how the others learn of it, and leave.

A worker that is gone shows itself in three ways. Its neighbours' connections
break, within a second or two. It sends no more heartbeats, which TensorFlow
tells the others after ten seconds. Both end a call into the graph at its next
reduction only, so a thread looks for the others too, for steps of minutes.

Whoever notices first tells all others, and all stop with the same message.
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

# Nothing public tells of the health of workers.
from tensorflow.python.eager import context

from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import Preempted
from bert_tf.errors import UserError

# Between two looks for the others, in seconds.
_PERIOD = 5.0
# How long an answer may take.
_PATIENCE = 5.0
# How long after two looks in vain training may take to notice by itself.
_GRACE = 15.0
# How long a worker may take to keep what is done, once others are gone.
_SECONDS_TO_FINISH = 600.0
# How long a worker stays, so that the others hear it out.
_FAREWELL = 4.0

# What a worker that is gone makes of calls into the graph.
_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
_TOLD = re.compile(r"<bert_tf (\w+)>(.*?)</bert_tf>", re.DOTALL)
_NAMED = re.compile(r"/job:worker/(?:replica:0/)?task:(\d+)")
_START_AGAIN = (
    "start the same command on all workers again, and training goes on from "
    "its last checkpoint"
)


@contextlib.contextmanager
def together(
    cluster: Cluster | None, coordinator: Coordinator
) -> Iterator[None]:
    """Lets the workers of a run end together, well or not.

    A worker whose work is done waits for the others. One that fails tells them
    why; if another one is behind an error, that is said in its place. After
    that nothing holds up the end of the process, of which TensorFlow would make
    half a minute.

    Args:
      cluster: The workers; None for a run of one process, for which this does
        nothing.
      coordinator: That of the run.

    Raises:
      UserError: If another worker is gone, or has failed.
      Preempted: If another worker was asked to stop.
    """
    if cluster is None:
        yield
        return
    with Watch(cluster, is_finishing=lambda: coordinator.is_finishing):
        try:
            yield
            coordinator.barrier("the end")
        except BaseException as error:
            behind = explain(error, cluster)
            if isinstance(behind or error, Preempted):
                kind, status = "stop", 0
            else:
                kind, status = "failure", 1
            _tell(kind, str(behind or _own_failure(error, cluster)))
            atexit.register(_leave, status, time.monotonic())
            if behind is None:
                raise
            raise behind from error


def explain(
    error: BaseException, cluster: Cluster | None
) -> UserError | Preempted | None:
    """Returns the error to raise if another worker is behind this one."""
    if cluster is None or not isinstance(error, _ERRORS):
        return None
    told = _TOLD.search(str(error))
    if told:
        kind = Preempted if told[1] == "stop" else UserError
        return kind(told[2])
    named = [int(index) for index in _NAMED.findall(str(error))]
    others = [i for i in range(cluster.num_workers) if i != cluster.index]
    # Whom the error names, first; it may itself have left because of another.
    others.sort(key=lambda index: index not in named)
    gone = [index for index in others if check_health(index)]
    gone = gone or [index for index in others if index in named]
    if not gone:
        return None
    return UserError(_describe(sorted(gone), cluster))


def _describe(gone: list[int], cluster: Cluster) -> str:
    """Returns the message of workers that are gone."""
    names = " and ".join(cluster.name(index) for index in gone)
    verb = "is" if len(gone) == 1 else "are"
    return (
        f"{names[0].upper()}{names[1:]} {verb} gone or does not answer, so "
        f"the others stop too; {_START_AGAIN}."
    )


def check_health(index: int) -> str | None:
    """Returns what is wrong with a worker; None if it answers."""
    try:
        context.context().check_collective_ops_peer_health(
            f"/job:worker/replica:0/task:{index}",
            timeout_in_ms=int(1000 * _PATIENCE),
        )
    except tf.errors.OpError as error:
        return str(error)
    return None


def meet(cluster: Cluster | None, place: str, seconds: float) -> list[int]:
    """Waits for all workers where it is not sure that all come.

    A reduction would wait for ever for one that does not.

    Args:
      cluster: The workers; None for a run of one process.
      place: A name that no other meeting of the run has.
      seconds: How long to wait.

    Returns:
      Those that did not come.

    Raises:
      tf.errors.OpError: If one is gone.
    """
    if cluster is None:
        return []
    known = context.context()
    known.set_config_key_value(f"{place}/{cluster.index}", "here")
    deadline = time.monotonic() + seconds
    missing = []
    for index in range(cluster.num_workers):
        left = max(0.001, deadline - time.monotonic())
        try:
            known.get_config_key_value(f"{place}/{index}", int(1000 * left))
        except tf.errors.DeadlineExceededError:
            missing.append(index)
    return missing


def _tell(kind: str, text: str) -> None:
    """Tells all other workers why this one stops."""
    try:
        context.context().report_error_to_cluster(
            tf.errors.UNAVAILABLE, f"<bert_tf {kind}>{text}</bert_tf>"
        )
    except tf.errors.OpError as error:
        # The chief, who passes it on, is gone, or all know already.
        logging.debug("The others could not be told: %s", error)


def _own_failure(error: BaseException, cluster: Cluster) -> str:
    """Returns what the others are told of an error of this worker."""
    lines = str(error).splitlines() or [type(error).__name__]
    text = f"{cluster.name(cluster.index)} stopped: {lines[0]}"
    return f"{text[0].upper()}{text[1:]}"


def _leave(status: int, told_at: float) -> None:
    """Ends the process, a while after the others were told.

    Args:
      status: The exit status.
      told_at: When, by `time.monotonic`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(max(0.0, told_at + _FAREWELL - time.monotonic()))
    os._exit(status)


class Watch:
    """Looks for the other workers in a thread of its own.

    If one does not answer and training does not notice in time, the process
    ends from here.

    Args:
      cluster: The workers.
      check: Returns what is wrong with a worker, by its index, or None.
      leave: Ends the process, given the message.
      is_finishing: Returns whether training has noticed, and now writes its
        last checkpoint.
    """

    def __init__(
        self,
        cluster: Cluster,
        check: Callable[[int], str | None] | None = None,
        leave: Callable[[str], None] | None = None,
        is_finishing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = cluster
        self._is_finishing = is_finishing
        self._check = check or check_health
        self._leave = leave or _leave_at_once
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._look, name="peers", daemon=True
        )

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        cluster = self._cluster
        others = [i for i in range(cluster.num_workers) if i != cluster.index]
        missed: list[int] = []
        while not self._is_over.wait(_PERIOD):
            # One look in vain may be a busy machine's.
            silent = [index for index in others if self._check(index)]
            gone = [index for index in silent if index in missed]
            missed = silent
            if not gone or self._is_over.wait(_GRACE):
                continue
            gone = [index for index in gone if self._check(index)]
            if gone and not self._finishes():
                self._leave(_describe(gone, cluster))
                return

    def _finishes(self) -> bool:
        """Gives training time to end; returns whether it has."""
        if not self._is_finishing():
            return False
        deadline = time.monotonic() + _SECONDS_TO_FINISH
        while self._is_finishing() and time.monotonic() < deadline:
            if self._is_over.wait(_PERIOD):
                return True
        return self._is_over.wait(_GRACE)


def _leave_at_once(message: str) -> None:
    """Ends the process from another thread than the main one."""
    _tell("failure", message)
    print(f"ERROR: {message}", file=sys.stderr)  # noqa: T201
    _leave(1, time.monotonic())
