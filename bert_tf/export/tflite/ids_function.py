"""What a .tflite file computes that takes ids.

Shapes:
  R: rows.
  T: pieces of a row.
  C: choices of a row, of multiple choice alone.
"""

import tensorflow as tf

from bert_tf.export import serving_module
from bert_tf.export.tflite.build import Build

# What the SavedModel of ids has beside probabilities or the score. The Task
# Library refuses a classifier with more than one output, and MediaPipe would
# take each for classes.
LEFT_OUT = ("logits",)


class IdsFunction:
    """The numbers that a head makes of ids, as the SavedModel of ids does.

    Args:
      build: The file to be.

    Attributes:
      specs: `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T]
        or [R, C, T]; None where free.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self.specs = {
            name: _fix(spec, build.batch_size, build.seq_length)
            for name, spec in build.head.ids_specs().items()
        }

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns tensors of numbers by name."""
        answer = serving_module.answer_ids_in_numbers(
            self._build.head, self._build.model, inputs
        )
        return {x: tensor for x, tensor in answer.items() if x not in LEFT_OUT}


def _fix(
    spec: tf.TensorSpec, batch_size: int | None, seq_length: int | None
) -> tf.TensorSpec:
    shape = [batch_size, *spec.shape[1:-1], seq_length]
    return tf.TensorSpec(shape, spec.dtype, spec.name)
