"""Tests for bert_tf.modeling.bert."""

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import weight_map
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import dropout
from tests.support import tiny_layers

_POSITIONS = np.array([[3, 0], [2, 1], [1, 2]], np.int32)


def _pretraining_model(**kwargs):
    model = bert_model.BertForPretraining(tiny_layers.CONFIG, **kwargs)
    return tiny_layers.randomize(model)


def _shapes(model):
    named = bert_model.named_variables(model)
    return {name: tuple(variable.shape) for name, variable in named.items()}


def _pretraining_inputs():
    return tiny_layers.inputs() | {"masked_lm_positions": _POSITIONS}


class NamesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("bert_for_pretraining", "bert", "cls")
    def test_paths_are_canonical_after_the_outermost_name(self, name):
        model = bert_model.BertForPretraining(tiny_layers.CONFIG, name=name)
        expected = weight_map.shapes(tiny_layers.CONFIG, "pretraining")
        self.assertCountEqual(
            [weight.path for weight in model.weights],
            [f"{name}/{canonical}" for canonical in expected],
        )
        self.assertEqual(_shapes(model), expected)

    @parameterized.parameters("bert", "other")
    def test_encoder_keeps_its_names_in_a_user_model(self, name):
        class Outer(keras.Model):
            def __init__(self):
                super().__init__(name="bert")
                self.encoder = bert_model.BertModel(
                    tiny_layers.CONFIG, name=name
                )
                self.head = keras.layers.Dense(3, name="head")
                self.head.build((None, 8))

        self.assertCountEqual(
            bert_model.named_variables(Outer()),
            [*weight_map.shapes(tiny_layers.CONFIG, "encoder")]
            + ["head/kernel", "head/bias"],
        )

    def test_two_encoders_are_refused(self):
        class Twins(keras.Model):
            def __init__(self):
                super().__init__(name="twins")
                self.one = bert_model.BertModel(tiny_layers.CONFIG, name="one")
                self.two = bert_model.BertModel(tiny_layers.CONFIG, name="two")

        with self.assertRaisesRegex(UserError, "two of the name bert/embed"):
            bert_model.named_variables(Twins())

    def test_initial_kernels_are_truncated_normal(self):
        config = BertConfig(
            vocab_size=3000, hidden_size=64, num_attention_heads=2
        )
        model = bert_model.BertForPretraining(config)
        kernels = []
        for name, variable in bert_model.named_variables(model).items():
            value = variable.numpy()
            if name.endswith("gamma"):
                self.assertAllEqual(value, np.ones_like(value), name)
            elif name.endswith(("bias", "beta")):
                self.assertAllEqual(value, np.zeros_like(value), name)
            else:
                # Values are cut at two standard deviations, 2 * 0.02.
                self.assertLessEqual(np.abs(value).max(), 0.04 + 1e-6, name)
                self.assertNotAllClose(value, np.zeros_like(value), msg=name)
                kernels.append(value.ravel()[:100].tobytes())
        self.assertLen(set(kernels), len(kernels))
        table = model.bert.embeddings.word_embeddings.numpy()
        # Cutting at two standard deviations multiplies the deviation by 0.8796.
        self.assertAllClose(table.std(), 0.02 * 0.8796, rtol=0.01)


class CallTest(tf.test.TestCase, parameterized.TestCase):
    def test_defaults_are_ones_and_zeros(self):
        model = _pretraining_model()
        ids = tiny_layers.inputs()["input_ids"]
        given = {
            "input_ids": ids,
            "input_mask": np.ones_like(ids),
            "segment_ids": np.zeros_like(ids),
        }
        expected = model(given)
        for received in (
            model({"input_ids": ids}),
            model({"input_ids": tf.constant(ids, tf.int64)}),
        ):
            for name, value in expected.items():
                self.assertAllEqual(received[name], value)

    @parameterized.parameters(
        {"input_ids": 0, "attention_mask": 0}, {"input_mask": 0}
    )
    def test_other_inputs_are_refused(self, **inputs):
        model = bert_model.BertModel(tiny_layers.CONFIG)
        inputs = {name: tiny_layers.inputs()["input_ids"] for name in inputs}
        message = f"Received: {', '.join(sorted(inputs))}"
        with self.assertRaisesRegex(UserError, message):
            model(inputs)

    @parameterized.parameters(True, False)
    def test_left_to_right_tokens_ignore_later_tokens(self, left_to_right):
        model = bert_model.BertModel(
            tiny_layers.replace(left_to_right=left_to_right)
        )
        tiny_layers.randomize(model)
        ids = tiny_layers.inputs()["input_ids"]
        changed = ids.copy()
        changed[:, 3] = (changed[:, 3] + 1) % 19
        difference = np.abs(
            model({"input_ids": ids})["sequence_output"]
            - model({"input_ids": changed})["sequence_output"]
        ).max(axis=(0, 2))
        self.assertAllGreater(difference[3:], 1e-3)
        if left_to_right:
            self.assertAllLess(difference[:3], 1e-6)
        else:
            self.assertAllGreater(difference[:3], 1e-3)

    @parameterized.parameters(True, False)
    def test_pools_the_first_or_the_last_token(self, left_to_right):
        model = bert_model.BertModel(
            tiny_layers.replace(left_to_right=left_to_right)
        )
        tiny_layers.randomize(model)
        inputs = tiny_layers.inputs()
        outputs = model(inputs)
        lengths = inputs["input_mask"].sum(-1)
        self.assertLen(set(lengths), 3)
        places = lengths - 1 if left_to_right else np.zeros(3, int)
        tokens = outputs["sequence_output"].numpy()[np.arange(3), places]
        dense = model.pooler.dense
        expected = np.tanh(tokens @ dense.kernel.numpy() + dense.bias.numpy())
        self.assertAllClose(outputs["pooled_output"], expected, atol=1e-5)
        # Without a mask there is no padding, so the last token is at -1.
        outputs = model({"input_ids": inputs["input_ids"]})
        place = -1 if left_to_right else 0
        tokens = outputs["sequence_output"].numpy()[:, place]
        expected = np.tanh(tokens @ dense.kernel.numpy() + dense.bias.numpy())
        self.assertAllClose(outputs["pooled_output"], expected, atol=1e-5)


class DropoutTest(tf.test.TestCase, parameterized.TestCase):
    def _logits(self, model, rows, seeds, training=True):
        inputs = {name: x[rows] for name, x in _pretraining_inputs().items()}
        return model(inputs, training=training, dropout_seeds=seeds)[
            "masked_lm_logits"
        ].numpy()

    def test_masks_depend_neither_on_the_batch_nor_on_fusing(self):
        seeds = np.array([5, 9, 2], np.int32)
        wholes = []
        for fuse in (False, True):
            model = _pretraining_model(fuse=fuse)
            whole = self._logits(model, [0, 1, 2], seeds)
            for row in range(3):
                alone = self._logits(model, [row], seeds[[row]])
                self.assertAllClose(alone[0], whole[row], atol=1e-5)
            wholes.append(whole)
        self.assertAllClose(*wholes, atol=1e-4)

    def test_without_seeds_keras_draws_them(self):
        def draw():
            keras.utils.set_random_seed(3)
            model = _pretraining_model()
            return [self._logits(model, [0, 1, 2], None) for _ in range(2)]

        first, second = draw()
        self.assertNotAllClose(first, second)
        self.assertAllEqual(draw()[1], second)


class EmbeddingsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.layer = bert_model.Embeddings(tiny_layers.CONFIG, dropout_id=6)
        self.layer.build((None, None))
        tiny_layers.randomize(self.layer)
        self.inputs = tiny_layers.inputs()
        self.ids = self.inputs["input_ids"]
        self.segments = self.inputs["segment_ids"]

    def _expected(self):
        total = self.layer.word_embeddings.numpy()[self.ids]
        total = total + self.layer.token_type_embeddings.numpy()[self.segments]
        total = total + self.layer.position_embeddings.numpy()[:5]
        standard = total - total.mean(-1, keepdims=True)
        standard /= standard.std(-1, keepdims=True)
        norm = self.layer.layer_norm
        return standard * norm.gamma + norm.beta

    def test_dropout_applies_to_the_final_embeddings(self):
        seeds = tf.constant([1, 2, 3])
        received = self.layer(self.ids, self.segments, dropout_seeds=seeds)
        kept = dropout.draw_mask([3, 5, 8], 0.2, dropout.draw_keys(seeds, 6))
        expected = np.where(kept, self._expected() / 0.8, 0)
        self.assertAllClose(received, expected, atol=1e-5)

    def test_longer_sequence_is_refused(self):
        ids = np.zeros((1, 8), np.int32)
        message = "sequence of 8, max_position_embeddings=7"
        with self.assertRaisesRegex(UserError, message):
            self.layer(ids, ids)

    def test_gradient_is_dense_and_adds_up_repeated_ids(self):
        table = tf.Variable(tiny_layers.normal(6, 2))
        ids = tf.constant([[4, 1, 4], [0, 4, 1]])
        upstream = tiny_layers.normal(2, 3, 2, seed=5)
        with tf.GradientTape() as tape:
            rows = bert_model.lookup(tf.convert_to_tensor(table), ids)
        self.assertAllEqual(rows, table.numpy()[ids.numpy()])
        gradient = tape.gradient(rows, table, upstream)
        self.assertIsInstance(gradient, tf.Tensor)
        expected = np.zeros((6, 2), np.float32)
        np.add.at(expected, ids.numpy(), upstream)
        self.assertAllClose(gradient, expected, atol=1e-6)


if __name__ == "__main__":
    tf.test.main()
