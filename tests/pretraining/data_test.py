"""Tests for bert_tf.pretraining.data."""

import dataclasses
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data.records import manifest as manifests
from bert_tf.errors import UserError
from bert_tf.pretraining import data as pretraining_input
from tests.support import tiny_pretraining


class ObjectivesTest(tf.test.TestCase, parameterized.TestCase):
    """What records are made for, and what is trained on them."""

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
    def test_refuses_what_does_not_fit(self, made_with, flags, message):
        with self.assertRaisesRegex(UserError, message):
            self._check(self._manifest(**made_with), **flags)

    @parameterized.parameters(
        ({}, {}),
        ({}, {"left_to_right": True}),
        ({"left_to_right": True}, {"left_to_right": True}),
        ({"max_ngram": 3}, {}),
        ({"do_whole_word_mask": True}, {"dynamic_masking": True}),
        ({"next_sentence_pairs": False}, {"use_next_sentence": False}),
        ({"next_sentence_pairs": True}, {"use_next_sentence": False}),
    )
    def test_takes_what_fits(self, made_with, flags):
        self._check(self._manifest(**made_with), **flags)
        self._check(None, **flags)

    def test_masks_are_drawn_as_the_records_have_them(self):
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
