"""Tests for bert_tf.training.optimizer, its update rule, and the losses."""

import functools
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import task_models
from bert_tf.training import losses
from bert_tf.training import optimizer as optimizers
from bert_tf.training import state as training_state
from tests.support import golden_training
from tests.support import tiny_model


def _numpy_steps(name, weight, gradients, rate, decay, epsilon):
    """Returns the weight by the published formulas, in float64."""
    weight, m, v = np.float64(weight), 0.0, 0.0
    for t, gradient in enumerate(np.float64(gradients), start=1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        if name == "bert_adam":
            change = m / (np.sqrt(v) + epsilon) + decay * weight
        else:
            mean, square = m / (1 - 0.9**t), v / (1 - 0.999**t)
            change = mean / (np.sqrt(square) + epsilon) + decay * weight
        if name == "lamb" and decay:
            change *= np.linalg.norm(weight) / np.linalg.norm(change)
        weight = weight - rate * change
    return weight


class WarmupLinearDecayTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (0, 0.0),
        (1, 0.2),
        (9, 1.8),
        (10, 1.8),  # Warm-up ends: 2 * (1 - 10 / 100).
        (55, 0.9),
        (100, 0.0),
        (170, 0.0),
    )
    def test_rate_warms_up_then_decays(self, step, expected):
        schedule = optimizers.WarmupLinearDecay(2.0, 100, 10)
        self.assertAllClose(schedule(tf.constant(step, tf.int64)), expected)

    @parameterized.parameters(
        (90, 0.0), (100, 0.0), (101, 0.2), (110, 1.8), (155, 0.9), (200, 0.0)
    )
    def test_further_phase_starts_its_own_schedule(self, step, expected):
        optimizer = optimizers.build_optimizer(
            "lamb", 2.0, 200, 10, schedule_start_step=100
        )
        rate = optimizer.learning_rate_at(tf.constant(step, tf.int64))
        self.assertAllClose(rate, expected)

    @parameterized.parameters(
        (5, 1.0), (10, 2.0), (80, 2.0), (90, 1.0), (100, 0.0), (120, 0.0)
    )
    def test_wsd_warms_up_stays_and_decays(self, step, expected):
        optimizer = optimizers.build_optimizer(
            "adamw", 2.0, 100, 10, schedule="wsd"
        )
        rate = optimizer.learning_rate_at(tf.constant(step, tf.int64))
        self.assertAllClose(rate, expected)

    def test_schedule_survives_serialization(self):
        schedule = optimizers.WarmupLinearDecay(0.3, 70, 5, 20, 14)
        schedules = keras.optimizers.schedules
        again = schedules.deserialize(schedules.serialize(schedule))
        self.assertEqual(again.get_config(), schedule.get_config())


class BertOptimizerTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.first = rng.normal(size=(3, 4)).astype(np.float32)
        # Small compared with some epsilons, so that their position matters.
        self.gradients = rng.normal(size=(6, 3, 4), scale=1e-5).astype("f")

    def _variable(self, name="kernel"):
        return keras.Variable(self.first, name=name)

    @parameterized.product(
        name=["bert_adam", "adamw", "lamb"],
        variable_name=["kernel", "bias"],
        in_one_pass=[False, True],
    )
    def test_follows_the_formula(self, name, variable_name, in_one_pass):
        variable = self._variable(variable_name)
        optimizer = optimizers.build_optimizer(
            name, 0.01, weight_decay_rate=0.1, global_clipnorm=None
        )
        optimizer.build([variable])
        for step, gradient in enumerate(self.gradients):
            if in_one_pass:
                optimizer.update_weight(
                    variable,
                    tf.constant(gradient * 4),
                    scale=tf.constant(0.25),
                    learning_rate=tf.constant(0.01),
                    step=tf.constant(step, tf.int64),
                    apply=tf.constant(True),
                )
            else:
                optimizer.apply([tf.constant(gradient)], [variable])
        decay = 0.0 if variable_name == "bias" else 0.1
        epsilon = 1e-8 if name == "adamw" else 1e-6
        expected = _numpy_steps(
            name, self.first, self.gradients, 0.01, decay, epsilon
        )
        self.assertAllClose(variable, expected, rtol=2e-6, atol=2e-6)

    def test_a_step_that_is_not_applied_changes_nothing(self):
        variable = self._variable()
        optimizer = optimizers.build_optimizer("bert_adam", 0.01)
        optimizer.build([variable])
        optimizer.update_weight(
            variable,
            tf.constant(self.gradients[0] * np.inf),
            scale=tf.constant(np.nan, tf.float32),
            learning_rate=tf.constant(0.01),
            step=tf.constant(0, tf.int64),
            apply=tf.constant(False),
        )
        self.assertAllEqual(variable, self.first)
        for slot in optimizer.slots(variable):
            self.assertAllEqual(slot, np.zeros_like(self.first))

    def test_lamb_handles_zero_weights_and_gradients(self):
        for weight, gradient in ((0.0, 1.0), (0.0, 0.0)):
            variable = keras.Variable([weight] * 3, name="kernel")
            optimizer = optimizers.build_optimizer("lamb", 0.5)
            optimizer.apply([tf.constant([gradient] * 3)], [variable])
            # The trust ratio is 1: Adam's first update is the sign of the
            # gradient, whatever the clipped norm.
            self.assertAllClose(variable, [-0.5 * gradient] * 3, atol=1e-4)

    @parameterized.parameters((0.5, 1.0), (1.0, 1.0), (8.0, 0.125))
    def test_clips_by_global_norm(self, norm, expected):
        factor = optimizers.clip_factor(tf.constant(norm), 1.0)
        self.assertAllClose(factor, expected)
        self.assertAllClose(
            optimizers.clip_factor(tf.constant(norm), None), 1.0
        )

    @parameterized.parameters(
        (bert_model.BertForPretraining,),
        (task_models.BertForClassification, 3),
        (task_models.BertForTagging, 3),
        (task_models.BertForQuestionAnswering,),
        (task_models.BertForMultipleChoice,),
    )
    def test_decays_only_kernels_and_tables(self, cls, *arguments):
        model = cls(tiny_model.CONFIG, *arguments)
        optimizer = optimizers.build_optimizer("bert_adam", 0.01)
        optimizer.build(model.trainable_variables)
        named = bert_model.named_variables(model).items()
        decayed, others = (
            {
                name.split("/")[-1]
                for name, variable in named
                if bool(optimizer.rule_for(variable).weight_decay_rate) is flag
            }
            for flag in (True, False)
        )
        self.assertEqual(
            decayed,
            {
                "kernel",
                "word_embeddings",
                "token_type_embeddings",
                "position_embeddings",
                "output_weights",
            },
        )
        self.assertEqual(others, {"bias", "beta", "gamma", "output_bias"})

    def test_optimizer_survives_serialization(self):
        optimizer = optimizers.build_optimizer(
            "lamb", 0.1, 40, 5, weight_decay_rate=0.2
        )
        again = keras.optimizers.deserialize(
            keras.optimizers.serialize(optimizer)
        )
        self.assertEqual(again.get_config(), optimizer.get_config())
        self.assertEqual(again.rule, optimizer.rule)

    def test_refuses_unknown_arguments(self):
        with self.assertRaisesRegex(UserError, "'sgd'"):
            optimizers.build_optimizer("sgd")
        with self.assertRaisesRegex(UserError, "num_warmup_steps=3"):
            optimizers.build_optimizer(num_warmup_steps=3)

    def test_warns_of_a_warm_up_beyond_the_schedule(self):
        build = functools.partial(optimizers.build_optimizer, "lamb", 1.0, 50)
        with self.assertNoLogs(level="WARNING"):
            build(50)
        with self.assertLogs(level="WARNING") as logs:
            build(50, schedule_start_step=1)
        self.assertRegex(logs.output[0], "=50 .* 49 steps.* 0.98 .* 1\\.$")


class GoldenTrajectoryTest(tf.test.TestCase):
    """The golden, with gradients applied as Keras does; see also step_test."""

    def _train(self, model, optimizer, num_steps):
        batch = golden_training.read_batch()
        objective = losses.PretrainingObjective()
        counts = objective.count(batch)
        inputs = {
            name: batch[name]
            for name in ("input_ids", "input_mask", "segment_ids")
        } | {"masked_lm_positions": batch["masked_lm_positions"]}

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                sums = objective.compute_sums(model(inputs), batch)
                loss = objective.normalize(sums, counts)["loss"]
            variables = model.trainable_variables
            optimizer.apply(
                tape.gradient(loss, [v.value for v in variables]), variables
            )
            return loss

        return [float(step()) for _ in range(num_steps)]

    @pytest.mark.slow
    def test_25_steps_match_the_original(self):
        model, optimizer = golden_training.build()
        expected = golden_training.read_trajectory()["losses_before_each_step"]

        received = self._train(model, optimizer, 25)

        self.assertAllClose(received, expected, rtol=1e-4, atol=0)
        golden_training.assert_same_state(
            self,
            training_state.read(bert_model.named_variables(model), optimizer),
            golden_training.read_checkpoint("after_25_steps.ckpt"),
        )


_OBJECTIVE = losses.PretrainingObjective()


def _numpy_losses(logits, labels):
    logits = np.float64(logits)
    chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


class LossesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.batch = {
            "masked_lm_ids": rng.integers(0, 11, (5, 3)).astype(np.int32),
            # Rows have 0 to 3 predictions, so a mean of means would fail.
            "masked_lm_weights": np.float32(
                [[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]]
            ),
            # Rows have different lengths.
            "input_mask": np.int32(np.arange(6) < [[6], [2], [4], [1], [5]]),
            "next_sentence_labels": np.int32([[0], [1], [1], [0], [1]]),
        }
        self.outputs = {
            "masked_lm_logits": rng.normal(size=(5, 3, 11)).astype(np.float32),
            "next_sentence_logits": rng.normal(size=(5, 2)).astype(np.float32),
        }

    def _sums(self, rows=slice(None), **options):
        outputs = {name: x[rows] for name, x in self.outputs.items()}
        batch = {name: x[rows] for name, x in self.batch.items()}
        objective = losses.PretrainingObjective(**options)
        return objective.compute_sums(outputs, batch)

    def test_losses_and_accuracies_match_numpy(self):
        weights = self.batch["masked_lm_weights"]
        labels = self.batch["masked_lm_ids"]
        logits = self.outputs["masked_lm_logits"]
        masked_lm = (_numpy_losses(logits, labels) * weights).sum()
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        next_labels = self.batch["next_sentence_labels"][:, 0]
        next_logits = self.outputs["next_sentence_logits"]
        next_sentence = _numpy_losses(next_logits, next_labels).sum()

        values = _OBJECTIVE.normalize(self._sums(), tf.constant([9.0, 5.0]))

        self.assertAllClose(
            values,
            {
                "loss": masked_lm / (9 + 1e-5) + next_sentence / 5,
                "masked_lm_loss": masked_lm / (9 + 1e-5),
                "masked_lm_accuracy": correct / 9,
                "next_sentence_loss": next_sentence / 5,
                "next_sentence_accuracy": np.mean(
                    next_logits.argmax(-1) == next_labels
                ),
            },
        )

    @parameterized.parameters(True, False)
    def test_masked_lm_gradient_matches_numpy(self, overwrites):
        labels = self.batch["masked_lm_ids"]
        weights = self.batch["masked_lm_weights"]
        logits = tf.constant(self.outputs["masked_lm_logits"])
        with (
            mock.patch.object(
                losses, "overwrites_logits", return_value=overwrites
            ),
            tf.GradientTape() as tape,
        ):
            tape.watch(logits)
            sums = losses.prediction_sums("masked_lm", logits, labels, weights)
        powers = np.exp(np.float64(logits))
        expected = powers / powers.sum(-1, keepdims=True) - np.eye(11)[labels]
        self.assertAllClose(
            tape.gradient(sums["masked_lm_sum"], logits),
            expected * weights[..., None],
        )

    def test_uneven_parts_add_up_to_the_whole(self):
        parts = [
            _OBJECTIVE.normalize(self._sums(rows), tf.constant([9.0, 5.0]))
            for rows in (slice(0, 1), slice(1, 4), slice(4, 5))
        ]
        whole = _OBJECTIVE.normalize(self._sums(), tf.constant([9.0, 5.0]))

        added = {name: sum(part[name] for part in parts) for name in whole}
        self.assertAllClose(added, whole)

    def test_without_masked_tokens_the_loss_is_0(self):
        self.batch["masked_lm_weights"] *= 0
        objective = losses.PretrainingObjective(use_next_sentence=False)
        values = objective.normalize(
            self._sums(use_next_sentence=False), tf.constant([0.0, 5.0])
        )
        self.assertEqual(
            {name: float(value) for name, value in values.items()},
            {"loss": 0, "masked_lm_loss": 0, "masked_lm_accuracy": 0},
        )

    def test_blank_rows_do_not_count(self):
        self.batch["input_mask"][[2, 4]] = 0
        self.batch["masked_lm_weights"][[2, 4]] = 0
        real = [0, 1, 3]
        self.assertAllClose(self._sums(), self._sums(real))
        counts = _OBJECTIVE.count(self.batch)
        weights = self.batch["masked_lm_weights"].sum()
        self.assertAllClose(counts, [weights, 3])


if __name__ == "__main__":
    tf.test.main()
