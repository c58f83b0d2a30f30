"""Tests for bert_tf.training.checkpoints and bert_tf.training.state."""

import os
import pathlib
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.training import optimizer as optimizers
from bert_tf.training import state as training_state
from bert_tf.training.checkpoints import AsyncCheckpoints
from bert_tf.training.checkpoints import CheckpointStore
from tests.support import files_case
from tests.support import full_disk
from tests.support import tiny_model


def _tensors(step):
    return {
        "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) + step,
        "global_step": np.int64(step),
    }


class CheckpointStoreTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
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

    def test_restores_the_newest_and_removes_the_oldest(self):
        self._save(3, 20, 100)
        checkpoint = self.store.restore_latest()
        self.assertEqual(checkpoint.step, 100)
        self.assertEqual(checkpoint.metadata, {"seed": 100})
        self.assertAllEqual(
            checkpoint.tensors["a/kernel"], _tensors(100)["a/kernel"]
        )
        self.assertEqual(self.store.steps(), [100, 20])
        # The third checkpoint has no file left; `checkpoint` names the others.
        self.assertLen(os.listdir(self.folder), 2 * 3 + 1)
        state = tf.train.get_checkpoint_state(self.folder)
        self.assertEqual(
            [os.path.basename(p) for p in state.all_model_checkpoint_paths],
            ["model.ckpt-20", "model.ckpt-100"],
        )
        self.assertEqual(
            tf.train.latest_checkpoint(self.folder),
            self.path("model.ckpt-100"),
        )

    @parameterized.parameters(
        "model.ckpt-20.data-00000-of-00001",
        "model.ckpt-20.index",
        "model.ckpt-20.json",
    )
    def test_skips_a_damaged_checkpoint(self, name):
        self._save(3, 20)
        self._damage(name)
        with self.assertLogs(level="WARNING") as logs:
            checkpoint = self.store.restore_latest()
        self.assertEqual(checkpoint.step, 3)
        self.assertRegex(logs.output[0], "step 20 is damaged")

    def test_refuses_to_start_if_all_are_damaged(self):
        self._save(3, 20)
        self._damage("model.ckpt-3.index")
        self._damage("model.ckpt-20.index")
        with self.assertRaisesRegex(UserError, "All 2 checkpoints"):
            self.store.restore_latest()

    def test_empty_or_missing_folder_restores_nothing(self):
        self.assertIsNone(self.store.restore_latest())
        missing = CheckpointStore(self.path("missing"))
        self.assertIsNone(missing.restore_latest())
        # Another process may remove the folder between two calls.
        with mock.patch.object(tf.io.gfile, "isdir", return_value=True):
            self.assertIsNone(missing.restore_latest())

    def test_json_that_makes_a_checkpoint_count_is_written_last(self):
        self._save(3)
        with (
            mock.patch.object(files, "write_json", side_effect=SystemExit),
            self.assertRaises(SystemExit),
        ):
            self._save(20)
        self.assertIn("model.ckpt-20.index", os.listdir(self.folder))
        self.assertEqual(self.store.restore_latest().step, 3)

    def test_restores_a_checkpoint_of_the_original(self):
        prefix = self.path("model.ckpt-7")
        tf1_checkpoint.write(prefix, _tensors(7))
        self.assertIsNone(self.store.restore_latest())
        tf.compat.v1.train.update_checkpoint_state(self.folder, prefix)
        checkpoint = self.store.restore_latest()
        self.assertEqual(checkpoint.step, 7)
        self.assertEqual(checkpoint.metadata, {})

    def test_removes_files_of_a_killed_process(self):
        self._save(3)
        leftover = "model.ckpt-20.index.tmp-12-ab.save.data-00000-of-00001"
        pathlib.Path(self.folder, leftover).write_bytes(b"half")
        pathlib.Path(self.folder, "notes.tmp-1").write_bytes(b"mine")
        self.store.clean()
        self.assertNotIn(leftover, os.listdir(self.folder))
        self.assertIn("notes.tmp-1", os.listdir(self.folder))
        self.assertEqual(self.store.restore_latest().step, 3)

    def test_a_full_disk_keeps_earlier_checkpoints(self):
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

    def test_continues_if_old_ones_cannot_be_removed(self):
        self._save(3, 20)
        error = PermissionError("not yours")
        with mock.patch.object(os, "remove", side_effect=error):
            with self.assertLogs(level="WARNING") as logs:
                self._save(100)
        self.assertIn("could not be removed (not yours)", logs.output[0])
        self.assertEqual(self.store.steps(), [100, 20, 3])


class AsyncCheckpointsTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.value = 0
        self.metadata = {"evaluations": []}

    def _read_state(self):
        weights = tf.fill([5], float(self.value))
        return {"weights": weights}, self.metadata

    def _build(self, **options):
        store = CheckpointStore(self.folder, **options)
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
            # Later changes must not become part of the checkpoint.
            self.value = 4
            self.metadata["evaluations"].append("later")
            self.assertEqual(store.steps(), [])
            may_write.set()
            self.assertTrue(saving.wait())
        checkpoint = store.restore_latest()
        self.assertEqual(checkpoint.step, 3)
        self.assertAllEqual(checkpoint.tensors["weights"], [3.0] * 5)
        self.assertEqual(checkpoint.metadata, {"evaluations": []})

    def test_writes_one_checkpoint_at_a_time(self):
        events = []
        write = tf1_checkpoint.write

        def read_state():
            events.append("read")
            return self._read_state()

        def write_and_record(*args):
            write(*args)
            events.append("written")

        store = CheckpointStore(self.folder)
        saving = AsyncCheckpoints(store, read_state)
        with mock.patch.object(tf1_checkpoint, "write", write_and_record):
            for step in (3, 5, 7):
                saving.save(step)
            saving.wait()
        self.assertEqual(events, ["read", "written"] * 3)
        self.assertEqual(store.steps(), [7, 5, 3])

    def test_other_errors_are_raised(self):
        _, saving = self._build()
        self.metadata = {"no JSON": object()}
        saving.save(3)
        with self.assertRaisesRegex(TypeError, "not JSON serializable"):
            saving.wait()

    def test_a_store_that_is_not_writable_takes_no_snapshot(self):
        store, saving = self._build(writable=False)
        with mock.patch.object(saving, "_read_state") as read_state:
            saving.save(3)
            self.assertTrue(saving.wait())
            read_state.assert_not_called()
        store.clean()
        store.remove_all()
        self.assertEqual(os.listdir(self.folder), [])


class TrainingStateTest(tf.test.TestCase):
    def _build(self):
        model = bert_model.BertForPretraining(tiny_model.CONFIG)
        optimizer = optimizers.build_optimizer("bert_adam")
        optimizer.build(model.trainable_variables)
        return bert_model.named_variables(model), optimizer

    def _random_state(self):
        rng = np.random.default_rng(0)
        state = training_state.read(*self._build())
        return {
            name: rng.normal(size=np.shape(value)).astype(np.float32)
            for name, value in state.items()
        } | {"global_step": np.int64(17)}

    def test_names_all_tensors_that_differ(self):
        state = self._random_state()
        del state["bert/pooler/dense/bias/adam_v"]
        state["cls/predictions/output_bias"] = np.zeros(3, np.float32)
        state["further"] = np.zeros(2, np.float32)
        built = self._build()
        before = training_state.read(*built)
        with self.assertRaisesRegex(
            UserError,
            r"3 tensors differ: bert/pooler/dense/bias/adam_v \(expected "
            r"\(16,\), received nothing\), cls/predictions/output_bias "
            r"\(expected \(16,\), received \(3,\)\), further",
        ):
            training_state.assign(*built, state, "here")
        after = training_state.read(*built)
        for name, value in before.items():
            self.assertAllEqual(after[name], value, name)

    def _optimizer_state(self):
        return {
            name: value
            for name, value in self._random_state().items()
            if weight_map.is_optimizer_state(name)
        }

    def test_optimizer_state_does_not_change_the_weights(self):
        state = self._optimizer_state()
        built = self._build()
        before = training_state.read(*built)
        training_state.assign_optimizer(*built, state, "here")
        for name, value in training_state.read(*built).items():
            expected = state[name] if name in state else before[name]
            self.assertAllEqual(value, expected, name)

    def test_ignores_and_logs_moments_of_untrained_weights(self):
        state = self._optimizer_state()
        # The moment of a classifier, which this model does not have.
        state["output_weights/adam_m"] = np.ones((3, 16), np.float32)
        variables, _ = self._build()
        optimizer = optimizers.build_optimizer("bert_adam")
        optimizer.build(
            [v for n, v in variables.items() if not n.startswith("bert/pooler")]
        )
        with self.assertLogs(level="INFO") as logs:
            training_state.assign_optimizer(variables, optimizer, state, "here")
        log = "\n".join(logs.output)
        self.assertIn("bert/pooler/dense/kernel/adam_v, output_weights/", log)
        self.assertNotIn("cls/predictions", log)
        self.assertEqual(int(optimizer.iterations), 17)

    def test_refuses_optimizer_state_that_does_not_fit(self):
        whole = self._optimizer_state()
        name = "bert/embeddings/word_embeddings/adam_m"
        built = self._build()
        before = training_state.read(*built)
        for changes, message in (
            ({name: None}, rf"{name} \(expected \(16, 16\), received nothing"),
            ({"global_step": None}, "1 tensors differ: global_step"),
            (
                {name: np.zeros((16, 15), np.float32)},
                r"received \(16, 15\)\); drop --init_optimizer_state",
            ),
            (
                {"bert/encoder/further/adam_v": np.zeros(2, np.float32)},
                r"further/adam_v \(expected nothing",
            ),
        ):
            state = whole | changes
            state = {k: v for k, v in state.items() if v is not None}
            with self.assertRaisesRegex(UserError, message):
                training_state.assign_optimizer(*built, state, "here")
        for state in ({}, {"global_step": np.int64(3)}):
            with self.assertRaisesRegex(UserError, "here holds no optimizer"):
                training_state.assign_optimizer(*built, state, "here")
        for key, value in training_state.read(*built).items():
            self.assertAllEqual(value, before[key], key)


if __name__ == "__main__":
    tf.test.main()
