"""Length bucketing: plans batches of examples of similar length.

A plan has each batch's examples and their padded length. All random draws
depend only on (seed, epoch), so a run resumes exactly at any batch.

Shapes:
  N: number of examples.
  B: maximum batch size.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf import stateless_random
from bert_tf.errors import UserError

# Examples are sorted by length in windows of at most this many batches, which
# leaves little padding. With fewer than `_LEAST_WINDOWS` windows in an epoch,
# all epochs would have nearly the same batches.
_BATCHES_PER_WINDOW = 50
_LEAST_WINDOWS = 4

_EXAMPLES_SALT = 3
_BATCHES_SALT = 4


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch: indices of examples, <int64>[B], and their padded length.

    The last batch of a prediction may have fewer than B examples.
    """

    indices: np.ndarray
    length: int


def every_multiple(max_seq_length: int) -> tuple[int, ...]:
    """Returns all multiples of 8 as lengths: little padding, many shapes."""
    return (*range(8, max_seq_length, 8), max_seq_length)


def fewest_padding(
    lengths: np.ndarray, max_seq_length: int, num_lengths: int = 4
) -> tuple[int, ...]:
    """Chooses a few batch lengths, for devices that compile each shape.

    Each example is padded to the next chosen length. No other choice gives less
    padding. For a maximum of 32 and two lengths, examples of the lengths 3, 9,
    10 and 30 give (16, 32) and take 80 positions with padding.

    Args:
      lengths: <int64>[N], at most `max_seq_length`.
      max_seq_length: Always chosen; all other choices are multiples of 8.
      num_lengths: Maximum number of chosen lengths.
    """
    choices = np.array(every_multiple(max_seq_length))
    # counts[j]: number of examples of at most choices[j] tokens.
    counts = np.searchsorted(np.sort(lengths), choices, side="right")
    # cost[j]: total length of these examples, each padded to choices[j].
    cost = choices * counts
    last: list[np.ndarray] = []
    for _ in range(min(num_lengths, len(choices)) - 1):
        # total[j, i]: cost[j] after adding choices[i] as the next shorter
        # length; total[j, j] adds no length.
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
    # Drop lengths that no example is padded to; the padding stays the same.
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
    """Plans the batches of a training run; all batches are full.

    Each epoch has every example once, in an order that depends only on (seed,
    epoch). A batch may extend into the next epoch, as in the original. With one
    allowed length, all batches have this length and examples stay in shuffled
    order. With a greater `num_batches`, the plan begins with the same batches,
    except perhaps for the last window of the shorter plan.

    The examples have `lengths` <int64>[N]; `allowed_lengths` ascend. Raises
    `UserError` without examples, or if an example is too long.
    """
    _check(lengths, batch_size, allowed_lengths)
    if not len(lengths):
        raise UserError("Expected examples to train on. Received: none.")
    count = num_batches * batch_size
    epochs = [
        stateless_random.permutation(
            len(lengths), _EXAMPLES_SALT, seed, epoch
        ).numpy()
        for epoch in range(-(-count // len(lengths)))
    ]
    order = np.concatenate([np.zeros([0], np.int32), *epochs])[:count]
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


def prediction_batches(
    lengths: np.ndarray, batch_size: int, allowed_lengths: Sequence[int]
) -> list[Batch]:
    """Plans batches for prediction, with each example once.

    With several allowed lengths, the longest examples come first: their batch
    needs the most memory, so a lack of memory shows at once. Raises `UserError`
    if an example is too long.
    """
    _check(lengths, batch_size, allowed_lengths)
    if len(allowed_lengths) == 1:
        order = np.arange(len(lengths))
    else:
        order = np.argsort(-lengths, kind="stable")
    return _cut(order, lengths, batch_size, allowed_lengths)


def share_of_tokens(
    lengths: np.ndarray, allowed_lengths: Sequence[int]
) -> float:
    """Returns the share of real tokens after padding to the allowed lengths.

    The examples have `lengths` <int64>[N]; `allowed_lengths` ascend.
    """
    padded = np.array(allowed_lengths)[
        np.searchsorted(allowed_lengths, lengths)
    ]
    return float(np.sum(lengths) / max(1, np.sum(padded)))


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
    batches = []
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size].astype(np.int64)
        longest = lengths[indices].max()
        choice = np.searchsorted(allowed_lengths, longest)
        batches.append(Batch(indices, int(allowed_lengths[choice])))
    return batches
