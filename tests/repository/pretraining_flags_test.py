"""Tests of the flag files of pretraining, in the root."""

import contextlib
import math

import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.commands.learn_vocabulary import LearnVocabularyConfig
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.flags import cli
from bert_tf.io import files
from tests.support import repository

# Phase 2 has longer sequences, so only these flags may differ.
_OF_LENGTH = {"input_file", "max_seq_length", "max_predictions_per_seq"}
_FLAG_FILES = sorted(path.name for path in repository.ROOT.glob("*.flags"))
# The flag files for CPUs do not name their inputs, and some are for other
# commands. The modern ones extend other flag files.
_OTHERS = {x for x in _FLAG_FILES if x.startswith(("cpu", "modern"))}


class FlagFilesTest(tf.test.TestCase, parameterized.TestCase):
    def _parse(self, *args, config_class=PretrainConfig):
        values = flags.FlagValues()
        read_config = cli.define_flags(config_class, values)
        values(["pretrain.py", *args])
        return read_config()

    def setUp(self):
        super().setUp()
        # Flag files name nested ones by paths from the root.
        self.enter_context(contextlib.chdir(repository.ROOT))

    @parameterized.parameters(sorted(set(_FLAG_FILES) - _OTHERS))
    def test_parses_into_an_existing_configuration(self, name):
        config = self._parse(f"--flagfile={name}")
        bert_config = files.read_bert_config(config.bert_config_file)
        self.assertLessEqual(
            config.max_seq_length, bert_config.max_position_embeddings
        )
        self.assertTrue(config.do_train and config.do_eval)
        # The original masks round(15%) of the tokens, and all must fit.
        self.assertEqual(
            config.max_predictions_per_seq,
            -(-config.max_seq_length * 15 // 100),
        )

    @parameterized.parameters("base", "large", "tiny")
    def test_phase_2_continues_phase_1(self, name):
        first = self._parse(f"--flagfile={name}.flags")
        second = self._parse(f"--flagfile={name}_phase2.flags")
        self.assertEqual(first.stop_at_step * 10, first.num_train_steps * 9)
        self.assertEqual(second.stop_at_step, second.num_train_steps)
        self.assertEqual(
            _changed_flags(first, second),
            _OF_LENGTH | {"stop_at_step"},
        )

    def test_lamb_phase_2_begins_where_phase_1_ends(self):
        first = self._parse("--flagfile=lamb.flags")
        second = self._parse("--flagfile=lamb_phase2.flags")
        self.assertEqual(first.stop_at_step, first.num_train_steps)
        self.assertEqual(second.schedule_start_step, first.num_train_steps)
        self.assertEqual(second.stop_at_step, second.num_train_steps)
        self.assertEqual(
            _changed_flags(first, second),
            _OF_LENGTH
            | {
                "train_batch_size",
                "learning_rate",
                "num_warmup_steps",
                "num_train_steps",
                "schedule_start_step",
                "stop_at_step",
            },
        )

    def test_base_is_the_recipe_of_the_paper(self):
        config = self._parse("--flagfile=base.flags")
        self.assertEqual(config.train_batch_size, 256)
        self.assertEqual(config.learning_rate, 1e-4)
        self.assertEqual(config.num_warmup_steps, 10000)
        self.assertEqual(config.num_train_steps, 1000000)
        self.assertEqual(config.optimizer, "bert_adam")
        self.assertEqual(config.weight_decay_rate, 0.01)
        self.assertEqual(config.input_file, "data/pretraining/*.tfrecord")
        self.assertEqual(config.vocab_file, "data/vocab.txt")

    def test_recipe_for_cpus_fits_together(self):
        def parse(config_class, recipe, *names):
            paths = (f"--{name}=x" for name in names)
            return self._parse(
                f"--flagfile={recipe}.flags", *paths, config_class=config_class
            )

        config = parse(PretrainConfig, "cpu", "input_file", "output_dir")
        paths = ("input_file", "output_file")
        vocabulary = parse(LearnVocabularyConfig, "cpu_vocabulary", *paths)
        data = parse(
            CreatePretrainingDataConfig, "cpu_data", *paths, "vocab_file"
        )
        bert_config = files.read_bert_config(config.bert_config_file)
        self.assertEqual(vocabulary.vocab_size, bert_config.vocab_size)
        # Fine-tuning takes 128 tokens by default, so the model must, too.
        self.assertEqual(bert_config.max_position_embeddings, 128)
        self.assertEqual(config.max_seq_length, data.max_seq_length)
        self.assertEqual(config.masked_lm_prob, data.masked_lm_prob)
        self.assertEqual(config.use_next_sentence, data.next_sentence_pairs)
        share = data.masked_lm_prob * data.max_seq_length
        self.assertEqual(data.max_predictions_per_seq, math.ceil(share))

    def test_modern_recipe_changes_the_flags_before_it_alone(self):
        paths = ("--input_file=x", "--output_dir=x")
        before = self._parse("--flagfile=tiny.flags", *paths)
        config = self._parse(
            "--flagfile=tiny.flags", "--flagfile=modern.flags", *paths
        )
        self.assertEqual(
            _changed_flags(before, config),
            {"dynamic_masking", "masked_lm_prob", "final_masked_lm_prob"}
            | {"use_next_sentence", "adam_beta2", "schedule"},
        )
        data = self._parse(
            "--flagfile=modern_data.flags",
            *("--input_file=x", "--output_file=x", "--vocab_file=x"),
            config_class=CreatePretrainingDataConfig,
        )
        self.assertEqual(data.masked_lm_prob, config.masked_lm_prob)
        self.assertFalse(data.next_sentence_pairs)
        self.assertTrue(data.do_whole_word_mask)

    def test_flags_after_the_file_override_it(self):
        config = self._parse("--flagfile=base.flags", "--num_train_steps=1")
        self.assertEqual(config.num_train_steps, 1)


def _changed_flags(first, second):
    """Returns the names of the flags in which two configurations differ."""
    return {
        field
        for field in vars(first)
        if getattr(first, field) != getattr(second, field)
    }


if __name__ == "__main__":
    tf.test.main()
