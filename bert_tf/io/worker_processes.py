"""A pool of worker processes that exit with this process; their results."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any

from bert_tf.errors import WorkerEndedError

# Each process has two tasks, so that it does not wait between tasks.
_TASKS_AHEAD = 2


@contextlib.contextmanager
def pool(num_processes: int) -> Iterator[futures.Executor]:
    """Yields workers that exit when this process exits or is killed.

    A worker imports only the modules of the functions that it calls. If a
    worker is killed, `WorkerEndedError` is raised.
    """
    executor = futures.ProcessPoolExecutor(
        num_processes,
        # Forking a process with TensorFlow threads can deadlock.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
    )
    try:
        # Start workers now, so that they import while this process prepares
        # tasks. They inherit the signal mask, so Ctrl-C interrupts no import.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(num_processes):
                executor.submit(os.getpid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield executor
    except BrokenProcessPool as error:
        raise WorkerEndedError(
            "A worker process was killed, perhaps because memory ran out; "
            "rerun the same command to resume, with fewer --num_processes if "
            "it happens again."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _begin() -> None:
    """Makes this worker exit with its parent, even if the parent is killed."""
    # Ctrl-C reaches the workers, too, but only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def finished(
    executor: futures.Executor,
    num_processes: int,
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields each task with its result, in the order in which tasks finish.

    A task is a tuple of arguments for one call. At most two tasks per process
    are read in advance, so `tasks` need not fit in memory.
    """
    waiting: dict[futures.Future, tuple[Any, ...]] = {}
    remaining = iter(tasks)
    while True:
        num_free = _TASKS_AHEAD * num_processes - len(waiting)
        for task in itertools.islice(remaining, num_free):
            waiting[executor.submit(function, *task)] = task
        if not waiting:
            return
        done, _ = futures.wait(waiting, return_when=futures.FIRST_COMPLETED)
        # Yield results before errors, because an error ends the loop.
        for future in sorted(done, key=lambda x: x.exception() is not None):
            yield waiting.pop(future), future.result()
