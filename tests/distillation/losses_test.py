"""Tests for bert_tf.distillation.losses, against numpy."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import special
from scipy import stats

from bert_tf.distillation import losses as distillation_losses
from bert_tf.tasks.task import NO_LOGIT
from bert_tf.tasks.task import SoftTargets


def _pair(form, *logits):
    return [SoftTargets(tf.constant(x, tf.float32), form) for x in logits]


class SoftTargetsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.student = rng.normal(size=(3, 5, 7), scale=2)
        self.teacher = rng.normal(size=(3, 5, 7), scale=2)

    def _losses(self, form, temperature):
        return distillation_losses.soft_target_losses(
            *_pair(form, self.student, self.teacher), temperature
        )

    @parameterized.parameters(1.0, 2.0, 10.0)
    def test_a_choice_is_the_divergence_of_softened_softmaxes(self, heat):
        expected = heat**2 * stats.entropy(
            special.softmax(self.teacher / heat, -1),
            special.softmax(self.student / heat, -1),
            axis=-1,
        )
        self.assertAllClose(self._losses("choice", heat), expected, rtol=1e-4)

    @parameterized.parameters(1.0, 4.0)
    def test_yes_or_no_is_the_mean_over_sigmoids(self, heat):
        p = special.expit(self.teacher / heat)
        q = special.expit(self.student / heat)
        divergence = special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q)
        self.assertAllClose(
            self._losses("yes_or_no", heat),
            heat**2 * divergence.mean(-1),
            rtol=1e-4,
        )

    def test_scores_know_no_temperature(self):
        self.assertAllClose(
            self._losses("score", 3.0),
            np.square(self.student - self.teacher).mean(-1),
        )

    def test_gradients_are_those_of_the_cross_entropy_of_the_source(self):
        """Hinton et al., equation 2: (q - p) / T, here times T squared."""
        heat = 3.0
        student, teacher = _pair("choice", self.student, self.teacher)
        with tf.GradientTape() as tape:
            tape.watch(student.logits)
            loss = tf.reduce_sum(
                distillation_losses.soft_target_losses(student, teacher, heat)
            )
        q = special.softmax(self.student / heat, -1)
        p = special.softmax(self.teacher / heat, -1)
        self.assertAllClose(
            tape.gradient(loss, student.logits), heat * (q - p), atol=1e-5
        )

    def test_what_is_no_alternative_takes_no_part(self):
        is_there = np.arange(7) < np.array([7, 4, 1])[:, None, None]
        student, teacher = _pair(
            "choice",
            np.where(is_there, self.student, NO_LOGIT),
            np.where(is_there, self.teacher, NO_LOGIT),
        )
        with tf.GradientTape() as tape:
            tape.watch(student.logits)
            losses = distillation_losses.soft_target_losses(
                student, teacher, 100.0
            )
        gradient = tape.gradient(losses, student.logits)
        for row, count in enumerate((7, 4, 1)):
            few = _pair(
                "choice",
                self.student[row, :, :count],
                self.teacher[row, :, :count],
            )
            self.assertAllClose(
                losses[row],
                distillation_losses.soft_target_losses(*few, 100.0),
                atol=1e-4,
            )
            self.assertAllEqual(
                gradient[row, :, count:], np.zeros([5, 7 - count])
            )

    @parameterized.parameters("choice", "yes_or_no", "score")
    def test_what_is_learnt_is_no_loss(self, form):
        self.student = self.teacher
        self.assertAllClose(self._losses(form, 2.0), np.zeros([3, 5]))


class HiddenStatesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        self.student = rng.normal(size=(2, 3, 5, 8))
        self.teacher = rng.normal(size=(2, 3, 5, 8))

    def _losses(self, form):
        return distillation_losses.hidden_losses(
            tf.constant(self.student, tf.float32),
            tf.constant(self.teacher, tf.bfloat16),
            form,
        )

    def test_mean_squares(self):
        self.assertAllClose(
            self._losses("mse"),
            np.square(self.student - self.teacher).mean(-1),
            rtol=0.03,
        )

    def test_cosines(self):
        dot = (self.student * self.teacher).sum(-1)
        lengths = np.linalg.norm(self.student, axis=-1) * np.linalg.norm(
            self.teacher, axis=-1
        )
        self.assertAllClose(
            self._losses("cosine"), 1 - dot / lengths, atol=0.01
        )
        self.student[0, 0, 0] = 0.0
        self.assertAllClose(self._losses("cosine")[0, 0, 0], 1.0)


class AttentionTest(tf.test.TestCase):
    def test_divergence_of_heads(self):
        """Of [examples, heads, pieces, pieces]; the last piece is padding."""
        rng = np.random.default_rng(2)
        logits = rng.normal(size=(2, 3, 4, 5, 5)) - [0, 0, 0, 0, 1e4]
        student, teacher = special.softmax(logits, -1)
        expected = stats.entropy(
            teacher[..., :4], student[..., :4], axis=-1
        ).mean(axis=1)
        losses = distillation_losses.attention_losses(
            tf.constant(student, tf.float32), tf.constant(teacher, tf.float32)
        )
        self.assertAllClose(losses, expected, rtol=1e-5)
        same = distillation_losses.attention_losses(
            tf.constant(teacher, tf.bfloat16), tf.constant(teacher, tf.bfloat16)
        )
        self.assertAllClose(same, np.zeros([3, 5]))


if __name__ == "__main__":
    tf.test.main()
