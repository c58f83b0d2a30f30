"""Tests for bert_tf.checkpoints.extend_vocabulary."""

import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import extend_vocabulary as extension
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.commands.extend_vocabulary import ExtendVocabularyConfig
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import reference_tokenizer
from tests.support import stored_models
from tests.support import tiny_layers
from tests.support import tiny_model
from tests.support.shared_data import golden

_TOKENS = (
    "[PAD] [unused0] [unused1] [UNK] [CLS] [SEP] [MASK] [unused2] a c e f m n "
    "o t x cat the met sat ##a ##b ##e ##f ##h ##n ##o ##r ##s ##t ##x ##ho "
    "##hot ##tr ##xa ##te . 東"
).split()
_WORD_TABLE = "bert/embeddings/word_embeddings"
_POSITION_TABLE = "bert/embeddings/position_embeddings"
_BIAS = "cls/predictions/output_bias"


def _config(vocab_size=39, positions=16):
    return tiny_layers.replace(
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def _stored(preserve=False):
    """Returns a model whose weights differ everywhere."""
    vocabulary = Vocabulary(_TOKENS)
    parts = ("bert", "bert/pooler", *weight_map.HEADS["pretraining"])
    return stored_models.of_weights(
        stored_models.weights(parts, _config()),
        _config(),
        vocabulary,
        tokenizer_settings=stored_model.tokenizer_settings(
            vocabulary, True, preserve_special_tokens=preserve
        ),
        task={"kind": "pretraining", "max_seq_length": 16},
    )


def _expected_rows(table, tokens, words):
    """Returns the mean rows, from the reference tokenizer, in float64."""
    pieces = {token: i for i, token in enumerate(tokens)}
    rows = []
    for word in words:
        split = reference_tokenizer.split_tokens(word, pieces)
        rows.append(sum(np.float64(table[pieces[x]]) for x in split))
        rows[-1] /= len(split)
    return np.float32(rows)


class NewTokensTest(tf.test.TestCase, parameterized.TestCase):
    def _read(self, contents, **options):
        self.path = os.path.join(self.create_tempdir().full_path, "words.txt")
        with open(self.path, "wb") as file:
            file.write(contents)
        tokenizer = BertTokenizer(Vocabulary(_TOKENS), **options)
        return extension.read_new_tokens(
            self.path, "--new_words_file", tokenizer
        )

    @parameterized.parameters(
        ("metho", "metho", "met ##ho"),
        ("Méthox", "methox", "met ##ho ##x"),
        ("Méthe", "méthe", "[UNK]", {"strip_accents": False}),
        ("Foo", "Foo", "[UNK]", {"lower_case": False}),
        ("京", "京", "[UNK]"),
        ("##Hotxa", "##hotxa", "##hot ##xa"),
        ("##zz", "##zz", "[UNK]"),
        ("fotxa", "fotxa", "f ##o ##t ##xa"),
        ("o" * 200, "o" * 200, " ".join(["o", *["##o"] * 199])),
        ("##" + "o" * 199, "##" + "o" * 199, " ".join(["##o"] * 199)),
    )
    def test_words_are_normalized_and_split(self, word, token, old, options=()):
        new = self._read(word.encode(), **dict(options))
        ids = tuple(map(_TOKENS.index, old.split()))
        self.assertEqual(new.tokens, {token: ids})

    @parameterized.parameters(
        ("foo\nbar baz\n", 2),
        ("c++\n", 1),
        ("x\nstate-of\nfoo\n", 2),
        ("東京\n", 1),
        ("[unused0]\n", 1),
        ("foo\n \n", 2),
        ("\u0301\n", 1),
        ("##\n", 1),
        ("##東\n", 1),
        ("##a b\n", 1),
        ("foo\n" + "o" * 201 + "\n", 2),
        ("##" + "o" * 200 + "\n", 1),
        ("foo\n\nhi\n", 2),
        ("foo\r\nhi\r\n", 1),
    )
    def test_refuses_words_that_no_text_could_match(self, contents, line):
        with self.assertRaisesRegex(UserError, f"words.txt, line {line}: "):
            self._read(contents.encode())


class ModelExtensionTest(tf.test.TestCase, parameterized.TestCase):
    def _read(self, source, words):
        path = os.path.join(self.create_tempdir().full_path, "words.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{word}\n" for word in words)
        return extension.read_new_tokens(
            path, "--words", source.build_tokenizer()
        )

    def _extend(self, source, words, **options):
        new = self._read(source, words)
        return extension.extend(source, new, **options)

    def _assert_unchanged_but(self, source, model, names):
        self.assertEqual(list(model.weights), list(source.weights))
        for name, value in source.weights.items():
            if name not in names:
                self.assertAllEqual(model.weights[name], value, name)

    def test_fills_unused_lines_first_then_appends(self):
        source = _stored()
        words = ["metho", "cats", "foo", "hotel", "teas"]
        model = self._extend(source, words)
        expected = [*_TOKENS, "hotel", "teas"]
        expected[1], expected[2], expected[7] = words[:3]
        self.assertEqual(list(model.vocabulary.tokens), expected)
        self.assertEqual(model.config, _config(41))
        self.assertEqual(
            model.tokenizer_settings,
            {
                "lower_case": True,
                "strip_accents": True,
                "preserve_special_tokens": False,
                "normalization": "original",
                "vocabulary_hash": Vocabulary(expected).hash,
            },
        )
        self.assertEqual(model.task, source.task)

    @parameterized.parameters(True, False)
    def test_rows_and_biases_are_means_of_the_old_tokens(self, use_unused):
        source = _stored()
        # The old vocabulary has no z, so "zoo" gets the row of [UNK].
        words = ["metho", "cats", "mettrt", "teas", "foo", "zoo"]
        first = 1 if use_unused else len(_TOKENS)
        model = self._extend(source, words, use_unused=use_unused)
        ids = list(map(model.vocabulary.id, words))
        self.assertEqual(ids[0], first)
        self._assert_unchanged_but(source, model, (_WORD_TABLE, _BIAS))
        kept = [i for i in range(len(_TOKENS)) if i not in ids]
        for name in (_WORD_TABLE, _BIAS):
            old, new = source.weights[name], model.weights[name]
            self.assertEqual(new.dtype, np.float32)
            self.assertEqual(new.shape, model.weights.shapes[name])
            self.assertLen(new, len(model.vocabulary))
            self.assertAllEqual(new[kept], old[kept])
            self.assertAllClose(
                new[ids],
                _expected_rows(old, _TOKENS, words),
                rtol=0,
                atol=1e-7,
            )
        unknown = source.weights[_WORD_TABLE][_TOKENS.index("[UNK]")]
        table = model.weights[_WORD_TABLE]
        self.assertAllEqual(table[ids[-1]], unknown)

    @parameterized.parameters((17,), (32,), (40,))
    def test_new_positions_are_copies_of_the_old(self, length):
        source = _stored()
        model = extension.extend(source, max_position_embeddings=length)
        self._assert_unchanged_but(source, model, (_POSITION_TABLE,))
        self.assertEqual(model.config, _config(positions=length))
        self.assertIs(model.vocabulary, source.vocabulary)
        old = source.weights[_POSITION_TABLE]
        table = model.weights[_POSITION_TABLE]
        expected = np.concatenate([old, old, old])[:length]
        self.assertAllEqual(table, expected)
        self.assertEqual(model.weights.shapes[_POSITION_TABLE], (length, 8))

    def test_preserved_special_tokens_are_no_new_words(self):
        source = _stored(preserve=True)
        # The tokenizer uses U+2CEAC in place of [CLS], so it is no new word.
        new = self._read(source, ["[MASK]", "\U0002ceac", "foo"])
        self.assertEqual(list(new.tokens), ["foo"])
        self.assertEqual(new.left_out, ((1, "[MASK]"), (2, "[UNK]")))
        model = extension.extend(source, new)
        settings = model.tokenizer_settings
        self.assertTrue(settings["preserve_special_tokens"])
        self.assertAllEqual(
            model.build_tokenizer().tokenize("foo[MASK]"),
            [1, _TOKENS.index("[MASK]")],
        )


class VocabularyExtensionTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.source = tiny_model.write(self.path("model"))
        self.output = self.path("new", "extended")
        self.words = self.write("words.txt", "Dogs\ncats\nthe\ndogs\n京\n")

    def _run(self, **changes):
        """Returns the printed report."""
        flags = {
            "input": self.source,
            "output": self.output,
            "new_words_file": self.words,
        }
        with mock.patch("sys.stdout") as stdout:
            extension.run(ExtendVocabularyConfig(**flags | changes))
        return "".join(call.args[0] for call in stdout.write.call_args_list)

    def _assert_refused(self, message, **changes):
        before = sorted(os.walk(self.folder))
        with self.assertRaisesRegex(UserError, message) as raised:
            self._run(**changes)
        self.assertNotIn("\n", str(raised.exception))
        self.assertEqual(sorted(os.walk(self.folder)), before)

    def test_model_directory_gets_more_words_and_positions(self):
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
        table = source.weights[_WORD_TABLE]
        expected = [
            (table[7] + table[11]) / 2,  # dog ##s
            (table[6] + table[11]) / 2,  # cat ##s
            table[1],  # [UNK]
        ]
        self.assertAllClose(
            model.weights[_WORD_TABLE],
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

    def test_extends_a_checkpoint_of_the_original(self):
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
        self.assertLen(model.weights[_WORD_TABLE], 99)
        self.assertLen(model.weights[_BIAS], 99)

    def test_case_of_new_words_follows_the_vocabulary_or_the_flag(self):
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

    def test_model_without_a_vocabulary_gets_only_positions(self):
        source = tiny_model.write(self.path("mute"), with_vocabulary=False)
        printed = self._run(
            input=source, new_words_file=None, max_position_embeddings=13
        )
        self.assertNotIn("New words", printed)
        found = model_directory.read_model(self.output)
        self.assertIsNone(found.vocabulary)
        self.assertEqual(found.config.max_position_embeddings, 13)
        self._assert_refused("no vocab.txt", input=source, overwrite=True)

    @parameterized.parameters(
        ({"input": "model.ckpt"}, "'model.ckpt', where there is nothing"),
        ({"new_words_file": "no.txt"}, "--new_words_file.*no.txt"),
        ({"max_position_embeddings": 12}, "greater than that of the model, 12"),
    )
    def test_unusable_inputs_are_refused(self, changes, message):
        self._assert_refused(message, **changes)

    @parameterized.parameters(
        ({}, "Give --new_words_file, --max_position_embeddings, or both"),
        ({"max_position_embeddings": -1}, "--max_position_embeddings"),
        (
            {"max_position_embeddings": 40, "use_unused": False},
            "--nouse_unused",
        ),
    )
    def test_wrong_flags_are_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            ExtendVocabularyConfig(input="a", output="b", **flags)


if __name__ == "__main__":
    tf.test.main()
