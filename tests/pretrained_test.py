"""Tests for bert_tf.pretrained and the public API."""

import os
import shutil

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.errors import UserError
from bert_tf.interop import tf1_checkpoint
from bert_tf.modeling import model as bert_model
from tests import tiny_model
from tests.shared_data import golden


class LoadModelTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_weights(self, model, expected):
        for name, variable in bert_model.named_variables(model).items():
            self.assertAllEqual(variable, expected[name], name)

    def test_model_directory(self):
        path = tiny_model.write(self.create_tempdir().full_path + "/model")
        model = bert_tf.load_model(path, return_all_layers=True)
        self.assertIsInstance(model, bert_tf.BertForPretraining)
        self._assert_weights(model, tiny_model.random_weights())
        outputs = model({"input_ids": np.array([[2, 6, 3]])})
        self.assertLen(outputs["encoder_outputs"], 2)

    @parameterized.parameters("", "bert_model.ckpt", "bert_model.ckpt.index")
    def test_checkpoint_of_the_original(self, name):
        source = golden("model")
        path = self.create_tempdir().full_path
        for file in os.listdir(source):
            if file.startswith(("bert_model.ckpt", "bert_config")):
                shutil.copy(os.path.join(source, file), path)
        model = bert_tf.load_model(os.path.join(path, name))
        self.assertIsInstance(model, bert_tf.BertForPretraining)
        self._assert_weights(model, tf1_checkpoint.read(path))

    @parameterized.parameters("squad.ckpt", "classifier.ckpt")
    def test_heads_of_other_tasks_are_left(self, name):
        path = golden(f"model/{name}.index")
        model = bert_tf.load_model(path, dtype="mixed_bfloat16", name="bert")
        self.assertIsInstance(model, bert_tf.BertModel)
        self._assert_weights(model, tf1_checkpoint.read(path))
        self.assertEqual(model.compute_dtype, "bfloat16")

    def test_nothing_there(self):
        path = self.create_tempdir().full_path
        for wrong in (path, path + "/model.ckpt"):
            message = "Expected a model directory.*no .*bert_config.json"
            with self.assertRaisesRegex(UserError, message):
                bert_tf.load_model(wrong)

    def test_damaged_model_directory(self):
        path = tiny_model.write(self.create_tempdir().full_path + "/model")
        with open(path + "/model.weights.safetensors", "ab") as file:
            file.write(b"x")
        with self.assertRaisesRegex(UserError, "SHA-256"):
            bert_tf.load_model(path)


class PublicApiTest(tf.test.TestCase):
    def test_every_name_is_there(self):
        expected = {
            "BertConfig",
            "BertForPretraining",
            "BertModel",
            "BertTokenizer",
            "build_optimizer",
            "load_model",
        }
        self.assertEqual(set(bert_tf.__all__), expected)
        self.assertLessEqual(expected, set(dir(bert_tf)))
        for name in expected:
            self.assertEqual(getattr(bert_tf, name).__name__, name)

    def test_other_names_are_not(self):
        with self.assertRaisesRegex(AttributeError, "no attribute 'Bert'"):
            getattr(bert_tf, "Bert")  # noqa: B009


if __name__ == "__main__":
    tf.test.main()
