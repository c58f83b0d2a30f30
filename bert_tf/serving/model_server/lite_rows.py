"""Rows of pieces through a .tflite file, none longer than it need be.

Shapes:
  R: rows of a call, on any number of axes.
  T: the length that they are padded to.
  P: pieces of a row that are predicted.
"""

from collections.abc import Mapping

import numpy as np

from bert_tf.features import INPUT_IDS
from bert_tf.serving.lite_model import LiteModel

_POSITIONS = "masked_lm_positions"


class LiteRows:
    """Runs a model that takes any number of rows of any length.

    May be called by several threads.

    Args:
      content: The bytes of the .tflite file, which takes `input_ids` and its
        like <int32>[R, T] and maybe `masked_lm_positions` <int32>[R, P]. A
        second axis of an output that is free is as long as T, or P where
        there is that.
      num_threads: Threads that compute a row.

    Raises:
      UserError: If it is no such file.
      ValueError: If it is damaged.
    """

    def __init__(self, content: bytes, num_threads: int) -> None:
        self._model = LiteModel(content, num_threads)
        self.inputs = tuple(self._model.inputs)

    def run(
        self, inputs: Mapping[str, np.ndarray], lengths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns the outputs by name, with the axes of the rows as they came.

        Args:
          inputs: At least all of `inputs`, [R, T] and [R, P].
          lengths: <int32>[R], how much of each row is to be computed; outputs
            behind it are 0.
        """
        count = lengths.size
        rows = {
            name: np.ascontiguousarray(
                inputs[name].reshape(count, inputs[name].shape[-1])
            )
            for name in self.inputs
        }
        outputs = self._empty(rows, count)
        if all(x.size for x in rows.values()):
            for number, length in enumerate(lengths.ravel().tolist()):
                self._run_row(rows, number, length, outputs)
        return {
            name: x.reshape(*lengths.shape, *x.shape[1:])
            for name, x in outputs.items()
        }

    def _run_row(
        self,
        rows: Mapping[str, np.ndarray],
        number: int,
        length: int,
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        part = {
            name: x[
                number : number + 1, : None if name == _POSITIONS else length
            ]
            for name, x in rows.items()
        }
        for name, value in self._model.run(part).items():
            if value.ndim > 1:
                outputs[name][number, : value.shape[1]] = value[0]
            else:
                outputs[name][number] = value[0]

    def _empty(
        self, rows: Mapping[str, np.ndarray], count: int
    ) -> dict[str, np.ndarray]:
        """Returns outputs for so many rows, of zeros."""
        pieces = rows.get(_POSITIONS, rows[INPUT_IDS.name])
        width = pieces.shape[1]
        return {
            name: np.zeros(
                [count, *(width if n < 0 else n for n in shape[1:])], dtype
            )
            for name, (dtype, shape) in self._model.outputs.items()
        }
