"""Tests for bert_tf.checkpoints.load."""

import dataclasses
import os
import shutil

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from tests.support import tiny_model


class InitializationTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.weights = tiny_model.random_weights()
        self.model_dir = tiny_model.write(os.path.join(self.folder, "model"))

    def _convert(self, weights_format):
        path = os.path.join(self.folder, weights_format)
        os.mkdir(path)
        formats.module_of(weights_format).write_model(
            path, formats.read(self.model_dir)
        )
        return path

    @parameterized.parameters("bert_tf", "tf1", "huggingface")
    def test_weights_of_any_format(self, weights_format):
        path = self._convert(weights_format)
        for config in (None, tiny_model.CONFIG):
            stored = checkpoint_loading.read(path, config)
            self.assertEqual(stored.config, tiny_model.CONFIG)
            model = bert_model.BertForPretraining(stored.config)
            with self.assertLogs(level="INFO") as logs:
                report = checkpoint_loading.load_weights(model, stored)
            self.assertIn(f"{path}: loaded 46 weights", logs.output[0])
            self.assertEqual(set(report.loaded), set(self.weights))
            for name, variable in bert_model.named_variables(model).items():
                self.assertAllEqual(variable, self.weights[name], name)
        if weights_format == "huggingface":
            self.assertRegex(logs.output[1], "gelu.* is the tanh approximation")

    def test_bare_checkpoint_takes_its_shape_from_the_config(self):
        path = self._convert("tf1")
        os.remove(os.path.join(path, "bert_config.json"))
        for name in (path, os.path.join(path, "bert_model.ckpt")):
            stored = checkpoint_loading.read(name, tiny_model.CONFIG)
            self.assertEqual(stored.task, {"kind": "pretraining"})
            for tensor, value in self.weights.items():
                self.assertAllEqual(stored.weights[tensor], value, tensor)
            with self.assertRaisesRegex(UserError, "bert_config.json"):
                checkpoint_loading.read(name)
        wider = dataclasses.replace(tiny_model.CONFIG, hidden_size=12)
        with self.assertRaisesRegex(UserError, r"another shape.*\(16, 16\)"):
            checkpoint_loading.read(path, wider)
        shutil.copy(
            os.path.join(path, "bert_model.ckpt.index"),
            os.path.join(path, "other.ckpt.index"),
        )
        with self.assertRaisesRegex(UserError, "several checkpoints"):
            checkpoint_loading.read(path, tiny_model.CONFIG)

    def test_weights_of_other_heads_are_unused(self):
        stored = checkpoint_loading.read(self.model_dir)
        model = bert_model.BertModel(stored.config)
        report = checkpoint_loading.load_weights(model, stored)
        self.assertEmpty(report.missing)
        self.assertEqual(
            {weight_map.part_of(name) for name in report.unused},
            {weight_map.MASKED_LM, weight_map.NEXT_SENTENCE},
        )

    @parameterized.parameters(
        ({"num_attention_heads": 4}, "num_attention_heads is 2 there and 4"),
        ({"hidden_act": "relu"}, "hidden_act is 'gelu' there and 'relu' here"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps is 1e-12 there and 1e-06"),
        ({"left_to_right": True}, "left_to_right is False there and True"),
        ({"vocab_size": 20, "num_hidden_layers": 3}, "there and 20 .* is 2"),
    )
    def test_refuses_another_model(self, changes, message):
        config = dataclasses.replace(tiny_model.CONFIG, **changes)
        with self.assertRaisesRegex(UserError, f"{self.model_dir}.*{message}"):
            checkpoint_loading.read(self.model_dir, config, "--x")

    def test_dropout_and_initializer_may_differ(self):
        config = dataclasses.replace(
            tiny_model.CONFIG,
            hidden_dropout_prob=0.3,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.5,
        )
        checkpoint_loading.read(self.model_dir, config)

    def test_compares_vocabularies(self):
        stored = checkpoint_loading.read(self.model_dir)
        check = checkpoint_loading.check_vocabulary
        check(stored, stored.vocabulary.hash, "the records")
        check(stored, None, "the records")
        with self.assertRaisesRegex(UserError, "12ab; use"):
            check(stored, "12ab", "the records")
        with self.assertLogs(level="WARNING") as logs:
            check(stored, "12ab", "the records", allow_change=True)
        self.assertIn("12ab, as allowed", logs.output[0])
        unknown = dataclasses.replace(stored, vocabulary=None)
        check(unknown, "12ab", "the records")

    def test_refuses_other_paths(self):
        for path in ("/nowhere", self.folder):
            with self.assertRaisesRegex(UserError, f"Received: '{path}'"):
                checkpoint_loading.read(path, tiny_model.CONFIG)


if __name__ == "__main__":
    tf.test.main()
