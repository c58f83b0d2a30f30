"""Tests of what pretraining starts from, and of going on elsewhere."""

import dataclasses
import os
import shutil
import tempfile

import tensorflow as tf

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.pretraining import run as pretraining
from bert_tf.text.vocabulary import Vocabulary
from tests.support import pretrain_case
from tests.support import tiny_pretraining

_SPEED = ("examples_per_second", "tokens_per_second")


class PretrainStartTest(pretrain_case.PretrainCase, tf.test.TestCase):
    """Each test begins with a run that has done three of its six steps."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        pretraining.train_and_evaluate(
            tiny_pretraining.make_config(cls.shared, stop_at_step=3)
        )

    def setUp(self):
        super().setUp()
        shutil.copytree(f"{self.shared}/out", self.path("first"))
        self.first = tf1_checkpoint.read(self.path("first"))

    def convert(self, weights_format, name, **changes):
        """Writes the first run's model and state in a format."""
        stored = formats.read(self.path("first"))
        stored = dataclasses.replace(stored, **changes)
        os.mkdir(self.path(name))
        formats.module_of(weights_format).write_model(self.path(name), stored)
        return self.path(name)

    def bare(self):
        """Returns a checkpoint without anything that describes it."""
        os.mkdir(self.path("bare"))
        for suffix in (".index", ".data-00000-of-00001"):
            shutil.copy(
                self.path("first", f"model.ckpt-3{suffix}"),
                self.path("bare", f"alone.ckpt{suffix}"),
            )
        return self.path("bare", "alone.ckpt")

    def assert_weights_are_the_first_runs(self, found, but=()):
        for name, value in self.first.items():
            if not weight_map.is_optimizer_state(name):
                if weight_map.part_of(name) not in but:
                    self.assertAllEqual(found[name], value, name)

    def test_takes_weights_but_not_moments_and_step(self):
        for name, path in {
            "training": self.path("first"),
            "hugging": self.convert("huggingface", "hugging"),
        }.items():
            # With a rate of 0 the weights stay what they were.
            log = self.pretrain(
                init_checkpoint=path,
                output_dir=self.path("next", name),
                num_train_steps=1,
            )
            self.assertStartsWith(log[1], "Initialised from the checkpoint")
            self.assertIn("loaded 30 weights; new: none", "\n".join(log))
            found = tf1_checkpoint.read(self.path("next", name))
            self.assert_weights_are_the_first_runs(found)
            self.assertEqual(found["global_step"], 1)
            moment = "bert/pooler/dense/kernel/adam_v"
            self.assertNotAllClose(found[moment], self.first[moment])

    def test_heads_that_are_not_there_are_new(self):
        stored = formats.read(self.path("first"))
        path = self.convert(
            "huggingface",
            "masked_lm",
            weights=stored.weights.select(
                lambda name: (
                    weight_map.head_of(name) in (None, weight_map.MASKED_LM)
                )
            ),
            task={"kind": "masked_lm"},
        )
        log = self.pretrain(init_checkpoint=path, num_train_steps=1)
        self.assertIn(
            "loaded 26 weights; new: bert/pooler/dense/kernel, "
            "bert/pooler/dense/bias, cls/seq_relationship/output_weights, "
            "cls/seq_relationship/output_bias;",
            "\n".join(log),
        )
        self.assert_weights_are_the_first_runs(
            tf1_checkpoint.read(self.path("out")),
            but=("bert/pooler", "cls/seq_relationship"),
        )

    def test_going_on_elsewhere_equals_going_through(self):
        self.pretrain(output_dir=self.path("through"))
        expected = tf1_checkpoint.read(self.path("through"))
        for name, path in {
            "bare": self.bare(),
            "directory": self.convert("bert_tf", "directory"),
            "tf1": self.convert("tf1", "tf1"),
        }.items():
            log = self.pretrain(
                init_checkpoint=path,
                init_optimizer_state=True,
                output_dir=self.path("next", name),
            )
            self.assertIn("training goes on at step 3.", "\n".join(log))
            found = tf1_checkpoint.read(self.path("next", name))
            self.assertEqual(set(found), set(expected))
            for tensor, value in expected.items():
                self.assertAllEqual(found[tensor], value, tensor)
            lines, all_lines = (
                [
                    {k: v for k, v in line.items() if k not in _SPEED}
                    for line in self.metrics(output_dir)
                    if line["step"] > 3
                ]
                for output_dir in (f"next/{name}", "through")
            )
            self.assertNotEmpty(lines)
            self.assertEqual(lines, all_lines)
        # Started again it goes on with its own checkpoint.
        log = self.pretrain(
            init_checkpoint=path,
            init_optimizer_state=True,
            output_dir=self.path("next", name),
        )
        self.assertStartsWith(log[1], "Resumed at step 6")

    def test_refuses_state_that_is_not_there_or_at_its_end(self):
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

    def test_exact_gelu_is_not_taken_for_the_tanh_form(self):
        exact = self.convert(
            "huggingface",
            "exact",
            config=dataclasses.replace(
                tiny_pretraining.CONFIG, hidden_act="gelu_erf"
            ),
        )
        with self.assertRaisesRegex(
            UserError,
            f"--init_checkpoint={exact} is not the one.*hidden_act is "
            "'gelu_erf' there and 'gelu' here; .*exact one, which Hugging",
        ):
            self.pretrain(init_checkpoint=exact)
        self.assertFalse(os.path.exists(self.path("out")))
        log = self.pretrain(
            init_checkpoint=exact, hidden_act="gelu_erf", num_train_steps=1
        )
        self.assertIn("gelu_erf, the exact form", "\n".join(log))

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

    def test_output_directory_says_what_its_checkpoints_are(self):
        # As it is before training has come to its end.
        shutil.rmtree(self.path("first", "model"))
        stored = formats.read(self.path("first"))
        self.assertEqual(stored.config, tiny_pretraining.CONFIG)
        self.assertEqual(
            stored.vocabulary.hash, tiny_pretraining.VOCABULARY.hash
        )
        self.assertEqual(stored.optimizer_state["global_step"], 3)
        # What somebody put there stays, however it is laid out.
        own = self.path("first", "bert_config.json")
        with open(own) as file:
            text = file.read().replace("\n", "")
        with open(own, "w") as file:
            file.write(text)
        with open(self.path("first", "vocab.txt"), "w") as file:
            file.write("another\n")
        log = self.pretrain(output_dir=self.path("first"), stop_at_step=4)
        with open(own) as file:
            self.assertEqual(file.read(), text)
        said = [line for line in log if "was there already" in line]
        self.assertLen(said, 1)
        self.assertIn("vocab.txt", said[0])


if __name__ == "__main__":
    tf.test.main()
