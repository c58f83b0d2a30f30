"""Tests for bert_tf.training.async_checkpoints."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.training.async_checkpoints import AsyncCheckpoints
from bert_tf.training.checkpoints import CheckpointStore
from tests.support import full_disk

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
# Saves twice and dies where all of the second checkpoint is written but what
# makes it count.
_KILLED = textwrap.dedent("""
    import os
    import signal
    import sys

    from bert_tf.io import files
    from bert_tf.training.async_checkpoints import AsyncCheckpoints
    from bert_tf.training.checkpoints import CheckpointStore

    step = 3
    store = CheckpointStore(sys.argv[1])
    saving = AsyncCheckpoints(store, lambda: ({"global_step": step}, {}))
    saving.save(step)
    saving.wait()
    files.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    step = 20
    saving.save(step)
    saving.wait()
""")


class AsyncCheckpointsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.value = 0
        self.metadata = {"evaluations": []}

    def _read_state(self):
        weights = tf.fill([5], float(self.value))
        return {"weights": weights}, self.metadata

    def _build(self, folder=None, **options):
        store = CheckpointStore(folder or self.folder, **options)
        return store, AsyncCheckpoints(store, self._read_state)

    def test_returns_before_the_checkpoint_is_written(self):
        store, saving = self._build()
        may_write = threading.Event()
        write = tf1_checkpoint.write

        def write_later(*args):
            may_write.wait()
            write(*args)

        with mock.patch.object(tf1_checkpoint, "write", write_later):
            self.value = 3
            saving.save(3)
            self.assertEqual(saving.step, 3)
            # What happens now is no part of the checkpoint.
            self.value = 4
            self.metadata["evaluations"].append("later")
            self.assertEqual(store.steps(), [])
            may_write.set()
            self.assertTrue(saving.wait())
        checkpoint = store.restore_latest()
        self.assertEqual(checkpoint.step, 3)
        self.assertAllEqual(checkpoint.tensors["weights"], [3.0] * 5)
        self.assertEqual(checkpoint.metadata, {"evaluations": []})

    def test_one_is_written_before_the_next_is_taken(self):
        events = []
        write = tf1_checkpoint.write

        def read_state():
            events.append("read")
            return self._read_state()

        def write_and_note(*args):
            write(*args)
            events.append("written")

        store = CheckpointStore(self.folder)
        saving = AsyncCheckpoints(store, read_state)
        with mock.patch.object(tf1_checkpoint, "write", write_and_note):
            for step in (3, 5, 7):
                saving.save(step)
            saving.wait()
        self.assertEqual(events, ["read", "written"] * 3)
        self.assertEqual(store.steps(), [7, 5, 3])

    def test_a_full_disk_is_told_and_the_next_may_fit(self):
        with full_disk.mount(self, megabytes=1) as folder:
            store, saving = self._build(folder)
            saving.save(3)
            self.assertTrue(saving.wait())
            large = {"weights": np.zeros(1 << 20, np.float32)}
            with (
                mock.patch.object(saving, "_read_state", lambda: (large, {})),
                self.assertLogs(level="ERROR") as logs,
            ):
                saving.save(20)
                self.assertFalse(saving.wait())
            self.assertRegex(
                logs.output[0], "step 20 could not.*that of step 3"
            )
            saving.save(21)
            self.assertTrue(saving.wait())
            self.assertEqual(store.steps(), [21, 3])

    def test_what_is_not_the_disks_fault_is_raised(self):
        _, saving = self._build()
        self.metadata = {"no JSON": object()}
        saving.save(3)
        with self.assertRaisesRegex(TypeError, "not JSON serializable"):
            saving.wait()

    def test_who_may_not_write_takes_no_copy(self):
        store, saving = self._build(writable=False)
        with mock.patch.object(saving, "_read_state") as read_state:
            saving.save(3)
            self.assertTrue(saving.wait())
            read_state.assert_not_called()
        store.clean()
        store.remove_all()
        self.assertEqual(os.listdir(self.folder), [])

    @pytest.mark.thorough
    def test_killed_while_writing_leaves_the_one_before(self):
        process = subprocess.run(
            [sys.executable, "-c", _KILLED, self.folder],
            cwd=_ROOT,
            check=False,
        )
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertIn("model.ckpt-20.index", os.listdir(self.folder))
        self.assertEqual(self._build()[0].restore_latest().step, 3)


if __name__ == "__main__":
    tf.test.main()
