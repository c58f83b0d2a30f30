"""Tests for bert_tf.serving.batching, with a servable that records calls."""

import asyncio
import threading
import unittest
import weakref
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.serving import batching
from bert_tf.serving import errors
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import TensorSpec

_TIMEOUT_SECONDS = 60


class _Recorder(Servable):
    """Doubles numbers when it is released; refuses the number 13."""

    def __init__(self, output_rows=None, repeats=1):
        spec = TensorSpec(tf.int64, (None, None))
        outputs = {"y": spec, "z": spec}
        self.signature = Signature("double", {"x": spec}, outputs)
        super().__init__("recorder", 7, {"double": self.signature})
        self.calls = []
        self.is_closed = False
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self._output_rows = output_rows
        self._repeats = repeats

    def run(self, signature, inputs, outputs, stop=None):
        self.entered.release()
        self.gate.wait(_TIMEOUT_SECONDS)
        self.calls.append(inputs["x"].tolist())
        if 13 in inputs["x"]:
            raise tf.errors.InvalidArgumentError(None, None, "13 is refused")
        y = np.repeat(inputs["x"] * 2, self._repeats, axis=0)
        if self._output_rows is not None:
            y = y[: self._output_rows]
        return {name: y for name in outputs}

    def close(self):
        self.is_closed = True


def _submit(scheduler, servable, rows, outputs=("y",)):
    inputs = {"x": np.array(rows, np.int64)}
    return scheduler.submit(servable, servable.signature, inputs, outputs)


def _run(servable, requests, cancel=(), **options):
    """Returns the result of each request, and the sizes of the calls.

    The first request occupies the only thread until the others are queued.
    """
    options = BatchingOptions(num_batch_threads=1, **options)
    return _run_with(options, servable, requests, cancel)


def _scheduler(num_batch_threads=1, **options):
    return batching.BatchScheduler(
        BatchingOptions(num_batch_threads=num_batch_threads, **options)
    )


def _run_with(options, servable, requests, cancel=()):
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
        for i in cancel:
            futures[i].cancel()
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

    def test_requests_that_run_alone_keep_their_place(self):
        large = [[1]] * 3
        values, _, queued = _run(
            _Recorder(), [large] * 4, max_batch_size=2, max_enqueued_batches=1
        )
        self.assertEqual(queued, 2)
        self.assertEqual(values[:3], [[[2]] * 3] * 3)
        self.assertEqual(values[3].code_name, "RESOURCE_EXHAUSTED")

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

    def test_takes_no_more_than_the_size_of_a_call(self):
        self.enter_context(mock.patch.object(batching, "MAX_CALL_SIZE", 6))
        values, observed, _ = _run(
            _Recorder(),
            [[[1]], [[1, 1], [2, 2]], [[3, 3]], [[4, 4]], [[5] * 9]],
        )
        self.assertEqual(values[-1], [[10] * 9])
        self.assertEqual(observed, [(1, 1), (2, 3), (1, 1), (1, 1)])

    def test_a_bad_request_does_not_fail_its_batch(self):
        servable = _Recorder()
        values, _, _ = _run(servable, [[[1]], [[2]], [[13]], [[4]]])
        self.assertEqual(values[:2] + values[3:], [[[2]], [[4]], [[8]]])
        self.assertEqual(values[2].code, tf.errors.INVALID_ARGUMENT)
        self.assertEqual(values[2].message, "13 is refused")
        self.assertEqual(
            servable.calls, [[[1]], [[2], [13], [4]], [[2]], [[13]], [[4]]]
        )

    def test_few_requests_run_alone_because_of_a_bad_one(self):
        servable = _Recorder()
        rows = [[[x]] for x in range(17)]
        values, _, _ = _run(servable, rows, max_batch_size=16)
        self.assertEqual(values[13].message, "13 is refused")
        del values[13], rows[13]
        self.assertEqual(values, [[[2 * x]] for ((x,),) in rows])
        self.assertLen(servable.calls, 10)

    def test_does_not_merge_signatures_with_one_output_row(self):
        servable = _Recorder(output_rows=1)
        with self.assertLogs(level="WARNING"):
            values, _, _ = _run(servable, [[[1]], [[2]], [[3]]])
        self.assertEqual(values, [[[2]], [[4]], [[6]]])
        self.assertEqual(servable.calls, [[[1]], [[2], [3]], [[2]], [[3]]])

    def test_does_not_merge_signatures_with_two_rows_per_row(self):
        with self.assertLogs(level="WARNING"):
            values, _, _ = _run(_Recorder(repeats=2), [[[1]], [[2]], [[3]]])
        self.assertEqual(values, [[[2], [2]], [[4], [4]], [[6], [6]]])

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
            # Long enough for an idle thread to take what it should not.
            await asyncio.sleep(0.05)
        await asyncio.gather(*futures)
        scheduler.stop()
        self.assertEqual(servable.calls, [[[0], [1], [2]]])

    def test_skips_cancelled_requests(self):
        servable = _Recorder()
        values, _, _ = _run(servable, [[[1]], [[2]], [[3]]], cancel=[1])
        self.assertEqual(servable.calls, [[[1]], [[3]]])
        self.assertIsInstance(values[1], asyncio.CancelledError)

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
    def test_refuses_others(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            self.read(text)


if __name__ == "__main__":
    absltest.main()
