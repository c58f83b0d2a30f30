"""Tests for bert_tf.distribute.cluster and worker_health."""

import itertools
import json
import os
import socket
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import cluster as clusters
from bert_tf.distribute import health as worker_health
from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.flags.groups import DeviceConfig
from tests.support import record_files
from tests.support import worker_processes
from tests.support import workers_program

_WORKERS = "multi_worker_mirrored"


def _variable(task, **jobs):
    kind, index = task
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


def _find(variable="", **flags):
    flags = {"distribution_strategy": _WORKERS} | flags
    return clusters.find(DeviceConfig(**flags), {"TF_CONFIG": variable})


class FindTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (("worker", 1), {"worker": ["a:1", "b:2"]}, 1),
        (("chief", 0), {"worker": ["b:2"], "chief": ["a:1"]}, 0),
        (("worker", 0), {"worker": ["b:2"], "chief": ["a:1"]}, 1),
    )
    def test_reads_tf_config(self, task, jobs, index):
        expected = Cluster(("a:1", "b:2"), index)
        self.assertEqual(_find(_variable(task, **jobs)), expected)
        # The flags may agree, or not name the workers at all.
        flags = {"worker_hosts": "a:1,b:2", "task_index": index}
        self.assertEqual(_find(_variable(task, **jobs), **flags), expected)
        self.assertEqual(
            _find(_variable(task, **jobs), distribution_strategy="auto"),
            expected,
        )

    def test_reads_the_flags(self):
        cluster = _find(worker_hosts="a:1, b:2,c:3", task_index=2)
        self.assertEqual(cluster, Cluster(("a:1", "b:2", "c:3"), 2))
        self.assertFalse(cluster.is_chief)
        self.assertEqual(cluster.num_workers, 3)
        self.assertEqual(cluster.name(0), "worker 0 (the chief, at a:1)")
        self.assertEqual(cluster.name(2), "worker 2 (at c:3)")

    def test_one_worker_is_a_run_of_one_process(self):
        self.assertIsNone(_find(worker_hosts="a:1", task_index=0))
        self.assertIsNone(_find(_variable(("worker", 0), worker=["a:1"])))
        self.assertIsNone(_find(distribution_strategy="one_device"))

    @parameterized.parameters(
        ("{", "must be JSON with a cluster"),
        ("[]", "must be JSON with a cluster"),
        (
            _variable(("worker", 2), worker=["a:1", "b:2"]),
            "must be one of its cluster, which has 2",
        ),
        (_variable(("ps", 0), worker=["a:1"], ps=["b:2"]), "name workers"),
        (_variable(("worker", 0), worker=["a:1", "b"]), "HOST:PORT.*'b'"),
        (_variable(("worker", 0), worker=["a:1", "b:x"]), "HOST:PORT.*'b:x'"),
        (_variable(("worker", 0), worker=["a:1", "a:1"]), "twice: a:1"),
        ("", "needs worker addresses"),
    )
    def test_refuses_bad_values(self, variable, message):
        with self.assertRaisesRegex(UserError, message):
            _find(variable)

    def test_refuses_flags_that_contradict_tf_config(self):
        variable = _variable(("worker", 0), worker=["a:1", "b:2"])
        with self.assertRaisesRegex(UserError, "use one of the two"):
            _find(variable, worker_hosts="a:1,b:2", task_index=1)

    def test_refuses_workers_that_would_train_alone(self):
        variable = _variable(("worker", 0), worker=["a:1", "b:2"])
        with self.assertRaisesRegex(UserError, "=mirrored would let each"):
            _find(variable, distribution_strategy="mirrored")

    def test_finds_an_exported_cluster(self):
        cluster = Cluster(("a:1", "b:2"), 1)
        environment = {}
        clusters.export(cluster, environment)
        flags = DeviceConfig(distribution_strategy="auto")
        self.assertEqual(clusters.find(flags, environment), cluster)


class _WaitingWorker:
    """A worker that waits in a thread of its own.

    Attributes:
      error: The exception that it ended with, or None.
    """

    def __init__(self, hosts, index):
        self.error = None
        self._cluster = Cluster(tuple(hosts), index)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self):
        try:
            clusters.wait_for_all(self._cluster, poll_seconds=0.01)
        except BaseException as error:  # noqa: BLE001 `Preempted` is one.
            self.error = error

    def join(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def _port(host):
    return int(host.rpartition(":")[2])


class WaitForAllTest(tf.test.TestCase, parameterized.TestCase):
    def test_ends_when_all_workers_run(self):
        hosts = worker_processes.free_hosts(3)
        with self.assertLogs(level="INFO") as logs:
            others = [_WaitingWorker(hosts, index) for index in (1, 2)]
            clusters.wait_for_all(Cluster(hosts, 0), poll_seconds=0.01)
        self.assertEqual([other.join() for other in others], [None, None])
        self.assertIn("All 3 workers are running", "\n".join(logs.output))
        for host in hosts:  # TensorFlow must be able to listen.
            socket.create_server(("", _port(host))).close()

    @parameterized.parameters(
        ("", "which does not respond yet"),
        ("a program", "where another program answers"),
        ("a name", "whose host name is unknown"),
    )
    def test_logs_missing_workers_and_the_reason(self, listener, reason):
        hosts = [*worker_processes.free_hosts(2)]
        if listener == "a name":
            # A real look-up would need the network, which may be slow.
            unknown = mock.patch.object(
                socket, "create_connection", side_effect=socket.gaierror
            )
            self.enter_context(unknown)
        cluster = Cluster(tuple(hosts), 0)
        if listener == "a program":
            # This program reads the greeting, answers and disconnects.
            program = socket.create_server(("", _port(hosts[1])))
            self.addCleanup(program.close)

            def answer():
                caller = program.accept()[0]
                caller.recv(1 << 16)
                caller.sendall(b"HTTP/1.1 400 Bad request\r\n\r\n")
                caller.close()

            threading.Thread(target=answer, daemon=True).start()
        enough = KeyboardInterrupt()
        with self.assertLogs(level="INFO") as logs:
            with mock.patch.object(clusters.time, "sleep", side_effect=enough):
                with self.assertRaises(KeyboardInterrupt):
                    clusters.wait_for_all(cluster)
        self.assertIn(
            f"Waiting for 1 of 2 workers: worker 1 (at {hosts[1]}), {reason}",
            logs.output[0],
        )

    def test_ignores_callers_without_a_greeting(self):
        hosts = worker_processes.free_hosts(2)
        first = _WaitingWorker(hosts, 0)
        address = ("127.0.0.1", _port(hosts[0]))
        lines = [b"", b"GET / HTTP/1.1\n", b"[1]\n", b'{"index": 1}\n']
        while lines:
            try:
                caller = socket.create_connection(address)
            except ConnectionRefusedError:
                continue  # The worker is still starting.
            with caller:
                caller.sendall(lines.pop())
        self.assertTrue(first._thread.is_alive())
        second = _WaitingWorker(hosts, 1)
        self.assertEqual([first.join(), second.join()], [None, None])

    @parameterized.product(
        # Index and hosts in the other worker's greeting: a copy of the first
        # worker's command, two other orders, another number of workers.
        identity=[(0, "ab"), (1, "ba"), (0, "ba"), (1, "abc")],
        calls=[True, False],
    )
    def test_refuses_another_order_or_the_same_index(self, identity, calls):
        # With `calls` the first worker gets no answer, so it waits this long.
        self.enter_context(
            mock.patch.object(
                clusters, "_SECONDS_TO_ANSWER", 1.0 if calls else 60.0
            )
        )
        hosts = worker_processes.free_hosts(2)
        names = dict(zip("abc", [*hosts, "c:1"], strict=True))
        greeting = {
            "index": identity[0],
            "hosts": [names[letter] for letter in identity[1]],
            "stop": False,
        }
        line = json.dumps(greeting).encode() + b"\n"
        # The test acts as the other worker.
        listener = socket.create_server(("", _port(hosts[1])))
        self.addCleanup(listener.close)
        first = _WaitingWorker(hosts, 0)
        if calls:
            # Drops the first worker's call, so that the test calls first.
            listener.accept()[0].close()
            address = ("127.0.0.1", _port(hosts[0]))
            other = socket.create_connection(address)
        else:
            other = listener.accept()[0]
        with other:
            other.sendall(line)
            answer = json.loads(other.makefile("rb").readline())
        self.assertEqual(answer, {"index": 0, "hosts": [*hosts], "stop": False})
        error = first.join()
        self.assertIsInstance(error, UserError)
        self.assertIn("same --worker_hosts", str(error))
        self.assertIn(
            f"it is worker {identity[0]} of {','.join(greeting['hosts'])}",
            str(error),
        )

    def test_sigterm_stops_all_waiting_workers(self):
        hosts = worker_processes.free_hosts(3)
        other = _WaitingWorker(hosts, 1)
        greet_missing = clusters._Meeting.greet_missing

        def stop_once_two_are_running(meeting):
            missing = greet_missing(meeting)
            if threading.current_thread() is threading.main_thread():
                if missing.keys() == {2}:
                    raise Preempted("Stopped on SIGTERM.")
            return missing

        with mock.patch.object(
            clusters._Meeting, "greet_missing", stop_once_two_are_running
        ):
            with self.assertRaisesRegex(Preempted, "on SIGTERM"):
                # The third worker never starts, so only SIGTERM ends this.
                clusters.wait_for_all(Cluster(hosts, 0), poll_seconds=0.01)
        error = other.join()
        self.assertIsInstance(error, Preempted)
        self.assertIn("another worker got SIGTERM", str(error))

    def test_a_port_in_use_is_an_error(self):
        hosts = worker_processes.free_hosts(2)
        with socket.create_server(("", _port(hosts[1]))):
            with self.assertRaisesRegex(
                UserError, f"Worker 1 cannot listen at {hosts[1]}"
            ):
                clusters.wait_for_all(Cluster(hosts, 1))


_CLUSTER = Cluster(("a:1", "b:2", "c:3"), 1)


def _unavailable(message):
    return tf.errors.UnavailableError(None, None, message)


class ExplainTest(tf.test.TestCase, parameterized.TestCase):
    def _explain(self, error, gone=()):
        def check(index):
            return "refused" if index in gone else None

        with mock.patch.object(worker_health, "check_health", check):
            return worker_health.explain(error, _CLUSTER)

    def test_names_workers_that_do_not_respond(self):
        error = _unavailable("Connection reset by peer, from task:0")
        explained = self._explain(error, gone=[2])
        self.assertIsInstance(explained, UserError)
        self.assertStartsWith(
            str(explained), "Worker 2 (at c:3) is gone or not responding"
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
        error = tf.errors.InvalidArgumentError(None, None, "bad record")
        self.assertIsNone(self._explain(error, gone=[0]))


def _watch(wait, check, is_finishing=lambda: False):
    """Runs a watch with a mocked clock; returns its messages."""
    messages = []
    watch = worker_health.Watch(_CLUSTER, is_finishing)
    watch._is_over = mock.Mock(wait=wait)
    with mock.patch.multiple(
        worker_health, check_health=check, _end_process=messages.append
    ):
        watch._run()
    return messages


class WatchTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        # No worker is silent twice in a row, so the process continues.
        (([2], [], [0], [2], [0]), None),
        (([], [0], [0, 2]), "Worker 0 (the chief, at a:1) is gone"),
        (([0, 2], [2]), "Worker 2 (at c:3) is gone"),
    )
    def test_ends_the_process_after_two_failed_checks(self, checks, message):
        checks = [set(silent) for silent in checks]
        waits = []

        def wait(seconds):
            # Each wait but the first starts the next check.
            if waits and seconds == worker_health._PERIOD:
                checks.pop(0)
            waits.append(seconds)
            return not checks

        messages = _watch(
            wait, lambda index: "silent" if index in checks[0] else None
        )
        if message is None:
            self.assertEmpty(messages)
            self.assertNotIn(worker_health._GRACE, waits)
        else:
            self.assertLen(messages, 1)
            self.assertStartsWith(messages[0], message)
            self.assertEqual(waits[-1], worker_health._GRACE)

    @parameterized.parameters(
        (["silent"] * 4 + [None] * 6, 5), (["silent"] * 8, 3)
    )
    def test_continues_if_a_worker_or_the_end_is_late(self, answers, num_waits):
        answers = iter(answers)
        waits = []

        def wait(seconds):
            waits.append(seconds)
            return len(waits) >= num_waits

        self.assertEmpty(_watch(wait, lambda index: next(answers)))
        self.assertEqual(waits[2], worker_health._GRACE)

    @parameterized.parameters(
        # Values of `is_finishing` until the checkpoint is written. Then
        # training ends, or hangs and must be reported.
        ([True, True, True, False], True, []),
        ([True, True, False], False, ["Worker 0"]),
        ([False], False, ["Worker 0"]),
        # Writing never ends, so only the time limit reports the worker.
        (itertools.repeat(True), False, ["Worker 0"]),
    )
    def test_gives_training_time_to_finish(self, is_finishing, ends, expected):
        is_finishing = iter(is_finishing)
        is_writing = [True]
        now = [0.0]

        def check_finishing():
            is_writing[0] = next(is_finishing)
            return is_writing[0]

        def wait(seconds):
            now[0] += seconds
            return ends and not is_writing[0]

        with mock.patch.object(worker_health.time, "monotonic", lambda: now[0]):
            messages = _watch(wait, lambda index: "silent", check_finishing)
        self.assertEqual([message[:8] for message in messages], expected)
        self.assertLess(now[0], worker_health._SECONDS_TO_FINISH + 60)


@pytest.mark.slow
class WorkersTest(tf.test.TestCase):
    def test_two_workers_share_rows_and_errors(self):
        # A start takes ten seconds, so all checks share one.
        path = os.path.join(self.create_tempdir().full_path, "a.tfrecord")
        record_files.write(path, range(workers_program.NUM_RECORDS))
        with worker_processes.started(
            2, "tests/support/workers_program.py", f"--input_file={path}"
        ) as workers:
            for worker in workers:
                self.assertEqual(worker.wait(), 1, worker.log)
            logs = [worker.log for worker in workers]
        results = [_results(log) for log in logs]

        for index, result in enumerate(results):
            self.assertRegex(
                result["difference"],
                r"same flags, but worker 1 \(at 127.0.0.1:\d+\).*index is 1 "
                "there, and 0 on the chief",
            )
            self.assertEqual(result["from_chief"], {"token": 0})
            # All get the chief's count, and stop as soon as one worker stops.
            self.assertEqual(result["next_calls"], [[3, False], [3, True]])
            self.assertRegex(
                logs[index], rf"(?m)^\[worker {index}\] \d\d:\d\d:\d\d "
            )
            self.assertIn("All 2 workers are running", logs[index])

        # Each worker must have its own rows, and both each record once.
        rows = np.array([result["rows"] for result in results])
        self.assertEqual(rows.shape, (2, 12))
        self.assertAllEqual(rows[0, :4], [0, 1, 2, 3])
        self.assertAllEqual(rows[1, :4], [4, 5, 6, -1])
        self.assertAllEqual(
            np.sort(rows[rows >= 0]), np.arange(workers_program.NUM_RECORDS)
        )

        # The second worker failed, so the first one must report its error.
        self.assertIn("ERROR: No space is left.", logs[1])
        self.assertRegex(
            logs[0], r"ERROR: Worker 1 \(at .*\) stopped: No space is left"
        )


def _results(log):
    _, marker, rest = log.partition("RESULTS ")
    if not marker:
        raise AssertionError(f"No results:\n{log}")
    return json.loads(rest.splitlines()[0])


if __name__ == "__main__":
    tf.test.main()
