"""Rows of ids for .tflite files of tiny models."""

import numpy as np

# The number of choices of multiple choice.
_NUM_CHOICES = 3
_CLS, _FIRST, _COUNT = 2, 4, 16


def make(built, batch_size, length, seed=1):
    """Returns rows of unequal lengths of random ids, with [MASK]s.

    Args:
      built: A `tflite.run.Built`, for the shape of its inputs.
      batch_size: The number of rows.
      length: The length of the longest row, including padding.
      seed: The seed of the ids.

    Returns:
      `input_ids`, `input_mask` and `segment_ids`, each
      <int32>[batch_size, length] or <int32>[batch_size, choices, length].
    """
    rng = np.random.default_rng(seed)
    rank = len(built.build.head.ids_specs()["input_ids"].shape)
    shape = [batch_size, *[_NUM_CHOICES] * (rank - 2), length]
    lengths = rng.integers(min(3, length), length + 1, shape[:-1])
    lengths = lengths[..., np.newaxis]
    places = np.arange(length)
    is_piece = places < lengths
    ids = rng.integers(_FIRST, _COUNT, shape)
    ids[..., 0] = _CLS
    return {
        "input_ids": np.where(is_piece, ids, 0).astype(np.int32),
        "input_mask": is_piece.astype(np.int32),
        "segment_ids": (is_piece & (places > lengths // 2)).astype(np.int32),
    }
