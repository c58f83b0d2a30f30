"""Round trips of the original's own checkpoints."""

import os
import shutil

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.io import files
from tests.support.shared_data import golden

# Name, kind of model, number of tensors.
_CHECKPOINTS = (
    ("bert_model.ckpt", "pretraining", 62),
    ("after_12_steps.ckpt", "pretraining", 3 * 62 + 1),
    ("after_25_steps.ckpt", "pretraining", 3 * 62 + 1),
    ("classifier.ckpt", "classification", 57),
    ("squad.ckpt", "question_answering", 57),
)


class GoldenRoundTripTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.source = golden("model")
        self.folder = self.create_tempdir().full_path

    def _convert(self, path, name, write_model):
        stored = formats.read(path)
        target = os.path.join(self.folder, name)
        os.makedirs(target)
        write_model(target, stored)
        return target

    def _assert_same_checkpoint(self, directory, name, num_tensors):
        """Compares tensors, with TensorFlow's own reader, and files."""
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
    def test_round_trips(self, name, kind, num_tensors):
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
                    os.path.join(self.folder, f"model.ckpt-{step}{suffix}"),
                )
        for name in ("graph.pbtxt", "model.ckpt-12.meta", "model.ckpt-25.meta"):
            files.write_bytes(os.path.join(self.folder, name), b"\x0a")
        self.assertEqual(formats.detect(self.folder), "tf1")
        step = formats.read(self.folder).optimizer_state["global_step"]
        self.assertEqual(step, 25)
        files.write_text(
            os.path.join(self.folder, "checkpoint"),
            'model_checkpoint_path: "/gone/model.ckpt-12"\n',
        )
        step = formats.read(self.folder).optimizer_state["global_step"]
        self.assertEqual(step, 12)


if __name__ == "__main__":
    tf.test.main()
