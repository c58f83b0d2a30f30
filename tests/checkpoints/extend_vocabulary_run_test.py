"""Tests for bert_tf.checkpoints.extend_vocabulary.run."""

import dataclasses
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import extend_vocabulary as vocabulary_extender
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import stored_model
from bert_tf.commands.extend_vocabulary import ExtendVocabularyConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_model
from tests.support.shared_data import golden

_TABLE = "bert/embeddings/word_embeddings"


class VocabularyExtensionTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.source = tiny_model.write(os.path.join(self.folder, "model"))
        self.output = os.path.join(self.folder, "new", "extended")
        self.words = self.write("words.txt", "Dogs\ncats\nthe\ndogs\n京\n")

    def _run(self, **changes):
        """Returns the printed report."""
        flags = {
            "input": self.source,
            "output": self.output,
            "new_words_file": self.words,
        }
        with mock.patch("sys.stdout") as stdout:
            vocabulary_extender.run(ExtendVocabularyConfig(**flags | changes))
        return "".join(call.args[0] for call in stdout.write.call_args_list)

    def _assert_refused(self, message, **changes):
        before = _list(self.folder)
        with self.assertRaisesRegex(UserError, message) as raised:
            self._run(**changes)
        self.assertNotIn("\n", str(raised.exception))
        self.assertEqual(_list(self.folder), before)

    def test_model_directory_with_more_words_and_positions(self):
        printed = self._run(max_position_embeddings=20)
        model = model_directory.read_model(self.output)
        source = model_directory.read_model(self.source)
        self.assertEqual(
            model.vocabulary.tokens, (*tiny_model.TOKENS, "dogs", "cats", "京")
        )
        self.assertEqual(model.config.vocab_size, 19)
        self.assertEqual(model.config.max_position_embeddings, 20)
        self.assertEqual(model.task, source.task)
        self.assertAllEqual(
            model.build_tokenizer().tokenize("The cats, dogs 京東"),
            [5, 17, 14, 16, 18, 15],
        )
        table = source.weights[_TABLE]
        expected = [
            (table[7] + table[11]) / 2,  # dog ##s
            (table[6] + table[11]) / 2,  # cat ##s
            table[1],  # [UNK]
        ]
        self.assertAllClose(
            model.weights[_TABLE],
            np.concatenate([table, expected]),
            rtol=0,
            atol=1e-7,
        )
        with open(os.path.join(self.output, "README.md")) as file:
            card = file.read()
        for name, value in (
            ("words", "3: 0 on [unusedN] lines (0 such lines left), 3 after "),
            ("dogs", "dog ##s -> 16"),
            ("京", "[UNK] -> 18"),
            ("tokens per new word", "1.67 before, 1 now"),
            ("2 left out, known or repeated", "the (line 3), dogs (line 4)"),
            ("rows", "12 became 20; row i is a copy of i mod 12"),
        ):
            self.assertIn(f"  {name}: {value}", printed)
            self.assertIn(f"| {name} | {value}", card)

    def test_unused_lines_and_more_words_than_are_shown(self):
        source = model_directory.read_model(self.source)
        tokens = list(tiny_model.TOKENS)
        tokens[5:9] = [f"[unused{i}]" for i in range(4)]
        vocabulary = Vocabulary(tokens)
        path = os.path.join(self.folder, "unused")
        with files.atomic_directory(path) as temporary:
            model_directory.write_model(
                temporary,
                dataclasses.replace(
                    source,
                    vocabulary=vocabulary,
                    tokenizer_settings=stored_model.tokenizer_settings(
                        vocabulary, lower_case=False
                    ),
                ),
            )
        words = [f"Word{letter}" for letter in "abcdefghijkl"]
        few = self.write("few.txt", "\n".join(words[:3]))
        printed = self._run(input=path, new_words_file=few)
        self.assertIn("3: 3 on [unusedN] lines (1 such lines left), 0", printed)
        many = self.write("many.txt", "\n".join(words))
        printed = self._run(input=path, new_words_file=many, overwrite=True)
        self.assertIn(
            "12: 4 on [unusedN] lines (0 such lines left), 8", printed
        )
        self.assertIn("  ...: and 4 more\n", printed)
        found = model_directory.read_model(self.output)
        self.assertEqual(
            found.vocabulary.tokens,
            (*tokens[:5], *words[:4], *tokens[9:], *words[4:]),
        )

    def test_checkpoint_of_the_original(self):
        checkpoint = golden("model/after_12_steps.ckpt.index")
        printed = self._run(
            input=checkpoint.removesuffix(".index"),
            new_words_file=self.write("x.txt", "Résumé\nndarray\n"),
        )
        self.assertRegex(printed, "resume: r ##e ##s ##u ##m ##e -> 97")
        self.assertRegex(printed, "Optimizer:\n  state: not carried")
        model = model_directory.read_model(self.output)
        self.assertEmpty(model.optimizer_state)
        tensors = tf.train.load_checkpoint(checkpoint.removesuffix(".index"))
        for name, value in model.weights.items():
            old = tensors.get_tensor(name)
            self.assertAllEqual(value[: len(old)], old, name)
        self.assertLen(model.weights[_TABLE], 99)
        self.assertLen(model.weights["cls/predictions/output_bias"], 99)

    def test_case_of_a_checkpoint_without_settings(self):
        checkpoint = golden("model/bert_model.ckpt.index")
        options = {
            "input": checkpoint.removesuffix(".index"),
            "new_words_file": self.write("x.txt", "Foo\nfoo\n"),
        }
        self._run(**options)
        found = model_directory.read_model(self.output)
        self.assertEqual(found.vocabulary.tokens[97:], ("foo",))
        self._run(**options, do_lower_case=False, overwrite=True)
        found = model_directory.read_model(self.output)
        self.assertEqual(found.vocabulary.tokens[97:], ("Foo", "foo"))
        self.assertFalse(found.tokenizer_settings["lower_case"])
        self._assert_refused(
            "which --nodo_lower_case contra",
            do_lower_case=False,
            overwrite=True,
        )

    def test_positions_of_a_model_without_a_vocabulary(self):
        source = tiny_model.write(
            os.path.join(self.folder, "mute"), with_vocabulary=False
        )
        printed = self._run(
            input=source, new_words_file=None, max_position_embeddings=13
        )
        self.assertNotIn("New words", printed)
        found = model_directory.read_model(self.output)
        self.assertIsNone(found.vocabulary)
        self.assertEqual(found.config.max_position_embeddings, 13)
        self._assert_refused("no vocab.txt", input=source, overwrite=True)

    def test_existing_output_is_refused(self):
        self._run()
        before = _list(self.folder)
        self._assert_refused("already exists; .* --overwrite")
        self._run(overwrite=True)
        self.assertEqual(_list(self.folder), before)

    @parameterized.parameters(
        ({"input": "model.ckpt"}, "'model.ckpt', where there is nothing"),
        ({"input": "gs://a/model"}, "--input must be a local path"),
        ({"output": "gs://a/model"}, "--output must be a local path"),
        ({"new_words_file": "no.txt"}, "--new_words_file names a file that"),
        ({"max_position_embeddings": 12}, "greater than that of the model, 12"),
    )
    def test_refused(self, changes, message):
        self._assert_refused(message, **changes)

    def test_words_refused(self):
        self.write("words.txt", "dogs\nhot dog\n")
        self._assert_refused("words.txt, line 2")

    def test_damaged_model(self):
        file = os.path.join(self.source, "model.weights.safetensors")
        with open(file, "r+b") as weights:
            weights.truncate(1000)
        self._assert_refused("model.weights.safetensors")

    @parameterized.parameters(
        OSError(28, "No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "No space left"),
    )
    def test_failure_keeps_the_earlier_output(self, error):
        self._run()
        before = model_directory.read_model(self.output).vocabulary.tokens
        self.write("words.txt", "mats\n")
        with mock.patch.object(
            model_directory, "write_safetensors", side_effect=error
        ):
            self._assert_refused("No space left.*was written", overwrite=True)
        found = model_directory.read_model(self.output)
        self.assertEqual(found.vocabulary.tokens, before)

    @parameterized.parameters(
        ({}, "Give --new_words_file, --max_position_embeddings, or both"),
        ({"max_position_embeddings": -1}, "--max_position_embeddings"),
        (
            {"max_position_embeddings": 40, "use_unused": False},
            "--nouse_unused",
        ),
    )
    def test_flags_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            ExtendVocabularyConfig(input="a", output="b", **flags)


def _list(folder):
    """Returns the paths of all files and folders."""
    return sorted(
        os.path.join(place, name)
        for place, folders, names in os.walk(folder)
        for name in [*folders, *names]
    )


if __name__ == "__main__":
    tf.test.main()
