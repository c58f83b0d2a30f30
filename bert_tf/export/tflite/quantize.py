"""Weights and activations in int8, by what activations are on real rows."""

import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np
from tensorflow.lite.python import convert
from tensorflow.lite.python.optimize import calibrator as calibrators

# What stays in float32: sums with the mask, of which int8 would make no mask,
# or keep nothing else; softmax, layer normalisation and residual sums, whose
# few large values would leave all others few of the 256 steps; products of two
# activations, which are slow in int8; and ONE_HOT, whose zeros the converter
# writes as the byte 0, which at the scale of its result means 0.5.
_FLOAT_OPERATORS = (
    "ADD",
    "SUB",
    "MUL",
    "MEAN",
    "SQUARED_DIFFERENCE",
    "RSQRT",
    "SOFTMAX",
    "GELU",
    "BATCH_MATMUL",
    "ONE_HOT",
)


def quantize(
    content: bytes,
    samples: Callable[[], Iterable[Mapping[str, np.ndarray]]],
    per_tensor: bool = False,
) -> bytes:
    """Returns a file whose dense layers compute in int8, and keep weights so.

    Args:
      content: The same in float32.
      samples: Returns inputs by name, each of any size that the file takes.
      per_tensor: Whether a dense layer has one scale instead of one for each
        column.
    """
    # Not what the converter does by itself: it takes samples of one length
    # alone, and all that stays in float32 here becomes int8.
    calibrator = calibrators.Calibrator(
        calibrators.add_intermediate_tensors(content), [], []
    )
    # The interpreter that it has says each time that there is a newer one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _feed(calibrator, samples())
    return convert.mlir_quantize(
        calibrator.calibrate(lambda: ()),  # By what it was fed before.
        denylisted_ops=[*_FLOAT_OPERATORS],
        disable_per_channel_for_dense_layers=per_tensor,
    )


def _feed(
    calibrator: calibrators.Calibrator,
    samples: Iterable[Mapping[str, np.ndarray]],
) -> None:
    for sample in samples:
        # Prepares for the size of this one, which `calibrate` does for the
        # first of many alone; and that writes the whole file each time.
        calibrator._feed_tensors(lambda sample=sample: [sample], True)
