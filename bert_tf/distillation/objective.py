"""Labels and a teacher as what the training loop minimises.

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size of the student.
  I: hidden size of the teacher.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.distillation import losses as distillation_losses
from bert_tf.distribute import batches as batches_lib
from bert_tf.features import INPUT_MASK
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import Task
from bert_tf.training import losses as label_losses

# Which rows of a batch have labels, <float32>[B]; all where it is missing.
IS_LABELED = "is_labeled"
# What the teacher says of the rows of a step; no feature is called like that.
_TEACHER = "teacher"
_SCOPE = "distillation"


@dataclasses.dataclass(frozen=True)
class Weights:
    """How much of the loss comes from whom.

    Attributes:
      soft: Of the teacher's soft targets, 0 to 1; the labels have the rest.
      hidden: Of its hidden states, which is added to these.
      attention: Of its attention, which is added, too.
      temperature: That of the soft targets.
      hidden_form: "mse" or "cosine", see `hidden_losses`.
    """

    soft: float
    hidden: float
    attention: float
    temperature: float
    hidden_form: str


class LayerPairs:
    """Which states of a student go with which of its teacher.

    Where their widths differ, one matrix brings the student's to the
    teacher's: W_h of equation 8 of Jiao et al., who share it among the layers.

    Args:
      teacher_layers: The teacher's layer for each of the student's, counted
        from 1.
      widths: H and I, if hidden states are to be learnt.
      stddev: Of the matrix's initial values.

    Attributes:
      variables: The matrix, by name, if there is one.
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
        """Returns embeddings and layers of both, as they go together.

        Args:
          student: What it returns, with embeddings and all layers.
          teacher: The same.

        Returns:
          Pairs of <float>[B, ..., S, I].
        """
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
        """Returns the attention of layers, pairs of <float>[B, ..., N, S, S].

        Args:
          student: What it returns, with attention.
          teacher: The same.
        """
        theirs = self._choose(teacher["attention_probs"])
        return list(zip(student["attention_probs"], theirs, strict=True))

    def _choose(self, layers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [layers[number - 1] for number in self._teacher_layers]


class DistillationObjective:
    """What a student minimises.

    The loss is (1 - soft) x that of the labels + soft x that of the soft
    targets + hidden x the mean over embeddings and layers of that of the
    hidden states + attention x the mean over layers of that of the attention.
    Each is a mean over all of the step that it counts for: examples or words;
    examples or words, with and without labels; pieces; pieces.

    What has the weight 0 is not computed, but for the labels' loss, which is
    always shown.

    Args:
      task: The task.
      teacher: Returns what the teacher says of the model's inputs.
      weights: How much of the loss comes from whom.
      layer_pairs: What of both goes together.

    Attributes:
      variables: Name to variable, of what is trained beside the model.
    """

    inputs = task_prediction.MODEL_INPUTS

    def __init__(
        self,
        task: Task,
        teacher: keras.Model,
        weights: Weights,
        layer_pairs: LayerPairs,
    ) -> None:
        self._task = task
        self._teacher = teacher
        self._weights = weights
        self._layer_pairs = layer_pairs
        self.variables: Mapping[str, keras.Variable] = layer_pairs.variables
        parts = {
            "soft_target": weights.soft,
            "hidden": weights.hidden,
            "attention": weights.attention,
        }
        self._parts = {"label": 1.0 - weights.soft} | {
            part: weight for part, weight in parts.items() if weight
        }
        self.sums = tuple(f"{part}_sum" for part in self._parts)
        self.metrics = ("loss", *(f"{part}_loss" for part in self._parts))

    def add_targets(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the rows with what the teacher, without dropout, says."""
        if self._parts.keys() <= {"label"}:
            return rows
        said = self._teacher(
            {name: rows[name] for name in self.inputs}, training=False
        )
        return rows | {_TEACHER: tf.nest.map_structure(tf.stop_gradient, said)}

    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns <float32>[parts], for each part what it is a mean over."""
        counts = {
            "label": lambda: self._label_weights(rows),
            "soft_target": lambda: self._soft_target_weights(rows),
            "hidden": lambda: _piece_weights(rows),
            "attention": lambda: _piece_weights(rows),
        }
        return tf.stack([tf.reduce_sum(counts[x]()) for x in self._parts])

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns `label_sum` and, of what takes part, the other three.

        They are `soft_target_sum`, `hidden_sum` and `attention_sum`; each
        <float32>[].
        """
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
        """Returns `loss` and the loss of each part, <float32>[] each."""
        values = {
            part: tf.math.divide_no_nan(sums[f"{part}_sum"], count[number])
            for number, part in enumerate(self._parts)
        }
        # A loss with the weight 0 has no part in it, even if it is infinite.
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
            distillation_losses.soft_target_losses(
                mine, theirs, self._weights.temperature
            )
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
            distillation_losses.hidden_losses(
                mine, theirs, self._weights.hidden_form
            )
            for mine, theirs in self._layer_pairs.hidden_states(
                outputs, rows[_TEACHER]
            )
        ]
        return _sum_over_pieces(losses, rows)

    def _attention_sum(self, outputs, rows):
        pairs = self._layer_pairs.attention(outputs, rows[_TEACHER])
        losses = [distillation_losses.attention_losses(*x) for x in pairs]
        return _sum_over_pieces(losses, rows)


def _sum_over_pieces(losses, rows):
    """Returns <float32>[]: the mean of losses <float32>[B, ..., S], summed."""
    mean = tf.add_n(losses) / len(losses)
    return tf.reduce_sum(mean * _piece_weights(rows))


def _piece_weights(rows):
    """Returns <float32>[B, ..., S], 0 for padding."""
    return tf.cast(rows[INPUT_MASK.name], tf.float32)
