"""Tests for bert_tf.modeling.task_models."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import dropout
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
    def test_initial_head(self, cls, arguments, scope):
        model = cls(tiny_layers.replace(hidden_size=512), **arguments)
        named = bert_model.named_variables(model)
        weights = named[f"{scope}output_weights"].numpy()
        self.assertLessEqual(np.abs(weights).max(), 0.04 + 1e-6)
        # That of a normal distribution cut at two standard deviations.
        self.assertAllClose(weights.std(), 0.02 * 0.8796, rtol=0.15)
        self.assertAllEqual(
            named[f"{scope}output_bias"], np.zeros(len(weights))
        )

    @parameterized.parameters(
        ({}, "at least one label"),
        ({"num_labels": 0}, "at least one label.*num_labels=0"),
        ({"labels": []}, "at least one label"),
        ({"labels": "a,b"}, "a list of names. Received: labels='a,b'"),
        ({"labels": 2}, "a list of names. Received: labels=2"),
        ({"labels": ["a", "b"], "num_labels": 3}, "num_labels=3.*: a, b"),
        ({"labels": ["a", "b", "a"]}, "different names. Received: a, b, a"),
    )
    def test_wrong_labels(self, arguments, message):
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

    def test_multiple_choice_without_choices(self):
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
        # Seven belong to the encoder.
        self.assertEqual(dropout_ids, [*range(7), dropout.HEAD_DROPOUT_ID])
        for seeds, _ in calls:
            self.assertAllEqual(seeds, calls[0][0])


class ChoiceSeedsTest(tf.test.TestCase):
    def test_each_choice_has_its_own_mask(self):
        model = task_models.BertForMultipleChoice(
            _quiet_encoder(), head_dropout_prob=0.5
        )
        tiny_layers.randomize(model)
        # Three times the same choice.
        ids = np.repeat(tiny_layers.integers(19, 2, 1, 5), 3, axis=1)
        logits = model(
            {"input_ids": ids}, training=True, dropout_seeds=_SEEDS[:2]
        )["logits"]
        self.assertLen(np.unique(logits), 6)


if __name__ == "__main__":
    tf.test.main()
