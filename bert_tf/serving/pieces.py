"""Splits large requests into pieces, so that other requests run in between.

A request is large if it has more rows or longer inputs than a call may have. A
row cannot be split, so a row too long for a call runs in a separate thread.
"""

import asyncio
import collections
import contextlib
import dataclasses
import math
import re
import weakref
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import batching
from bert_tf.serving import bodies
from bert_tf.serving import errors
from bert_tf.serving import servable as servables
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.batching import BatchScheduler
from bert_tf.serving.calls import Call
from bert_tf.serving.servable import TOKENIZE
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Stop

_PIECES_PER_BATCH = 4
# Cuts a text into parts to tokenize, before white space if possible, otherwise
# between characters. With at most 8 bytes per part, b"to be or not" has the
# parts b"to be or" and b" not".
_PARTS = re.compile(
    rb"(?s).{1,%d}(?=[ \t\r\n]|\Z)|.{1,%d}(?![\x80-\xbf])|.{1,%d}"
    % ((batching.MAX_CALL_SIZE,) * 3)
)
# White space and long words have few tokens, but take time and memory. So count
# at least one token per 64 bytes, or per 256 for models without `tokenize`.
_TOKEN_BYTES, _UNKNOWN_TOKEN_BYTES = 64, 256


class PieceScheduler:
    """Splits large requests and computes one piece after the other.

    A piece is a call by itself. Large requests take turns: their pieces occupy
    at most half of the threads. If there is only one thread, they use it.

    Args:
      scheduler: Computes small requests, and all pieces that fit in a call.
      lane: A second scheduler, with one thread, for pieces that are too long
        for a call. Only such long pieces stop early if the client disconnects.
    """

    def __init__(
        self,
        scheduler: BatchScheduler,
        lane: BatchScheduler,
        options: BatchingOptions,
        limits: ServeLimits,
    ) -> None:
        self._scheduler = scheduler
        self._lane = lane
        self._options = options
        self.limits = limits
        # The number of rows of a piece must be an allowed batch size.
        rows = max(1, options.max_batch_size // _PIECES_PER_BATCH)
        sizes = options.allowed_batch_sizes or (rows,)
        fitting = (size for size in sizes if size <= rows)
        self._piece_rows = max(fitting, default=sizes[0])
        # Rows in progress. Requests that use `_lane` count apart, under the key
        # True, so that they do not use up the limit of other large requests.
        self._num_rows_admitted = collections.Counter()
        self._turn = asyncio.Semaphore(max(1, options.num_threads() // 2))
        # Each call pads its outputs to its own length, so outputs need further
        # padding before they are joined. Maps a servable, then a signature's
        # name, then an output's name to the padding, as learned from calls. A
        # signature is mapped to None if its rows affect each other.
        self._paddings = weakref.WeakKeyDictionary()

    async def compute(
        self, servable: Servable, call: Call, choices: int = 1
    ) -> Arrays:
        """Returns the outputs of a call with at most `choices` choices per row.

        Raises:
          RequestError: If too many requests wait, if the outputs are too large,
            or if the model fails.
        """
        num_rows = self._num_rows(call)
        max_rows = self._options.max_rows(call.signature, call.outputs)
        size = servables.input_size(call.inputs, choices)
        if num_rows <= max_rows and size <= batching.MAX_CALL_SIZE:
            return await self._scheduler.submit(
                servable, call.signature, call.inputs, call.outputs, size
            )
        by_signature = self._paddings.setdefault(servable, {})
        paddings = by_signature.setdefault(call.signature.name, {})
        is_split = num_rows > 1 and paddings is not None
        sizes = np.array([size])
        if is_split:
            sizes = servables.row_sizes(call.inputs, choices)
        is_long = not is_split or sizes.max() > batching.MAX_CALL_SIZE
        request = _LargeRequest(self, paddings, servable, call, choices)
        with self._counted(num_rows, is_long):
            if is_split:
                rows = split(sizes, min(self._piece_rows, max_rows))
                outputs = await request.in_pieces(rows)
                if outputs is not None:
                    return outputs
                by_signature[call.signature.name] = None
            return await self.run(servable, call, size, is_long=True)

    async def run(
        self, servable: Servable, call: Call, size: int, is_long: bool = False
    ) -> Arrays:
        """Computes a piece when it gets its turn, and returns the outputs.

        The turn lasts until the piece is computed, even if the client is gone,
        so that clients that disconnect and retry cannot occupy many threads.
        """
        piece = servable, call.signature, call.inputs, call.outputs, size
        if is_long or size > batching.MAX_CALL_SIZE:
            return await self._lane.submit(*piece, is_piece=True, stop=Stop())
        await self._turn.acquire()
        try:
            future = self._scheduler.submit(
                *piece, is_piece=True, on_end=self._turn.release
            )
        except errors.RequestError:
            self._turn.release()
            raise
        return await future

    async def check_tokens(self, servable: Servable, text: bytes) -> None:
        """Raises `RequestError` if a text has more tokens than a row may have.

        The model's signature `tokenize` counts the tokens, but at least one per
        64 bytes. Without `tokenize`, 256 bytes count as one token.
        """
        limit = self.limits.max_row_tokens
        signature = servable.signatures.get(TOKENIZE)
        max_token_bytes = _TOKEN_BYTES if signature else _UNKNOWN_TOKEN_BYTES
        count = (len(text) - 1) // max_token_bytes + 1
        parts = iter(())
        if signature and count <= limit:
            count, parts = 0, _PARTS.finditer(text)
        for part in parts:
            inputs = {"text": np.array([part[0]], object)}
            call = Call(signature, inputs, ("input_ids",))
            outputs = await self.run(servable, call, len(part[0]))
            count += outputs["input_ids"].size
            if count > limit:
                break
        flag = "max_row_tokens"
        errors.check_limit(count, self.limits, flag, "A row", "tokens")

    def _num_rows(self, call: Call) -> int:
        """Returns the number of rows of a call that may be split, else 0."""
        sizes = {len(x) for x in call.inputs.values() if x.ndim}
        if (
            not self._options.has_independent_rows
            or not call.signature.is_batched()
            or len(sizes) != 1
        ):
            return 0
        return sizes.pop()

    @contextlib.contextmanager
    def _counted(self, num_rows: int, is_long: bool) -> Iterator[None]:
        """Admits a large request as a whole, or refuses it.

        A request counts as its number of rows, but at most `max_batch_size`.
        """
        admitted = self._num_rows_admitted
        limit = self._options.max_queued_rows()
        weight = min(max(1, num_rows), self._options.max_batch_size)
        if limit is not None and admitted[is_long] + weight > limit:
            raise errors.OverloadError(
                f"{admitted[is_long]} rows of large requests are in "
                "progress, counting at most max_batch_size for each, and the "
                "limit is max_enqueued_batches * max_batch_size, "
                f"{limit}; try again later."
            )
        admitted[is_long] += weight
        try:
            yield
        finally:
            admitted[is_long] -= weight


@dataclasses.dataclass
class _LargeRequest:
    """A request that is computed in pieces."""

    pieces: PieceScheduler
    paddings: dict[str, Any]
    servable: Servable
    call: Call
    choices: int

    async def in_pieces(
        self, row_groups: Iterable[np.ndarray]
    ) -> Arrays | None:
        """Returns the outputs; None if the rows depend on each other.

        `row_groups` has the indices of the rows of each piece, <int>[N].
        """
        pieces = []
        outputs = []
        num_bytes = 0
        for rows in row_groups:
            part = await self._run_rows(rows)
            if not _has_rows(part, len(rows)):
                return None
            num_bytes += bodies.num_bytes(part)
            bodies.check_response(num_bytes, self.pieces.limits)
            pieces.append(rows)
            outputs.append(part)
        if not await self._widen(pieces, outputs):
            return None
        return {
            name: np.concatenate([part.pop(name) for part in outputs])
            for name in self.call.outputs
        }

    async def _run_rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the outputs for the rows with these indices, <int>[N]."""
        inputs = {name: x[rows] for name, x in self.call.inputs.items()}
        call = dataclasses.replace(self.call, inputs=inputs)
        size = servables.input_size(inputs, self.choices)
        return dict(await self.pieces.run(self.servable, call, size))

    async def _widen(
        self,
        pieces: Sequence[np.ndarray],
        outputs: list[dict[str, np.ndarray]],
    ) -> bool:
        """Pads outputs to equal shapes; False if rows depend on each other."""
        shapes = {}
        longest = set()
        for name in self.call.outputs:
            of_pieces = [part[name].shape[1:] for part in outputs]
            if len(set(map(len, of_pieces))) > 1:
                return False
            shapes[name] = tuple(map(max, zip(*of_pieces, strict=True)))
            num_values = sum(map(len, pieces)) * math.prod(shapes[name])
            num_bytes = num_values * outputs[0][name].itemsize
            bodies.check_response(num_bytes, self.pieces.limits)
            for sizes in zip(*of_pieces, strict=True):
                longest.add(sizes.index(max(sizes)))
        longest_pieces = [pieces[i] for i in sorted(longest)]
        for rows, part in zip(pieces, outputs, strict=True):
            narrow = {
                name: x
                for name, x in part.items()
                if x.shape[1:] != shapes[name]
            }
            if any(self.paddings.get(name) is None for name in narrow):
                merged = np.concatenate([rows, *longest_pieces])
                wide = await self._run_rows(merged)
                if not _has_rows(wide, len(merged)):
                    return False
                for name, x in wide.items():
                    if x.shape[1:] != shapes[name]:
                        return False
                    part[name] = x[: len(rows)].copy()
                for name in narrow.keys() - self.paddings.keys():
                    self.paddings[name] = _padding(narrow[name], part[name])
                continue
            for name, x in narrow.items():
                shape = len(x), *shapes[name]
                padded = np.full(shape, self.paddings[name], x.dtype)
                padded[_corner(x)] = x
                part[name] = padded
        return True


def split(sizes: np.ndarray, piece_rows: int) -> Iterator[np.ndarray]:
    """Yields the indices of each piece's rows, <int64>[N], from row sizes.

    [9, 9, 5000, 9], `piece_rows` 2: [0, 1], [2], [3], as 5009 > `PIECE_SIZE`.
    """
    first = size = 0
    for row, row_size in enumerate(sizes):
        is_full = (
            row - first == piece_rows or size + row_size > batching.PIECE_SIZE
        )
        if row > first and is_full:
            yield np.arange(first, row)
            first, size = row, 0
        size += row_size
    yield np.arange(first, len(sizes))


def _has_rows(outputs: Arrays, num_rows: int) -> bool:
    return all(x.ndim and len(x) == num_rows for x in outputs.values())


def _padding(narrow: np.ndarray, wide: np.ndarray) -> Any:
    """Returns the padding of the wide output; None if it is not constant.

    If the outputs are [[3, 5]] and [[3, 5, 0]], the padding is 0.
    """
    is_padding = np.ones(wide.shape, bool)
    is_padding[_corner(narrow)] = False
    values = wide[is_padding]
    return values[0] if values.size and np.all(values == values[0]) else None


def _corner(narrow: np.ndarray) -> tuple[slice, ...]:
    """Returns the index of a narrow output's values in a wide output."""
    return tuple(map(slice, narrow.shape))
