"""Tests for bert_tf.modeling.task_models, with BiLSTM heads."""

import itertools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import dropout
from bert_tf.modeling import inference
from bert_tf.modeling import task_models
from tests.support import tiny_layers

_SEEDS = np.array([5, 9, 2], np.int32)
_WITH_DROPOUT = tuple(
    (cls, arguments)
    for cls, arguments, _ in tiny_layers.MODELS
    if cls is not task_models.BertForQuestionAnswering
)


def _quiet_encoder():
    return tiny_layers.replace(
        hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )


class TaskModelsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*tiny_layers.MODELS)
    def test_initial_head_is_truncated_normal(self, cls, arguments, scope):
        model = cls(tiny_layers.replace(hidden_size=512), **arguments)
        named = bert_model.named_variables(model)
        weights = named[f"{scope}output_weights"].numpy()
        self.assertLessEqual(np.abs(weights).max(), 0.04 + 1e-6)
        # Cutting at two standard deviations multiplies the deviation by 0.8796.
        self.assertAllClose(weights.std(), 0.02 * 0.8796, rtol=0.15)
        self.assertAllEqual(
            named[f"{scope}output_bias"], np.zeros(len(weights))
        )

    @parameterized.parameters(
        ({}, "at least one label"),
        ({"num_labels": 0}, "at least one label.*num_labels=0"),
        ({"labels": []}, "at least one label"),
        ({"labels": "a,b"}, "a list of names.* Received: labels='a,b'"),
        ({"labels": [0, 1]}, r"list\(map\(str, labels\)\)"),
        ({"labels": {0: "a"}}, r"list\(labels.values\(\)\)"),
        ({"labels": ["", "b"]}, "not empty"),
        ({"labels": ["a", "b"], "num_labels": 3}, "num_labels=3.*: a, b"),
        ({"labels": ["a", "b", "a"]}, "different names. Received: a, b, a"),
    )
    def test_wrong_labels_are_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            task_models.BertForClassification(tiny_layers.CONFIG, **arguments)


class LogitsTest(tf.test.TestCase, parameterized.TestCase):
    def test_tagging_reads_every_position(self):
        model = tiny_layers.randomize(
            task_models.BertForTagging(
                tiny_layers.CONFIG, num_labels=4, return_encoder_outputs=True
            )
        )
        outputs = model(tiny_layers.inputs())
        expected = tiny_layers.logits(model, outputs["sequence_output"])
        self.assertAllClose(outputs["logits"], expected, atol=1e-5)

    @parameterized.parameters(("mean", True), ("cls", False))
    def test_pooled_classifier_reads_embeddings(self, pooling, normalize):
        arguments = {"pooling": pooling, "normalize": normalize}
        model = tiny_layers.randomize(
            task_models.BertForClassification(
                tiny_layers.CONFIG, num_labels=4, **arguments
            )
        )
        inputs = tiny_layers.inputs()
        outputs = model(inputs)
        embedder = task_models.BertForEmbeddings(
            tiny_layers.CONFIG, **arguments
        )
        inference.copy_weights(model, embedder)
        expected = embedder(inputs)["embedding"]
        self.assertAllClose(outputs["embedding"], expected, atol=1e-6)
        logits = tiny_layers.logits(model, expected)
        self.assertAllClose(outputs["logits"], logits, atol=1e-5)
        # A copy made from the configuration must keep the pooling.
        again = task_models.BertForClassification.from_config(
            model.get_config()
        )
        inference.copy_weights(model, again)
        self.assertAllClose(again(inputs)["logits"], logits, atol=1e-5)

    def test_examples_may_have_several_texts(self):
        model = tiny_layers.randomize(
            task_models.BertForEmbeddings(tiny_layers.CONFIG)
        )
        inputs = tiny_layers.inputs_of(task_models.BertForMultipleChoice)
        groups = model(inputs)["embedding"]
        for place in range(groups.shape[1]):
            alone = model({x: y[:, place] for x, y in inputs.items()})
            self.assertAllClose(groups[:, place], alone["embedding"], atol=1e-6)

    def test_multiple_choice_scores_each_choice_alone(self):
        model = tiny_layers.randomize(
            task_models.BertForMultipleChoice(
                tiny_layers.CONFIG,
                return_all_layers=True,
                return_attention_probs=True,
            )
        )
        inputs = tiny_layers.inputs_of(task_models.BertForMultipleChoice)
        outputs = model(inputs)
        for choice in range(4):
            encoded = model.bert({k: x[:, choice] for k, x in inputs.items()})
            scores = tiny_layers.logits(model, encoded["pooled_output"])
            logits = outputs["logits"][:, choice, tf.newaxis]
            self.assertAllClose(logits, scores, atol=1e-5)
            tf.nest.map_structure(
                lambda x, y, choice=choice: self.assertAllClose(
                    x[:, choice], y, atol=1e-5
                ),
                {name: outputs[name] for name in encoded},
                encoded,
            )

    def test_multiple_choice_refuses_inputs_without_choices(self):
        model = task_models.BertForMultipleChoice(tiny_layers.CONFIG)
        message = r"`input_ids` .*\[examples, choices.*shape \(3, 5\)"
        with self.assertRaisesRegex(UserError, message):
            model(tiny_layers.inputs())


@parameterized.parameters(*_WITH_DROPOUT)
class HeadDropoutTest(tf.test.TestCase, parameterized.TestCase):
    def _logits(self, model, rows=(0, 1, 2), seeds=_SEEDS, training=True):
        rows = list(rows)
        inputs = {
            k: x[rows] for k, x in tiny_layers.inputs_of(type(model)).items()
        }
        seeds = None if seeds is None else seeds[rows]
        outputs = model(inputs, training=training, dropout_seeds=seeds)
        return outputs["logits"].numpy()

    def test_head_dropout_applies_to_its_input_only(self, cls, arguments):
        model = tiny_layers.randomize(
            cls(_quiet_encoder(), return_encoder_outputs=True, **arguments)
        )
        self.assertEqual(model.head.dropout_prob, 0.1)
        inputs = tiny_layers.inputs_of(cls)
        quiet = model(inputs)
        noisy = model(inputs, training=True, dropout_seeds=_SEEDS)
        self.assertNotAllClose(noisy["logits"], quiet["logits"])
        for name in ("sequence_output", "pooled_output"):
            self.assertAllEqual(noisy[name], quiet[name])

    def test_seeds_determine_dropout_and_inference_ignores_them(
        self, cls, arguments
    ):
        model = cls(_quiet_encoder(), head_dropout_prob=0.5, **arguments)
        tiny_layers.randomize(model)
        once = self._logits(model)
        self.assertAllEqual(self._logits(model), once)
        self.assertNotAllClose(self._logits(model, seeds=_SEEDS + 1), once)
        quiet = self._logits(model, training=False)
        self.assertAllEqual(
            self._logits(model, seeds=None, training=False), quiet
        )
        self.assertNotAllClose(once, quiet)

    def test_encoder_and_head_have_the_same_seeds(self, cls, arguments):
        model = cls(tiny_layers.CONFIG, **arguments)
        with mock.patch.object(
            dropout, "draw_keys", wraps=dropout.draw_keys
        ) as draw_keys:
            self._logits(model, seeds=None)
        calls = [call.args for call in draw_keys.call_args_list]
        dropout_ids = [dropout_id for _, dropout_id in calls]
        # The encoder draws seven masks; the head's id must not be among them.
        self.assertEqual(dropout_ids, [*range(7), dropout.HEAD_DROPOUT_ID])
        for seeds, _ in calls:
            self.assertAllEqual(seeds, calls[0][0])


class ChoiceSeedsTest(tf.test.TestCase):
    def test_each_choice_has_its_own_mask(self):
        model = task_models.BertForMultipleChoice(
            _quiet_encoder(), head_dropout_prob=0.5
        )
        tiny_layers.randomize(model)
        # Equal choices get different logits only if their masks differ.
        ids = np.repeat(tiny_layers.integers(19, 2, 1, 5), 3, axis=1)
        logits = model(
            {"input_ids": ids}, training=True, dropout_seeds=_SEEDS[:2]
        )["logits"]
        self.assertLen(np.unique(logits), 6)


_DEEP = tiny_layers.replace(num_hidden_layers=4)


def _names(scope, number):
    """Returns the names of a head's BiLSTM weights."""
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
    def test_variable_names_ignore_the_model_name(self, cls, arguments, scope):
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
    def test_logits_read_the_combined_layers(self, combination):
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
        ({"lstm_size": 3}, "is for heads with a BiLSTM. Received: 3"),
        ({"head": "lstm"}, "be one of linear, bilstm. Received: head='lstm'"),
        ({"head": "bilstm", "lstm_size": 0}, "at least 1.*Received: 0"),
    )
    def test_wrong_arguments_are_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            task_models.BertForTagging(_DEEP, num_labels=2, **arguments)


if __name__ == "__main__":
    tf.test.main()
