"""Tests for bert_tf.tasks.registry."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.tasks import registry
from tests.support import tiny_model


class RegistryTest(tf.test.TestCase, parameterized.TestCase):
    def test_keys_are_kinds_of_heads(self):
        self.assertContainsSubset(registry.TASKS, weight_map.HEADS)
        for kind, task in registry.TASKS.items():
            self.assertEqual(task.variant or task.kind, kind)

    @parameterized.parameters("encoder", "pretraining")
    def test_rejects_models_without_a_task(self, kind):
        path = self.create_tempdir().full_path
        stored = formats.read(tiny_model.write(path, kind=kind))
        with self.assertRaisesRegex(UserError, f"--model_dir .*kind='{kind}'"):
            registry.from_stored(stored)


class BuildTaskTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*registry.TASKS)
    def test_a_kind_alone_gives_a_task(self, kind):
        has_labels = kind in ("classification", "tagging")
        task = registry.build_task(
            {"kind": kind}, 3 if has_labels else None, 100
        )
        self.assertEqual(task.kind, kind)
        self.assertEqual(task.max_seq_length, 100)
        if has_labels:
            self.assertEqual(task.labels, ("0", "1", "2"))

    def test_stored_values_are_used(self):
        values = {
            "kind": "classification",
            "labels": ["a", "b"],
            "max_seq_length": 64,
        }
        task = registry.build_task(values, 2, 512)
        self.assertEqual(task.labels, ("a", "b"))
        self.assertEqual(task.max_seq_length, 64)
        # The caller's dict must not change.
        self.assertEqual(list(values), ["kind", "labels", "max_seq_length"])


if __name__ == "__main__":
    tf.test.main()
