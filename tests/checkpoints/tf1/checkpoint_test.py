"""Tests for bert_tf.checkpoints.tf1.checkpoint."""

import json
import os
import shutil
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import stored_models
from tests.support import tiny_layers
from tests.support.shared_data import golden

_TENSORS = {
    "bert/pooler/dense/kernel": np.arange(12.0, dtype=np.float32).reshape(3, 4),
    "output_bias": np.float32([-1.5, 2.0]),
    "output_bias/adam_m": np.float32([0.25, 1e-30]),
    "global_step": np.int64(7),
}
_OTHERS = {"output_bias": np.float32([3.0])}


class CheckpointTest(files_case.FolderCase):
    def _write(self, name="model.ckpt-7", tensors=None):
        prefix = self.path(name)
        tf1_checkpoint.write(prefix, _TENSORS if tensors is None else tensors)
        return prefix

    def _assert_equal(self, received, expected):
        self.assertCountEqual(received, expected)
        for name, value in expected.items():
            self.assertEqual(received[name].dtype, value.dtype)
            self.assertAllEqual(received[name], value)

    @parameterized.parameters("", ".index", ".data-00000-of-00001")
    def test_written_tensors_are_read_by_any_suffix(self, suffix):
        prefix = self._write()
        self._assert_equal(tf1_checkpoint.read(prefix + suffix), _TENSORS)
        self.assertCountEqual(
            os.listdir(self.folder),
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

    # === Finding the checkpoint in a directory ===

    @parameterized.parameters(
        b'model_checkpoint_path: "gone.ckpt"\n',
        b"no protocol buffer {",
        b"",
        b"\xff\xfe\x00",
    )
    def test_useless_state_file_is_ignored(self, contents):
        self._write("model.ckpt-9")
        files.write_bytes(self.path("checkpoint"), contents)
        self._assert_equal(tf1_checkpoint.read(self.folder), _TENSORS)

    def test_several_checkpoints_without_steps_are_refused(self):
        self._write("bert_model.ckpt")
        self._write("other.ckpt")
        message = "several checkpoints.*bert_model.ckpt, other.ckpt"
        with self.assertRaisesRegex(UserError, message):
            tf1_checkpoint.read(self.folder)

    # === Checkpoints that cannot be read ===

    @parameterized.parameters(".index", ".data-00000-of-00001")
    def test_damaged_files_are_refused(self, suffix):
        path = self._write() + suffix
        contents = bytearray(files.read_bytes(path))
        contents[20] ^= 0x40
        files.write_bytes(path, contents)
        message = "model.ckpt-7 is damaged or incomplete"
        with self.assertRaisesRegex(UserError, message):
            tf1_checkpoint.read(self.folder)

    # === Atomic writing ===

    def test_failure_keeps_the_earlier_checkpoint(self):
        self._write()
        before = sorted(os.listdir(self.folder))
        full = tf.errors.ResourceExhaustedError(None, None, "disk is full")
        save = tf.raw_ops.SaveV2

        def fail_late(**kwargs):
            save(**kwargs)
            raise full

        for fail in (mock.Mock(side_effect=full), fail_late):
            with mock.patch.object(tf.raw_ops, "SaveV2", fail):
                with self.assertRaises(tf.errors.ResourceExhaustedError):
                    self._write(tensors=_OTHERS)
            self.assertEqual(sorted(os.listdir(self.folder)), before)
            self._assert_equal(tf1_checkpoint.read(self.folder), _TENSORS)

    def test_index_appears_last(self):
        renamed = []
        replace = os.replace

        def spy(source, target):
            renamed.append(os.path.basename(target))
            replace(source, target)

        with mock.patch.object(os, "replace", spy):
            self._write("m")
        self.assertEqual(renamed, ["m.data-00000-of-00001", "m.index"])


_TOKENS = (*SPECIAL_TOKENS, *(f"token{n}" for n in range(13)), "##s")


def _arrays(*heads):
    """Returns distinct weights for encoder, pooler and heads."""
    parts = ("bert", "bert/pooler", *heads)
    return stored_models.weights(parts, tiny_layers.CONFIG, num_labels=5)


def _slots(arrays):
    return {
        name + suffix: tiny_layers.normal(*value.shape, seed=seed) ** 2
        for seed, suffix in enumerate(weight_map.SLOT_SUFFIXES, 100)
        for name, value in arrays.items()
    }


def _stored(arrays, config=tiny_layers.CONFIG):
    return stored_models.of_weights(arrays, config, Vocabulary(_TOKENS))


class Tf1ModelTest(files_case.FolderCase):
    def _write(self, tensors=None, config=None, tokens=_TOKENS):
        """Writes a directory without `write_model`."""
        tensors = _arrays() if tensors is None else tensors
        tf1_checkpoint.write(self.path("bert_model.ckpt"), tensors)
        config = tiny_layers.CONFIG.to_dict() if config is None else config
        with open(self.path("bert_config.json"), "w") as file:
            json.dump(config, file)
        with open(self.path("vocab.txt"), "w") as file:
            file.write("".join(f"{token}\n" for token in tokens))

    def _assert_refused(self, message, path=None):
        with self.assertRaisesRegex(UserError, message) as caught:
            tf1_checkpoint.read_model(path or self.folder)
        self.assertNotIn("\n", str(caught.exception))

    # === Round trips ===

    def test_encoder_may_lack_a_pooler(self):
        arrays = _arrays("cls/squad")
        for suffix in ("kernel", "bias"):
            del arrays[f"bert/pooler/dense/{suffix}"]
        tf1_checkpoint.write_model(self.folder, _stored(arrays))
        found = tf1_checkpoint.read_model(self.folder)
        self.assertCountEqual(found.weights, arrays)
        self.assertIn("bert/pooler", found.report.absent_heads)

    def test_a_weight_without_gradient_has_no_slots(self):
        arrays = _arrays("cls/squad")
        state = {
            name: value
            for name, value in _slots(arrays).items()
            if not name.startswith("bert/pooler/")
        }
        self._write(arrays | state)
        found = tf1_checkpoint.read_model(self.folder)
        self.assertCountEqual(found.optimizer_state, state)

    def test_reads_one_tensor_at_a_time(self):
        tf1_checkpoint.write_model(self.folder, _stored(_arrays()))
        read = []
        reader = tf.train.load_checkpoint(self.path("bert_model.ckpt"))
        spy = mock.Mock(wraps=reader)
        spy.get_tensor.side_effect = lambda name: (
            read.append(name) or reader.get_tensor(name)
        )
        with mock.patch.object(tf.train, "load_checkpoint", return_value=spy):
            found = tf1_checkpoint.read_model(self.folder)
        self.assertEmpty(read)
        found.weights["bert/pooler/dense/bias"]
        self.assertEqual(read, ["bert/pooler/dense/bias"])

    # === Settings that the original reads differently ===

    @parameterized.parameters(
        ({"hidden_act": "gelu_erf"}, 'hidden_act "gelu_erf"'),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05, .* with 1e-12"),
        ({"left_to_right": True}, "left_to_right True, .* with False"),
    )
    def test_sentences_name_unsupported_values(self, changes, message):
        config = tiny_layers.replace(**changes)
        sentences = tf1_checkpoint.write_model(
            self.folder, _stored(_arrays(), config=config)
        )
        self.assertLen(sentences, 2)
        self.assertRegex(sentences[0], message)
        self.assertEqual(tf1_checkpoint.read_model(self.folder).config, config)

    # === Recognizing checkpoints ===

    def test_recognizes_a_prefix_and_its_files(self):
        self._write()
        for suffix in ("", ".index", ".data-00000-of-00001"):
            path = self.path("bert_model.ckpt" + suffix)
            self.assertTrue(tf1_checkpoint.recognizes(path))
            self.assertEqual(
                tf1_checkpoint.read_model(path).config, tiny_layers.CONFIG
            )
        self.assertFalse(tf1_checkpoint.recognizes(self.path("bert_model")))
        self.assertFalse(tf1_checkpoint.recognizes(self.path("vocab.txt")))
        self.assertFalse(tf1_checkpoint.recognizes("nowhere"))
        self.assertFalse(tf1_checkpoint.recognizes("what://ever"))

    # === Bad input ===

    def test_refuses_a_path_that_tensorflow_takes_as_a_pattern(self):
        folder = self.path("a[1]")
        os.makedirs(folder)
        tf1_checkpoint.write_model(folder, _stored(_arrays()))
        self._assert_refused("move or rename it", folder)

    @parameterized.parameters(
        (np.full([8], "x"), "string"), (np.arange(8), "int64")
    )
    def test_weights_must_be_floats(self, values, dtype):
        self._write(_arrays() | {"bert/pooler/dense/bias": values})
        self._assert_refused(f"expected floating .*bias is {dtype}")

    @parameterized.parameters(np.float16, np.float64)
    def test_weights_of_other_types_become_float32_with_a_note(self, dtype):
        arrays = _arrays()
        name = "bert/pooler/dense/bias"
        arrays[name] = arrays[name].astype(dtype)
        self._write(arrays)
        stored = tf1_checkpoint.read_model(self.folder)
        self.assertIn(
            f"type {np.dtype(dtype).name}, which become float32",
            " ".join(stored.report.notes),
        )
        self.assertEqual(stored.weights[name].dtype, np.float32)
        self.assertAllEqual(
            stored.weights[name], arrays[name].astype(np.float32)
        )

    @parameterized.parameters(
        (
            {"what/adam_m": np.zeros(3, np.float32)},
            "it also has what/adam_m",
        ),
        (
            {"bert/pooler/dense/bias/adam_v": np.zeros(9, np.float32)},
            r"in another shape bert/pooler/dense/bias/adam_v \(9,\) \(expected",
        ),
        (
            {"bert/pooler/dense/bias/adam_m": None},
            "it lacks bert/pooler/dense/bias/adam_m",
        ),
        (
            {"global_step": np.zeros(2, np.int64)},
            r"in another shape global_step \(2,\) \(expected \(\)\)",
        ),
    )
    def test_refuses_slots_that_fit_no_weight(self, changes, message):
        arrays = _arrays()
        tensors = arrays | _slots(arrays) | changes
        self._write({n: x for n, x in tensors.items() if x is not None})
        self._assert_refused(f"does not belong to its weights: .*{message}")

    def test_truncated_data_file_is_refused(self):
        self._write()
        path = self.path("bert_model.ckpt.data-00000-of-00001")
        os.truncate(path, os.path.getsize(path) - 1)
        with self.assertRaisesRegex(UserError, "ckpt is damaged or incomplete"):
            dict(tf1_checkpoint.read_model(self.folder).weights)


# Name, kind of model, number of tensors.
_CHECKPOINTS = (
    ("bert_model.ckpt", "pretraining", 62),
    ("after_12_steps.ckpt", "pretraining", 3 * 62 + 1),
    ("after_25_steps.ckpt", "pretraining", 3 * 62 + 1),
    ("classifier.ckpt", "classification", 57),
    ("squad.ckpt", "question_answering", 57),
)


class GoldenRoundTripTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.source = golden("model")

    def _convert(self, path, name, write_model):
        stored = formats.read(path)
        target = self.path(name)
        os.makedirs(target)
        write_model(target, stored)
        return target

    def _assert_same_checkpoint(self, directory, name, num_tensors):
        """Compares files, and tensors as TensorFlow's own reader reads them."""
        prefix = os.path.join(directory, "bert_model.ckpt")
        written = tf.train.load_checkpoint(prefix)
        original = tf.train.load_checkpoint(os.path.join(self.source, name))
        shapes = original.get_variable_to_shape_map()
        self.assertLen(shapes, num_tensors)
        self.assertEqual(written.get_variable_to_shape_map(), shapes)
        self.assertEqual(
            written.get_variable_to_dtype_map(),
            original.get_variable_to_dtype_map(),
        )
        for tensor in shapes:
            self.assertEqual(
                np.asarray(written.get_tensor(tensor)).tobytes(),
                np.asarray(original.get_tensor(tensor)).tobytes(),
                tensor,
            )
        for suffix in (".index", ".data-00000-of-00001"):
            contents = files.read_bytes(prefix + suffix)
            self.assertEqual(
                contents,
                files.read_bytes(os.path.join(self.source, name + suffix)),
            )

    @parameterized.parameters(*_CHECKPOINTS)
    def test_goldens_survive_every_conversion(self, name, kind, num_tensors):
        prefix = os.path.join(self.source, name)
        self.assertEqual(formats.detect(prefix), "tf1")
        stored = formats.read(prefix)
        self.assertEqual(stored.task, {"kind": kind})
        self.assertEmpty(stored.report.missing + stored.report.unused)

        direct = self._convert(prefix, "direct", tf1_checkpoint.write_model)
        self._assert_same_checkpoint(direct, name, num_tensors)
        again = self._convert(direct, "again", tf1_checkpoint.write_model)
        self._assert_same_checkpoint(again, name, num_tensors)

        ours = self._convert(prefix, "ours", model_directory.write_model)
        self.assertEqual(formats.detect(ours), "bert_tf")
        back = self._convert(ours, "back", tf1_checkpoint.write_model)
        self._assert_same_checkpoint(back, name, num_tensors)

    def test_other_files_of_tensorflow_1_are_ignored(self):
        for name in ("bert_config.json", "vocab.txt"):
            shutil.copy(os.path.join(self.source, name), self.folder)
        for step in (12, 25):
            for suffix in (".index", ".data-00000-of-00001"):
                shutil.copy(
                    os.path.join(self.source, f"after_{step}_steps.ckpt")
                    + suffix,
                    self.path(f"model.ckpt-{step}{suffix}"),
                )
        for name in ("graph.pbtxt", "model.ckpt-12.meta", "model.ckpt-25.meta"):
            files.write_bytes(self.path(name), b"\x0a")
        self.assertEqual(formats.detect(self.folder), "tf1")
        step = formats.read(self.folder).optimizer_state["global_step"]
        self.assertEqual(step, 25)
        files.write_text(
            self.path("checkpoint"),
            'model_checkpoint_path: "/gone/model.ckpt-12"\n',
        )
        step = formats.read(self.folder).optimizer_state["global_step"]
        self.assertEqual(step, 12)


if __name__ == "__main__":
    tf.test.main()
