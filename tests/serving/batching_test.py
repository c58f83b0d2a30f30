"""Tests of batches and of pieces of requests, on servables that log calls."""

import asyncio
import dataclasses
import threading
import unittest
import weakref
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.errors import UserError
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


class _Recorder(Servable):
    """Doubles numbers once its gate opens; refuses the number 13."""

    def __init__(self, output_rows=None):
        spec = TensorSpec(tf.int64, (None, None))
        outputs = {"y": spec, "z": spec}
        self.signature = Signature("double", {"x": spec}, outputs)
        super().__init__("recorder", 7, {"double": self.signature})
        self.calls = []
        self.is_closed = False
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self._output_rows = output_rows

    def run(self, signature, inputs, outputs, stop=None):
        self.entered.release()
        self.gate.wait(_TIMEOUT_SECONDS)
        self.calls.append(inputs["x"].tolist())
        if 13 in inputs["x"]:
            raise tf.errors.InvalidArgumentError(None, None, "13 is refused")
        y = inputs["x"] * 2
        if self._output_rows is not None:
            y = y[: self._output_rows]
        return {name: y for name in outputs}

    def close(self):
        self.is_closed = True


def _submit(scheduler, servable, rows, outputs=("y",)):
    inputs = {"x": np.array(rows, np.int64)}
    return scheduler.submit(servable, servable.signature, inputs, outputs)


def _run(servable, requests, **options):
    """Returns the result of each request, and the sizes of the calls.

    The first request occupies the only thread until the others are queued.
    """
    options = BatchingOptions(num_batch_threads=1, **options)
    return _run_with(options, servable, requests)


def _scheduler(num_batch_threads=1, **options):
    return batching.BatchScheduler(
        BatchingOptions(num_batch_threads=num_batch_threads, **options)
    )


def _run_with(options, servable, requests):
    observed = []
    scheduler = batching.BatchScheduler(
        options, lambda tasks, rows: observed.append((len(tasks), rows))
    )

    def submit(rows):
        names = ("y",)
        if isinstance(rows, tuple):
            *names, rows = rows
        try:
            return _submit(scheduler, servable, rows, tuple(names))
        except errors.RequestError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future

    async def main():
        futures = [submit(requests[0])]
        await asyncio.to_thread(servable.entered.acquire)
        futures += [submit(rows) for rows in requests[1:]]
        queued = scheduler.num_queued_rows()
        servable.gate.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
        await asyncio.to_thread(scheduler.stop)
        return results, queued

    results, queued = asyncio.run(asyncio.wait_for(main(), _TIMEOUT_SECONDS))
    values = [
        next(iter(result.values())).tolist()
        if isinstance(result, dict)
        else result
        for result in results
    ]
    return values, observed, queued


class BatchSchedulerTest(absltest.TestCase, unittest.IsolatedAsyncioTestCase):
    def test_merges_waiting_requests_and_splits_the_outputs(self):
        servable = _Recorder()
        values, observed, queued = _run(
            servable, [[[1]], [[2], [3]], [[4]], [[5]]]
        )
        self.assertEqual(values, [[[2]], [[4], [6]], [[8]], [[10]]])
        self.assertEqual(servable.calls, [[[1]], [[2], [3], [4], [5]]])
        self.assertEqual(observed, [(1, 1), (3, 4)])
        self.assertEqual(queued, 4)

    def test_merges_only_rows_of_one_shape(self):
        servable = _Recorder()
        values, observed, _ = _run(servable, [[[1]], [[2, 3]], [[4]], [[5, 6]]])
        self.assertEqual(values, [[[2]], [[4, 6]], [[8]], [[10, 12]]])
        self.assertEqual(servable.calls, [[[1]], [[2, 3], [5, 6]], [[4]]])

    def test_merges_only_requests_for_the_same_outputs(self):
        servable = _Recorder()
        values, _, _ = _run(
            servable, [[[1]], [[2]], ("z", [[3]]), [[4]], ("z", "y", [[5]])]
        )
        self.assertEqual(values, [[[2]], [[4]], [[6]], [[8]], [[10]]])
        self.assertEqual(servable.calls, [[[1]], [[2], [4]], [[3]], [[5]]])

    async def test_ready_batches_overtake_waiting_ones(self):
        servable = _Recorder()
        servable.gate.set()
        scheduler = _scheduler(
            max_batch_size=2,
            batch_timeout_micros=1000 * _TIMEOUT_SECONDS * 1_000_000,
        )
        waiting, ready = (
            _submit(scheduler, servable, x) for x in ([[1]], [[2, 3], [4, 5]])
        )
        await asyncio.wait_for(ready, _TIMEOUT_SECONDS)
        self.assertFalse(waiting.done())
        await asyncio.to_thread(scheduler.stop)
        await waiting
        self.assertEqual(servable.calls, [[[2, 3], [4, 5]], [[1]]])

    def test_takes_no_more_than_the_batch_size(self):
        servable = _Recorder()
        values, observed, _ = _run(
            servable,
            [[[1]], [[2], [3]], [[4], [5]], [[6]], [[7]] * 5],
            max_batch_size=3,
        )
        self.assertEqual(
            servable.calls,
            [[[1]], [[2], [3]], [[4], [5], [6]], [[7]] * 5],
            "What is larger by itself runs alone.",
        )
        self.assertEqual(values[-1], [[14]] * 5)

    def test_a_bad_request_does_not_fail_its_batch(self):
        servable = _Recorder()
        values, _, _ = _run(servable, [[[1]], [[2]], [[13]], [[4]]])
        self.assertEqual(values[:2] + values[3:], [[[2]], [[4]], [[8]]])
        self.assertEqual(values[2].code, tf.errors.INVALID_ARGUMENT)
        self.assertEqual(values[2].message, "13 is refused")
        self.assertEqual(
            servable.calls, [[[1]], [[2], [13], [4]], [[2]], [[13]], [[4]]]
        )

    def test_tries_only_once_to_merge_such_signatures(self):
        servable = _Recorder(output_rows=1)
        servable.gate.set()
        scheduler = _scheduler(max_batch_size=2, batch_timeout_micros=10**9)

        async def main():
            for _ in range(2):
                await asyncio.gather(
                    *(_submit(scheduler, servable, [[x]]) for x in (1, 2))
                )
            await asyncio.to_thread(scheduler.stop)

        with self.assertLogs(level="WARNING") as logged:
            asyncio.run(asyncio.wait_for(main(), _TIMEOUT_SECONDS))
        self.assertLen(logged.output, 1)
        self.assertEqual(
            servable.calls, [[[1], [2]], [[1]], [[2]], [[1]], [[2]]]
        )

    def test_refuses_more_than_the_queue_holds(self):
        values, _, queued = _run(
            _Recorder(),
            [[[1]], [[2]], [[3], [4]], [[5]], [[6]], [[7], [8]]],
            max_batch_size=2,
            max_enqueued_batches=2,
        )
        self.assertEqual(queued, 4)
        self.assertEqual(values[:4], [[[2]], [[4]], [[6], [8]], [[10]]])
        for error in values[4:]:
            self.assertEqual(error.http_status, 503)
            self.assertEqual(error.code_name, "RESOURCE_EXHAUSTED")
            self.assertIn("queue", error.message)

    def test_pads_to_allowed_sizes(self):
        servable = _Recorder()
        values, observed, _ = _run(
            servable,
            [[[1]], [[2]], [[3], [4]]],
            max_batch_size=6,
            allowed_batch_sizes=(2, 4, 6),
        )
        self.assertEqual(values, [[[2]], [[4]], [[6], [8]]])
        self.assertEqual(servable.calls, [[[1], [1]], [[2], [3], [4], [2]]])
        self.assertEqual(observed, [(1, 2), (2, 4)])

    async def test_waits_for_others_until_the_timeout(self):
        servable = _Recorder()
        servable.gate.set()
        scheduler = _scheduler(
            max_batch_size=3,
            batch_timeout_micros=_TIMEOUT_SECONDS * 1_000_000,
            num_batch_threads=2,
        )
        futures = []
        for i in range(3):
            futures.append(_submit(scheduler, servable, [[i]]))
            # Long enough for an idle thread to take an incomplete batch.
            await asyncio.sleep(0.05)
        await asyncio.gather(*futures)
        scheduler.stop()
        self.assertEqual(servable.calls, [[[0], [1], [2]]])

    def test_frees_cancelled_requests(self):
        servable = _Recorder()
        scheduler = _scheduler(max_batch_size=2)

        def submit(rows):
            inputs = {"x": np.array(rows)}
            future = scheduler.submit(
                servable, servable.signature, inputs, ("y",)
            )
            return future, weakref.ref(inputs["x"])

        async def main():
            running, _ = submit([[1]])
            await asyncio.to_thread(servable.entered.acquire)
            waiting = [submit([[i]] * i) for i in (2, 3)]
            for future, _ in waiting:
                future.cancel()
            await asyncio.sleep(0)
            self.assertEqual(scheduler.num_queued_rows(), 0)
            self.assertEqual([inputs() for _, inputs in waiting], [None] * 2)
            servable.gate.set()
            await running
            await asyncio.to_thread(scheduler.stop)
            servable.retire()

        asyncio.run(asyncio.wait_for(main(), _TIMEOUT_SECONDS))
        self.assertEqual(servable.calls, [[[1]]])
        self.assertTrue(servable.is_closed)

    async def test_cancelling_a_running_request_keeps_its_batch(self):
        servable = _Recorder()
        scheduler = _scheduler(max_batch_size=2, batch_timeout_micros=10**9)
        gone, waiting = (_submit(scheduler, servable, [[x]]) for x in (1, 2))
        await asyncio.to_thread(servable.entered.acquire)
        gone.cancel()
        servable.gate.set()
        result = await asyncio.wait_for(waiting, _TIMEOUT_SECONDS)
        self.assertEqual(result["y"].tolist(), [[4]])
        await asyncio.to_thread(scheduler.stop)
        self.assertEqual(servable.calls, [[[1], [2]]])

    def test_does_not_merge_with_batching_disabled(self):
        servable = _Recorder()
        servable.gate.set()
        options = batching.without_merging()
        _, observed, _ = _run_with(options, servable, [[[i]] for i in range(9)])
        self.assertEqual(observed, [(1, 1)] * 9)

    async def test_closes_a_retired_servable_after_its_last_request(self):
        servable = _Recorder()
        scheduler = batching.BatchScheduler(BatchingOptions())
        future = _submit(scheduler, servable, [[1]])
        await asyncio.to_thread(servable.entered.acquire)
        servable.retire()
        self.assertFalse(servable.is_closed)
        servable.gate.set()
        result = await future
        self.assertEqual(result["y"].tolist(), [[2]])
        self.assertTrue(servable.wait_closed(_TIMEOUT_SECONDS))
        self.assertTrue(servable.is_closed)
        scheduler.stop()

    async def test_stop_answers_queued_requests(self):
        servable = _Recorder()
        scheduler = _scheduler(batch_timeout_micros=10**9)
        servable.gate.set()
        future = _submit(scheduler, servable, [[4]])
        await asyncio.to_thread(scheduler.stop)
        self.assertEqual((await future)["y"].tolist(), [[8]])
        with self.assertRaisesRegex(errors.RequestError, "shutting down"):
            _submit(scheduler, servable, [[4]], ())


class OptionsFileTest(parameterized.TestCase):
    def read(self, text):
        return batching.read_options(
            self.create_tempfile("batching.config", text).full_path
        )

    def test_reads_what_tensorflow_serving_reads(self):
        self.assertEqual(
            self.read(
                """
                max_batch_size { value: 32 }
                batch_timeout_micros { value: 1500 }
                max_enqueued_batches { value: 7 }
                num_batch_threads { value: 3 }
                thread_pool_name { value: "pool" }
                allowed_batch_sizes: 1
                allowed_batch_sizes: 32
                pad_variable_length_inputs: false
                """
            ),
            BatchingOptions(32, 1500, 7, 3, (1, 32)),
        )

    def test_defaults_are_tensorflow_servings(self):
        self.assertEqual(self.read(""), BatchingOptions(1000, 0, 10, 0, ()))

    @parameterized.parameters(
        ("max_batch_size: 32", "must be a text file of BatchingParameters"),
        ("max_size { value: 1 }", "no field named"),
        ("max_batch_size { value: 0 }", "at least 1"),
        ("batch_timeout_micros { value: -1 }", "must not be negative"),
        ("pad_variable_length_inputs: true", "sets pad_variable_length_inputs"),
        ("allowed_batch_sizes: 4", "end with max_batch_size=1000"),
        (
            "max_batch_size { value: 4 } allowed_batch_sizes: [4, 2, 4]",
            "must rise",
        ),
    )
    def test_other_options_are_refused(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            self.read(text)


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


def _pieces_run(main, options=_OPTIONS, **limits):
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
        outputs = _pieces_run(lambda pieces: pieces.compute(servable, call))
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

        outputs = _pieces_run(main)
        expected = servable.run(call.signature, call.inputs, call.outputs)
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value)

    def test_calls_with_large_outputs_have_few_rows(self):
        servable = _Ranges()
        specs = {"grid": TensorSpec(tf.int64, (None, 20, None, None))}
        signature = dataclasses.replace(servable.signature, outputs=specs)
        # A row has 20 x 512 x 512 x 8 bytes = 40 MiB, so 64 MiB hold one.
        self.assertEqual(signature.max_rows(["grid"]), 1)
        call = dataclasses.replace(
            servable.call([3, 3, 3], ["grid"]), signature=signature
        )

        async def main(pieces):
            await asyncio.gather(
                *(pieces.compute(servable, call) for _ in range(2))
            )

        _pieces_run(main)
        self.assertEqual(servable.calls, [[3]] * 6)

    def test_ends_when_the_outputs_are_too_large(self):
        servable = _Ranges()
        # A call of two rows has 160 bytes, so the third exceeds 400.
        call = servable.call([10] * 100, ["constant"])
        with self.assertRaisesRegex(
            errors.TooLargeError, "of 400 bytes, set by --max_response_bytes"
        ):
            _pieces_run(
                lambda pieces: pieces.compute(servable, call),
                max_response_bytes=400,
            )
        self.assertEqual(servable.calls, [[10] * 2] * 3)

    def test_ends_when_padding_makes_the_outputs_too_large(self):
        servable = _Ranges()
        call = servable.call([1] * 16 + [1000], ["constant"])
        with self.assertRaises(errors.TooLargeError):
            _pieces_run(
                lambda pieces: pieces.compute(servable, call),
                max_response_bytes=10_000,
            )
        # Only padding makes the outputs too large, so all calls were made.
        self.assertLen(servable.calls, 9)

    def test_does_not_split_dependent_rows(self):
        servable = _Ranges(repeats=2)
        call = servable.call([2, 2, 2, 3, 3, 3, 3, 3, 3])

        async def main(pieces):
            for _ in range(2):
                outputs = await pieces.compute(servable, call)
                self.assertLen(outputs["x"], 18)

        _pieces_run(main)
        self.assertEqual(list(map(len, servable.calls)), [2, 9, 9])

    def test_does_not_split_without_batching(self):
        servable = _Ranges()
        options = batching.without_merging()
        call = servable.call([1] * 99)
        _pieces_run(lambda pieces: pieces.compute(servable, call), options)
        self.assertEqual(servable.calls, [[1] * 99])

    def test_pieces_have_allowed_sizes(self):
        servable = _Ranges()
        options = BatchingOptions(
            max_batch_size=32, allowed_batch_sizes=(4, 6, 16, 32)
        )
        call = servable.call([1] * 33)
        _pieces_run(lambda pieces: pieces.compute(servable, call), options)
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

        _pieces_run(main)
        # Large requests take turns, too, and share no call with others, because
        # outputs are as wide as the widest row of the call.
        self.assertEqual(
            servable.calls[:5], [[1, 1], [7], [2, 2], [1, 1], [2, 2]]
        )
        self.assertLen(servable.calls, 11)

    def test_splits_long_rows_that_fit_in_a_batch(self):
        servable = _Ranges()
        servable.gate.clear()
        # A row has two numbers, so a call has 6 rows and a piece has 1.
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

        self.assertEqual(_pieces_run(main), [6, 7, *[1] * 8])
        self.assertEqual(
            servable.calls, [[1] * 6, [2], [4] * 6, [4] * 2, *[[2]] * 6]
        )

    def test_pieces_are_split_by_their_characters(self):
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

        self.assertTrue(_pieces_run(main, options))
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
            # These rows fill the queue, but admitted pieces must still run.
            small = [_start(pieces, servable, [x] * 4) for x in (4, 5)]
            await asyncio.sleep(0)
            servable.gate.set()
            results = await asyncio.gather(*large, *small)
            return [len(result["x"]) for result in results]

        self.assertEqual(_pieces_run(main, options), [9, 9, 4, 4])

    def test_the_error_of_a_piece_ends_the_request(self):
        servable = _Ranges()
        call = servable.call([1, 1, 1, 13, 1, 1, 1, 1, 1])
        with self.assertRaisesRegex(errors.RequestError, "13 is refused"):
            _pieces_run(lambda pieces: pieces.compute(servable, call))
        self.assertLen(servable.calls, 2)


if __name__ == "__main__":
    absltest.main()
