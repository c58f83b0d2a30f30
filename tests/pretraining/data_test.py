"""Tests for bert_tf.pretraining.data."""

import dataclasses
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.data.records import manifest as manifests
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.pretraining import data as pretraining_input
from bert_tf.text.vocabulary import Vocabulary
from tests.support import record_files
from tests.support import tiny_model
from tests.support import tiny_pretraining


class ObjectivesTest(tf.test.TestCase, parameterized.TestCase):
    """Objectives and masking: flags compared with the records' manifest."""

    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.path = tiny_pretraining.write_records(
            os.path.join(self.folder, "a.tfrecord")
        )

    def _manifest(self, **flags):
        return dataclasses.replace(manifests.find([self.path]), flags=flags)

    def _check(self, manifest, left_to_right=False, **flags):
        pretraining_input.check_objectives(
            tiny_pretraining.make_config(self.folder, **flags),
            dataclasses.replace(
                tiny_pretraining.CONFIG, left_to_right=left_to_right
            ),
            manifest,
        )

    @parameterized.parameters(
        ({"left_to_right": True}, {}, "--left_to_right=True"),
        (
            {"left_to_right": False},
            {"left_to_right": True},
            "--left_to_right=False",
        ),
        (
            {"left_to_right": True},
            {"left_to_right": True, "dynamic_masking": True},
            "--dynamic_masking draws masks",
        ),
        ({"max_ngram": 3}, {"dynamic_masking": True}, "--max_ngram=3"),
        ({"next_sentence_pairs": False}, {}, "--nouse_next_sentence"),
    )
    def test_refuses_flags_that_do_not_fit_the_records(
        self, record_flags, flags, message
    ):
        with self.assertRaisesRegex(UserError, message):
            self._check(self._manifest(**record_flags), **flags)

    @parameterized.parameters(
        ({}, {}),
        ({}, {"left_to_right": True}),
        ({"left_to_right": True}, {"left_to_right": True}),
        ({"max_ngram": 3}, {}),
        ({"do_whole_word_mask": True}, {"dynamic_masking": True}),
        ({"next_sentence_pairs": False}, {"use_next_sentence": False}),
        ({"next_sentence_pairs": True}, {"use_next_sentence": False}),
    )
    def test_accepts_flags_that_fit_the_records(self, record_flags, flags):
        self._check(self._manifest(**record_flags), **flags)
        self._check(None, **flags)

    def test_refuses_predictions_that_contradict_the_manifest(self):
        with self.assertRaisesRegex(
            UserError, r"per_seq=3 .*a\.tfrecord.*per_seq=2; .* or give 3\."
        ):
            pretraining_input.find_predictions(2, self._manifest())

    def test_evaluation_takes_the_predictions_of_its_records(self):
        path = tiny_pretraining.write_records(
            os.path.join(self.folder, "dev.tfrecord"), max_predictions_per_seq=5
        )
        config = tiny_pretraining.make_config(self.folder, eval_input_file=path)
        data = pretraining_input.build_evaluation_input(config, None)
        (rows,) = data.evaluation_dataset().take(1)
        self.assertEqual(rows["masked_lm_ids"].shape[1], 5)

    def test_dynamic_masking_warns_of_tokens_that_do_not_fit(self):
        counts = {"length_histogram": [0, 0, 0, 0, 0, 4, 0, 2, 3]}
        manifest = dataclasses.replace(self._manifest(), counts=counts)
        for rate, warns in ((0.4, False), (0.5, True)):
            config = tiny_pretraining.make_config(
                self.folder, dynamic_masking=True, final_masked_lm_prob=rate
            )
            with mock.patch.object(logging, "warning") as warning:
                pretraining_input.build_input(
                    config, [self.path], tiny_pretraining.VOCABULARY, manifest
                )
            self.assertEqual(warning.called, warns)
        # Half of 5, 7 and 8 tokens are 2, 4 and 4; 3 fit, so 2 + 3 are lost.
        self.assertIn("5 of 28 are left out", warning.call_args.args[-1])
        self.assertIn("final_masked_lm_prob", warning.call_args.args)

    def test_a_recipe_follows_the_vocabulary(self):
        vocabulary = Vocabulary(tiny_model.TOKENS)
        name = "configs/tiny/bert_config.json"
        config = tiny_pretraining.make_config(
            self.folder, bert_config_file=name
        )
        recipe = files.read_bert_config(name)
        actual = pretraining_input._with_vocab_size(config, recipe, vocabulary)
        self.assertEqual(
            actual, dataclasses.replace(recipe, vocab_size=len(vocabulary))
        )
        own = dataclasses.replace(config, bert_config_file="own.json")
        with self.assertRaisesRegex(UserError, "lines, but `vocab_size`"):
            pretraining_input._with_vocab_size(
                own, dataclasses.replace(recipe, vocab_size=4), vocabulary
            )

    def test_warns_of_text_that_is_read_too_often(self):
        counts = RecordCounts(num_instances=600, num_pieces=90_000)
        manifest = dataclasses.replace(
            self._manifest(dupe_factor=3), counts=counts.to_dict()
        )
        for steps, warns in ((800, False), (1600, True)):
            config = tiny_pretraining.make_config(
                self.folder, train_batch_size=10, num_train_steps=steps
            )
            with mock.patch.object(logging, "warning") as warning:
                pretraining_input.warn_of_little_text(config, manifest)
            self.assertEqual(warning.called, warns)
        text = warning.call_args.args[0] % warning.call_args.args[1:]
        # A pass has 600 / 3 = 200 rows, so 16,000 rows read the text 80 times.
        self.assertIn("30,000 tokens of text, which 1600 steps", text)
        self.assertIn("read 80 times", text)
        self.assertIn("Give 48,000 tokens", text)
        # The first 800 steps read other records, so they do not count.
        with mock.patch.object(logging, "warning") as warning:
            pretraining_input.warn_of_little_text(config, manifest, 800)
        warning.assert_not_called()

    def test_an_epoch_has_each_record_once(self):
        source = PretrainingInput([self.path], 8, 3, 8)
        batches = pretraining_input.read_epoch(source, 64)
        ids = np.concatenate([batch["input_ids"][:, 0] for batch in batches])
        self.assertAllEqual(np.sort(ids), range(20))

    def test_dynamic_masking_uses_the_flags_of_the_records(self):
        def masking(manifest, **flags):
            return pretraining_input.build_input(
                tiny_pretraining.make_config(
                    self.folder,
                    dynamic_masking=True,
                    masked_lm_prob=0.3,
                    **flags,
                ),
                [self.path],
                tiny_pretraining.VOCABULARY,
                manifest,
            ).masking

        for manifest in (None, self._manifest(random_seed=17)):
            usual = masking(manifest)
            self.assertIsNone(usual.continuations)
            self.assertEqual((usual.mask_rate, usual.same_rate), (0.8, 0.1))
            self.assertEqual(usual.masked_lm_prob, 0.3)
        other = masking(
            self._manifest(
                do_whole_word_mask=True, mask_rate=0.5, same_rate=0.25
            )
        )
        self.assertLen(other.continuations, 64)
        self.assertEqual((other.mask_rate, other.same_rate), (0.5, 0.25))
        # If any rate is a flag, the records' rates do not count.
        manifest = self._manifest(
            mask_rate=0.5, same_rate=0.25, random_rate=0.25
        )
        for flags, expected in (
            ({"mask_rate": 0.2, "same_rate": 0.7}, (0.2, 0.7)),
            ({"mask_rate": 0.9, "random_rate": 0.0}, (0.9, 1 - 0.9)),
            ({"same_rate": 0.0, "random_rate": 0.2}, (0.8, 0.0)),
        ):
            given = masking(manifest, **flags)
            self.assertEqual((given.mask_rate, given.same_rate), expected)
        falling = masking(
            None,
            final_masked_lm_prob=0.15,
            num_train_steps=50,
            train_batch_size=6,
            gradient_accumulation_steps=2,
        )
        self.assertEqual(falling.final_masked_lm_prob, 0.15)
        self.assertEqual(falling.num_examples, 600)

    @parameterized.parameters(
        ({"mask_rate": 0.9}, "must add up to 1. Received: 1.1"),
        (
            {"random_rate": -0.1, "same_rate": 0.3},
            "random_rate must be at least",
        ),
        (
            {"same_rate": 0.1, "dynamic_masking": False},
            "--same_rate needs --dynamic_masking",
        ),
        ({"adam_beta2": 0.0}, "adam_beta2 must be above 0"),
    )
    def test_wrong_rates_are_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            tiny_pretraining.make_config(
                self.folder, **{"dynamic_masking": True} | flags
            )

    def test_warns_of_records_without_a_manifest(self):
        config = tiny_pretraining.make_config(self.folder)
        with self.assertLogs(level="WARNING") as logs:
            found = pretraining_input._find_vocabulary(config, None)
        self.assertEqual(found, (None, None))
        self.assertIn("nothing about their vocabulary", logs.output[0])


class ReadingTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        path = os.path.join(self.create_tempdir().full_path, "a.tfrecord")
        self.path = record_files.write(path, range(7))

    def _read(self, error=None, coordinator=None):
        devices = mock.Mock(coordinator=coordinator or mock.Mock())
        source = PretrainingInput([self.path], 8, 3, 4, max_corrupt=1)
        with pretraining_input.reading(source, devices, vocab_size=64):
            if error is not None:
                raise error

    def test_workers_must_have_the_same_records(self):
        record_files.damage(self.path, 3)
        coordinator = mock.create_autospec(Coordinator, instance=True)
        self._read(coordinator=coordinator)
        (values, _), _ = coordinator.agree.call_args
        self.assertEqual(
            values,
            {
                f"the number of records in {self.path}": 7,
                f"record 3 of {self.path}": "its checksum is wrong",
            },
        )
        coordinator.agree.side_effect = UserError("All workers must have")
        with self.assertRaisesRegex(UserError, "All workers must have"):
            self._read(coordinator=coordinator)


if __name__ == "__main__":
    tf.test.main()
