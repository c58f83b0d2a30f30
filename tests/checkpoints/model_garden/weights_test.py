"""Tests of object-based checkpoints in bert_tf.checkpoints.model_garden."""

import os

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import model_garden
from bert_tf.errors import UserError


class ObjectCheckpointTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.prefix = os.path.join(self.create_tempdir().full_path, "x.ckpt")

    def test_objects_in_a_cycle(self):
        root, child = tf.Module(), tf.Module()
        root.child, child.parent = child, root
        child.value = tf.Variable(4.0)
        tf.train.Checkpoint(root).write(self.prefix)
        checkpoint = model_garden.ObjectCheckpoint(self.prefix)
        self.assertEqual(
            [path for path, _ in checkpoint.variables(0)], ["child/value"]
        )

    def test_each_of_several_data_files_must_be_whole(self):
        root = tf.Module()
        for name in ("one", "two", "three"):
            setattr(root, name, tf.Variable(np.arange(1000.0)))
        policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=9000)
        tf.train.Checkpoint(root).write(
            self.prefix,
            tf.train.CheckpointOptions(experimental_sharding_callback=policy),
        )
        checkpoint = model_garden.ObjectCheckpoint(self.prefix)
        for _, variable in checkpoint.variables(0):
            self.assertAllEqual(checkpoint.read(variable), np.arange(1000.0))
        (first, *others) = sorted(tf.io.gfile.glob(f"{self.prefix}.data-*"))
        self.assertNotEmpty(others)
        os.truncate(first, os.path.getsize(first) - 400)
        with self.assertRaisesRegex(UserError, "damaged or incomplete"):
            model_garden.ObjectCheckpoint(self.prefix)


if __name__ == "__main__":
    tf.test.main()
