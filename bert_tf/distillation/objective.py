"""The distillation objective: labels, soft targets, hidden states, attention.

Sources:
  Hinton et al., 2015, https://arxiv.org/abs/1503.02531: soft targets.
  Sanh et al., 2019, https://arxiv.org/abs/1910.01108 (DistilBERT): cosines.
  Jiao et al., 2020, https://arxiv.org/abs/1909.10351 (TinyBERT): mean squares.
  Sun et al., 2020, https://arxiv.org/abs/2004.02984 (MobileBERT): attention.

Shapes:
  B: batch size.
  K: number of logits of an example or word.
  N: attention heads.
  S: sequence length.
  H: hidden size of the student.
  I: hidden size of the teacher.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.distribute import batches as batches_lib
from bert_tf.features import INPUT_MASK
from bert_tf.flags.options import Flags
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import SoftTargets
from bert_tf.tasks.task import Task
from bert_tf.training import losses as label_losses

# Feature <float32>[B]: 1 for a labeled row, else 0; absent if all are labeled.
IS_LABELED = "is_labeled"
# The key under which a step's rows hold the teacher's outputs.
_TEACHER = "teacher"
_SCOPE = "distillation"
# Minimum squared norm of a state; a state of zeros would otherwise give NaN.
_MIN_LENGTH = 1e-12
# Minimum of attention probabilities in the loss, as log(0) is infinite.
_MIN_PROBABILITY = 1e-9


class LayerPairs:
    """Pairs the layers of a student with layers of its teacher.

    If the widths differ, one matrix projects the states of all student layers
    to the teacher's width (W_h in equation 8 of Jiao et al.).

    Args:
      teacher_layers: For each student layer, a teacher layer, counted from 1.
      widths: The sizes H and I; None if the loss compares no hidden states.
      stddev: Standard deviation of the projection matrix's initial values.

    Attributes:
      variables: The projection matrix, by path; empty without a projection.
    """

    def __init__(
        self,
        teacher_layers: Sequence[int],
        widths: tuple[int, int] | None,
        stddev: float,
    ) -> None:
        self._teacher_layers = tuple(teacher_layers)
        self._projection = None
        self.variables: dict[str, keras.Variable] = {}
        if widths is None or widths[0] == widths[1]:
            return
        self._projection = keras.layers.Dense(
            widths[1],
            use_bias=False,
            kernel_initializer=keras.initializers.TruncatedNormal(
                stddev=stddev
            ),
            dtype="float32",
            name="hidden_projection",
        )
        with keras.name_scope(_SCOPE):
            self._projection.build((None, widths[0]))
        kernel = self._projection.kernel
        self.variables[kernel.path] = kernel

    def hidden_states(
        self, student: Mapping[str, Any], teacher: Mapping[str, Any]
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns (student, teacher) states by layer, <float>[B, ..., S, I]."""
        mine = [student["embedding_output"], *student["encoder_outputs"]]
        theirs = [
            teacher["embedding_output"],
            *self._choose(teacher["encoder_outputs"]),
        ]
        if self._projection is not None:
            mine = [self._projection(tf.cast(x, tf.float32)) for x in mine]
        return list(zip(mine, theirs, strict=True))

    def attention(
        self, student: Mapping[str, Any], teacher: Mapping[str, Any]
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns (student, teacher) attention, <float>[B, ..., N, S, S]."""
        theirs = self._choose(teacher["attention_probs"])
        return list(zip(student["attention_probs"], theirs, strict=True))

    def _choose(self, layers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [layers[number - 1] for number in self._teacher_layers]


class DistillationObjective(label_losses.Objective):
    """The objective that a student minimizes.

    loss = (1 - soft) * label_loss + soft * soft_target_loss
           + hidden * hidden_loss + attention * attention_loss

    Flags set the weights `soft`, `hidden` and `attention`. The label loss is a
    mean over the labeled examples or words of a step, the soft-target loss a
    mean over all examples or words. The attention loss is a mean over tokens
    and layers; so is the hidden loss, with the embeddings as layer 0. Losses
    with weight 0 are not computed, except the label loss, which is always
    reported.

    Args:
      teacher: The model that computes the teacher's outputs.
      flags: The flags of run/distill.py.

    Attributes:
      variables: The weights to train in addition to the student's, by path.
    """

    inputs = task_prediction.MODEL_INPUTS

    def __init__(
        self,
        task: Task,
        teacher: keras.Model,
        flags: Flags,
        layer_pairs: LayerPairs,
    ) -> None:
        self._task = task
        self._teacher = teacher
        self._flags = flags
        self._layer_pairs = layer_pairs
        self.variables: Mapping[str, keras.Variable] = layer_pairs.variables
        parts = {
            "soft_target": flags.distillation_weight,
            "hidden": flags.hidden_weight,
            "attention": flags.attention_weight,
        }
        self._parts = {"label": 1.0 - flags.distillation_weight} | {
            part: weight for part, weight in parts.items() if weight
        }
        self.sums = tuple(f"{part}_sum" for part in self._parts)
        self.metrics = ("loss", *(f"{part}_loss" for part in self._parts))

    def add_targets(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds the teacher's outputs, computed without dropout, to the rows."""
        if self._parts.keys() <= {"label"}:
            return rows
        outputs = self._teacher(
            label_losses.model_inputs(self.inputs, rows), training=False
        )
        outputs = tf.nest.map_structure(tf.stop_gradient, outputs)
        return rows | {_TEACHER: outputs}

    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        counts = {
            "label": lambda: self._label_weights(rows),
            "soft_target": lambda: self._soft_target_weights(rows),
            "hidden": lambda: _token_weights(rows),
            "attention": lambda: _token_weights(rows),
        }
        return tf.stack([tf.reduce_sum(counts[x]()) for x in self._parts])

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        compute = {
            "label": self._label_sum,
            "soft_target": self._soft_target_sum,
            "hidden": self._hidden_sum,
            "attention": self._attention_sum,
        }
        return {f"{x}_sum": compute[x](outputs, rows) for x in self._parts}

    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        values = {
            part: tf.math.divide_no_nan(sums[f"{part}_sum"], count[number])
            for number, part in enumerate(self._parts)
        }
        # Leave out losses with weight 0: an infinite loss times 0 is NaN.
        loss = tf.add_n([w * values[x] for x, w in self._parts.items() if w])
        return {"loss": loss} | {f"{x}_loss": v for x, v in values.items()}

    def _label_weights(self, rows):
        weights = label_losses.loss_weights(self._task, rows)
        if IS_LABELED not in rows:
            return weights
        return label_losses.weigh(weights, rows[IS_LABELED])

    def _soft_target_weights(self, rows):
        weights = self._task.soft_target_weights(rows)
        return label_losses.weigh(weights, batches_lib.example_weights(rows))

    def _label_sum(self, outputs, rows):
        losses = self._task.losses(outputs, rows)
        return tf.reduce_sum(losses * self._label_weights(rows))

    def _soft_target_sum(self, outputs, rows):
        losses = [
            soft_target_losses(mine, theirs, self._flags.temperature)
            for mine, theirs in zip(
                self._task.soft_targets(outputs, rows),
                self._task.soft_targets(rows[_TEACHER], rows),
                strict=True,
            )
        ]
        mean = tf.add_n(losses) / len(losses)
        return tf.reduce_sum(mean * self._soft_target_weights(rows))

    def _hidden_sum(self, outputs, rows):
        losses = [
            hidden_losses(mine, theirs, self._flags.hidden_loss)
            for mine, theirs in self._layer_pairs.hidden_states(
                outputs, rows[_TEACHER]
            )
        ]
        return _sum_over_tokens(losses, rows)

    def _attention_sum(self, outputs, rows):
        pairs = self._layer_pairs.attention(outputs, rows[_TEACHER])
        losses = [attention_losses(*x) for x in pairs]
        return _sum_over_tokens(losses, rows)


def _sum_over_tokens(losses, rows):
    """Sums the mean of `losses`, [B, ..., S] each, over tokens: <float32>[]."""
    mean = tf.add_n(losses) / len(losses)
    return tf.reduce_sum(mean * _token_weights(rows))


def _token_weights(rows):
    """Returns <float32>[B, ..., S]: 1 for tokens, 0 for padding."""
    return tf.cast(rows[INPUT_MASK.name], tf.float32)


# === Losses per example, word or token ===


def soft_target_losses(
    student: SoftTargets, teacher: SoftTargets, temperature: float
) -> tf.Tensor:
    """Returns the soft-target loss: the divergence of student from teacher.

    Both logits are divided by the temperature T, and the loss is multiplied by
    T squared, so that T hardly changes the size of gradients (Hinton et al.,
    section 2). The loss is the Kullback-Leibler divergence, which is the cross
    entropy minus the teacher's entropy. Subtracting the entropy changes no
    gradient, but makes the loss 0 if the student equals its teacher.

    Returns:
      <float32>[B, ...], the shape of the logits without their last axis. The
      form "choice" gives one divergence, and "yes_or_no" the mean of K binary
      divergences. The form "score" gives the mean of K squared differences,
      which does not depend on T.
    """
    if teacher.form == "score":
        difference = student.logits - teacher.logits
        return tf.reduce_mean(tf.square(difference), axis=-1)
    target = teacher.logits / temperature
    logits = student.logits / temperature
    if teacher.form == "yes_or_no":
        # Pair each logit x with 0, so that the softmax below gives sigmoid(x).
        target = tf.stack([target, tf.zeros_like(target)], axis=-1)
        logits = tf.stack([logits, tf.zeros_like(logits)], axis=-1)
    log_target = tf.nn.log_softmax(target)
    divergence = tf.reduce_sum(
        tf.exp(log_target) * (log_target - tf.nn.log_softmax(logits)), axis=-1
    )
    if teacher.form == "yes_or_no":
        divergence = tf.reduce_mean(divergence, axis=-1)
    return divergence * temperature**2


def hidden_losses(
    student: tf.Tensor, teacher: tf.Tensor, form: str
) -> tf.Tensor:
    """Returns the distance of a student's hidden states from the teacher's.

    Args:
      student: <float>[..., S, I], projected to the teacher's width.
      teacher: <float>[..., S, I].
      form: "mse" for the mean over I of the squared differences (equation 8 of
        Jiao et al.); "cosine" for 1 minus the cosine of the angle between the
        states (section 3 of Sanh et al.).

    Returns:
      <float32>[..., S].
    """
    student = tf.cast(student, tf.float32)
    teacher = tf.cast(teacher, tf.float32)
    if form == "mse":
        return tf.reduce_mean(tf.square(student - teacher), axis=-1)
    return 1.0 - tf.reduce_sum(
        tf.math.l2_normalize(student, axis=-1, epsilon=_MIN_LENGTH)
        * tf.math.l2_normalize(teacher, axis=-1, epsilon=_MIN_LENGTH),
        axis=-1,
    )


def attention_losses(student: tf.Tensor, teacher: tf.Tensor) -> tf.Tensor:
    """Returns the divergence of a student's attention from the teacher's.

    The loss is the mean over heads of the Kullback-Leibler divergence (Sun et
    al., section 3.3.2, "attention transfer").

    Args:
      student: <float>[..., N, S, S], probabilities over the last axis.
      teacher: <float>[..., N, S, S].

    Returns:
      <float32>[..., S], one value for each token that attends.
    """
    target = tf.cast(teacher, tf.float32)
    ratio = _log(target) - _log(tf.cast(student, tf.float32))
    divergence = tf.reduce_sum(target * ratio, axis=-1)
    return tf.reduce_mean(divergence, axis=-2)


def _log(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(probabilities, _MIN_PROBABILITY))
