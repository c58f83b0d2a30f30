"""Tests for bert_tf.pretraining.plateau."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.pretraining import plateau
from bert_tf.pretraining.plateau import TextSample


@dataclasses.dataclass
class _Flags:
    """The flags that a `Watch` reads; 65,536 tokens a step."""

    learning_rate: float = 2e-3
    num_warmup_steps: int = 1000
    optimizer: str = "adamw"
    num_train_steps: int = 1000
    schedule_start_step: int = 0
    train_batch_size: int = 512
    gradient_accumulation_steps: int = 1
    max_seq_length: int = 128


class FrequencyLossTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (0.8, 0.1, 0.1), (0.8, 0.2, 0.0), (0.0, 0.0, 1.0), (0.8, 0.0, 0.2)
    )
    def test_is_the_entropy_of_a_token_given_what_is_seen(
        self, masked, same, random
    ):
        counts = np.array([0, 40000, 300000, 1000, 659000])
        p = counts / counts.sum()
        size = len(p)
        loss = 0.0
        for y in np.flatnonzero(p):
            # -P(y, seen) * log P(y | seen), for each input token `seen`; [MASK]
            # reveals nothing, so there P(y | seen) is P(y).
            if masked:
                loss -= masked * p[y] * np.log(p[y])
            for x in range(size):
                joint = p[y] * (same * (x == y) + random / size)
                seen = same * p[x] + random / size
                if joint:
                    loss -= joint * np.log(joint / seen)
        self.assertAllClose(
            plateau.frequency_loss(counts, masked, same, random),
            loss,
            atol=1e-4,
        )

    def test_small_samples_are_corrected(self):
        random = np.random.default_rng(1)
        p = 1 / np.arange(1, 501)
        p /= p.sum()
        found = [
            plateau.frequency_loss(random.multinomial(5000, p), 1.0, 0.0, 0.0)
            for _ in range(40)
        ]
        expected = -np.sum(p * np.log(p))
        deviation = np.std(found) / np.sqrt(len(found))
        # Without the correction the mean is 0.04 lower and would fail.
        self.assertLess(abs(np.mean(found) - expected), 0.01)
        self.assertLess(deviation, 0.01)


class SampleTest(tf.test.TestCase):
    def _batch(self, random, num_rows, shares):
        """Returns rows of 8 tokens with ids 5 to 24; two are predicted."""
        ids = random.integers(5, 25, (num_rows, 8), dtype=np.int32)
        positions = np.tile(np.array([[1, 4, 0]], np.int32), (num_rows, 1))
        labels = np.take_along_axis(ids, positions, axis=1)
        kind = random.choice(3, (num_rows, 2), p=shares)
        drawn = random.integers(0, 25, (num_rows, 2))
        seen = np.choose(kind, [np.full_like(drawn, 4), labels[:, :2], drawn])
        ids[:, [1, 4]] = seen
        return {
            "input_ids": ids,
            "masked_lm_positions": positions,
            "masked_lm_ids": labels,
            "masked_lm_weights": np.tile(
                np.array([[1, 1, 0]], np.float32), (num_rows, 1)
            ),
        }

    def test_finds_frequencies_and_kinds_of_masks(self):
        random = np.random.default_rng(1)
        shares = (0.7, 0.2, 0.1)
        batch = self._batch(random, 20000, shares)
        counts = np.where(np.arange(25) >= 5, 1000, 0)
        sample = plateau.sample([batch], 25)
        self.assertAllClose(
            sample.frequency_loss,
            plateau.frequency_loss(counts, *shares),
            rtol=0.02,
        )
        self.assertEqual(sample.distinct, 1.0)
        causal = plateau.sample([batch], 25, left_to_right=True)
        self.assertAllClose(causal.frequency_loss, np.log(20), rtol=1e-3)

    def test_the_same_text_under_other_masks_is_not_distinct(self):
        random = np.random.default_rng(1)
        batch = self._batch(random, 50, (1.0, 0.0, 0.0))
        other = {name: value.copy() for name, value in batch.items()}
        other["input_ids"][:, 1] = other["masked_lm_ids"][:, 0]
        sample = plateau.sample([batch, other], 25)
        self.assertEqual(sample.distinct, 0.5)

    def test_nothing_predicted_gives_no_warning(self):
        batch = self._batch(np.random.default_rng(1), 5, (1.0, 0.0, 0.0))
        batch["masked_lm_weights"][:] = 0
        sample = plateau.sample([batch], 25)
        watch = plateau.Watch(_Flags(), sample, 128)
        watch.add(0.0, 1)
        self.assertIsNone(watch.warning(1000))
        self.assertEqual(watch.describe(), "")

    def test_does_not_warn_where_each_token_is_in_its_place(self):
        batch = self._batch(np.random.default_rng(1), 50, (0.0, 1.0, 0.0))
        watch = plateau.Watch(_Flags(), plateau.sample([batch], 25), 128)
        watch.add(0.01, 1)
        self.assertIsNone(watch.warning(1000))
        self.assertEqual(watch.describe(), "")


class WatchTest(tf.test.TestCase, parameterized.TestCase):
    def _watch(self, loss, distinct=1.0, **flags):
        watch = plateau.Watch(_Flags(**flags), TextSample(5.5, distinct), 128)
        for _ in range(4):
            watch.add(loss, 100)
        return watch

    @parameterized.parameters(
        ({"learning_rate": 1e-2}, "--learning_rate=0.01 is high.*2e-03"),
        ({"learning_rate": 1e-4}, "--learning_rate=0.0001 is low.*2e-03"),
        (
            {
                "optimizer": "bert_adam",
                "num_warmup_steps": 250,
                "num_train_steps": 1500,
            },
            "--num_warmup_steps=250 is short.*--optimizer=adamw",
        ),
        ({"num_warmup_steps": 10000}, "=10000 is longer .*; try 100.$"),
        # 1000 warm-up steps would fill the run, so the message asks for 2000.
        ({"optimizer": "bert_adam", "num_warmup_steps": 9}, "steps=2000, or"),
        ({"learning_rate": 1e-3}, "--num_train_steps=2000.$"),
        ({"optimizer": "lamb", "learning_rate": 6e-3}, "=0.006.$"),
        ({}, "--num_train_steps=2000"),  # More than the run's 1000.
        ({"distinct": 0.1}, "Only 10% .*--dupe_factor"),
    )
    def test_warning_names_the_flag_to_change(self, changes, message):
        watch = self._watch(5.45, **changes)
        self.assertRegex(watch.warning(310), message)
        # The warning must not appear again.
        self.assertIsNone(watch.warning(1000))

    def test_warns_of_a_model_that_remembers_its_records(self):
        watch = self._watch(5.5)
        # A score from before the model left the plateau must not count.
        watch.add_held_out(5.6)
        watch.add(4.0, 1000)
        self.assertIsNone(watch.warning(310))
        watch.add_held_out(5.6)
        self.assertRegex(watch.warning(400), "remembers.*--dupe_factor")

    @parameterized.parameters(
        (300, 1000, False),  # 19.7 of 20 million tokens.
        (310, 1000, True),
        (310, 2000, False),  # Less than a fifth of the steps.
        (20, 20, True),  # The last step.
    )
    def test_warns_after_enough_tokens_and_steps(
        self, step, num_train_steps, expected
    ):
        watch = self._watch(5.5, num_train_steps=num_train_steps)
        warning = watch.warning(step)
        self.assertEqual(warning is not None, expected)

    def test_a_short_run_has_not_the_loss_of_its_first_step(self):
        watch = plateau.Watch(_Flags(), TextSample(5.5, 1.0), 128)
        for loss in (7.6, 5.6, 5.6, 5.6):
            watch.add(loss, 1)
        self.assertIn("This one has 6.085 ", watch.describe())

    def test_second_phase_continues_the_tokens(self):
        watch = plateau.Watch(_Flags(), TextSample(5.5, 1.0), 128, 100, 800)
        self.assertEqual(watch.tokens(102), 800 + 2 * 65536)

    def test_does_not_warn_two_percent_below_the_line(self):
        for share, expected in itertools.product((0.985, 0.975), (1, 3)):
            watch = self._watch(5.5 * share)
            warning = watch.warning(1000 * expected)
            self.assertEqual(warning is None, share < 0.98)
            self.assertIn(
                "nothing else" if share > 0.98 else "learned more",
                watch.describe(),
            )


if __name__ == "__main__":
    tf.test.main()
