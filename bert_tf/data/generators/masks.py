"""Masking in numpy: chooses and masks the tokens to predict, batch by batch.

The draws have the original's distribution (create_pretraining_data.py:340-415).
The length of a sequence sets its number of predicted tokens. Words (or tokens)
are tried in random order, and a word that has too many tokens is skipped. Each
chosen token is masked, kept or replaced independently. Runs of up to
`max_ngram` words and the left-to-right task are additions to the original.

A batch is an array with one row per sequence, so numpy does most of the work.
TensorFlow is not imported, so workers start at once.
"""

import numpy as np

from bert_tf.flags.options import Flags


def num_predictions(
    lengths: np.ndarray, masked_lm_prob: float, max_predictions_per_seq: int
) -> np.ndarray:
    """Returns the number of predicted tokens (lines 365-367 of the original).

    The number is at least 1. Like Python, `rint` rounds a half to the even
    number: 30 tokens, [CLS] and [SEP] included, give 30 * 0.15 = 4.5, thus 4.
    """
    rounded = np.rint(lengths * masked_lm_prob).astype(np.int64)
    return np.minimum(max_predictions_per_seq, np.maximum(1, rounded))


def choose_tokens(
    candidates: np.ndarray, count: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Chooses `count` candidates of each row, all subsets equally likely.

    `candidates` and the result are <bool>[batch, seq_length], and `count` is
    <int64>[batch]. A row with fewer candidates gets all of them.
    """
    order = _random_order(candidates, rng, limit=int(count.max(initial=0)))
    taken = np.arange(order.shape[1]) < count[:, np.newaxis]
    chosen = np.zeros(candidates.shape, bool)
    # Use flat indices, here and below: numpy is slower with two indices.
    order += np.arange(0, chosen.size, chosen.shape[1])[:, np.newaxis]
    chosen.reshape(-1)[order[taken]] = True
    return chosen & candidates


def _random_order(
    candidates: np.ndarray, rng: np.random.Generator, limit: int
) -> np.ndarray:
    """Returns up to `limit` columns of each row, shuffled, candidates first."""
    batch_size, columns = candidates.shape
    limit = min(limit, columns)
    # Sorting plain numbers is much faster than an argsort, so put the column
    # into the low bits of a random key. The 50 or more random bits rarely tie.
    column_bits = max(1, (columns - 1).bit_length())
    keys = rng.integers(
        0, 1 << (62 - column_bits), candidates.shape, dtype=np.int64
    )
    keys = keys << column_bits | np.arange(columns)
    keys |= (~candidates).astype(np.int64) << 62
    if limit < columns:
        keys.partition(limit, axis=1)
        keys = keys[:, :limit]
    keys.sort(axis=1)
    return keys & ((1 << column_bits) - 1)


def ngram_lengths(
    shape: tuple[int, ...], max_ngram: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws lengths k in 1..max_ngram, <int64> of `shape`, with weights 1/k.

    As in ALBERT, runs of 1, 2 and 3 words have the weights 1, 1/2 and 1/3.
    """
    if max_ngram == 1:
        return np.ones(shape, np.int64)
    weights = 1 / np.arange(1, max_ngram + 1)
    cumulative = np.cumsum(weights / weights.sum())[:-1]
    return 1 + np.searchsorted(cumulative, rng.random(shape), side="right")


def choose_words(
    candidates: np.ndarray,
    starts_word: np.ndarray,
    segment_ids: np.ndarray,
    limit: np.ndarray,
    max_ngram: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Chooses whole words, in runs of up to `max_ngram`, up to `limit` tokens.

    Words are tried in random order. A word that would exceed the limit is
    skipped (lines 378-383 of the original), so fewer tokens may be chosen. If
    words of 2, 3 and 1 tokens are tried with a limit of 4, the first and the
    last are chosen. A run ends early at the end of its segment, before a word
    that is already chosen, or before a word that would exceed the limit.

    Args:
      candidates: <bool>[batch, seq_length], the tokens that may be chosen.
      starts_word: <bool>[batch, seq_length]: False for "##" tokens. A "##"
        token belongs to the candidate before it, even across a [SEP], as in the
        original (lines 350-363).
      segment_ids: <int>[batch, seq_length].
      limit: <int64>[batch].
      max_ngram: Length of the longest run, in words.
      rng: The random generator.

    Returns:
      <bool>[batch, seq_length].
    """
    batch_size, seq_length = candidates.shape
    first = np.cumsum(candidates, axis=1) == 1
    begins = candidates & (starts_word | first)
    # Index of each token's word in its row, from 1. Tokens before the first
    # word have 0 and are never candidates.
    word_of_token = np.cumsum(begins, axis=1)
    num_words = word_of_token[:, -1]
    most_words = int(num_words.max(initial=0))
    # A column for each word, and an empty column at both ends, where runs end.
    columns = most_words + 2
    rows, places = np.nonzero(candidates)
    words = word_of_token[rows, places]
    sizes = np.bincount(
        rows * columns + words, minlength=batch_size * columns
    ).reshape(batch_size, columns)
    segments = np.full((batch_size, columns), -1, np.int64)
    start_rows, start_places = np.nonzero(begins)
    segments[start_rows, word_of_token[start_rows, start_places]] = segment_ids[
        start_rows, start_places
    ]
    free = sizes > 0
    order = 1 + _random_order(free[:, 1:-1], rng, limit=most_words)
    runs = ngram_lengths(order.shape, max_ngram, rng)
    left = limit.copy()
    every_row = np.arange(batch_size)
    for rank in range(most_words):
        word = order[:, rank]
        going = np.ones(batch_size, bool)
        segment = segments[every_row, word]
        for offset in range(max_ngram):
            at = np.minimum(word + offset, columns - 1)
            size = sizes[every_row, at]
            going &= free[every_row, at] & (size <= left)
            going &= segments[every_row, at] == segment
            going &= runs[:, rank] > offset
            free[every_row, at] &= ~going
            left -= size * going
        if not left.any():
            break
    chosen_words = (sizes > 0) & ~free
    return candidates & np.take_along_axis(chosen_words, word_of_token, axis=1)


def mask_batch(
    input_ids: np.ndarray,
    segment_ids: np.ndarray,
    candidates: np.ndarray,
    starts_word: np.ndarray,
    lengths: np.ndarray,
    config: Flags,
    mask_id: int,
    token_ids: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Masks a batch; changes `input_ids` in place.

    With `config.left_to_right` nothing is masked, and each position in
    `masked_lm_positions` predicts the next token, which is in `masked_lm_ids`.
    [SEP] is never predicted, so [CLS] a b [SEP] c [SEP] has the positions 0, 1,
    3 and the ids a, b, c.

    Args:
      input_ids: <int64>[batch, seq_length], padded with 0.
      segment_ids: <int64>[batch, seq_length].
      candidates: <bool>[batch, seq_length], False for [CLS], [SEP] and padding.
      starts_word: <bool>[vocab_size]: False for "##" tokens.
      lengths: <int64>[batch], tokens per row, with [CLS] and [SEP].
      config: Flags that set how tokens are chosen and replaced.
      mask_id: The id of [MASK].
      token_ids: The ids to draw random tokens from: all tokens, including
        special tokens.
      rng: The random generator.

    Returns:
      `masked_lm_positions` and `masked_lm_ids`, <int64>[batch,
      max_predictions_per_seq], padded with 0, positions ascending, and
      `masked_lm_weights` <float32>[batch, max_predictions_per_seq].
    """
    flat_ids, most = input_ids.reshape(-1), config.max_predictions_per_seq
    count = num_predictions(lengths, config.masked_lm_prob, most)
    if config.left_to_right:
        # If there are too many tokens, predict a uniform sample: from the first
        # tokens, a model would learn only starts of texts.
        count = np.minimum(candidates.sum(axis=1), most)
    if config.do_whole_word_mask or config.max_ngram > 1:
        starts, ngram = starts_word[input_ids], config.max_ngram
        chosen = choose_words(
            candidates, starts, segment_ids, count, ngram, rng
        )
    else:
        chosen = choose_tokens(candidates, count, rng)
    batch_size, seq_length = chosen.shape
    places = np.flatnonzero(chosen)  # In ascending order within a row.
    counts = np.count_nonzero(chosen, axis=1)
    first = np.cumsum(counts) - counts
    # Indices into the flat predictions, which have `most` slots per row.
    slots = np.arange(len(places)) + np.repeat(
        np.arange(0, batch_size * most, most) - first, counts
    )
    tokens = flat_ids[places]
    positions = np.zeros(batch_size * most, np.int64)
    ids = np.zeros(batch_size * most, np.int64)
    weights = np.zeros(batch_size * most, np.float32)
    positions[slots] = places % seq_length - int(config.left_to_right)
    ids[slots] = tokens
    weights[slots] = 1.0
    if not config.left_to_right:
        # Mask, keep or replace each token independently, even within a word
        # (lines 391-404 and 210 of the original).
        draws = rng.random(tokens.shape)
        drawn = token_ids[rng.integers(0, len(token_ids), tokens.shape)]
        kept_below = config.mask_rate + config.same_rate
        if config.random_rate == 0:
            kept_below = 1.0  # Rounding may make the sum less than 1.
        unmasked = np.where(draws < kept_below, tokens, drawn)
        flat_ids[places] = np.where(draws < config.mask_rate, mask_id, unmasked)
    return {
        "masked_lm_positions": positions.reshape(batch_size, most),
        "masked_lm_ids": ids.reshape(batch_size, most),
        "masked_lm_weights": weights.reshape(batch_size, most),
    }
