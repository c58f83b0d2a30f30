"""Tests for bert_tf.training.checkpoints."""

import errno
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.training.checkpoints import CheckpointStore
from tests.support import full_disk


def _tensors(step):
    return {
        "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) + step,
        "global_step": np.int64(step),
    }


class CheckpointStoreTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.store = CheckpointStore(self.folder, keep_max=2)

    def _save(self, *steps):
        for step in steps:
            self.assertTrue(
                self.store.save(step, _tensors(step), {"seed": step})
            )

    def _damage(self, name):
        path = pathlib.Path(self.folder, name)
        contents = bytearray(path.read_bytes())
        contents[len(contents) // 2] ^= 1
        path.write_bytes(contents)

    def test_restores_the_newest(self):
        self._save(3, 20, 100)
        checkpoint = self.store.restore_latest()
        self.assertEqual(checkpoint.step, 100)
        self.assertEqual(checkpoint.metadata, {"seed": 100})
        self.assertAllEqual(
            checkpoint.tensors["a/kernel"], _tensors(100)["a/kernel"]
        )

    def test_keeps_as_many_as_asked_for(self):
        self._save(3, 20, 100)
        self.assertEqual(self.store.steps(), [100, 20])
        # Nothing of the third, and what other programs read names the rest.
        self.assertLen(os.listdir(self.folder), 2 * 3 + 1)
        state = tf.train.get_checkpoint_state(self.folder)
        self.assertEqual(
            [os.path.basename(p) for p in state.all_model_checkpoint_paths],
            ["model.ckpt-20", "model.ckpt-100"],
        )
        self.assertEqual(
            tf.train.latest_checkpoint(self.folder),
            os.path.join(self.folder, "model.ckpt-100"),
        )

    @parameterized.parameters(
        "model.ckpt-20.data-00000-of-00001",
        "model.ckpt-20.index",
        "model.ckpt-20.json",
    )
    def test_a_damaged_one_gives_way_to_the_one_before(self, name):
        self._save(3, 20)
        self._damage(name)
        with self.assertLogs(level="WARNING") as logs:
            checkpoint = self.store.restore_latest()
        self.assertEqual(checkpoint.step, 3)
        self.assertRegex(logs.output[0], "step 20 is damaged")

    def test_a_cut_one_gives_way_to_the_one_before(self):
        self._save(3, 20)
        path = os.path.join(self.folder, "model.ckpt-20.data-00000-of-00001")
        os.truncate(path, 5)
        self.assertEqual(self.store.restore_latest().step, 3)

    def test_all_damaged_is_no_fresh_start(self):
        self._save(3, 20)
        self._damage("model.ckpt-3.index")
        self._damage("model.ckpt-20.index")
        with self.assertRaisesRegex(UserError, "All 2 checkpoints"):
            self.store.restore_latest()

    def test_an_empty_folder_holds_none(self):
        self.assertIsNone(self.store.restore_latest())
        missing = CheckpointStore(os.path.join(self.folder, "missing"))
        self.assertIsNone(missing.restore_latest())

    def test_what_was_not_finished_does_not_count(self):
        self._save(3)
        # A process that dies here has written no sidecar.
        tf1_checkpoint.write(
            os.path.join(self.folder, "model.ckpt-20"), _tensors(20)
        )
        self.assertEqual(self.store.restore_latest().step, 3)

    def test_takes_a_checkpoint_of_the_original(self):
        prefix = os.path.join(self.folder, "model.ckpt-7")
        tf1_checkpoint.write(prefix, _tensors(7))
        self.assertIsNone(self.store.restore_latest())
        tf.compat.v1.train.update_checkpoint_state(self.folder, prefix)
        checkpoint = self.store.restore_latest()
        self.assertEqual(checkpoint.step, 7)
        self.assertEqual(checkpoint.metadata, {})

    def test_removes_what_a_killed_process_left(self):
        self._save(3)
        left = "model.ckpt-20.index.tmp-12-ab.save.data-00000-of-00001"
        pathlib.Path(self.folder, left).write_bytes(b"half")
        pathlib.Path(self.folder, "notes.tmp-1").write_bytes(b"mine")
        self.store.clean()
        self.assertNotIn(left, os.listdir(self.folder))
        self.assertIn("notes.tmp-1", os.listdir(self.folder))
        self.assertEqual(self.store.restore_latest().step, 3)

    def test_a_full_disk_leaves_the_earlier_ones(self):
        with full_disk.mount(self, megabytes=1) as folder:
            store = CheckpointStore(folder, keep_max=2)
            self.assertTrue(store.save(3, _tensors(3), {}))
            before = sorted(os.listdir(folder))
            large = _tensors(20) | {"b": np.ones(1 << 20, np.float32)}
            for _ in range(2):
                with self.assertLogs(level="ERROR") as logs:
                    self.assertFalse(store.save(20, large, {}))
                self.assertRegex(logs.output[0], "last checkpoint is.*step 3")
            self.assertEqual(sorted(os.listdir(folder)), before)
            self.assertEqual(store.restore_latest().step, 3)

    def test_a_step_that_cannot_be_written_again_stays(self):
        self._save(3, 20)
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(tf1_checkpoint, "write", side_effect=full):
            with self.assertLogs(level="ERROR") as logs:
                self.assertFalse(self.store.save(20, _tensors(20), {}))
        self.assertRegex(logs.output[0], "last checkpoint is.*step 20")
        self.assertEqual(self.store.restore_latest().step, 20)

    def test_old_ones_that_cannot_be_removed_end_nothing(self):
        self._save(3, 20)
        with mock.patch.object(
            tf.io.gfile,
            "remove",
            side_effect=tf.errors.PermissionDeniedError(
                None, None, "not yours"
            ),
        ):
            with self.assertLogs(level="WARNING") as logs:
                self._save(100)
        self.assertIn("could not be removed (not yours)", logs.output[0])
        self.assertEqual(self.store.steps(), [100, 20, 3])


if __name__ == "__main__":
    tf.test.main()
