"""Batches of random tokens, for benchmarks of the training step."""

import numpy as np

LENGTH = 128
_PREDICTIONS = 20


def random_batch(vocab_size: int, batch_size: int) -> dict[str, np.ndarray]:
    """Returns the features of a batch, of unequal lengths.

    Args:
      vocab_size: Ids are below it.
      batch_size: Rows.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (batch_size, 1))
    mask = (np.arange(LENGTH) < lengths).astype("int32")
    shape = (batch_size, _PREDICTIONS)
    return {
        "input_ids": rng.integers(1000, vocab_size, mask.shape, "int32") * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(LENGTH) > lengths // 2).astype("int32")
        * mask,
        "masked_lm_positions": np.sort(
            rng.integers(1, LENGTH // 2, shape, "int32"), 1
        ),
        "masked_lm_ids": rng.integers(1000, vocab_size, shape, "int32"),
        "masked_lm_weights": np.ones(shape, "float32"),
        "next_sentence_labels": rng.integers(0, 2, (batch_size, 1), "int32"),
    }
