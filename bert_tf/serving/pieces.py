"""Large requests, computed in pieces that let other requests in between.

Large are those of more rows than a batch, and those of long texts, which are
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
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.batching import BatchScheduler
from bert_tf.serving.calls import Call
from bert_tf.serving.servable import Servable

# A piece leaves room in its batch for the rows of other requests.
_PIECES_PER_BATCH = 4


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
        self._num_requests = 0
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
        if num_rows <= most_rows and not batching.is_large(call.inputs):
            return await self._scheduler.submit(
                servable, call.signature, call.inputs, call.outputs
            )
        paddings = self._paddings.setdefault(servable, {}).setdefault(
            call.signature.name, _Paddings()
        )
        request = _LargeRequest(
            self._scheduler, self._turn, paddings, self._limits, servable, call
        )
        with self._counted():
            if num_rows <= most_rows:
                return await request.run(call.inputs)
            if paddings.rows_are_independent:
                outputs = await request.in_pieces(
                    num_rows, min(self._piece_rows, most_rows)
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
    def _counted(self) -> Iterator[None]:
        """Admits a large request as a whole, or refuses it."""
        limit = self._options.max_enqueued_batches
        if limit and self._num_requests >= limit:
            raise errors.OverloadError(
                f"{self._num_requests} requests of long texts or more rows "
                "than max_batch_size are in progress, the limit set by "
                "max_enqueued_batches; try again later."
            )
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1


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
        """Returns the outputs for some rows, in this request's turn."""
        async with self._turn:
            return await self._scheduler.submit(
                self._servable,
                self._call.signature,
                inputs,
                self._call.outputs,
                is_admitted=True,
            )

    async def in_pieces(
        self, num_rows: int, piece_rows: int
    ) -> Mapping[str, np.ndarray] | None:
        """Returns the outputs; None if pieces have not one row for each row."""
        pieces = []
        outputs = []
        num_bytes = 0
        for first in range(0, num_rows, piece_rows):
            rows = np.arange(first, min(first + piece_rows, num_rows))
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

    def _check_padded(
        self,
        outputs: Sequence[Mapping[str, np.ndarray]],
        name: str,
        shape: tuple[int, ...],
    ) -> None:
        num_values = sum(len(part[name]) for part in outputs) * math.prod(shape)
        num_bytes = num_values * outputs[0][name].itemsize
        bodies.check_response(num_bytes, self._limits)

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
            self._check_padded(outputs, name, shapes[name])
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


def _piece_rows(options: BatchingOptions) -> int:
    """Returns the number of rows of a piece, which is an allowed size."""
    rows = max(1, options.max_batch_size // _PIECES_PER_BATCH)
    sizes = options.allowed_batch_sizes
    if not sizes:
        return rows
    return max((size for size in sizes if size <= rows), default=sizes[0])


def _has_rows(outputs: Mapping[str, np.ndarray], num_rows: int) -> bool:
    return all(x.ndim and len(x) == num_rows for x in outputs.values())


def _corner(narrow: np.ndarray) -> tuple[slice, ...]:
    """Returns the index of an array's part in a wider one."""
    return tuple(map(slice, narrow.shape))
