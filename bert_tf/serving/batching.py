"""Batch scheduler: runs requests on threads and merges their rows.

As in TensorFlow Serving's shared batch scheduler, requests wait in queues. A
free thread fills a batch with rows of one queue; requests of different queues
are never merged. Without a timeout, a free thread takes the waiting rows at
once, so batches are small under low load and large under high load.
"""

import asyncio
import collections
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf.errors import UserError
from bert_tf.serving import errors
from bert_tf.serving import model_config
from bert_tf.serving import servable as servables
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import Stop

# Maximum size of a merged call: bytes of strings plus numbers in arrays, about
# 4,000 tokens. Longer calls are no faster per token, but delay other requests.
MAX_CALL_SIZE = 1 << 14
# Calls above this size use at most half the threads, so small calls can start.
PIECE_SIZE = MAX_CALL_SIZE // 4
# Tasks are sorted by arrival time, plus one second per 10,000 bytes above
# PIECE_SIZE. So short tasks run first, but long tasks do not wait forever.
_SIZE_PER_SECOND = 10_000
# A failed batch of at least this many requests is rerun in halves.
_MIN_SPLIT = 4


@dataclasses.dataclass(frozen=True)
class BatchingOptions:
    """Batching parameters, with TensorFlow Serving's names.

    Attributes:
      max_batch_size: Maximum number of rows in a batch. Requests with more rows
        than this are split (bert_tf.serving.pieces).
      batch_timeout_micros: Time that a request may wait for more rows while a
        thread is free, in microseconds.
      max_enqueued_batches: Number of full batches that may wait for each
        signature; 0 means any number.
      num_batch_threads: Number of threads; 0 means one per core.
      allowed_batch_sizes: Numbers of rows that batches are padded to,
        increasing up to `max_batch_size`. If empty, batches are not padded.
      has_independent_rows: Whether a request may be split into several calls.
    """

    max_batch_size: int = 64
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = 0
    allowed_batch_sizes: tuple[int, ...] = ()
    has_independent_rows: bool = True

    def num_threads(self) -> int:
        return self.num_batch_threads or len(os.sched_getaffinity(0))

    def max_rows(self, signature: Signature, outputs: tuple[str, ...]) -> int:
        """Returns the maximum number of rows of a call."""
        return min(self.max_batch_size, signature.max_rows(outputs))

    def max_queued_rows(self) -> int | None:
        if not self.max_enqueued_batches:
            return None
        return self.max_enqueued_batches * self.max_batch_size


def without_merging() -> BatchingOptions:
    """Returns options that run every request alone.

    Four requests per core run at once, as in TensorFlow Serving.
    """
    return BatchingOptions(
        max_batch_size=1,
        max_enqueued_batches=0,
        num_batch_threads=4 * len(os.sched_getaffinity(0)),
        has_independent_rows=False,
    )


@dataclasses.dataclass(eq=False)
class Task:
    """A request in a queue.

    Attributes:
      servable: The model version, acquired by the creator of the task.
      future: Receives the outputs by name, or the error.
      is_piece: True for a part of a split request. Pieces are never merged, and
        may exceed the queue's limit, because the whole request was admitted.
      on_end: Called in the event loop when the computation has ended or was
        dropped. Without `stop`, a cancelled computation runs until its end.
      stop: Ends the computation when the task is cancelled.
      num_rows: Number of rows; 0 if the request must run alone.
      size: The size of the inputs, computed by `servable.input_size`.
      queued_at: Time of arrival, by `time.monotonic`.
    """

    servable: Servable
    signature: Signature
    inputs: Arrays
    outputs: tuple[str, ...]
    future: asyncio.Future
    is_piece: bool = False
    on_end: Callable[[], None] = lambda: None
    stop: Stop | None = None
    num_rows: int = 0
    size: int = 0
    queued_at: float = dataclasses.field(default_factory=time.monotonic)

    def weight(self) -> int:
        """Returns the number of rows to count toward the queue's limit."""
        return max(1, self.num_rows)

    def rank(self) -> float:
        """Returns the sort key of a waiting task; the smallest runs first."""
        delay = max(0, self.size - PIECE_SIZE) / _SIZE_PER_SECOND
        return self.queued_at + delay

    def signature_key(self) -> Hashable:
        """Returns the signature's key; a signature's queues share one limit."""
        return id(self.servable), self.signature.name

    def key(self) -> Hashable:
        """Returns the queue's key: requests with equal keys may be merged."""
        if self.is_piece:
            # Run each piece alone: with longer rows in its batch, its outputs
            # would be wider than the outputs of the request's other pieces.
            return *self.signature_key(), id(self)
        arrays = [(name, self.inputs[name]) for name in self.signature.inputs]
        shapes = tuple(
            (name, x.shape[1:], servables.type_name(x)) for name, x in arrays
        )
        is_long = self.size > PIECE_SIZE  # Merge only with long requests.
        return (*self.signature_key(), self.outputs, shapes, is_long)


class BatchScheduler:
    """Threads that compute batches of requests.

    Args:
      observe: Called with the tasks and the number of rows of every batch.
    """

    def __init__(
        self,
        options: BatchingOptions,
        observe: Callable[[Sequence[Task], int], None] = lambda *_: None,
    ) -> None:
        self._options = options
        self._observe = observe
        self._queues: dict[Hashable, collections.deque[Task]] = {}
        # Number of waiting rows by `Task.signature_key`.
        self._num_queued = collections.Counter()
        self._changed = threading.Condition()
        self._stopping = False
        self._draining = False
        # Signatures whose requests run alone, because a merged call did not
        # return one output row for each input row.
        self._unmergeable = set()
        self._num_long = 0  # Number of running calls above `PIECE_SIZE`.
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{i}", daemon=True)
            for i in range(options.num_threads())
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        servable: Servable,
        signature: Signature,
        inputs: Arrays,
        outputs: tuple[str, ...],
        size: int | None = None,
        **options: Any,
    ) -> asyncio.Future:
        """Queues a request; must be called in an event loop.

        The caller must have acquired the servable. The scheduler also acquires
        the servable, and releases it when the request is answered.

        `size` is the result of `servable.input_size` for the inputs, if known,
        and `options` are values of `Task` for `is_piece`, `on_end` and `stop`.
        If `submit` raises an error, `on_end` is not called.

        Returns:
          A future that receives the outputs by name.

        Raises:
          RequestError: If the queue is full or the scheduler is stopping.
        """
        task = Task(
            servable,
            signature,
            inputs,
            outputs,
            asyncio.get_running_loop().create_future(),
            size=servables.input_size(inputs) if size is None else size,
            **options,
        )
        if signature.is_batched() and self._options.max_batch_size > 1:
            task.num_rows = self._num_rows(task)
        key = task.key() if task.num_rows else task.signature_key()
        with self._changed:
            if self._stopping:
                raise errors.unavailable("The server is shutting down.")
            if not task.is_piece:
                self._check_room(task)
            servable.acquire()
            self._queues.setdefault(key, collections.deque()).append(task)
            self._num_queued[task.signature_key()] += task.weight()
            self._changed.notify()
        task.future.add_done_callback(
            lambda future: future.cancelled() and self._discard(key, task)
        )
        return task.future

    def num_queued_rows(self) -> int:
        """Returns the number of waiting rows."""
        with self._changed:
            return self._num_queued.total()

    def drain(self) -> None:
        """Makes all requests run without waiting for a full batch."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Answers queued requests, refuses new ones and ends the threads."""
        with self._changed:
            self._stopping = True
        self.drain()
        for thread in self._threads:
            thread.join()

    def _num_rows(self, task: Task) -> int:
        """Returns a request's number of rows, or 0 if it must run alone."""
        sizes = {len(value) for value in task.inputs.values()}
        if len(sizes) != 1 or _identity(task) in self._unmergeable:
            return 0
        (size,) = sizes
        return size if size <= self._options.max_batch_size else 0

    def _check_room(self, task: Task) -> None:
        limit = self._options.max_queued_rows()
        num_queued = self._num_queued[task.signature_key()]
        if limit is None or not num_queued:
            return
        if num_queued + task.weight() > limit:
            raise errors.OverloadError(
                "The batch scheduling queue to which this task was submitted "
                f"is full; it holds {num_queued} rows, and "
                f"max_enqueued_batches * max_batch_size is {limit}."
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                tasks = self._next_batch()
                if tasks is None:
                    self._changed.notify_all()  # So waiting threads end, too.
                    return
                is_long = sum(x.size for x in tasks) > PIECE_SIZE
                self._num_long += is_long
            outcomes = self._outcomes(
                [task for task in tasks if not task.future.cancelled()]
            )
            with self._changed:
                self._num_long -= is_long
                self._changed.notify(is_long)
            for task in tasks:
                task.servable.release()
            _deliver(tasks, outcomes)

    def _next_batch(self) -> list[Task] | None:
        """Waits for a batch of tasks; returns None after the last batch."""
        while self._queues or not self._stopping:
            has_room = self._num_long < max(1, len(self._threads) // 2)
            keys = [
                key
                for key, queue in self._queues.items()
                if has_room or queue[0].size <= PIECE_SIZE
            ]
            if not keys:
                self._changed.wait()
                continue
            now = time.monotonic()
            # Prefer queues that may run now to queues that wait for more rows.
            key = min(
                keys,
                key=lambda key: (
                    self._ready_at(self._queues[key]) > now,
                    self._queues[key][0].rank(),
                ),
            )
            ready_at = self._ready_at(self._queues[key])
            if ready_at <= now:
                return self._take(
                    key, MAX_CALL_SIZE if has_room else PIECE_SIZE
                )
            self._changed.wait(ready_at - now)
        return None

    def _ready_at(self, queue: collections.deque[Task]) -> float:
        """Returns the time at which the first tasks of a queue may run."""
        first = queue[0]
        if (
            self._draining
            or first.is_piece
            or not first.num_rows
            or sum(task.num_rows for task in queue)
            >= self._options.max_rows(first.signature, first.outputs)
            or sum(task.size for task in queue) >= MAX_CALL_SIZE
        ):
            return first.queued_at
        return first.queued_at + self._options.batch_timeout_micros / 1e6

    def _take(self, key: Hashable, max_size: int) -> list[Task]:
        """Removes and returns the first tasks of a queue that fit in a call."""
        queue = self._queues[key]
        batch = [queue.popleft()]
        first = batch[0]
        num_rows, size = first.num_rows, first.size
        max_rows = self._options.max_rows(first.signature, first.outputs)
        while (
            first.num_rows
            and queue
            and num_rows + queue[0].num_rows <= max_rows
            and size + queue[0].size <= max_size
        ):
            batch.append(queue.popleft())
            num_rows += batch[-1].num_rows
            size += batch[-1].size
        self._uncount(key, batch)
        return batch

    def _discard(self, key: Hashable, task: Task) -> None:
        """Stops a cancelled task, and removes it if it is still queued."""
        if task.stop:
            task.stop.set()
        with self._changed:
            queue = self._queues.get(key, ())
            if task not in queue:
                return
            queue.remove(task)
            self._uncount(key, [task])
        task.servable.release()
        task.on_end()

    def _uncount(self, key: Hashable, removed: Sequence[Task]) -> None:
        """Updates the numbers of waiting rows after tasks have left a queue."""
        if not self._queues[key]:
            del self._queues[key]
        signature_key = removed[0].signature_key()
        self._num_queued[signature_key] -= sum(x.weight() for x in removed)
        if not self._num_queued[signature_key]:
            del self._num_queued[signature_key]

    def _outcomes(self, tasks: Sequence[Task]) -> dict[int, object]:
        """Returns the outputs or the error of each task, by `id(task)`."""
        outcomes = self._run_merged(tasks) if len(tasks) > 1 else {}
        if outcomes:
            return outcomes
        # Rerun a failed batch in halves. So a bad request fails alone, and most
        # other requests still run in batches.
        if len(tasks) < _MIN_SPLIT or _identity(tasks[0]) in self._unmergeable:
            return {id(task): self._run_alone(task) for task in tasks}
        middle = len(tasks) // 2
        return self._outcomes(tasks[:middle]) | self._outcomes(tasks[middle:])

    def _run_alone(self, task: Task):
        if not task.num_rows:
            num_rows = max(
                (len(x) for x in task.inputs.values() if x.ndim), default=1
            )
            return self._call([task], task.inputs, num_rows)
        outputs = self._call([task], *self._padded(task.inputs, task.num_rows))
        if self._options.allowed_batch_sizes and isinstance(outputs, dict):
            return {name: x[: task.num_rows] for name, x in outputs.items()}
        return outputs

    def _run_merged(self, tasks: Sequence[Task]) -> dict[int, object]:
        """Returns outputs by `id(task)`; an empty dict if the batch failed."""
        first = tasks[0]
        inputs = {
            name: np.concatenate([task.inputs[name] for task in tasks])
            for name in first.signature.inputs
        }
        num_rows = sum(task.num_rows for task in tasks)
        inputs, padded_rows = self._padded(inputs, num_rows)
        outputs = self._call(tasks, inputs, padded_rows)
        if not isinstance(outputs, dict):
            return {}
        if any(not x.ndim or len(x) != padded_rows for x in outputs.values()):
            logging.warning(
                "Signature %s of model %s does not return one row for each "
                "row; its requests run alone from now on.",
                first.signature.name,
                first.servable.name,
            )
            self._unmergeable.add(_identity(first))
            return {}
        outcomes = {}
        begin = 0
        for task in tasks:
            end = begin + task.num_rows
            outcomes[id(task)] = {
                name: value[begin:end] for name, value in outputs.items()
            }
            begin = end
        return outcomes

    def _padded(self, inputs: Arrays, num_rows: int) -> tuple[Arrays, int]:
        """Pads to the next allowed batch size, with copies of the first row."""
        sizes = self._options.allowed_batch_sizes
        size = next((s for s in sizes if s >= num_rows), num_rows)
        if size == num_rows or not num_rows:
            return inputs, num_rows
        return {
            name: np.concatenate([x, np.repeat(x[:1], size - num_rows, 0)])
            for name, x in inputs.items()
        }, size

    def _call(self, tasks: Sequence[Task], inputs: Arrays, num_rows: int):
        """Returns the outputs by name, or the error."""
        first = tasks[0]
        self._observe(tasks, num_rows)
        try:
            return first.servable.run(
                first.signature, inputs, first.outputs, first.stop
            )
        except Exception as error:  # noqa: BLE001  # Clients get the error.
            answer = errors.from_exception(error)
            if answer.code_name == "INTERNAL":
                logging.exception(
                    "Model %s failed on a request.", first.servable.name
                )
            return answer


def _identity(task: Task) -> Hashable:
    return task.servable.name, task.servable.version, task.signature.name


def _deliver(tasks: Sequence[Task], outcomes: dict[int, object]) -> None:
    """Passes the outcomes to the event loops, waking each loop only once."""
    by_loop = {}
    for task in tasks:
        pair = task, outcomes.get(id(task))
        by_loop.setdefault(task.future.get_loop(), []).append(pair)
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, pairs)
        except RuntimeError:
            # The event loop is closed, so no client waits for an answer.
            logging.warning(
                "%d answers came after the server's end.", len(pairs)
            )


def _resolve(pairs: Sequence[tuple[Task, object]]) -> None:
    for task, outcome in pairs:
        task.on_end()
        future = task.future
        if future.done():  # Cancelled: the client disconnected or timed out.
            continue
        if isinstance(outcome, errors.RequestError):
            future.set_exception(outcome)
        elif outcome is not None:
            future.set_result(outcome)
        else:
            future.cancel()


# Types of BatchingParameters' fields (session_bundle_config.proto of TensorFlow
# Serving 2.20).
_FIELDS = {
    "max_batch_size": "Int64Value",
    "batch_timeout_micros": "Int64Value",
    "max_enqueued_batches": "Int64Value",
    "num_batch_threads": "Int64Value",
    "thread_pool_name": "StringValue",
    "allowed_batch_sizes": "repeated int64",
    "pad_variable_length_inputs": "bool",
}


def read_options(path: str) -> BatchingOptions:
    """Reads a text file of `BatchingParameters`.

    Raises:
      UserError: If the file is invalid, or sets an unsupported parameter.
    """
    parameters = model_config.new_message("BatchingParameters", **_FIELDS)
    model_config.read_into(parameters, path, "--batching_parameters_file")
    values = {"max_batch_size": 1000}  # TensorFlow Serving's default.
    for field, value in parameters.ListFields():
        if _FIELDS[field.name] == "Int64Value":
            values[field.name] = value.value
        elif field.name == "allowed_batch_sizes":
            values[field.name] = tuple(value)
        # A thread pool's name has no effect, so it is accepted and ignored.
        elif field.name != "thread_pool_name":
            raise UserError(
                f"{path} sets {field.name}, which this server does not "
                "support; remove that line."
            )
    options = BatchingOptions(**values)
    sizes = options.allowed_batch_sizes
    if options.max_batch_size < 1 or options.max_enqueued_batches < 1:
        raise UserError(
            f"max_batch_size and max_enqueued_batches of {path} must be at "
            f"least 1. Received: {options.max_batch_size} and "
            f"{options.max_enqueued_batches}."
        )
    if options.batch_timeout_micros < 0 or options.num_batch_threads < 0:
        raise UserError(
            f"batch_timeout_micros and num_batch_threads of {path} must not "
            f"be negative. Received: {options.batch_timeout_micros} and "
            f"{options.num_batch_threads}."
        )
    if sizes and (
        list(sizes) != sorted(set(sizes)) or sizes[-1] != options.max_batch_size
    ):
        raise UserError(
            f"allowed_batch_sizes of {path} must rise and end with "
            f"max_batch_size={options.max_batch_size}. Received: "
            f"{', '.join(map(str, sizes))}."
        )
    return options
