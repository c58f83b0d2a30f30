"""Tests for bert_tf.serving.pieces, with servables that record calls."""

import asyncio
import dataclasses
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import batching
from bert_tf.serving import errors
from bert_tf.serving import pieces as pieces_lib
from bert_tf.serving import servable as servables
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.calls import Call
from bert_tf.serving.pieces import PieceScheduler
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import TensorSpec

_TIMEOUT_SECONDS = 60
_OPTIONS = BatchingOptions(max_batch_size=8, num_batch_threads=1)


class _Ranges(Servable):
    """Counts up to each number, padded to the largest number of the call.

    Outputs: `constant` is padded with -1, `sums` with the row's sum, `grid`
    [B, largest x, largest y] with 0; `texts` are strings.
    """

    def __init__(self, repeats=1):
        inputs = {"x": TensorSpec(tf.int64, (None,))}
        inputs["y"] = inputs["x"]
        outputs = {
            "x": TensorSpec(tf.int64, (None,)),
            "constant": TensorSpec(tf.int64, (None, None)),
            "sums": TensorSpec(tf.float32, (None, None)),
            "texts": TensorSpec(tf.string, (None, None)),
            "grid": TensorSpec(tf.int64, (None, None, None)),
        }
        self.signature = Signature("ranges", inputs, outputs)
        super().__init__("ranges", 1, {"ranges": self.signature})
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self._repeats = repeats

    def run(self, signature, inputs, outputs, stop=None):
        self.entered.release()
        self.gate.wait(_TIMEOUT_SECONDS)
        x, y = inputs["x"], inputs["y"]
        self.calls.append(x.tolist())
        if 13 in x:
            raise tf.errors.InvalidArgumentError(None, None, "13 is refused")
        wide = np.arange(x.max(initial=0))
        high = np.arange(y.max(initial=0))
        inside = wide < x[:, np.newaxis]
        texts = np.full(inside.shape, b"", object)
        texts[inside] = b"a"
        both = inside[:, :, np.newaxis] & (high < y[:, np.newaxis, np.newaxis])
        values = {
            "x": x,
            "constant": np.where(inside, wide, -1),
            "sums": np.where(inside, wide, x[:, np.newaxis]).astype("f4"),
            "texts": texts,
            "grid": both * (1 + wide[:, np.newaxis]),
        }
        return {
            name: np.repeat(values[name], self._repeats, 0) for name in outputs
        }

    def call(self, x, outputs=None, y=None):
        inputs = {"x": np.array(x), "y": np.array(x if y is None else y)}
        names = tuple(outputs or self.signature.outputs)
        return Call(self.signature, inputs, names)

    def close(self):
        pass


def _start(pieces, servable, x):
    return asyncio.ensure_future(pieces.compute(servable, servable.call(x)))


def _run(main, options=_OPTIONS, **limits):
    """Calls a coroutine function with a scheduler of pieces."""
    limits = ServeLimits(**limits)
    scheduler = batching.BatchScheduler(options)
    lane = batching.BatchScheduler(
        dataclasses.replace(options, num_batch_threads=1)
    )

    async def run():
        pieces = PieceScheduler(scheduler, lane, options, limits)
        return await asyncio.wait_for(main(pieces), _TIMEOUT_SECONDS)

    try:
        return asyncio.run(run())
    finally:
        scheduler.stop()
        lane.stop()


class PieceSchedulerTest(absltest.TestCase):
    def assert_same_as_one_call(self, servable, call):
        outputs = _run(lambda pieces: pieces.compute(servable, call))
        calls = list(servable.calls)
        expected = servable.run(call.signature, call.inputs, call.outputs)
        self.assertEqual(list(outputs), list(call.outputs))
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value)
            self.assertEqual(outputs[name].dtype, value.dtype)
        return calls

    def test_splits_rows_that_do_not_fit_in_a_batch(self):
        servable = _Ranges()
        call = servable.call([3] * 9, ["x", "constant"])
        calls = self.assert_same_as_one_call(servable, call)
        self.assertEqual(calls, [[3, 3]] * 4 + [[3]])
        servable.calls.clear()
        calls = self.assert_same_as_one_call(servable, servable.call([3] * 8))
        self.assertEqual(calls, [[3] * 8])

    def test_pads_as_one_call_does(self):
        servable = _Ranges()
        x = [1, 2, 0, 0, 5, 3, 2, 2, 4]
        y = [0, 0, 6, 1, 2, 3, 2, 2, 4]
        self.assert_same_as_one_call(servable, servable.call(x, y=y))

    def test_learns_constant_padding_once(self):
        servable = _Ranges()
        call = servable.call([1, 1, 2, 2, 5, 5, 3, 3, 4], ["constant", "texts"])

        async def main(pieces):
            await pieces.compute(servable, call)
            self.assertIn([1, 1, 5, 5], servable.calls)
            self.assertLen(servable.calls, 6)
            servable.calls.clear()
            outputs = await pieces.compute(servable, call)
            self.assertLen(servable.calls, 5)
            return outputs

        outputs = _run(main)
        expected = servable.run(call.signature, call.inputs, call.outputs)
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value)

    def test_calls_with_large_outputs_have_few_rows(self):
        servable = _Ranges()
        specs = {"grid": TensorSpec(tf.int64, (None, 20, None, None))}
        signature = dataclasses.replace(servable.signature, outputs=specs)
        # 20 x 512 x 512 numbers of 8 bytes: one row of 64 MiB has place.
        self.assertEqual(signature.max_rows(["grid"]), 1)
        call = dataclasses.replace(
            servable.call([3, 3, 3], ["grid"]), signature=signature
        )

        async def main(pieces):
            await asyncio.gather(
                *(pieces.compute(servable, call) for _ in range(2))
            )

        _run(main)
        self.assertEqual(servable.calls, [[3]] * 6)

    def test_ends_when_the_outputs_are_too_large(self):
        servable = _Ranges()
        # 2 x 10 numbers of 8 bytes a call.
        call = servable.call([10] * 100, ["constant"])
        with self.assertRaisesRegex(
            errors.TooLargeError, "of 400 bytes, set by --max_response_bytes"
        ):
            _run(
                lambda pieces: pieces.compute(servable, call),
                max_response_bytes=400,
            )
        self.assertEqual(servable.calls, [[10] * 2] * 3)

    def test_does_not_split_dependent_rows(self):
        servable = _Ranges(repeats=2)
        call = servable.call([2, 2, 2, 3, 3, 3, 3, 3, 3])

        async def main(pieces):
            for _ in range(2):
                outputs = await pieces.compute(servable, call)
                self.assertLen(outputs["x"], 18)

        _run(main)
        self.assertEqual(list(map(len, servable.calls)), [2, 9, 9])

    def test_does_not_split_without_batching(self):
        servable = _Ranges()
        options = batching.without_merging()
        call = servable.call([1] * 99)
        _run(lambda pieces: pieces.compute(servable, call), options)
        self.assertEqual(servable.calls, [[1] * 99])

    def test_pieces_have_allowed_sizes(self):
        servable = _Ranges()
        options = BatchingOptions(
            max_batch_size=32, allowed_batch_sizes=(4, 6, 16, 32)
        )
        call = servable.call([1] * 33)
        _run(lambda pieces: pieces.compute(servable, call), options)
        self.assertEqual(list(map(len, servable.calls)), [6] * 5 + [4])

    def test_others_run_between_pieces(self):
        servable = _Ranges()
        servable.gate.clear()

        async def main(pieces):
            large = [_start(pieces, servable, [x] * 9) for x in (1, 2)]
            await asyncio.to_thread(servable.entered.acquire)
            small = _start(pieces, servable, [7])
            await asyncio.sleep(0)
            servable.gate.set()
            await asyncio.gather(*large, small)

        _run(main)
        # Large requests take turns, too, and share no call with others: their
        # outputs would be as wide as the others need.
        self.assertEqual(
            servable.calls[:5], [[1, 1], [7], [2, 2], [1, 1], [2, 2]]
        )
        self.assertLen(servable.calls, 11)

    def test_splits_long_rows_that_fit_in_a_batch(self):
        servable = _Ranges()
        servable.gate.clear()
        # Two numbers a row: 6 rows in a call, and 1 in a piece.
        self.enter_context(mock.patch.object(batching, "MAX_CALL_SIZE", 12))
        self.enter_context(mock.patch.object(batching, "PIECE_SIZE", 3))

        async def main(pieces):
            tasks = [_start(pieces, servable, [1] * 6)]
            await asyncio.to_thread(servable.entered.acquire)
            tasks += [
                _start(pieces, servable, x) for x in ([2] * 7, *[[4]] * 8)
            ]
            await asyncio.sleep(0)
            servable.gate.set()
            return [len(x["x"]) for x in await asyncio.gather(*tasks)]

        self.assertEqual(_run(main), [6, 7, *[1] * 8])
        self.assertEqual(
            servable.calls, [[1] * 6, [2], [4] * 6, [4] * 2, *[[2]] * 6]
        )

    def test_pieces_by_their_characters(self):
        texts = np.array([b"a" * n for n in (3000, 2000, 1, 5000, 9, 9)])
        sizes = servables.row_sizes({"text": texts.astype(object)})
        self.assertEqual(sizes.tolist(), [3000, 2000, 1, 5000, 9, 9])
        found = [x.tolist() for x in pieces_lib.split(sizes, 3)]
        self.assertEqual(found, [[0], [1, 2], [3], [4, 5]])
        found = [x.tolist() for x in pieces_lib.split(sizes[4:], 1)]
        self.assertEqual(found, [[0], [1]])

    def test_clients_that_go_away_take_one_turn_at_a_time(self):
        servable = _Ranges()
        servable.gate.clear()
        options = BatchingOptions(max_batch_size=8, num_batch_threads=2)

        async def main(pieces):
            for number in (1, 2, 3):
                gone = _start(pieces, servable, [number] * 9)
                if number == 1:
                    await asyncio.to_thread(servable.entered.acquire)
                await asyncio.sleep(0)
                gone.cancel()
            small = _start(pieces, servable, [7])
            await asyncio.to_thread(servable.entered.acquire)
            # A piece is still computed, so the next one waits.
            last = _start(pieces, servable, [4] * 9)
            await asyncio.sleep(0)
            is_waiting = not servable.entered.acquire(blocking=False)
            servable.gate.set()
            await asyncio.gather(small, last)
            return is_waiting

        self.assertTrue(_run(main, options))
        self.assertCountEqual(
            servable.calls, [[1, 1], [7], [4, 4], [4, 4], [4, 4], [4, 4], [4]]
        )

    def test_refuses_too_many_as_a_whole(self):
        servable = _Ranges()
        servable.gate.clear()
        options = BatchingOptions(
            max_batch_size=4, max_enqueued_batches=2, num_batch_threads=1
        )

        async def main(pieces):
            large = [_start(pieces, servable, [x] * 9) for x in (1, 2)]
            await asyncio.to_thread(servable.entered.acquire)
            with self.assertRaisesRegex(
                errors.OverloadError, "max_enqueued_batches"
            ):
                await _start(pieces, servable, [3] * 5)
            # The queue is full while pieces of admitted requests wait.
            small = [_start(pieces, servable, [x] * 4) for x in (4, 5)]
            await asyncio.sleep(0)
            servable.gate.set()
            results = await asyncio.gather(*large, *small)
            return [len(result["x"]) for result in results]

        self.assertEqual(_run(main, options), [9, 9, 4, 4])

    def test_the_error_of_a_piece_ends_the_request(self):
        servable = _Ranges()
        call = servable.call([1, 1, 1, 13, 1, 1, 1, 1, 1])
        with self.assertRaisesRegex(errors.RequestError, "13 is refused"):
            _run(lambda pieces: pieces.compute(servable, call))
        self.assertLen(servable.calls, 2)


if __name__ == "__main__":
    absltest.main()
