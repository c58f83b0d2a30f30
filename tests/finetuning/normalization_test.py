"""Tests for bert_tf.finetuning.normalization, and of what it leaves."""

import json
import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.finetuning import normalization
from bert_tf.finetuning import run as finetuning
from bert_tf.tasks.classification import flags as classification_flags
from tests.support import tiny_finetuning
from tests.support import tiny_model


class NormalizationTest(tf.test.TestCase, parameterized.TestCase):
    def _choose(self, stored, **values):
        folder = self.create_tempdir().full_path
        config = tiny_finetuning.config(folder, **values)
        return normalization.choose(stored, config)

    def _stored(self, kind="encoder"):
        path = os.path.join(self.create_tempdir().full_path, "model")
        return model_directory.read_model(tiny_model.write(path, kind=kind))

    def test_the_model_decides_by_default(self):
        stored = self._stored()
        self.assertIs(self._choose(stored), stored)
        self.assertIs(self._choose(stored, normalization="original"), stored)

    def test_a_model_can_change_to_the_rules_of_the_device(self):
        stored = self._choose(self._stored(), normalization="ascii_lower")
        tokenizer = stored.build_tokenizer()
        self.assertEqual(stored.tokenizer_settings, tokenizer.settings())
        self.assertAllEqual(
            tokenizer.tokens(tokenizer.tokenize("The caT CÄT")),
            [b"the", b"cat", b"[UNK]"],
        )
        same = self._choose(stored, normalization="ascii_lower")
        self.assertIs(same, stored)

    def test_but_not_back(self):
        stored = self._choose(self._stored(), normalization="ascii_lower")
        with self.assertRaisesRegex(
            UserError, "trained with --normalization=ascii_lower.*=original"
        ):
            self._choose(stored, normalization="original")

    def test_flags_must_agree(self):
        with self.assertRaisesRegex(UserError, "lower-cases all.*=false"):
            self._choose(
                self._stored(),
                normalization="ascii_lower",
                do_lower_case=False,
            )

    def test_a_cased_vocabulary_is_warned_of(self):
        stored = self._stored()
        settings = {**stored.tokenizer_settings, "lower_case": False}
        object.__setattr__(stored, "tokenizer_settings", settings)
        with self.assertLogs(level="WARNING") as logs:
            self._choose(stored, normalization="ascii_lower")
        self.assertIn("has upper-case letters", logs.output[0])

    @pytest.mark.slow
    def test_scores_and_the_model_follow_the_rules(self):
        folder = self.create_tempdir().full_path
        config = tiny_finetuning.config(
            folder, num_train_epochs="0.1", normalization="ascii_lower"
        )
        finetuning.run(config, classification_flags.build_task)
        path = os.path.join(config.output_dir, "model")
        with open(
            os.path.join(path, "tokenizer.json"), encoding="utf-8"
        ) as file:
            self.assertEqual(json.load(file)["normalization"], "ascii_lower")
        with self.assertRaisesRegex(UserError, "=ascii_lower.*=original; drop"):
            finetuning.run(
                tiny_finetuning.config(
                    folder,
                    do_train=False,
                    pretrained_model_dir=None,
                    normalization="original",
                ),
                classification_flags.build_task,
            )


if __name__ == "__main__":
    tf.test.main()
