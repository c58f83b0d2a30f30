"""Tests for bert_tf.checkpoints.tf1.checkpoint."""

import os
import shutil
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from tests.support.shared_data import golden

_TENSORS = {
    "bert/pooler/dense/kernel": np.arange(12.0, dtype=np.float32).reshape(3, 4),
    "output_bias": np.float32([-1.5, 2.0]),
    "output_bias/adam_m": np.float32([0.25, 1e-30]),
    "global_step": np.int64(7),
}
_OTHERS = {"output_bias": np.float32([3.0])}


class CheckpointTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = self.create_tempdir().full_path

    def _write(self, name="model.ckpt-7", tensors=None):
        prefix = os.path.join(self.directory, name)
        tf1_checkpoint.write(prefix, _TENSORS if tensors is None else tensors)
        return prefix

    def _assert_equal(self, received, expected):
        self.assertCountEqual(received, expected)
        for name, value in expected.items():
            self.assertEqual(received[name].dtype, value.dtype)
            self.assertAllEqual(received[name], value)

    @parameterized.parameters("", ".index", ".data-00000-of-00001")
    def test_round_trip(self, suffix):
        prefix = self._write()
        self._assert_equal(tf1_checkpoint.read(prefix + suffix), _TENSORS)
        self.assertCountEqual(
            os.listdir(self.directory),
            ["model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"],
        )

    def test_tensorflow_1_reads_what_was_written(self):
        prefix = self._write()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = {
                name: tf.compat.v1.get_variable(
                    name.replace("/", "_"),
                    value.shape,
                    value.dtype,
                    tf.compat.v1.zeros_initializer(),
                )
                for name, value in _TENSORS.items()
            }
            tf.compat.v1.train.Saver(variables).restore(session, prefix)
            self._assert_equal(session.run(variables), _TENSORS)

    def test_reads_what_tensorflow_1_wrote(self):
        path = golden("model/after_12_steps.ckpt.index")
        tensors = tf1_checkpoint.read(path)
        reader = tf.train.load_checkpoint(path.removesuffix(".index"))
        names = reader.get_variable_to_shape_map()
        expected = {name: np.array(reader.get_tensor(name)) for name in names}
        self._assert_equal(tensors, expected)
        self.assertEqual(tensors["global_step"], 12)

    def test_prefix_in_the_working_directory(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        tf1_checkpoint.write("here", _TENSORS)
        self._assert_equal(tf1_checkpoint.read("here"), _TENSORS)

    # === Finding the checkpoint in a directory ===

    def test_only_checkpoint_of_a_directory(self):
        self._write("bert_model.ckpt")
        self._assert_equal(tf1_checkpoint.read(self.directory), _TENSORS)

    def test_latest_step_of_a_directory(self):
        for step in (9, 100, 20):
            self._write(f"model.ckpt-{step}", {"x": np.float32(step)})
        self.assertEqual(tf1_checkpoint.read(self.directory)["x"], 100)

    def test_state_file_decides_even_after_a_move(self):
        for step in (9, 100):
            self._write(f"model.ckpt-{step}", {"x": np.float32(step)})
        files.write_text(
            os.path.join(self.directory, "checkpoint"),
            'model_checkpoint_path: "/elsewhere/model.ckpt-9"\n',
        )
        self.assertEqual(tf1_checkpoint.read(self.directory)["x"], 9)

    @parameterized.parameters(
        b'model_checkpoint_path: "gone.ckpt"\n',
        b"no protocol buffer {",
        b"",
        b"\xff\xfe\x00",
    )
    def test_useless_state_file_is_ignored(self, contents):
        self._write("model.ckpt-9")
        files.write_bytes(os.path.join(self.directory, "checkpoint"), contents)
        self._assert_equal(tf1_checkpoint.read(self.directory), _TENSORS)

    def test_several_checkpoints_without_steps_are_refused(self):
        self._write("bert_model.ckpt")
        self._write("other.ckpt")
        message = "several checkpoints.*bert_model.ckpt, other.ckpt"
        with self.assertRaisesRegex(UserError, message):
            tf1_checkpoint.read(self.directory)

    # === Checkpoints that cannot be read ===

    def test_missing_checkpoint(self):
        with self.assertRaisesRegex(UserError, "no checkpoint in the dir"):
            tf1_checkpoint.read(self.directory)
        with self.assertRaisesRegex(UserError, "there is no .*nope.index"):
            tf1_checkpoint.read(os.path.join(self.directory, "nope"))

    @parameterized.parameters(
        (".index", "empty"),
        (".index", "truncated"),
        (".index", "changed"),
        (".data-00000-of-00001", "empty"),
        (".data-00000-of-00001", "truncated"),
        (".data-00000-of-00001", "changed"),
        (".data-00000-of-00001", "missing"),
    )
    def test_damaged(self, suffix, damage):
        path = self._write() + suffix
        contents = bytearray(files.read_bytes(path))
        os.remove(path)
        if damage == "changed":
            contents[20] ^= 0x40
        elif damage == "truncated":
            contents = contents[: len(contents) // 2]
        elif damage == "empty":
            contents = b""
        if damage != "missing":
            files.write_bytes(path, contents)
        message = "model.ckpt-7 is damaged or incomplete"
        with self.assertRaisesRegex(UserError, message) as caught:
            tf1_checkpoint.read(self.directory)
        self.assertNotIn("\n", str(caught.exception))

    def test_object_based_checkpoint_is_refused(self):
        module = tf.Module()
        module.x = tf.Variable(1.0)
        prefix = tf.train.Checkpoint(m=module).write(self.directory + "/tf2")
        with self.assertRaisesRegex(UserError, "object-based checkpoint of"):
            tf1_checkpoint.read(prefix)

    # === Atomic writing ===

    def test_failure_keeps_the_earlier_checkpoint(self):
        self._write()
        before = sorted(os.listdir(self.directory))
        full = tf.errors.ResourceExhaustedError(None, None, "disk is full")
        save = tf.raw_ops.SaveV2

        def fail_late(**kwargs):
            save(**kwargs)
            raise full

        for fail in (mock.Mock(side_effect=full), fail_late):
            with mock.patch.object(tf.raw_ops, "SaveV2", fail):
                with self.assertRaises(tf.errors.ResourceExhaustedError):
                    self._write(tensors=_OTHERS)
            self.assertEqual(sorted(os.listdir(self.directory)), before)
            self._assert_equal(tf1_checkpoint.read(self.directory), _TENSORS)

    def test_index_appears_last(self):
        renamed = []
        replace = os.replace

        def spy(source, target):
            renamed.append(os.path.basename(target))
            replace(source, target)

        with mock.patch.object(os, "replace", spy):
            self._write("m")
        self.assertEqual(renamed, ["m.data-00000-of-00001", "m.index"])

    def test_replaces_an_earlier_one(self):
        self._write()
        self._write(tensors=_OTHERS)
        self._assert_equal(tf1_checkpoint.read(self.directory), _OTHERS)

    def test_moved_checkpoint_is_read(self):
        self._write()
        target = os.path.join(self.create_tempdir().full_path, "moved")
        shutil.move(self.directory, target)
        self._assert_equal(tf1_checkpoint.read(target), _TENSORS)
        os.makedirs(self.directory)  # For the clean-up.


if __name__ == "__main__":
    tf.test.main()
