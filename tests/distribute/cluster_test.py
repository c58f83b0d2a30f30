"""Tests for bert_tf.distribute.cluster."""

import json

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import cluster as clusters
from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import UserError
from bert_tf.flags.groups import DeviceConfig

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
        # Also if the flags agree, or do not name the workers.
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


if __name__ == "__main__":
    tf.test.main()
