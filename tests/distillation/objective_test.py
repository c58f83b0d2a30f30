"""Tests for bert_tf.distillation.objective, against numpy."""

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import special
from scipy import stats

from bert_tf.distillation import objective as objectives
from bert_tf.distillation.objective import DistillationObjective
from bert_tf.distillation.objective import LayerPairs
from bert_tf.distillation.objective import Weights
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import NO_LOGIT
from bert_tf.tasks.task import SoftTargets

_B, _S, _H, _I = 4, 5, 6, 8
_HEAT = 2.0
# One full row, rows of unequal lengths, and one with a single token.
_MASK = (np.arange(_S) < np.array([5, 3, 1, 4])[:, None]).astype(np.int32)
_NO_PAIRS = LayerPairs((), None, 0.02)


def _weights(soft=0.3, hidden=0.7, attention=0.0, form="mse"):
    return Weights(soft, hidden, attention, _HEAT, form)


def _softmax_kl(teacher, student):
    return _HEAT**2 * stats.entropy(
        special.softmax(teacher / _HEAT, -1),
        special.softmax(student / _HEAT, -1),
        axis=-1,
    )


class DistillationObjectiveTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(7)
        self.calls = []

    def draw(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def _minimize(
        self, task, weights, student, teacher, batch, pairs=_NO_PAIRS
    ):
        """Returns the losses, as the training loop computes them."""

        def teach(inputs, training):
            self.calls.append((set(inputs), training))
            return {
                k: tf.nest.map_structure(tf.constant, v)
                for k, v in teacher.items()
            }

        objective = DistillationObjective(task, teach, weights, pairs)
        rows = {
            "input_ids": np.ones_like(_MASK),
            "input_mask": _MASK,
            "segment_ids": np.zeros_like(_MASK),
        } | batch
        rows = {name: tf.constant(x) for name, x in rows.items()}
        rows = objective.add_targets(rows)
        student = {
            k: tf.nest.map_structure(tf.constant, v) for k, v in student.items()
        }
        sums = objective.compute_sums(student, rows)
        self.assertEqual(tuple(sums), objective.sums)
        values = objective.normalize(sums, objective.count(rows))
        self.assertEqual(tuple(values), objective.metrics)
        return {name: float(value) for name, value in values.items()}

    def _classification(self, **values):
        return ClassificationTask(
            **{
                "name": "custom",
                "labels": ("a", "b", "c"),
                "metric_names": ("accuracy",),
            }
            | values
        )

    @parameterized.parameters(0.0, 0.3, 1.0)
    def test_labels_and_soft_targets_share_the_loss(self, soft):
        task = self._classification(class_weights=(1.0, 2.0, 0.5))
        student, teacher = self.draw(_B, 3), self.draw(_B, 3)
        labels = np.int32([0, 1, 2, 1])
        # The third row has no label, so its 2 means nothing.
        is_labeled = np.float32([1, 1, 0, 1])
        values = self._minimize(
            task,
            _weights(soft, 0.0),
            {"logits": student},
            {"logits": teacher},
            {"label_ids": labels, "is_labeled": is_labeled},
        )
        losses = -special.log_softmax(student, -1)[range(_B), labels]
        label = np.average(losses, weights=[1, 2, 0, 2])
        soft_target = _softmax_kl(teacher, student).mean()
        expected = {
            "loss": (1 - soft) * label + soft * soft_target,
            "label_loss": label,
        }
        if soft:
            expected["soft_target_loss"] = soft_target
        self.assertAllClose(values, expected, rtol=1e-5)
        inputs = {"input_ids", "input_mask", "segment_ids"}
        self.assertEqual(self.calls, [(inputs, False)] if soft else [])

    def test_labels_with_weight_0_may_be_nan(self):
        values = self._minimize(
            self._classification(problem_type="regression", labels=None),
            _weights(1.0, 0.0),
            {"logits": self.draw(_B, 1)},
            {"logits": self.draw(_B, 1)},
            {"label_ids": np.float32([np.nan] * _B)},
        )
        self.assertAllEqual(np.isfinite([*values.values()]), [1, 0, 1])

    @parameterized.parameters("multi_label", "regression")
    def test_multi_label_and_regression(self, problem_type):
        task = self._classification(problem_type=problem_type)
        student, teacher = self.draw(_B, 3), self.draw(_B, 3)
        labels = np.float32(self.rng.random([_B, 3]) > 0.5)
        if problem_type == "regression":
            student, teacher, labels = (
                x[:, :1] for x in (student, teacher, labels)
            )
            labels = labels[:, 0]
            expected = np.square(student - teacher).mean()
        else:
            p, q = (special.expit(x / _HEAT) for x in (teacher, student))
            expected = _HEAT**2 * np.mean(
                special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q)
            )
        values = self._minimize(
            task,
            _weights(1.0, 0.0),
            {"logits": student},
            {"logits": teacher},
            {"label_ids": labels},
        )
        self.assertAllClose(values["loss"], expected, rtol=1e-4)

    def test_words_of_a_tagger(self):
        task = TaggingTask(name="custom", labels=("O", "B-X"))
        student, teacher = self.draw(_B, _S, 2), self.draw(_B, _S, 2)
        words = np.float32(_MASK * (self.rng.random(_MASK.shape) > 0.4))
        is_labeled = np.float32([1, 0, 1, 1])
        labels = np.int32(self.rng.integers(0, 2, _MASK.shape))
        values = self._minimize(
            task,
            _weights(0.5, 0.0),
            {"logits": student},
            {"logits": teacher},
            {
                "label_ids": labels,
                "label_weights": words,
                "is_labeled": is_labeled,
            },
        )
        losses = -np.take_along_axis(
            special.log_softmax(student, -1), labels[..., None], -1
        )[..., 0]
        self.assertAllClose(
            [values["label_loss"], values["soft_target_loss"]],
            [
                np.average(losses, weights=words * is_labeled[:, None]),
                np.average(_softmax_kl(teacher, student), weights=words),
            ],
            rtol=1e-5,
        )

    def test_starts_and_ends_of_answers(self):
        names = ("start_logits", "end_logits")
        student, teacher = (
            {name: self.draw(_B, _S) for name in names} for _ in range(2)
        )
        positions = np.int32([4, 0, 0, 2])
        values = self._minimize(
            SquadTask(),
            _weights(1.0, 0.0),
            student,
            teacher,
            {"start_positions": positions, "end_positions": positions},
        )
        expected = [
            _softmax_kl(teacher[name][row, :count], student[name][row, :count])
            for name in names
            for row, count in enumerate(_MASK.sum(-1))
        ]
        self.assertAllClose(values["loss"], np.mean(expected), rtol=1e-5)

    def test_multiple_choice_with_hidden_states(self):
        """Shape: [examples, choices, length]; example 2 has one choice."""
        task = MultipleChoiceTask(name="custom", columns=Columns(("choices",)))
        mask = _MASK.reshape(2, 2, _S) * np.int32([[[1], [1]], [[1], [0]]])
        student, teacher = self.draw(2, 2), self.draw(2, 2)
        mine = [self.draw(2, 2, _S, _H) for _ in range(2)]
        theirs = [self.draw(2, 2, _S, _H) for _ in range(3)]
        values = self._minimize(
            task,
            _weights(1.0, 0.5),
            {
                "logits": student,
                "embedding_output": mine[0],
                "encoder_outputs": mine[1:],
            },
            {
                "logits": teacher,
                "embedding_output": theirs[0],
                "encoder_outputs": theirs[1:],
            },
            {
                "input_ids": mask,
                "input_mask": mask,
                "segment_ids": mask,
                "label_ids": np.int32([0, 0]),
            },
            LayerPairs((2,), (_H, _H), 0.02),
        )
        squares = [
            np.square(mine[0] - theirs[0]).mean(-1),
            np.square(mine[1] - theirs[2]).mean(-1),
        ]
        hidden = np.average(np.mean(squares, axis=0), weights=mask)
        soft = [_softmax_kl(teacher[0], student[0]), 0.0]
        self.assertAllClose(
            [values["soft_target_loss"], values["hidden_loss"], values["loss"]],
            [np.mean(soft), hidden, np.mean(soft) + 0.5 * hidden],
            rtol=1e-5,
        )

    @parameterized.parameters("mse", "cosine")
    def test_hidden_states_of_another_width(self, form):
        keras.utils.set_random_seed(0)
        states = LayerPairs((2, 4), (_H, _I), 0.3)
        ((name, matrix),) = states.variables.items()
        self.assertEqual(name, "distillation/hidden_projection/kernel")
        mine = [self.draw(_B, _S, _H) for _ in range(3)]
        theirs = [self.draw(_B, _S, _I) for _ in range(5)]
        values = self._minimize(
            self._classification(),
            _weights(0.0, 0.7, form=form),
            {
                "logits": self.draw(_B, 3),
                "embedding_output": mine[0],
                "encoder_outputs": mine[1:],
            },
            {"embedding_output": theirs[0], "encoder_outputs": theirs[1:]},
            {"label_ids": np.zeros([_B], np.int32)},
            states,
        )
        losses = []
        for one, other in zip(
            mine, (theirs[i] for i in (0, 2, 4)), strict=True
        ):
            projected = one @ matrix.numpy()
            if form == "mse":
                losses.append(np.square(projected - other).mean(-1))
            else:
                dot = (projected * other).sum(-1)
                dot /= np.linalg.norm(projected, axis=-1)
                losses.append(1 - dot / np.linalg.norm(other, axis=-1))
        hidden = np.average(np.mean(losses, axis=0), weights=_MASK)
        self.assertAllClose(
            [values["hidden_loss"], values["loss"]],
            [hidden, values["label_loss"] + 0.7 * hidden],
            rtol=1e-5,
        )

    def test_attention_of_each_head(self):
        def draw():
            return special.softmax(self.draw(_B, 2, _S, _S), -1)

        mine, theirs = [draw(), draw()], [draw() for _ in range(3)]
        values = self._minimize(
            self._classification(),
            _weights(0.0, 0.0, 0.4),
            {"logits": self.draw(_B, 3), "attention_probs": mine},
            {"attention_probs": theirs},
            {"label_ids": np.zeros([_B], np.int32)},
            LayerPairs((1, 3), None, 0.02),
        )
        divergences = [
            stats.entropy(theirs[other], mine[one], axis=-1).mean(1)
            for one, other in ((0, 0), (1, 2))
        ]
        attention = np.average(np.mean(divergences, axis=0), weights=_MASK)
        self.assertAllClose(
            [values["attention_loss"], values["loss"]],
            [attention, values["label_loss"] + 0.4 * attention],
            rtol=1e-5,
        )

    def test_no_gradient_reaches_the_teacher(self):
        teacher = tf.Variable(self.draw(_B, 3))
        objective = DistillationObjective(
            self._classification(),
            lambda inputs, training: {"logits": teacher * 1.0},
            _weights(1.0, 0.0),
            _NO_PAIRS,
        )
        rows = {name: tf.constant(_MASK) for name in objective.inputs}
        rows["label_ids"] = tf.zeros([_B], tf.int32)
        with tf.GradientTape() as tape:
            rows = objective.add_targets(rows)
            sums = objective.compute_sums(
                {"logits": tf.constant(self.draw(_B, 3))}, rows
            )
        self.assertIsNone(tape.gradient(sums["soft_target_sum"], teacher))


def _soft_targets(form, *logits):
    return [SoftTargets(tf.constant(x, tf.float32), form) for x in logits]


class SoftTargetsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.student = rng.normal(size=(3, 5, 7), scale=2)
        self.teacher = rng.normal(size=(3, 5, 7), scale=2)

    def _losses(self, form, temperature):
        return objectives.soft_target_losses(
            *_soft_targets(form, self.student, self.teacher), temperature
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

    def test_scores_ignore_the_temperature(self):
        self.assertAllClose(
            self._losses("score", 3.0),
            np.square(self.student - self.teacher).mean(-1),
        )

    def test_gradients_are_those_of_the_cross_entropy_of_the_source(self):
        """Hinton et al., equation 2: (q - p) / T, here times T squared."""
        heat = 3.0
        student, teacher = _soft_targets("choice", self.student, self.teacher)
        with tf.GradientTape() as tape:
            tape.watch(student.logits)
            loss = tf.reduce_sum(
                objectives.soft_target_losses(student, teacher, heat)
            )
        q = special.softmax(self.student / heat, -1)
        p = special.softmax(self.teacher / heat, -1)
        self.assertAllClose(
            tape.gradient(loss, student.logits), heat * (q - p), atol=1e-5
        )

    def test_masked_alternatives_do_not_count(self):
        is_valid = np.arange(7) < np.array([7, 4, 1])[:, None, None]
        student, teacher = _soft_targets(
            "choice",
            np.where(is_valid, self.student, NO_LOGIT),
            np.where(is_valid, self.teacher, NO_LOGIT),
        )
        with tf.GradientTape() as tape:
            tape.watch(student.logits)
            losses = objectives.soft_target_losses(student, teacher, 100.0)
        gradient = tape.gradient(losses, student.logits)
        for row, count in enumerate((7, 4, 1)):
            unmasked = _soft_targets(
                "choice",
                self.student[row, :, :count],
                self.teacher[row, :, :count],
            )
            self.assertAllClose(
                losses[row],
                objectives.soft_target_losses(*unmasked, 100.0),
                atol=1e-4,
            )
            self.assertAllEqual(
                gradient[row, :, count:], np.zeros([5, 7 - count])
            )

    @parameterized.parameters("choice", "yes_or_no", "score")
    def test_equal_logits_have_no_loss(self, form):
        self.student = self.teacher
        self.assertAllClose(self._losses(form, 2.0), np.zeros([3, 5]))


class HiddenStatesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        self.student = rng.normal(size=(2, 3, 5, 8))
        self.teacher = rng.normal(size=(2, 3, 5, 8))

    def _losses(self, form):
        return objectives.hidden_losses(
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
        """Shape: [examples, heads, tokens, tokens]; the last is padding."""
        rng = np.random.default_rng(2)
        logits = rng.normal(size=(2, 3, 4, 5, 5)) - [0, 0, 0, 0, 1e4]
        student, teacher = special.softmax(logits, -1)
        expected = stats.entropy(
            teacher[..., :4], student[..., :4], axis=-1
        ).mean(axis=1)
        losses = objectives.attention_losses(
            tf.constant(student, tf.float32), tf.constant(teacher, tf.float32)
        )
        self.assertAllClose(losses, expected, rtol=1e-5)
        same = objectives.attention_losses(
            tf.constant(teacher, tf.bfloat16), tf.constant(teacher, tf.bfloat16)
        )
        self.assertAllClose(same, np.zeros([3, 5]))


if __name__ == "__main__":
    tf.test.main()
