"""What a student learns: soft targets, hidden states, where to attend to.

Sources:
  Hinton et al., 2015, https://arxiv.org/abs/1503.02531: soft targets.
  Sanh et al., 2019, https://arxiv.org/abs/1910.01108 (DistilBERT): cosines.
  Jiao et al., 2020, https://arxiv.org/abs/1909.10351 (TinyBERT): mean squares.
  Sun et al., 2020, https://arxiv.org/abs/2004.02984 (MobileBERT): attention.

Shapes:
  B: batch size.
  K: alternatives.
  N: attention heads.
  S: sequence length.
  H: hidden size.
"""

import tensorflow as tf

from bert_tf.tasks.task import SoftTargets

# Of a length; the states of padding may be anything, but not a division by 0.
_LEAST_LENGTH = 1e-12
# Of a probability; none that is less adds to a divergence.
_LEAST_PROBABILITY = 1e-9


def soft_target_losses(
    student: SoftTargets, teacher: SoftTargets, temperature: float
) -> tf.Tensor:
    """Returns how far a student is from the soft targets of its teacher.

    Hinton et al., section 2: both logits are divided by the temperature T, and
    the result is multiplied with T squared, so that gradients have the size
    that they have at T = 1. Here it is the Kullback-Leibler divergence, their
    cross entropy less the teacher's entropy, which no gradient depends on: so
    0 means that the student has learnt it all.

    Args:
      student: Its logits.
      teacher: The logits to learn.
      temperature: T.

    Returns:
      <float32>[B, ...], of the shape of the logits without their last axis: a
      divergence for a choice; the mean over K of the divergences of yes from
      no; the mean over K of the squared differences of scores, which know no
      temperature.
    """
    if teacher.form == "score":
        difference = student.logits - teacher.logits
        return tf.reduce_mean(tf.square(difference), axis=-1)
    target = teacher.logits / temperature
    guess = student.logits / temperature
    if teacher.form == "yes_or_no":
        # Each alternative with its opposite: a sigmoid is a softmax over both.
        target = tf.stack([target, tf.zeros_like(target)], axis=-1)
        guess = tf.stack([guess, tf.zeros_like(guess)], axis=-1)
    log_target = tf.nn.log_softmax(target)
    divergence = tf.reduce_sum(
        tf.exp(log_target) * (log_target - tf.nn.log_softmax(guess)), axis=-1
    )
    if teacher.form == "yes_or_no":
        divergence = tf.reduce_mean(divergence, axis=-1)
    return divergence * temperature**2


def hidden_losses(
    student: tf.Tensor, teacher: tf.Tensor, form: str
) -> tf.Tensor:
    """Returns how far the hidden states of a student are from a teacher's.

    Args:
      student: <float>[..., S, H], brought to the teacher's width.
      teacher: <float>[..., S, H].
      form: "mse": the mean over H of the squared differences (equation 8 of
        Jiao et al.); "cosine": 1 less the cosine of the angle between the two
        (section 3 of Sanh et al.).

    Returns:
      <float32>[..., S].
    """
    student = tf.cast(student, tf.float32)
    teacher = tf.cast(teacher, tf.float32)
    if form == "mse":
        return tf.reduce_mean(tf.square(student - teacher), axis=-1)
    return 1.0 - tf.reduce_sum(
        tf.math.l2_normalize(student, axis=-1, epsilon=_LEAST_LENGTH)
        * tf.math.l2_normalize(teacher, axis=-1, epsilon=_LEAST_LENGTH),
        axis=-1,
    )


def attention_losses(student: tf.Tensor, teacher: tf.Tensor) -> tf.Tensor:
    """Returns how far a student's attention is from a teacher's.

    The mean over heads of the Kullback-Leibler divergence of the one from the
    other (Sun et al., section 3.3.2, "attention transfer").

    Args:
      student: <float>[..., N, S, S], probabilities over the last axis.
      teacher: <float>[..., N, S, S].

    Returns:
      <float32>[..., S], for each piece that attends.
    """
    target = tf.cast(teacher, tf.float32)
    ratio = _log(target) - _log(tf.cast(student, tf.float32))
    divergence = tf.reduce_sum(target * ratio, axis=-1)
    return tf.reduce_mean(divergence, axis=-2)


def _log(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(probabilities, _LEAST_PROBABILITY))
