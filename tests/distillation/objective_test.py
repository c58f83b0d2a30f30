"""Tests for bert_tf.distillation.objective, against numpy."""

import types

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import special
from scipy import stats

from bert_tf.distillation.objective import DistillationObjective
from bert_tf.distillation.objective import build_projection
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from tests.support import tiny_exports

_B, _S, _H, _I = 4, 5, 6, 8
_HEAT = 2.0
# A full row, two shorter rows, and a row with a single token.
_MASK = (np.arange(_S) < np.array([5, 3, 1, 4])[:, None]).astype(np.int32)


def _weights(soft=0.3, hidden=0.7, attention=0.0, form="mse"):
    return types.SimpleNamespace(
        distillation_weight=soft,
        hidden_weight=hidden,
        attention_weight=attention,
        temperature=_HEAT,
        hidden_loss=form,
    )


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
        self, task, weights, student, teacher, batch, layers=(), projection=None
    ):
        """Returns the losses, as the training loop computes them."""

        def teach(inputs, training):
            self.calls.append((set(inputs), training))
            return {
                k: tf.nest.map_structure(tf.constant, v)
                for k, v in teacher.items()
            }

        objective = DistillationObjective(
            task, teach, weights, layers, projection
        )
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

    @parameterized.parameters(0.0, 0.3, 1.0)
    def test_labels_and_soft_targets_share_the_loss(self, soft):
        task = tiny_exports.classification(class_weights=(1.0, 2.0, 0.5))
        student, teacher = self.draw(_B, 3), self.draw(_B, 3)
        labels = np.int32([0, 1, 2, 1])
        # The third row has no label, so its 2 must not count.
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
            tiny_exports.classification(problem_type="regression", labels=None),
            _weights(1.0, 0.0),
            {"logits": self.draw(_B, 1)},
            {"logits": self.draw(_B, 1)},
            {"label_ids": np.float32([np.nan] * _B)},
        )
        self.assertAllEqual(np.isfinite([*values.values()]), [1, 0, 1])

    @parameterized.parameters("multi_label", "regression")
    def test_multi_label_and_regression_losses_match_numpy(self, problem_type):
        task = tiny_exports.classification(problem_type=problem_type)
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

    def test_taggers_average_losses_over_words(self):
        task = tiny_exports.tagging(labels=("O", "B-X"))
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

    def test_answers_average_losses_of_starts_and_ends(self):
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

    def test_multiple_choice_ignores_missing_choices(self):
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
            (2,),
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
    def test_hidden_states_of_another_width_are_projected(self, form):
        keras.utils.set_random_seed(0)
        projection = build_projection(_H, _I, 0.3)
        matrix = projection.kernel
        self.assertEqual(matrix.path, "distillation/hidden_projection/kernel")
        mine = [self.draw(_B, _S, _H) for _ in range(3)]
        theirs = [tf.cast(self.draw(_B, _S, _I), tf.bfloat16) for _ in range(5)]
        mine[0][1, 1] = 0.0
        values = self._minimize(
            tiny_exports.classification(),
            _weights(0.0, 0.7, form=form),
            {
                "logits": self.draw(_B, 3),
                "embedding_output": mine[0],
                "encoder_outputs": mine[1:],
            },
            {"embedding_output": theirs[0], "encoder_outputs": theirs[1:]},
            {"label_ids": np.zeros([_B], np.int32)},
            (2, 4),
            projection,
        )
        losses = []
        for one, number in zip(mine, (0, 2, 4), strict=True):
            other = np.float64(theirs[number])
            projected = one @ matrix.numpy()
            if form == "mse":
                losses.append(np.square(projected - other).mean(-1))
            else:
                dot = (projected * other).sum(-1)
                # The floor avoids a division by 0 for a state of zeros.
                dot /= np.maximum(np.linalg.norm(projected, axis=-1), 1e-9)
                losses.append(1 - dot / np.linalg.norm(other, axis=-1))
        hidden = np.average(np.mean(losses, axis=0), weights=_MASK)
        self.assertAllClose(
            [values["hidden_loss"], values["loss"]],
            [hidden, values["label_loss"] + 0.7 * hidden],
            rtol=1e-5,
        )

    def test_attention_loss_averages_divergences_of_heads(self):
        def draw():
            # The last token has the probability 0, which must not give NaN.
            logits = self.draw(_B, 2, _S, _S) - [0, 0, 0, 0, 1e4]
            return tf.cast(special.softmax(logits, -1), tf.bfloat16)

        mine, theirs = [draw(), draw()], [draw() for _ in range(3)]
        values = self._minimize(
            tiny_exports.classification(),
            _weights(0.0, 0.0, 0.4),
            {"logits": self.draw(_B, 3), "attention_probs": mine},
            {"attention_probs": theirs},
            {"label_ids": np.zeros([_B], np.int32)},
            (1, 3),
        )
        divergences = [
            special.rel_entr(np.float64(theirs[other]), np.float64(mine[one]))
            .sum(-1)
            .mean(1)
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
            tiny_exports.classification(),
            lambda inputs, training: {"logits": teacher * 1.0},
            _weights(1.0, 0.0),
        )
        rows = {name: tf.constant(_MASK) for name in objective.inputs}
        rows["label_ids"] = tf.zeros([_B], tf.int32)
        with tf.GradientTape() as tape:
            rows = objective.add_targets(rows)
            sums = objective.compute_sums(
                {"logits": tf.constant(self.draw(_B, 3))}, rows
            )
        self.assertIsNone(tape.gradient(sums["soft_target_sum"], teacher))


if __name__ == "__main__":
    tf.test.main()
