"""Tests for bert_tf.distribute.health."""

import itertools
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import health as worker_health
from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import Preempted
from bert_tf.errors import UserError

_CLUSTER = Cluster(("a:1", "b:2", "c:3"), 1)


def _unavailable(message):
    return tf.errors.UnavailableError(None, None, message)


class ExplainTest(tf.test.TestCase, parameterized.TestCase):
    def _explain(self, error, gone=(), cluster=_CLUSTER):
        def check(index):
            return "refused" if index in gone else None

        with mock.patch.object(worker_health, "check_health", check):
            return worker_health.explain(error, cluster)

    def test_names_workers_that_do_not_respond(self):
        error = _unavailable("Connection reset by peer, from task:0")
        explained = self._explain(error, gone=[2])
        self.assertIsInstance(explained, UserError)
        self.assertStartsWith(
            str(explained),
            "Worker 2 (at c:3) is gone or not responding",
        )
        explained = self._explain(error, gone=[0, 2])
        self.assertStartsWith(
            str(explained),
            "Worker 0 (the chief, at a:1) and worker 2 (at c:3) are gone",
        )

    def test_names_a_worker_that_responds_again(self):
        error = _unavailable(
            "Error reported from /job:worker/task:2: The following tasks are "
            "unhealthy: /job:worker/replica:0/task:2"
        )
        self.assertStartsWith(str(self._explain(error)), "Worker 2 (at c:3) is")

    def test_a_reported_error_comes_first(self):
        error = _unavailable(
            "Collective ops is aborted by: <bert_tf failure>Worker 0 stopped: "
            "no space</bert_tf>\nThe error could be from a previous operation."
        )
        explained = self._explain(error, gone=[2])
        self.assertIsInstance(explained, UserError)
        self.assertEqual(str(explained), "Worker 0 stopped: no space")

    def test_sigterm_is_no_failure(self):
        error = _unavailable("aborted by: <bert_tf stop>Stopped.</bert_tf>")
        explained = self._explain(error)
        self.assertIsInstance(explained, Preempted)
        self.assertEqual(str(explained), "Stopped.")

    def test_other_errors_have_no_explanation(self):
        self.assertIsNone(self._explain(_unavailable("no such table")))
        self.assertIsNone(self._explain(_unavailable("task:0"), [0], None))
        error = tf.errors.InvalidArgumentError(None, None, "bad record")
        self.assertIsNone(self._explain(error, gone=[0]))


class WatchTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        # Never twice in a row.
        (([2], [], [0], [2], [0]), None),
        (([], [0], [0, 2]), "Worker 0 (the chief, at a:1) is gone"),
        (([0, 2], [2]), "Worker 2 (at c:3) is gone"),
    )
    def test_ends_the_process_after_two_failed_checks(self, checks, message):
        checks = [set(silent) for silent in checks]
        messages = []
        watch = worker_health.Watch(
            _CLUSTER,
            lambda index: "silent" if index in checks[0] else None,
            messages.append,
        )
        waits = []

        def wait(seconds):
            # Each wait but the first starts the next check.
            if waits and seconds == worker_health._PERIOD:
                checks.pop(0)
            waits.append(seconds)
            return not checks

        watch._is_over = mock.Mock(wait=wait)
        watch._run()
        if message is None:
            self.assertEmpty(messages)
            self.assertNotIn(worker_health._GRACE, waits)
        else:
            self.assertLen(messages, 1)
            self.assertStartsWith(messages[0], message)
            self.assertEqual(waits[-1], worker_health._GRACE)

    def test_continues_if_a_worker_responds_late(self):
        answers = iter(["silent"] * 4 + [None] * 6)
        messages = []
        watch = worker_health.Watch(
            _CLUSTER, lambda index: next(answers), messages.append
        )
        waits = []

        def wait(seconds):
            waits.append(seconds)
            return len(waits) == 5

        watch._is_over = mock.Mock(wait=wait)
        watch._run()
        self.assertEmpty(messages)
        self.assertEqual(waits[2], worker_health._GRACE)

    def test_does_nothing_if_training_noticed(self):
        messages = []
        watch = worker_health.Watch(
            _CLUSTER, lambda index: "silent", messages.append
        )
        waits = []

        def wait(seconds):
            waits.append(seconds)
            return worker_health._GRACE in waits

        watch._is_over = mock.Mock(wait=wait)
        watch._run()
        self.assertEmpty(messages)
        self.assertIn(worker_health._GRACE, waits)

    @parameterized.parameters(
        # Values of `is_finishing` until the checkpoint is written; then
        # training ends, or hangs.
        ([True, True, True, False], True, []),
        ([True, True, False], False, ["Worker 0"]),
        ([False], False, ["Worker 0"]),
        # It never ends.
        (itertools.repeat(True), False, ["Worker 0"]),
    )
    def test_gives_training_time_to_finish(self, is_finishing, ends, expected):
        is_finishing = iter(is_finishing)
        is_writing = [True]
        messages = []
        now = [0.0]

        def check_finishing():
            is_writing[0] = next(is_finishing)
            return is_writing[0]

        def wait(seconds):
            now[0] += seconds
            return ends and not is_writing[0]

        watch = worker_health.Watch(
            _CLUSTER, lambda index: "silent", messages.append, check_finishing
        )
        watch._is_over = mock.Mock(wait=wait)
        with mock.patch.object(worker_health.time, "monotonic", lambda: now[0]):
            watch._run()
        self.assertEqual([message[:8] for message in messages], expected)
        self.assertLess(now[0], worker_health._SECONDS_TO_FINISH + 60)


if __name__ == "__main__":
    tf.test.main()
