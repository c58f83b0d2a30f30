"""Tests for bert_tf.checkpoints.load."""

import dataclasses
import os
import shutil

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from tests.support import files_case
from tests.support import tiny_layers
from tests.support import tiny_model


class InitializationTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.weights = tiny_model.random_weights()
        self.model_dir = tiny_model.write(self.path("model"))

    def _convert(self, weights_format):
        path = self.path(weights_format)
        os.mkdir(path)
        formats.module_of(weights_format).write_model(
            path, formats.read(self.model_dir)
        )
        return path

    @parameterized.parameters("bert_tf", "tf1", "huggingface")
    def test_loads_weights_of_any_format(self, weights_format):
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

    def test_other_vocabulary_is_refused_unless_allowed(self):
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


_HEADS = set(weight_map.shapes(tiny_layers.CONFIG, "pretraining")) - set(
    weight_map.shapes(tiny_layers.CONFIG, "encoder")
)
_SLOT = "bert/pooler/dense/bias/adam_m"


def _tensors(kind="pretraining"):
    shapes = weight_map.shapes(tiny_layers.CONFIG, kind)
    return {
        name: tiny_layers.normal(*shape, seed=index)
        for index, (name, shape) in enumerate(shapes.items())
    }


class LoadingTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.model = bert_model.BertForPretraining(tiny_layers.CONFIG)

    def _values(self):
        named = bert_model.named_variables(self.model)
        return {name: variable.numpy() for name, variable in named.items()}

    def _assert_refused(self, tensors, message, **kwargs):
        before = self._values()
        with self.assertRaisesRegex(UserError, message):
            checkpoint_loading.load_into(self.model, tensors, **kwargs)
        after = self._values()
        for name, value in before.items():
            self.assertAllEqual(after[name], value, name)

    @parameterized.parameters(
        ("bert/embeddings/LayerNorm/beta", None, "x.ckpt .*{}"),
        ("cls/seq_relationship/output_weights", None, "x.ckpt .*{}"),
        ("bert/encoder/layer_2/output/dense/kernel", (3,), "also has {}"),
        ("cls/predictions/other", (3,), "also has {}"),
        ("beta1_power", (3,), "also has {}"),
        ("bert/pooler/dense/kernel", (64,), r"{} \(64,\) .*\(8, 8\)"),
    )
    def test_refuses_other_weights(self, name, shape, message):
        tensors = _tensors() | {name: shape and np.zeros(shape, np.float32)}
        tensors = {key: x for key, x in tensors.items() if x is not None}
        message = message.format(name)
        self._assert_refused(tensors, message, source="x.ckpt")

    def test_reports_unused_heads_and_optimizer_state(self):
        encoder = bert_model.BertModel(tiny_layers.CONFIG)
        extra = {
            "global_step": np.int64(3),
            _SLOT: np.zeros(8, np.float32),
            "cls/squad/output_weights": np.zeros((2, 8), np.float32),
            "output_weights": np.zeros((3, 8), np.float32),
        }
        report = checkpoint_loading.load_into(encoder, _tensors() | extra)
        self.assertCountEqual(report.unused, _HEADS | set(extra))
        self.assertEqual(report.missing, ())
        self.assertLen(report.loaded, 39)
        self.assertRegex(str(report), "loaded 39 weights, all of the model's; ")
        self.assertRegex(str(report), "part: .*cls/squad.*; not needed: 2 t")

    def test_missing_heads_keep_their_initial_values(self):
        before = self._values()
        report = checkpoint_loading.load_into(self.model, _tensors("encoder"))
        self.assertCountEqual(report.missing, _HEADS)
        for name, value in self._values().items():
            changed = not np.array_equal(value, before[name])
            self.assertEqual(changed, name not in _HEADS, name)


if __name__ == "__main__":
    tf.test.main()
