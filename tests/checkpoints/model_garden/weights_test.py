"""Tests of object-based checkpoints in bert_tf.checkpoints.model_garden."""

import os

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import model_garden
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError

_VALUES = {
    "encoder/layers/0/kernel": np.float32([[1, 2, 3], [4, 5, 6]]),
    "encoder/layers/1/kernel": np.float32([[7, 8, 9]]),
    "head..dense/output_bias.Sbias": np.float32([-1.5, 2.5]),
    "a...Sb": np.float32(3),
}


class ObjectCheckpointTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.prefix = os.path.join(self.create_tempdir().full_path, "x.ckpt")

    def _write(self, aliases=None, full_names=None):
        model_garden.write_checkpoint(
            self.prefix,
            Tensors.from_arrays(_VALUES),
            aliases or {},
            full_names or {},
        )
        return model_garden.ObjectCheckpoint(self.prefix)

    def test_round_trip(self):
        checkpoint = self._write()
        found = dict(checkpoint.variables(0))
        self.assertCountEqual(found, _VALUES)
        for path, value in _VALUES.items():
            self.assertEqual(checkpoint.name(found[path]), path)
            self.assertEqual(checkpoint.shape(found[path]), value.shape)
            self.assertAllEqual(checkpoint.read(found[path]), value)

    def test_local_names_are_those_of_tensorflow(self):
        self._write()
        root = tf.Module()
        setattr(root, "head.dense", tf.Module())
        bias = tf.Variable([0.0, 0.0])
        setattr(getattr(root, "head.dense"), "output_bias/bias", bias)
        setattr(root, "a./b", tf.Variable(0.0))
        status = tf.train.Checkpoint(root).read(self.prefix)
        status.expect_partial().assert_existing_objects_matched()
        self.assertAllEqual(bias, [-1.5, 2.5])
        self.assertEqual(getattr(root, "a./b"), 3)

    def test_an_object_may_have_several_names(self):
        checkpoint = self._write(
            aliases={
                "model/network": "encoder",
                "model/table": "encoder/layers/1/kernel",
            },
            full_names={"encoder/layers/1/kernel": "first/second"},
        )
        found = dict(checkpoint.variables(0))
        self.assertLen(found, len(_VALUES) + 3)
        variable = found["encoder/layers/1/kernel"]
        self.assertEqual(found["model/table"], variable)
        self.assertEqual(found["model/network/layers/1/kernel"], variable)
        self.assertEqual(checkpoint.full_name(variable), "first/second")

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
