"""Tests for bert_tf.text.masking."""

import dataclasses
import hashlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import stateless_random
from bert_tf.text import masking

_CLS, _SEP, _MASK = 2, 3, 4
_MASKING = masking.DynamicMasking(
    token_ids=tuple(range(1000)), cls_id=_CLS, sep_id=_SEP, mask_id=_MASK
)
# Every third token continues a word.
_CONTINUATIONS = tuple(i > 4 and i % 3 == 0 for i in range(1000))


def _batch(lengths, width=64, slots=12):
    """Returns masked sequences [CLS] A [SEP] B [SEP], and their ids."""
    rng = np.random.default_rng(5)
    ids = rng.integers(5, 1000, (len(lengths), width)).astype(np.int32)
    lengths = np.asarray(lengths)
    columns = np.arange(width)
    ids[:, 0] = _CLS
    for row, length in enumerate(lengths):
        ids[row, [length // 2, length - 1]] = _SEP
    input_mask = (columns < lengths[:, None]).astype(np.int32)
    ids *= input_mask
    positions = np.tile(np.arange(1, slots + 1, dtype=np.int32), (len(ids), 1))
    used = positions < lengths[:, None] // 4
    labels = np.take_along_axis(ids, positions, 1)
    masked = ids.copy()
    for row in range(len(ids)):
        masked[row, positions[row, used[row]]] = _MASK
    features = {
        "input_ids": masked,
        "input_mask": input_mask,
        "segment_ids": input_mask * (columns > lengths[:, None] // 2),
        "masked_lm_positions": positions * used,
        "masked_lm_ids": labels * used,
        "masked_lm_weights": used.astype(np.float32),
        "next_sentence_labels": (lengths[:, None] % 2).astype(np.int32),
    }
    return {k: tf.constant(v) for k, v in features.items()}, ids


def _apply(features, seed=1, first=0, rule=_MASKING, **changes):
    rule = dataclasses.replace(rule, **changes)
    index = first + tf.range(len(features["input_ids"]), dtype=tf.int64)
    drawn = tf.function(rule.apply)(features, index, seed)
    return {name: value.numpy() for name, value in drawn.items()}


class DynamicMaskingTest(tf.test.TestCase, parameterized.TestCase):
    def test_share_changes_linearly_with_the_examples(self):
        features, _ = _batch([64] * 40, slots=20)
        for first, share in (
            (0, 0.3),
            (500, 0.225),
            (1000, 0.15),
            (9000, 0.15),
        ):
            drawn = _apply(
                features,
                first=first,
                masked_lm_prob=0.3,
                final_masked_lm_prob=0.15,
                num_examples=1000,
            )
            counts = drawn["masked_lm_weights"].sum(axis=1)
            self.assertEqual(counts[0], round(64 * share))
        # The share must hold for the other rows of the batch, too.
        self.assertAllInRange(counts, 10, 10)

    def test_restores_the_ids_before_masking(self):
        features, ids = _batch([64, 40, 9, 30])
        self.assertNotAllEqual(features["input_ids"], ids)
        self.assertAllEqual(masking.restore_ids(features), ids)

    # Other masks would change the results of all earlier commands.
    @parameterized.parameters(
        ("d37e97c7f4b9dc80", {}),
        (
            "bd9da2c467b580be",
            {"continuations": _CONTINUATIONS, "masked_lm_prob": 0.3},
        ),
    )
    def test_masks_are_those_of_earlier_versions(self, digest, changes):
        features, _ = _batch([64, 40, 9, 30])
        drawn = _apply(features, first=10**12, **changes)
        values = b"".join(drawn[name].tobytes() for name in sorted(drawn))
        self.assertStartsWith(hashlib.sha256(values).hexdigest(), digest)

    def test_rates_of_one_are_exact(self):
        features, ids = _batch([64, 40])
        chosen = _apply(features)["masked_lm_weights"] == 1
        masked = _apply(features, mask_rate=1.0, same_rate=0.0)
        seen = np.take_along_axis(
            masked["input_ids"], masked["masked_lm_positions"], 1
        )
        self.assertAllEqual(seen[chosen], np.full(chosen.sum(), _MASK))
        same = _apply(features, mask_rate=0.0, same_rate=1.0)
        self.assertAllEqual(same["input_ids"], ids)
        randomised = _apply(features, mask_rate=0.0, same_rate=0.0)
        self.assertAllEqual(
            randomised["masked_lm_positions"], masked["masked_lm_positions"]
        )
        seen = np.take_along_axis(
            randomised["input_ids"], randomised["masked_lm_positions"], 1
        )
        labels = randomised["masked_lm_ids"]
        self.assertLess(np.mean(seen[chosen] == labels[chosen]), 0.2)

    def test_depends_only_on_seed_and_example(self):
        features, _ = _batch([64, 40, 9, 30])
        drawn = _apply(features, first=100)
        for other in (_apply(features, seed=2, first=100), _apply(features)):
            self.assertNotAllEqual(drawn["input_ids"], other["input_ids"])
        part = _apply({k: v[2:] for k, v in features.items()}, first=102)
        for name, value in drawn.items():
            self.assertAllEqual(value[2:], part[name])

    def test_many_draws_follow_the_distribution(self):
        features, ids = _batch([64] * 4000, slots=10)
        drawn = _apply(features, first=10**12)
        count = 4000 * 10
        labels, positions = drawn["masked_lm_ids"], drawn["masked_lm_positions"]
        seen = np.take_along_axis(drawn["input_ids"], positions, 1)
        is_mask = seen == _MASK
        is_same = ~is_mask & (seen == labels)
        # Three standard errors: 0.006 at 80%, 0.0045 at 10%.
        self.assertNear(is_mask.mean(), 0.8, 0.006)
        self.assertNear(is_same.mean(), 0.1, 0.0045)
        # All 61 positions outside [CLS] and [SEP] are equally likely.
        places = np.bincount(positions.ravel(), minlength=64)
        self.assertAllEqual(places[[0, 32, 63]], [0, 0, 0])
        places = np.delete(places, [0, 32, 63])
        expected = count / 61
        self.assertLess(np.abs(places - expected).max(), 5 * expected**0.5)
        # Random tokens come from the whole vocabulary, special ones included.
        drawn_words = seen[~is_mask & ~is_same]
        self.assertBetween(drawn_words.mean(), 480, 520)
        self.assertLess(drawn_words.min(), 5)

    def test_whole_words_equal_a_simulation(self):
        lengths = [64, 40, 9, 30, 5, 63]
        features, ids = _batch(lengths, slots=7)
        drawn = _apply(features, continuations=_CONTINUATIONS)
        for row, length in enumerate(lengths):
            words = []
            for place in range(1, length):
                if ids[row, place] == _SEP:
                    continue
                if words and _CONTINUATIONS[ids[row, place]]:
                    words[-1].append(place)
                else:
                    words.append([place])
            ranks = stateless_random.uniform(
                11, 1, row, tf.range(len(words), dtype=tf.int64)
            )
            wanted = min(7, max(1, round(length * 0.15)))
            chosen = []
            for word in np.argsort(ranks):
                if len(chosen) + len(words[word]) <= wanted:
                    chosen += words[word]
            used = drawn["masked_lm_weights"][row] == 1
            self.assertAllEqual(
                drawn["masked_lm_positions"][row, used], sorted(chosen)
            )


if __name__ == "__main__":
    tf.test.main()
