"""Batches of examples of like length, planned as a pure function.

What is planned are the indices of each batch and the length that it is padded
to. Nothing is drawn but from (seed, epoch), so that a run continues exactly at
any batch.

Shapes:
  N: number of examples.
  B: batch size, at most.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf import stateless_random
from bert_tf.errors import UserError

# The stream of examples is cut into windows of at most this many batches, which
# are sorted by length: enough for little padding; with at least
# `_LEAST_WINDOWS` of them an epoch, long and short ones come in changing
# company.
_BATCHES_PER_WINDOW = 50
_LEAST_WINDOWS = 4

_EXAMPLES_SALT = 3
_BATCHES_SALT = 4


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes:
      indices: <int64>[B], its examples; fewer than B in the last batch of a
        prediction.
      length: What they are padded to.
    """

    indices: np.ndarray
    length: int


def every_multiple(max_seq_length: int, multiple: int = 8) -> tuple[int, ...]:
    """Returns all lengths that a batch may have: little padding, many shapes.

    Args:
      max_seq_length: The greatest length, a multiple or not.
      multiple: What the others are multiples of.
    """
    return (*range(multiple, max_seq_length, multiple), max_seq_length)


def fewest_padding(
    lengths: np.ndarray,
    max_seq_length: int,
    num_lengths: int = 4,
    multiple: int = 8,
) -> tuple[int, ...]:
    """Chooses a few lengths, for devices that compile a program for each.

    They are those for which the fewest positions are padding if each example
    is padded to the next length, found exactly.

    Args:
      lengths: <int64>[N], at most `max_seq_length`.
      max_seq_length: The greatest length, always one of those chosen.
      num_lengths: How many to choose at most.
      multiple: What the others are multiples of.
    """
    choices = np.array(every_multiple(max_seq_length, multiple))
    # How many examples are no longer than each choice.
    counts = np.searchsorted(np.sort(lengths), choices, side="right")
    # cost[j]: positions for the examples up to choices[j], if it is chosen.
    cost = choices * counts
    last: list[np.ndarray] = []
    for _ in range(min(num_lengths, len(choices)) - 1):
        # Of choice j with choice i < j before it; i = j means none between.
        extra = (counts[:, np.newaxis] - counts) * choices[:, np.newaxis]
        total = np.where(
            np.tri(len(choices), dtype=bool), cost + extra, np.iinfo(int).max
        )
        last.append(total.argmin(axis=1))
        cost = total.min(axis=1)
    chosen = {max_seq_length}
    position = len(choices) - 1
    for before in reversed(last):
        position = before[position]
        chosen.add(int(choices[position]))
    # Where fewer lengths do as well, some have no example.
    rising = np.array(sorted(chosen))
    used = np.unique(rising[np.searchsorted(rising, lengths)])
    return tuple(sorted({*used.tolist(), max_seq_length}))


def training_batches(
    lengths: np.ndarray,
    batch_size: int,
    seed: int,
    num_batches: int,
    allowed_lengths: Sequence[int],
) -> list[Batch]:
    """Plans the batches of a run, all of them full.

    Each epoch has every example once, in an order of (seed, epoch) alone; a
    batch may reach over into the next epoch, as in the original. With one
    allowed length all batches have that length, and the order is that of the
    shuffle alone.

    Args:
      lengths: <int64>[N], how long the examples are.
      batch_size: B.
      seed: The run's seed.
      num_batches: How many batches. A longer plan does not begin with a
        shorter one, as far as their last windows go.
      allowed_lengths: The lengths that batches may have, rising.

    Raises:
      UserError: If there is no example, or one is longer than the greatest
        allowed length.
    """
    _check(lengths, batch_size, allowed_lengths)
    if not len(lengths):
        raise UserError("Expected examples to train on. Received: none.")
    order = _shuffled_epochs(len(lengths), seed, num_batches * batch_size)
    if len(allowed_lengths) == 1:
        return _cut(order, lengths, batch_size, allowed_lengths)
    per_window = max(
        1,
        min(_BATCHES_PER_WINDOW, len(lengths) // batch_size // _LEAST_WINDOWS),
    )
    batches = []
    window = per_window * batch_size
    for number, start in enumerate(range(0, len(order), window)):
        part = order[start : start + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        cut = _cut(part, lengths, batch_size, allowed_lengths)
        shuffled = stateless_random.permutation(
            len(cut), _BATCHES_SALT, seed, number
        ).numpy()
        batches += [cut[i] for i in shuffled]
    return batches


def _shuffled_epochs(num_examples: int, seed: int, count: int) -> np.ndarray:
    """Returns the first `count` examples of shuffled epochs, <int32>[count]."""
    num_epochs = -(-count // num_examples)
    epochs = [
        stateless_random.permutation(
            num_examples, _EXAMPLES_SALT, seed, epoch
        ).numpy()
        for epoch in range(num_epochs)
    ]
    return np.concatenate([np.zeros([0], np.int32), *epochs])[:count]


def prediction_batches(
    lengths: np.ndarray, batch_size: int, allowed_lengths: Sequence[int]
) -> list[Batch]:
    """Plans batches for prediction: each example once, longest first.

    So memory is the greatest at the start. `restore_order` undoes the order.

    Args:
      lengths: <int64>[N], how long the examples are.
      batch_size: B.
      allowed_lengths: The lengths that batches may have, rising.

    Raises:
      UserError: If an example is longer than the greatest allowed length.
    """
    _check(lengths, batch_size, allowed_lengths)
    if len(allowed_lengths) == 1:
        order = np.arange(len(lengths))
    else:
        order = np.argsort(-lengths, kind="stable")
    return _cut(order, lengths, batch_size, allowed_lengths)


def restore_order(
    batches: Sequence[Batch], values: Sequence[np.ndarray]
) -> np.ndarray:
    """Returns the values of all batches in the order of the examples.

    Args:
      batches: All batches of a plan.
      values: <any>[B, ...] for each of them, of its examples.

    Returns:
      <any>[N, ...].
    """
    indices = np.concatenate([batch.indices for batch in batches])
    joined = np.concatenate(values)
    restored = np.empty_like(joined)
    restored[indices] = joined
    return restored


def count_positions(batches: Sequence[Batch]) -> int:
    """Returns how many positions the batches have, with padding."""
    return sum(len(batch.indices) * batch.length for batch in batches)


def _check(
    lengths: np.ndarray, batch_size: int, allowed_lengths: Sequence[int]
) -> None:
    if batch_size < 1:
        raise UserError(
            f"The batch size must be at least 1. Received: {batch_size}."
        )
    if len(lengths) and lengths.max() > allowed_lengths[-1]:
        raise UserError(
            f"No example may be longer than {allowed_lengths[-1]}. Received: "
            f"one of length {lengths.max()}."
        )


def _cut(
    order: np.ndarray,
    lengths: np.ndarray,
    batch_size: int,
    allowed_lengths: Sequence[int],
) -> list[Batch]:
    """Cuts an order of examples into batches."""
    batches = []
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size].astype(np.int64)
        longest = lengths[indices].max()
        choice = np.searchsorted(allowed_lengths, longest)
        batches.append(Batch(indices, int(allowed_lengths[choice])))
    return batches
