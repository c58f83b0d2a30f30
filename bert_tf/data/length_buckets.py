"""Batches of examples of like length, planned as a pure function.

What is planned are the indices of each batch and the length that it is padded
to. Nothing is drawn but from (seed, epoch), so that a run continues exactly at
any batch of any epoch.

Shapes:
  N: number of examples.
  B: batch size, at most.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf import stateless_random
from bert_tf.errors import UserError

# An epoch's examples are shuffled and cut into windows of this many batches,
# which are sorted by length: enough for little padding, and with at least
# `_LEAST_WINDOWS` of them long and short batches come in changing company.
_BATCHES_PER_WINDOW = 50
_LEAST_WINDOWS = 4

_EXAMPLES_SALT = 3
_BATCHES_SALT = 4


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes:
      indices: <int64>[B], its examples; fewer than B in the last batch.
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
    epoch: int,
    allowed_lengths: Sequence[int],
) -> list[Batch]:
    """Plans one epoch: each example once, in an order of (seed, epoch) alone.

    With one allowed length the order is that of the shuffle alone, and each
    batch has that length, as in the original.

    Args:
      lengths: <int64>[N], how long the examples are.
      batch_size: B.
      seed: The run's seed.
      epoch: Number of the epoch, from 0.
      allowed_lengths: The lengths that batches may have, rising.

    Returns:
      The batches; all but the last have B examples.

    Raises:
      UserError: If an example is longer than the greatest allowed length.
    """
    _check(lengths, batch_size, allowed_lengths)
    order = stateless_random.permutation(
        len(lengths), _EXAMPLES_SALT, seed, epoch
    ).numpy()
    if len(allowed_lengths) == 1:
        return _cut(order, lengths, batch_size, allowed_lengths)
    num_batches = len(order) // batch_size
    window = batch_size * max(
        1, min(_BATCHES_PER_WINDOW, num_batches // _LEAST_WINDOWS)
    )
    # What does not fill a batch is drawn before sorting, or it would always
    # be the longest.
    full = num_batches * batch_size
    batches = []
    for start in range(0, full, window):
        part = order[start : min(start + window, full)]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += _cut(part, lengths, batch_size, allowed_lengths)
    shuffled = stateless_random.permutation(
        len(batches), _BATCHES_SALT, seed, epoch
    ).numpy()
    return [batches[i] for i in shuffled] + _cut(
        order[full:], lengths, batch_size, allowed_lengths
    )


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
