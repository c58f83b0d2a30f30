"""Tests for bert_tf.cluster."""

import json
import socket
import threading
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import cluster as clusters
from bert_tf.cluster import Cluster
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.run_config import DeviceConfig
from tests import worker_processes

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
    def test_reads_the_variable(self, task, jobs, index):
        expected = Cluster(("a:1", "b:2"), index)
        self.assertEqual(_find(_variable(task, **jobs)), expected)
        # Also where the flags say the same, or leave it to the environment.
        flags = {"worker_hosts": "a:1,b:2", "task_index": index}
        self.assertEqual(_find(_variable(task, **jobs), **flags), expected)
        self.assertEqual(
            _find(_variable(task, **jobs), distribution_strategy="auto"),
            expected,
        )

    def test_reads_the_flags(self):
        found = _find(worker_hosts="a:1, b:2,c:3", task_index=2)
        self.assertEqual(found, Cluster(("a:1", "b:2", "c:3"), 2))
        self.assertFalse(found.is_chief)
        self.assertEqual(found.num_workers, 3)
        self.assertEqual(found.name(0), "worker 0 (the chief, at a:1)")
        self.assertEqual(found.name(2), "worker 2 (at c:3)")

    def test_one_worker_is_an_ordinary_run(self):
        self.assertIsNone(_find(worker_hosts="a:1", task_index=0))
        self.assertIsNone(_find(_variable(("worker", 0), worker=["a:1"])))
        self.assertIsNone(_find(distribution_strategy="one_device"))

    @parameterized.parameters(
        ("{", "must be JSON with a cluster"),
        ("[]", "must be JSON with a cluster"),
        (_variable(("worker", 2), worker=["a:1", "b:2"]), "one of them"),
        (_variable(("ps", 0), worker=["a:1"], ps=["b:2"]), "name workers"),
        (_variable(("worker", 0), worker=["a:1", "b"]), "HOST:PORT.*'b'"),
        (_variable(("worker", 0), worker=["a:1", "b:x"]), "HOST:PORT.*'b:x'"),
        (_variable(("worker", 0), worker=["a:1", "a:1"]), "twice: a:1"),
        ("", "must be told who the workers are"),
    )
    def test_refuses_a_bad_variable(self, variable, message):
        with self.assertRaisesRegex(UserError, message):
            _find(variable)

    def test_refuses_two_opinions(self):
        variable = _variable(("worker", 0), worker=["a:1", "b:2"])
        with self.assertRaisesRegex(UserError, "use one of the two"):
            _find(variable, worker_hosts="a:1,b:2", task_index=1)

    def test_refuses_workers_that_would_train_alone(self):
        variable = _variable(("worker", 0), worker=["a:1", "b:2"])
        with self.assertRaisesRegex(UserError, "=mirrored would let each"):
            _find(variable, distribution_strategy="mirrored")

    def test_what_is_exported_is_found_again(self):
        cluster = Cluster(("a:1", "b:2"), 1)
        environment = {}
        clusters.export(cluster, environment)
        flags = DeviceConfig(distribution_strategy="auto")
        self.assertEqual(clusters.find(flags, environment), cluster)


class WaitForAllTest(tf.test.TestCase):
    def test_ends_once_all_are_there(self):
        hosts = worker_processes.free_hosts(3)
        done = []

        def wait(index):
            clusters.wait_for_all(Cluster(hosts, index), poll_seconds=0.01)
            # In place of TensorFlow's server, which listens from then on.
            done.append(socket.create_server(("", _port(hosts[index]))))

        threads = [
            threading.Thread(target=wait, args=(index,)) for index in (1, 2)
        ]
        for thread in threads:
            thread.start()
        with self.assertLogs(level="INFO") as logs:
            wait(0)
        for thread in threads:
            thread.join()
        self.assertLen(done, 3)
        for server in done:
            server.close()
        self.assertIn("All 3 workers are there", logs.output[-1])

    def test_says_whom_it_waits_for(self):
        hosts = worker_processes.free_hosts(2)
        late = []

        def come(seconds):
            del seconds
            late.append(socket.create_server(("", _port(hosts[1]))))

        with self.assertLogs(level="INFO") as logs:
            with mock.patch.object(clusters.time, "sleep", come):
                clusters.wait_for_all(Cluster(hosts, 0))
        late[0].close()
        self.assertIn(
            f"Waiting for 1 of 2 workers: worker 1 (at {hosts[1]}). Each",
            logs.output[0],
        )

    def test_whoever_is_to_stop_tells_the_others(self):
        hosts = worker_processes.free_hosts(3)
        waits = []

        def stop(seconds):
            del seconds
            waits.append(threading.current_thread())
            if len(waits) > 1:
                raise Preempted("Stopped as asked (SIGTERM).")
            # By now the other one listens.
            while not clusters._answers(hosts[1]):
                pass

        told = []

        def wait():
            try:
                clusters.wait_for_all(Cluster(hosts, 1), poll_seconds=0.01)
            except Preempted as error:
                told.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        sleep = clusters.time.sleep

        def sleep_or_stop(seconds):
            is_other = threading.current_thread() is thread
            (sleep if is_other else stop)(seconds)

        with mock.patch.object(clusters.time, "sleep", sleep_or_stop):
            with self.assertRaisesRegex(Preempted, "as asked"):
                # The third one never comes.
                clusters.wait_for_all(Cluster(hosts, 0))
            thread.join(30)
        self.assertLen(told, 1)
        self.assertIn("as another worker was asked to", told[0])

    def test_who_only_looks_or_says_something_else_changes_nothing(self):
        hosts = worker_processes.free_hosts(2)
        come = []

        def call(seconds):
            del seconds
            if come:
                return
            address = ("127.0.0.1", _port(hosts[0]))
            socket.create_connection(address).close()
            with socket.create_connection(address) as caller:
                caller.sendall(b"GET / HTTP/1.1")
            come.append(socket.create_server(("", _port(hosts[1]))))

        with mock.patch.object(clusters.time, "sleep", call):
            clusters.wait_for_all(Cluster(hosts, 0))
        come[0].close()

    def test_a_port_in_use_is_one_sentence(self):
        hosts = worker_processes.free_hosts(2)
        with socket.create_server(("", _port(hosts[1]))):
            with self.assertRaisesRegex(
                UserError, f"Worker 1 cannot listen at {hosts[1]}"
            ):
                clusters.wait_for_all(Cluster(hosts, 1))


def _port(host):
    return int(host.rpartition(":")[2])


if __name__ == "__main__":
    tf.test.main()
