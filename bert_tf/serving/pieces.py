"""Large requests, computed in pieces that let other requests in between.

Large are those of more rows or longer inputs than a call has. A single row is
one piece.
"""

import asyncio
import contextlib
import math
import weakref
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.flags.serve_limits import ServeLimits
from bert_tf.serving import batching
from bert_tf.serving import bodies
from bert_tf.serving import errors
from bert_tf.serving import servable as servables
from bert_tf.serving.batching import BatchScheduler
from bert_tf.serving.batching_parameters import BatchingOptions
from bert_tf.serving.calls import Call
from bert_tf.serving.servable import Servable

# Requests that arrive meanwhile wait for a quarter of a full call.
_PIECES_PER_CALL = 4


class PieceScheduler:
    """Splits large requests and computes one piece after the other.

    A piece waits in the scheduler's queue like a request. Large requests take
    turns, so that their pieces do not fill the queue.
    """

    def __init__(
        self,
        scheduler: BatchScheduler,
        options: BatchingOptions,
        limits: ServeLimits,
    ) -> None:
        self._scheduler = scheduler
        self._options = options
        self._limits = limits
        self._piece_rows = _piece_rows(options)
        self._num_rows_admitted = 0
        self._turn = asyncio.Semaphore(max(1, options.num_threads() // 2))
        self._paddings = weakref.WeakKeyDictionary()

    async def compute(
        self, servable: Servable, call: Call
    ) -> Mapping[str, np.ndarray]:
        """Returns the outputs of a call.

        Raises:
          RequestError: If too many requests wait, the outputs are too large or
            the model fails.
        """
        num_rows = self._num_rows(call)
        most_rows = self._options.most_rows(call.signature, call.outputs)
        is_short = servables.input_size(call.inputs) <= batching.MAX_CALL_SIZE
        if num_rows <= most_rows and is_short:
            return await self._scheduler.submit(
                servable, call.signature, call.inputs, call.outputs
            )
        paddings = self._paddings.setdefault(servable, {}).setdefault(
            call.signature.name, _Paddings()
        )
        request = _LargeRequest(
            self._scheduler, self._turn, paddings, self._limits, servable, call
        )
        with self._counted(num_rows):
            if num_rows > 1 and paddings.rows_are_independent:
                outputs = await request.in_pieces(
                    min(self._piece_rows, most_rows)
                )
                if outputs is not None:
                    return outputs
                paddings.rows_are_independent = False
            return await request.run(call.inputs)

    def _num_rows(self, call: Call) -> int:
        """Returns the rows of a call that may be split, else 0."""
        sizes = {len(x) for x in call.inputs.values() if x.ndim}
        if (
            not self._options.has_independent_rows
            or not call.signature.is_batched()
            or len(sizes) != 1
        ):
            return 0
        return sizes.pop()

    @contextlib.contextmanager
    def _counted(self, num_rows: int) -> Iterator[None]:
        """Admits a large request as a whole, or refuses it.

        It counts with its rows, but with no more than those of a batch.
        """
        limit = self._options.max_queued_rows()
        weight = min(max(1, num_rows), self._options.max_batch_size)
        if limit is not None and self._num_rows_admitted + weight > limit:
            raise errors.OverloadError(
                f"{self._num_rows_admitted} rows of large requests are in "
                "progress, counting at most max_batch_size for each, and the "
                "limit is max_enqueued_batches * max_batch_size, "
                f"{limit}; try again later."
            )
        self._num_rows_admitted += weight
        try:
            yield
        finally:
            self._num_rows_admitted -= weight


class _Paddings:
    """Padding of the outputs of a signature, learned from its calls.

    Models pad their outputs to the longest row of a call.

    Attributes:
      rows_are_independent: False after a call without one row for each row.
      values: The value after the end of a shorter row, by the output's name;
        None if it depends on the row.
    """

    def __init__(self) -> None:
        self.rows_are_independent = True
        self.values: dict[str, Any] = {}

    def learn(self, name: str, narrow: np.ndarray, wide: np.ndarray) -> None:
        """Compares an output with the same rows beside longer ones."""
        is_padding = np.ones(wide.shape, bool)
        is_padding[_corner(narrow)] = False
        values = wide[is_padding]
        is_constant = values.size and np.all(values == values[0])
        self.values[name] = values[0] if is_constant else None


class _LargeRequest:
    """A request that is computed in pieces."""

    def __init__(
        self,
        scheduler: BatchScheduler,
        turn: asyncio.Semaphore,
        paddings: _Paddings,
        limits: ServeLimits,
        servable: Servable,
        call: Call,
    ) -> None:
        self._limits = limits
        self._scheduler = scheduler
        self._turn = turn
        self._paddings = paddings
        self._servable = servable
        self._call = call

    async def run(
        self, inputs: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        """Returns the outputs for some rows, in this request's turn.

        The turn ends when nothing is computed any more, so that clients that go
        away, one after the other, occupy no more threads than others.
        """
        await self._turn.acquire()
        try:
            future = self._scheduler.submit(
                self._servable,
                self._call.signature,
                inputs,
                self._call.outputs,
                is_piece=True,
                on_end=self._turn.release,
            )
        except errors.RequestError:
            self._turn.release()
            raise
        return await future

    async def in_pieces(
        self, piece_rows: int
    ) -> Mapping[str, np.ndarray] | None:
        """Returns the outputs; None if pieces have not one row for each row."""
        pieces = []
        outputs = []
        num_bytes = 0
        for rows in split(servables.row_sizes(self._call.inputs), piece_rows):
            part = await self._run_rows(rows)
            if not _has_rows(part, len(rows)):
                return None
            num_bytes += bodies.num_bytes(part)
            bodies.check_response(num_bytes, self._limits)
            pieces.append(rows)
            outputs.append(part)
        if not await self._widen(pieces, outputs):
            return None
        return {
            name: np.concatenate([part.pop(name) for part in outputs])
            for name in self._call.outputs
        }

    async def _run_rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the outputs for these rows, <int>[N]."""
        inputs = {name: x[rows] for name, x in self._call.inputs.items()}
        return dict(await self.run(inputs))

    async def _widen(
        self,
        pieces: Sequence[np.ndarray],
        outputs: list[dict[str, np.ndarray]],
    ) -> bool:
        """Pads the outputs of all pieces to the shapes of one call.

        Returns:
          False if the shapes are not those of independent rows.
        """
        shapes = {}
        longest = set()
        for name in self._call.outputs:
            of_pieces = [part[name].shape[1:] for part in outputs]
            if len(set(map(len, of_pieces))) > 1:
                return False
            shapes[name] = tuple(map(max, zip(*of_pieces, strict=True)))
            num_values = sum(map(len, pieces)) * math.prod(shapes[name])
            num_bytes = num_values * outputs[0][name].itemsize
            bodies.check_response(num_bytes, self._limits)
            for sizes in zip(*of_pieces, strict=True):
                longest.add(sizes.index(max(sizes)))
        beside = [pieces[i] for i in sorted(longest)]
        for rows, part in zip(pieces, outputs, strict=True):
            narrow = {
                name: x
                for name, x in part.items()
                if x.shape[1:] != shapes[name]
            }
            known = self._paddings.values
            if any(known.get(name) is None for name in narrow):
                wide = await self._run_rows(np.concatenate([rows, *beside]))
                if not _has_rows(wide, len(rows) + sum(map(len, beside))):
                    return False
                for name, x in wide.items():
                    if x.shape[1:] != shapes[name]:
                        return False
                    part[name] = x[: len(rows)].copy()
                for name in narrow.keys() - known.keys():
                    self._paddings.learn(name, narrow[name], part[name])
                continue
            for name, x in narrow.items():
                padded = np.full((len(x), *shapes[name]), known[name], x.dtype)
                padded[_corner(x)] = x
                part[name] = padded
        return True


def split(sizes: np.ndarray, piece_rows: int) -> Iterator[np.ndarray]:
    """Yields the rows of each piece, <int64>[N], from the sizes of all rows."""
    most = batching.MAX_CALL_SIZE // _PIECES_PER_CALL
    first = size = 0
    for row, row_size in enumerate(sizes):
        is_full = row - first == piece_rows or size + row_size > most
        if row > first and is_full:
            yield np.arange(first, row)
            first, size = row, 0
        size += row_size
    yield np.arange(first, len(sizes))


def _piece_rows(options: BatchingOptions) -> int:
    """Returns the number of rows of a piece, which is an allowed size."""
    rows = max(1, options.max_batch_size // _PIECES_PER_CALL)
    sizes = options.allowed_batch_sizes
    if not sizes:
        return rows
    return max((size for size in sizes if size <= rows), default=sizes[0])


def _has_rows(outputs: Mapping[str, np.ndarray], num_rows: int) -> bool:
    return all(x.ndim and len(x) == num_rows for x in outputs.values())


def _corner(narrow: np.ndarray) -> tuple[slice, ...]:
    """Returns the index of an array's part in a wider one."""
    return tuple(map(slice, narrow.shape))
