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

from collections.abc import Sequence

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


def build_projection(
    width: int, teacher_width: int, stddev: float
) -> keras.layers.Dense:
    """Returns the matrix that projects states from width H to width I.

    All layers share it (W_h in equation 8 of Jiao et al.). `stddev` is the
    standard deviation of its initial values.
    """
    initializer = keras.initializers.TruncatedNormal(stddev=stddev)
    projection = keras.layers.Dense(
        teacher_width,
        use_bias=False,
        kernel_initializer=initializer,
        dtype="float32",
        name="hidden_projection",
    )
    with keras.name_scope(_SCOPE):
        projection.build((None, width))
    return projection


class DistillationObjective(label_losses.Objective):
    """The objective that a student minimizes.

    loss = (1 - soft) * label_loss + soft * soft_target_loss
           + hidden * hidden_loss + attention * attention_loss

    The flags of run/distill.py set the weights `soft`, `hidden` and
    `attention`. The label loss is a mean over the labeled examples or words of
    a step, the soft-target loss a mean over all examples or words. The
    attention loss is a mean over tokens and layers; so is the hidden loss, with
    the embeddings as layer 0. Losses with weight 0 are not computed, except the
    label loss, which is always reported.

    `teacher_layers` has, for each student layer, a teacher layer (from 1).
    `projection` is from `build_projection`, or None if the widths are equal or
    the loss compares no hidden states. The attribute `variables` has the
    weights to train in addition to the student's, by path.
    """

    inputs = task_prediction.MODEL_INPUTS

    def __init__(
        self,
        task: Task,
        teacher: keras.Model,
        flags: Flags,
        teacher_layers: Sequence[int] = (),
        projection: keras.layers.Dense | None = None,
    ) -> None:
        self._task = task
        self._teacher = teacher
        self._flags = flags
        self._teacher_layers = teacher_layers
        self._projection = projection
        self.variables: dict[str, keras.Variable] = {}
        if projection is not None:
            self.variables[projection.kernel.path] = projection.kernel
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
        return tf.stack(
            [tf.reduce_sum(self._weights(x, rows)) for x in self._parts]
        )

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        compute = {
            "label": self._task.losses,
            "soft_target": self._soft_target_losses,
            "hidden": self._hidden_losses,
            "attention": self._attention_losses,
        }
        sums = {}
        for part in self._parts:
            losses = compute[part](outputs, rows)
            weights = self._weights(part, rows)
            sums[f"{part}_sum"] = tf.reduce_sum(losses * weights)
        return sums

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

    def _weights(self, part, rows):
        """Returns one weight for each loss of a part, such as "label"."""
        if part == "label":
            weights = label_losses.loss_weights(self._task, rows)
            if IS_LABELED in rows:
                weights = label_losses.weigh(weights, rows[IS_LABELED])
            return weights
        if part == "soft_target":
            weights = self._task.soft_target_weights(rows)
            is_row = batches_lib.example_weights(rows)
            return label_losses.weigh(weights, is_row)
        return tf.cast(rows[INPUT_MASK.name], tf.float32)  # 0 for padding.

    def _soft_target_losses(self, outputs, rows):
        pairs = zip(
            self._task.soft_targets(outputs, rows),
            self._task.soft_targets(rows[_TEACHER], rows),
            strict=True,
        )
        heat = self._flags.temperature
        return _mean([soft_target_losses(*pair, heat) for pair in pairs])

    def _hidden_losses(self, outputs, rows):
        teacher, form = rows[_TEACHER], self._flags.hidden_loss
        inputs = [outputs["embedding_output"], *outputs["encoder_outputs"]]
        if self._projection is not None:
            inputs = [self._projection(tf.cast(x, tf.float32)) for x in inputs]
        targets = self._choose_layers(teacher["encoder_outputs"])
        targets = [teacher["embedding_output"], *targets]
        pairs = zip(inputs, targets, strict=True)
        return _mean([hidden_losses(*pair, form) for pair in pairs])

    def _attention_losses(self, outputs, rows):
        targets = self._choose_layers(rows[_TEACHER]["attention_probs"])
        pairs = zip(outputs["attention_probs"], targets, strict=True)
        return _mean([attention_losses(*pair) for pair in pairs])

    def _choose_layers(self, layers):
        return [layers[number - 1] for number in self._teacher_layers]


def _mean(losses):
    return tf.add_n(losses) / len(losses)


# === Losses per example, word or token ===


def soft_target_losses(
    student: SoftTargets, teacher: SoftTargets, temperature: float
) -> tf.Tensor:
    """Returns the soft-target loss: the divergence of student from teacher.

    All logits are divided by the temperature T, and the loss is multiplied by
    T squared, so that T hardly changes the size of gradients (Hinton et al.,
    section 2). The loss is the Kullback-Leibler divergence, which is the cross
    entropy minus the teacher's entropy. Subtracting the entropy changes no
    gradient, but makes the loss 0 if the student equals its teacher.

    Returns:
      <float32>[B, ...], the shape of the logits without their last axis. The
      form "choice" gives one divergence, "yes_or_no" the mean of K binary
      divergences, and "score" the mean of K squared differences, which does not
      depend on T.
    """
    if teacher.form == "score":
        difference = student.logits - teacher.logits
        return tf.reduce_mean(tf.square(difference), axis=-1)
    target = teacher.logits / temperature
    logits = student.logits / temperature
    if teacher.form == "yes_or_no":
        # Pair each logit x with 0: then the softmax below gives sigmoid(x).
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
