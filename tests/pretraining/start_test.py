"""Tests for --init_checkpoint and --init_optimizer_state."""

import dataclasses
import os
import shutil

import pytest
import tensorflow as tf

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary
from tests.support import killed_process
from tests.support import pretrain_case
from tests.support import tiny_pretraining


class PretrainStartTest(pretrain_case.PretrainCase):
    """Tests that start from a run that was stopped at step 3 of 6."""

    def setUp(self):
        super().setUp()
        self.copy_run("first", stop_at_step=3)
        self.first = tf1_checkpoint.read(self.path("first"))

    def convert(self, weights_format, name, **changes):
        """Writes the first run's model and state in a format."""
        stored = formats.read(self.path("first"))
        stored = dataclasses.replace(stored, **changes)
        os.makedirs(self.path(name))
        formats.module_of(weights_format).write_model(self.path(name), stored)
        return self.path(name)

    def bare(self):
        """Returns a checkpoint without configuration and vocabulary."""
        os.mkdir(self.path("bare"))
        for suffix in (".index", ".data-00000-of-00001"):
            shutil.copy(
                self.path("first", f"model.ckpt-3{suffix}"),
                self.path("bare", f"alone.ckpt{suffix}"),
            )
        return self.path("bare", "alone.ckpt")

    def assert_weights_of_first_run(self, tensors, but=()):
        for name, value in self.first.items():
            if not weight_map.is_optimizer_state(name):
                if weight_map.part_of(name) not in but:
                    self.assertAllEqual(tensors[name], value, name)

    @pytest.mark.slow
    def test_loads_weights_without_moments_and_step(self):
        # A path in Hugging Face's cache names the revision, so the card can.
        snapshot = f"models--own--tiny/snapshots/{'a' * 40}"
        for name, path in {
            "training": self.path("first"),
            "hugging": self.convert("huggingface", snapshot),
        }.items():
            # The first step's rate is 0, so the weights stay as loaded.
            log = self.pretrain(
                init_checkpoint=path,
                output_dir=self.path("next", name),
                num_train_steps=1,
            )
            self.assertStartsWith(log[2], "Initialized from the checkpoint")
            self.assertIn(
                "loaded 30 weights, all of the model's", "\n".join(log)
            )
            tensors = tf1_checkpoint.read(self.path("next", name))
            self.assert_weights_of_first_run(tensors)
            self.assertEqual(tensors["global_step"], 1)
            moment = "bert/pooler/dense/kernel/adam_v"
            self.assertNotAllClose(tensors[moment], self.first[moment])
        self._assert_card_names_the_revision(name)
        self.pretrain(
            init_checkpoint=path,
            output_dir=self.path("next", name),
            num_train_steps=2,
        )
        # The card of a resumed run must name the revision, too.
        self._assert_card_names_the_revision(name)

    def _assert_card_names_the_revision(self, name):
        card = files.read_bytes(self.path("next", name, "model/README.md"))
        self.assertIn(
            f"| model | hf://own/tiny@{'a' * 40} |\n| optimizer state | new |",
            card.decode(),
        )

    @pytest.mark.slow
    def test_optimizer_state_continues_the_run_bit_for_bit(self):
        self.copy_run("through")
        expected = tf1_checkpoint.read(self.path("through"))
        for name, path in {
            "bare": self.bare(),
            "directory": self.convert("bert_tf", "directory"),
        }.items():
            log = self.pretrain(
                init_checkpoint=path,
                init_optimizer_state=True,
                output_dir=self.path("next", name),
            )
            self.assertIn("training continues at step 3.", "\n".join(log))
            tensors = tf1_checkpoint.read(self.path("next", name))
            self.assertAllClose(tensors, expected, rtol=0, atol=0)
            lines, all_lines = (
                [
                    line
                    for line in killed_process.read_metrics(
                        self.path(output_dir)
                    )
                    # The line of step 4 averages over a step before this run.
                    if line["step"] > 4
                ]
                for output_dir in (f"next/{name}", "through")
            )
            self.assertNotEmpty(lines)
            self.assertEqual(lines, all_lines)
        # A rerun resumes from its own checkpoint, not from init_checkpoint.
        log = self.pretrain(
            init_checkpoint=path,
            init_optimizer_state=True,
            output_dir=self.path("next", name),
        )
        self.assertStartsWith(log[2], "Resumed at step 6")
        # A directory in TF1's format must hold the same optimizer state.
        stored = formats.read(self.convert("tf1", "tf1"))
        for tensor in set(self.first) - set(stored.weights):
            self.assertAllEqual(
                stored.optimizer_state[tensor], self.first[tensor], tensor
            )

    def test_refuses_missing_state_and_finished_runs(self):
        for flags, message in (
            (
                {"init_checkpoint": self.path("first", "model")},
                "model holds no optimizer state.*drop --init_optimizer_state",
            ),
            (
                {"init_checkpoint": self.path("first"), "num_train_steps": 3},
                "first has done 3 steps, and this run ends at step 3",
            ),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.pretrain(init_optimizer_state=True, **flags)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_refuses_a_model_with_another_vocabulary(self):
        tokens = list(tiny_pretraining.VOCABULARY.tokens)
        tokens[-2:] = tokens[:-3:-1]
        other = Vocabulary(tokens)
        path = self.convert("tf1", "other", vocabulary=other)
        with self.assertRaisesRegex(
            UserError, f"{other.hash}.*{tiny_pretraining.VOCABULARY.hash}"
        ):
            self.pretrain(init_checkpoint=path)
        self.assertFalse(os.path.exists(self.path("out")))

    @pytest.mark.slow
    def test_output_directory_describes_its_checkpoints(self):
        # Before training ends, the directory has checkpoints but no model.
        shutil.rmtree(self.path("first", "model"))
        stored = formats.read(self.path("first"))
        self.assertEqual(stored.config, tiny_pretraining.CONFIG)
        self.assertEqual(
            stored.vocabulary.hash, tiny_pretraining.VOCABULARY.hash
        )
        self.assertEqual(stored.optimizer_state["global_step"], 3)
        # Existing files stay, so the log names those that differ.
        own = self.path("first", "bert_config.json")
        with open(own) as file:
            text = file.read().replace("\n", "")
        files.write_text(own, text)
        files.write_text(self.path("first", "vocab.txt"), "another\n")
        log = self.pretrain(output_dir=self.path("first"), stop_at_step=4)
        with open(own) as file:
            self.assertEqual(file.read(), text)
        warnings = [line for line in log if "not as this run" in line]
        self.assertLen(warnings, 2)
        self.assertIn("vocab.txt", warnings[1])


if __name__ == "__main__":
    tf.test.main()
