"""Tests for export.heads.registry."""

import dataclasses

import tensorflow as tf

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.export.heads import registry
from tests.support import tiny_model


class RegistryTest(tf.test.TestCase):
    def test_default_head_is_that_of_the_task(self):
        for kind, head in (
            ("pretraining", "fill_mask"),
            ("encoder", "embeddings"),
        ):
            path = self.create_tempdir().full_path + "/model"
            stored = formats.read(tiny_model.write(path, kind=kind))
            self.assertEqual(registry.choose("auto", stored), head)
            with self.assertRaisesRegex(
                UserError, f"kind='{kind}' .*--head={head}"
            ):
                registry.choose("tagging", stored)

    def test_custom_tasks_export_their_encoder(self):
        path = self.create_tempdir().full_path + "/model"
        stored = formats.read(tiny_model.write(path))
        stored = dataclasses.replace(
            stored, task={"kind": "classification", "variant": "stars"}
        )
        self.assertEqual(registry.choose("embeddings", stored), "embeddings")
        for head in ("auto", "classification"):
            with self.assertRaisesRegex(UserError, "--head=embeddings"):
                registry.choose(head, stored)

    def test_every_kind_of_model_has_a_head(self):
        kinds = {
            kind for head in registry.ENTRIES.values() for kind in head.kinds
        }
        self.assertEqual(kinds, set(weight_map.HEADS))


if __name__ == "__main__":
    tf.test.main()
