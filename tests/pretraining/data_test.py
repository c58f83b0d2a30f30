"""Tests for bert_tf.pretraining.data."""

import dataclasses
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data.records import manifest as manifests
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.pretraining import data as pretraining_input
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model
from tests.support import tiny_pretraining


class ObjectivesTest(tf.test.TestCase, parameterized.TestCase):
    """Objectives and masking of the records against the flags."""

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
            pretraining_input._with_vocab_size(own, recipe, vocabulary)

    def test_dynamic_masking_uses_the_flags_of_the_records(self):
        def masking(manifest):
            return pretraining_input.build_input(
                tiny_pretraining.make_config(
                    self.folder, dynamic_masking=True, masked_lm_prob=0.3
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


if __name__ == "__main__":
    tf.test.main()
