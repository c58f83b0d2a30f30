"""Rows of pieces through a .tflite file, those of like length together.

Shapes:
  R: rows of a call, on any number of axes.
  T: the length that they are padded to.
  P: pieces of a row that are predicted.
"""

import concurrent.futures
import queue
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from bert_tf.features import INPUT_IDS
from bert_tf.inference.lite_model import LiteModel

_POSITIONS = "masked_lm_positions"
# Pieces that are computed together. More in one call are not faster, padding
# included, as LiteRT works on what the caches hold; the length may be any.
_PIECES_AT_ONCE = 128
# The most padding of a row that goes with a longer one. What a call costs
# beside its pieces is as much as about so many pieces of BERT-base.
_MAX_PADDING = 8
# One whose threads share a row answers a lone row soonest.
_NUM_INTERPRETERS = 1


class LiteRows:
    """Runs a model that takes any number of rows of any length.

    May be called by several threads.

    Args:
      content: The bytes of the .tflite file, which takes `input_ids` and its
        like <int32>[R, T] and maybe `masked_lm_positions` <int32>[R, P]. A
        second axis of an output that is free is as long as T, or P where
        there is that.
      num_threads: Threads that compute.

    Raises:
      UserError: If it is no such file.
      ValueError: If it is damaged.
    """

    def __init__(self, content: bytes, num_threads: int) -> None:
        models = [
            LiteModel(content, max(1, num_threads // _NUM_INTERPRETERS))
            for _ in range(_NUM_INTERPRETERS)
        ]
        self.inputs = tuple(models[0].inputs)
        self._outputs = models[0].outputs
        self._free = queue.SimpleQueue()
        for model in models:
            self._free.put(model)
        self._executor = None
        if len(models) > 1:
            self._executor = concurrent.futures.ThreadPoolExecutor(len(models))

    def run(
        self, inputs: Mapping[str, np.ndarray], lengths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns the outputs by name, with the axes of the rows as they came.

        Args:
          inputs: At least all of `inputs`, [R, T] and [R, P].
          lengths: <int32>[R], how much of each row must be computed; what
            stands behind it in outputs means nothing.
        """
        count = lengths.size
        rows = {
            name: inputs[name].reshape(count, inputs[name].shape[-1])
            for name in self.inputs
        }
        outputs = self._empty(rows, count)

        def run_group(group):
            self._run_group(rows, *group, outputs)

        if all(x.size for x in rows.values()):
            groups = _group(lengths.ravel())
            execute = self._executor.map if self._executor else map
            for _ in execute(run_group, groups):
                pass
        return {
            name: x.reshape(*lengths.shape, *x.shape[1:])
            for name, x in outputs.items()
        }

    def _run_group(
        self,
        rows: Mapping[str, np.ndarray],
        chosen: np.ndarray,
        length: int,
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        """Computes some rows, and puts what comes out in its place."""
        part = {
            name: x[chosen] if name == _POSITIONS else x[chosen, :length]
            for name, x in rows.items()
        }
        model = self._free.get()
        try:
            values = model.run(part)
        finally:
            self._free.put(model)
        for name, value in values.items():
            if value.ndim > 1:
                outputs[name][chosen, : value.shape[1]] = value
            else:
                outputs[name][chosen] = value

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
            for name, (dtype, shape) in self._outputs.items()
        }


def _group(lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yields rows that go together, and the length of the longest of them.

    Args:
      lengths: <int32>[R].
    """
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        most = max(1, _PIECES_AT_ONCE // longest)
        chosen = order[first : first + most]
        chosen = chosen[lengths[chosen] >= longest - _MAX_PADDING]
        yield chosen, longest
        first += len(chosen)
