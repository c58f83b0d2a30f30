"""Tests for bert_tf.finetuning.pretrained_model."""

import json
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_finetuning
from tests.support import tiny_model

_CASED = [token.replace("dog", "Dog") for token in tiny_model.TOKENS]


class TrioTest(tf.test.TestCase, parameterized.TestCase):
    """The original's --bert_config_file, --vocab_file, --init_checkpoint."""

    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    def _write_model(self, tokens, **settings):
        """Writes a model directory; returns its path."""
        path = os.path.join(self.folder, "model")
        vocabulary = Vocabulary(tokens)
        model_directory.write(
            path,
            tiny_model.CONFIG,
            tiny_model.random_weights(),
            vocabulary,
            BertTokenizer(vocabulary, **settings).settings(),
            {"kind": "pretraining", "max_seq_length": 12},
            "# Tiny\n",
        )
        return path

    def _read(self, tokens, init_checkpoint=None, **flags):
        trio = {
            "vocab_file": os.path.join(self.folder, "vocab.txt"),
            "bert_config_file": os.path.join(self.folder, "config.json"),
        }
        with open(trio["vocab_file"], "w", encoding="utf-8") as file:
            file.write("".join(f"{token}\n" for token in tokens))
        with open(trio["bert_config_file"], "w", encoding="utf-8") as file:
            json.dump(tiny_model.CONFIG.to_dict(), file)
        return pretrained_models.read(
            tiny_finetuning.config(
                self.folder,
                **trio
                | {
                    "pretrained_model_dir": None,
                    "init_checkpoint": init_checkpoint,
                }
                | flags,
            )
        )

    @parameterized.parameters(
        (_CASED, None, False, 0),
        (_CASED, False, False, 0),
        (_CASED, True, True, 1),
        (tiny_model.TOKENS, None, True, 0),
        (tiny_model.TOKENS, False, False, 1),
    )
    def test_case_is_that_of_the_vocabulary(
        self, tokens, flag, expected, num_warnings
    ):
        with self.assertLogs(level="WARNING") as logs:
            stored = self._read(tokens, do_lower_case=flag)
        self.assertEqual(stored.tokenizer_settings["lower_case"], expected)
        # The first says that the weights are random.
        self.assertLen(logs.output, 1 + num_warnings)
        if num_warnings:
            self.assertIn(f"--do_lower_case={flag}, though", logs.output[1])

    def test_a_model_that_says_how_it_reads(self):
        path = self._write_model(tiny_model.TOKENS, lower_case=False)
        stored = self._read(tiny_model.TOKENS, path)
        self.assertFalse(stored.tokenizer_settings["lower_case"])
        with self.assertRaisesRegex(UserError, "with do_lower_case=False"):
            self._read(tiny_model.TOKENS, path, do_lower_case=True)

    def test_another_vocabulary(self):
        path = self._write_model(tiny_model.TOKENS)
        with self.assertRaisesRegex(
            UserError,
            "that of --vocab_file=.*vocab.txt is .*--allow_changed_data",
        ):
            self._read(_CASED, path)
        stored = self._read(_CASED, path, allow_changed_data=True)
        self.assertEqual(stored.vocabulary.tokens, tuple(_CASED))


if __name__ == "__main__":
    tf.test.main()
