"""Tests of BiLSTMs under the heads of bert_tf.modeling.task_models."""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import task_models
from tests.support import tiny_layers

_SEEDS = np.array([5, 9, 2], np.int32)
_DEEP = tiny_layers.replace(num_hidden_layers=4)


def _names(scope, number):
    """Returns the names of the weights under a head."""
    return {
        f"{scope}bilstm_{level}/{direction}/{name}"
        for level, direction, name in itertools.product(
            range(number),
            ("forward", "backward"),
            ("kernel", "recurrent_kernel", "bias"),
        )
    }


def _logits(outputs):
    return [
        outputs[name]
        for name in ("logits", "start_logits", "end_logits")
        if name in outputs
    ]


def _trained(model, inputs):
    """Returns the names of the weights that have a gradient."""
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True, dropout_seeds=_SEEDS)
        loss = tf.add_n([tf.reduce_sum(tf.square(x)) for x in _logits(outputs)])
    named = bert_model.named_variables(model)
    gradients = tape.gradient(loss, [x.value for x in named.values()])
    pairs = zip(named, gradients, strict=True)
    return {name for name, gradient in pairs if gradient is not None}


def _tagger(combination, **kwargs):
    model = task_models.BertForTagging(
        _DEEP,
        num_labels=4,
        approach="feature_based",
        layer_combination=combination,
        lstm_size=3,
        return_encoder_outputs=True,
        **kwargs,
    )
    return tiny_layers.randomize(model)


class BiLSTMHeadTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*tiny_layers.MODELS)
    def test_names(self, cls, arguments, scope):
        for name in (None, "cls"):
            model = cls(
                tiny_layers.CONFIG,
                name=name,
                head="bilstm",
                lstm_size=3,
                **arguments,
            )
            received = {
                name
                for name in bert_model.named_variables(model)
                if not name.startswith("bert/")
            }
            expected = _names(scope, 1)
            expected |= {f"{scope}output_weights", f"{scope}output_bias"}
            self.assertEqual(received, expected)

    def test_classification_reads_the_last_states(self):
        model = task_models.BertForClassification(
            tiny_layers.CONFIG,
            num_labels=3,
            head="bilstm",
            lstm_size=2,
            return_encoder_outputs=True,
        )
        tiny_layers.randomize(model)
        inputs = tiny_layers.inputs()
        outputs = model(inputs)
        lengths = inputs["input_mask"].sum(-1)
        self.assertLen(set(lengths), 3)
        (lstm,) = model.lstms
        states = lstm(outputs["sequence_output"], inputs["input_mask"]).numpy()
        last = states[np.arange(3), lengths - 1, :2]
        read = np.concatenate([last, states[:, 0, 2:]], axis=-1)
        expected = tiny_layers.logits(model, read)
        self.assertAllClose(outputs["logits"], expected, atol=1e-5)

    @parameterized.parameters(
        ({"head": "lstm"}, "must be one of linear, bilstm. Received: 'lstm'"),
        ({"lstm_size": 3}, "is for heads with a BiLSTM. Received: 3"),
        ({"head": "bilstm", "lstm_size": 0}, "at least 1.*Received: 0"),
    )
    def test_wrong_arguments_are_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            task_models.BertForQuestionAnswering(
                tiny_layers.CONFIG, **arguments
            )


class FeatureBasedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*LAYER_COMBINATIONS)
    def test_the_encoder_is_not_trained(self, combination):
        model = _tagger(combination)
        trained = _trained(model, tiny_layers.inputs())
        expected = _names("cls/tagging/", 2)
        expected |= {"cls/tagging/output_weights", "cls/tagging/output_bias"}
        if combination.startswith("weighted_sum"):
            scope = "cls/tagging/layer_combination"
            expected |= {f"{scope}/weights", f"{scope}/scale"}
        self.assertEqual(trained, expected)
        paths = {f"{model.name}/{name}" for name in expected}
        self.assertEqual({x.path for x in model.trainable_weights}, paths)

    @parameterized.parameters(*LAYER_COMBINATIONS)
    def test_logits(self, combination):
        model = _tagger(combination)
        inputs = tiny_layers.inputs()
        outputs = model(inputs)
        read = model.combination(
            outputs["embedding_output"],
            encoder_outputs=outputs["encoder_outputs"],
        )
        for lstm in model.lstms:
            read = lstm(read, inputs["input_mask"])
        expected = tiny_layers.logits(model, read)
        self.assertAllClose(outputs["logits"], expected, atol=1e-5)

    def test_the_encoder_has_no_dropout(self):
        model = _tagger("last_hidden")
        quiet = model(tiny_layers.inputs())
        noisy = model(tiny_layers.inputs(), training=True, dropout_seeds=_SEEDS)
        self.assertAllEqual(noisy["sequence_output"], quiet["sequence_output"])
        self.assertNotAllClose(noisy["logits"], quiet["logits"])
        again = model(tiny_layers.inputs(), training=True, dropout_seeds=_SEEDS)
        self.assertAllEqual(noisy["logits"], again["logits"])

    @parameterized.parameters(
        ({"approach": "frozen"}, "one of fine_tuning, feature_based"),
        (
            {"approach": "feature_based", "head": "bilstm"},
            "`head` must be 'linear'. Received: 'bilstm'",
        ),
        (
            {"layer_combination": "embeddings"},
            "feature-based approach. Received: 'embeddings' with 'fine_tuning'",
        ),
        ({"lstm_size": 3}, "is for heads with a BiLSTM"),
    )
    def test_wrong_arguments_are_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            task_models.BertForTagging(_DEEP, num_labels=2, **arguments)


if __name__ == "__main__":
    tf.test.main()
