"""Dynamic masking for the masked language model, in the graph.

The masks of an example depend only on (seed, example number). Example numbers
continue across epochs, so a record gets new masks in each epoch, and a resumed
run draws the same masks as an uninterrupted run.

Shapes:
  B: batch size.
  S: sequence length.
  P: predictions per sequence.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf import stateless_random
from bert_tf.text.vocabulary import Vocabulary

_ORDER_SALT = 11
_KIND_SALT = 12
_WORD_SALT = 13


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """Settings for drawing masks by the rule of the original.

    Source: create_pretraining_data.py:340-415 of the original.

    Attributes:
      token_ids: The ids from which random replacements are drawn.
      cls_id: Id of [CLS], which is never masked.
      sep_id: Id of [SEP], which is never masked.
      mask_id: Id of [MASK].
      masked_lm_prob: Share of a sequence's tokens to predict.
      final_masked_lm_prob: The share to which `masked_lm_prob` changes
        linearly; None for a constant share.
      num_examples: Number of examples until `final_masked_lm_prob` is reached.
      mask_rate: Share of the chosen tokens replaced by [MASK].
      same_rate: Share of the chosen tokens that stay. Random tokens replace all
        other chosen tokens.
      continuations: To mask whole words, a bool for each id that is true if the
        token continues a word ("##..."). If None, single tokens are masked.
    """

    token_ids: tuple[int, ...]
    cls_id: int
    sep_id: int
    mask_id: int
    masked_lm_prob: float = 0.15
    mask_rate: float = 0.8
    same_rate: float = 0.1
    continuations: tuple[bool, ...] | None = None
    final_masked_lm_prob: float | None = None
    num_examples: int = 1

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: Vocabulary,
        masked_lm_prob: float,
        whole_words: bool = False,
    ) -> "DynamicMasking":
        continuations = None
        if whole_words:
            continuations = tuple(
                token.startswith("##") for token in vocabulary.tokens
            )
        return cls(
            token_ids=vocabulary.token_ids,
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            mask_id=vocabulary.mask_id,
            masked_lm_prob=masked_lm_prob,
            continuations=continuations,
        )

    def apply(
        self,
        features: dict[str, tf.Tensor],
        example_index: tf.Tensor,
        seed: int,
    ) -> dict[str, tf.Tensor]:
        """Replaces the masks of a batch with new ones.

        `example_index` <int64>[B] numbers the examples over all epochs.

        Returns:
          The features; `input_ids`, `masked_lm_positions`, `masked_lm_ids` and
          `masked_lm_weights` are new.
        """
        num_slots = _width(features["masked_lm_positions"])
        original_ids = restore_ids(features)
        positions, weights = self._choose(
            original_ids, features["input_mask"], example_index, seed, num_slots
        )
        chosen = weights > 0
        labels = tf.gather(original_ids, positions, batch_dims=1)  # [B, P]
        replaced = self._replace(labels, positions, example_index, seed)
        return features | {
            "input_ids": _scatter(original_ids, positions, replaced, chosen),
            "masked_lm_positions": tf.where(chosen, positions, 0),
            "masked_lm_ids": tf.where(chosen, labels, 0),
            "masked_lm_weights": weights,
        }

    def _choose(self, ids, input_mask, example_index, seed, num_slots):
        """Returns the chosen positions and their weights, [B, P] each."""
        # The length, [B], includes [CLS] and [SEP].
        length = tf.reduce_sum(input_mask, axis=1)
        share = self.masked_lm_prob
        if self.final_masked_lm_prob is not None:
            done = tf.cast(example_index, tf.float64) / self.num_examples
            change = self.final_masked_lm_prob - share
            share += change * tf.minimum(done, 1.0)  # [B]
        # tf.round rounds halves to even, like Python's round in the original.
        limit = tf.round(tf.cast(length, tf.float64) * share)
        limit = tf.clip_by_value(tf.cast(limit, tf.int32), 1, num_slots)
        candidates = (
            (input_mask > 0) & (ids != self.cls_id) & (ids != self.sep_id)
        )
        if self.continuations is None:
            rank = _random_rank(candidates, example_index, seed)
            chosen = candidates & (rank < limit[:, None])
        else:
            chosen = self._choose_words(
                ids, candidates, limit, example_index, seed
            )
        # Chosen positions come first, in ascending order; [B, S] -> [B, P].
        order = tf.argsort(tf.cast(~chosen, tf.int32), axis=1, stable=True)
        count = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
        weights = tf.sequence_mask(count, num_slots, tf.float32)
        missing = tf.maximum(0, num_slots - _width(order))
        positions = tf.pad(order, [[0, 0], [0, missing]])[:, :num_slots]
        positions = tf.ensure_shape(positions, weights.shape)
        return positions, weights

    def _choose_words(self, ids, candidates, limit, example_index, seed):
        """Takes words in random order, skipping words that exceed the limit.

        If the random order gives words of 2, 2 and 1 tokens and the limit is 3,
        the first word and the third word are chosen.
        """
        table = tf.constant(self.continuations)
        starts = candidates & ~tf.gather(table, ids)
        # If truncation cut off the start of a word, the rest counts as a word.
        is_first = tf.cumsum(tf.cast(candidates, tf.int32), axis=1) == 1
        starts |= candidates & is_first
        word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1  # [B, S]
        word = tf.where(candidates, word, -1)
        width = _width(ids)
        one_hot = tf.one_hot(word, width, dtype=tf.int32)  # [B, S, words]
        word_lengths = tf.reduce_sum(one_hot, axis=1)  # [B, words]
        rank = _random_rank(word_lengths > 0, example_index, seed)
        order = tf.argsort(rank, axis=1)
        lengths = tf.gather(word_lengths, order, batch_dims=1)

        def take(state, length):
            used, _ = state
            fits = (length > 0) & (used + length <= limit)
            return used + tf.where(fits, length, 0), fits

        zero = tf.zeros_like(limit)
        _, fits = tf.scan(take, tf.transpose(lengths), (zero, zero > 0))
        # `fits` is in random order: `rank` restores the order of the words.
        taken = tf.gather(tf.transpose(fits), rank, batch_dims=1)
        return candidates & tf.gather(taken, tf.maximum(word, 0), batch_dims=1)

    def _replace(self, labels, positions, example_index, seed):
        keys = (seed, example_index[:, None], tf.cast(positions, tf.int64))
        kind = stateless_random.uniform(_KIND_SALT, *keys)
        count = len(self.token_ids)
        words = stateless_random.below(count, _WORD_SALT, *keys)
        words = tf.gather(tf.constant(self.token_ids), words)
        unmasked = tf.where(
            kind < self.mask_rate + self.same_rate, labels, words
        )
        return tf.where(kind < self.mask_rate, self.mask_id, unmasked)


def restore_ids(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the ids before masking, <int32>[B, S]."""
    return _scatter(
        features["input_ids"],
        features["masked_lm_positions"],
        features["masked_lm_ids"],
        features["masked_lm_weights"] > 0,
    )


def without_blank_rows(probs: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns probabilities <float>[..., rows], -1 for ids without a token."""
    has_token = np.zeros(probs.shape[-1], bool)
    has_token[list(vocabulary.token_ids)] = True
    return probs if has_token.all() else tf.where(has_token, probs, -1.0)


def _width(values: tf.Tensor) -> tf.Tensor | int:
    """Returns the size of the second axis, a tensor if it is dynamic."""
    width = values.shape[1]
    return tf.shape(values)[1] if width is None else width


def _random_rank(
    candidates: tf.Tensor, example_index: tf.Tensor, seed: int
) -> tf.Tensor:
    """Ranks each row: candidates in random order, then all other columns."""
    columns = tf.range(tf.cast(_width(candidates), tf.int64))
    drawn = stateless_random.uniform(
        _ORDER_SALT, seed, example_index[:, None], columns
    )
    order = tf.argsort(tf.where(candidates, drawn, 2.0), axis=1, stable=True)
    return tf.argsort(order, axis=1)  # The inverse permutation.


def _scatter(ids, positions, values, chosen):
    """Writes the chosen values at their positions into [B, S]."""
    batch_size = tf.shape(ids)[0]
    width = _width(ids)
    # Values that are not chosen go to an extra column, which is cut off.
    columns = tf.where(chosen, positions, width)  # [B, P]
    rows = tf.broadcast_to(tf.range(batch_size)[:, None], tf.shape(columns))
    written = tf.tensor_scatter_nd_update(
        tf.pad(ids, [[0, 0], [0, 1]]),
        tf.stack([rows, columns], axis=-1),
        values,
    )
    return written[:, :width]
