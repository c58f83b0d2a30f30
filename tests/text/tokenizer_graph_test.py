"""Tests for bert_tf.text.tokenizer: options, and ways to run it."""

import json
import os
import textwrap

import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import scripts
from tests.support.shared_data import golden

_WORDS = (
    "hello world the un ##aff ##able [ ] mask ##s a b ##b ς α ##α ##σ ##ς "
    ". 中 pad cls"
).split()
_VOCABULARY = Vocabulary(
    [*_WORDS[:5], "[SEP]", "[PAD]", "[MASK]", "[UNK]", "[CLS]", *_WORDS[5:]]
)
_TEXTS = ["Hello, un\u200baffable WORLD!", "", "ΑΑΣ 中", "b" * 201, b"a\xff b"]

# Operators of tf-text 2.12 in a TF Serving image, and core TensorFlow.
_OPS_OF_TF_TEXT = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
_STATEFUL_WORDS = ("Table", "Variable", "Py", "Sentencetoken", "ReadFile")

_CLIENT = textwrap.dedent("""
    import sys
    import tensorflow as tf
    import tensorflow_text
    loaded = tf.saved_model.load(sys.argv[1])
    serve = loaded.signatures["serving_default"]
    texts = [b"Hello, un\\xe2\\x80\\x8baffable WORLD!", b"",
             "ΑΑΣ 中".encode(), b"b" * 201, b"a\\xff b"]
    result = serve(text=tf.constant(texts))
    for name in ("ids", "row_splits", "starts", "ends", "words"):
        print(result[name].numpy().tolist())
""")


def _tokens(tokenizer, text):
    ids, starts, ends = tokenizer.tokenize_with_offsets([text])
    (tokens,) = tokenizer.tokens(ids).to_list()
    slices = [
        text.encode()[start:end].decode()
        for start, end in zip(starts[0].numpy(), ends[0].numpy(), strict=True)
    ]
    return [token.decode() for token in tokens], slices


class SpecialTokensTest(tf.test.TestCase, parameterized.TestCase):
    def test_are_split_like_any_text_by_default(self):
        tokens, slices = _tokens(BertTokenizer(_VOCABULARY), "a[MASK]b")
        self.assertEqual(tokens, ["a", "[", "mask", "]", "b"])
        self.assertEqual(slices, ["a", "[", "MASK", "]", "b"])

    @parameterized.parameters(True, False)
    def test_stay_whole_if_preserved(self, lower_case):
        tokenizer = BertTokenizer(
            _VOCABULARY, lower_case, preserve_special_tokens=True
        )
        for token in SPECIAL_TOKENS:
            tokens, slices = _tokens(tokenizer, f"a{token}{token}b [{token}.")
            self.assertEqual(tokens, ["a", token, token, "b", "[", token, "."])
            self.assertEqual(slices, tokens)
        ids = tokenizer.tokenize("[SEP][CLS][PAD][MASK][UNK]")
        self.assertAllEqual(ids, [5, 9, 6, 7, 8])

    def test_match_their_exact_spelling_only(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        tokens, _ = _tokens(tokenizer, "[mask] [ MASK] MASK MA[MASK]SK")
        self.assertEqual(
            tokens,
            ["[", "mask", "]", "[", "mask", "]", "mask"]
            + ["[UNK]", "[MASK]", "[UNK]"],
        )

    def test_stand_ins_in_text_are_unknown(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        # The reserved ends of all CJK blocks.
        text = "".join(chr(c) for c in range(0x2CEA2, 0x2CEB0)) + "\U0002fa1e"
        tokens, _ = _tokens(tokenizer, text)
        self.assertEqual(tokens, ["[UNK]"] * 15)

    def test_are_words(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        words = tokenizer.split_words("Hello[MASK][UNK]x [PAD]")
        self.assertAllEqual(
            words, [b"hello", b"[MASK]", b"[UNK]", b"x", b"[PAD]"]
        )

    def test_end_the_word_for_a_sigma(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        tokens, slices = _tokens(tokenizer, "ΑΑΣ[MASK]Α")
        self.assertEqual(tokens, ["α", "##α", "##ς", "[MASK]", "α"])
        self.assertEqual(slices, ["Α", "Α", "Σ", "[MASK]", "Α"])

    def test_offsets_behind_a_long_word(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        tokens, slices = _tokens(tokenizer, "é" * 201 + "[MASK] a")
        self.assertEqual(tokens, ["[UNK]", "[MASK]", "a"])
        self.assertEqual(slices, ["é" * 201, "[MASK]", "a"])


class TextOfIdsTest(tf.test.TestCase):
    def test_detokenize_joins_tokens_to_words(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        texts = ["the unaffable world.", "", "a [MASK] ααςσ b"]
        self.assertAllEqual(
            tokenizer.detokenize(tokenizer.tokenize(texts)),
            [b"the unaffable world .", b"", "a [MASK] ααςσ b".encode()],
        )
        # A dense batch, a continuation first.
        self.assertAllEqual(
            tokenizer.detokenize([[4, 0], [3, 4]]), [b"##aff hello", b"unaff"]
        )

    def test_tokens_have_the_shape_of_ids(self):
        tokenizer = BertTokenizer(_VOCABULARY)
        self.assertAllEqual(tokenizer.tokens([0, 4]), [b"hello", b"##aff"])
        self.assertAllEqual(
            tokenizer.tokens([[5], [6]]), [[b"[SEP]"], [b"[PAD]"]]
        )
        ragged = tf.ragged.constant([[0], [], [8, 1]])
        self.assertEqual(
            tokenizer.tokens(ragged).to_list(),
            [[b"hello"], [], [b"[UNK]", b"world"]],
        )

    def test_settings_distinguish_tokenizers(self):
        self.assertEqual(
            BertTokenizer(_VOCABULARY, strip_accents=False).settings(),
            {
                "lower_case": True,
                "strip_accents": False,
                "preserve_special_tokens": False,
                "normalization": "original",
                "vocabulary_hash": _VOCABULARY.hash,
            },
        )
        cased = BertTokenizer(_VOCABULARY, lower_case=False)
        self.assertFalse(cased.settings()["strip_accents"])

    def test_builds_with_a_token_that_no_text_has(self):
        # Line 344 is U+2028, line 13503 is ##U+2028; the ids behind them hold.
        vocabulary = Vocabulary.from_file(
            golden("vocab/bert-base-chinese-vocab.txt")
        )
        tokenizer = BertTokenizer(vocabulary)
        self.assertAllEqual(
            tokenizer.tokenize("中文\u2028一ab\u2028ing"),
            [vocabulary.id(token) for token in ("中", "文", "一", "ab", "ing")],
        )


class GraphTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(_VOCABULARY)
        self.expected = self.tokenizer.tokenize_with_offsets(_TEXTS)

    def test_eager_values(self):
        self.assertEqual(
            self.expected[0].to_list(),
            [
                [0, 8, 3, 4, 10, 1, 8],
                [],
                [19, 20, 22, 24],
                [8],
                [15, 16],
            ],
        )

    def test_tf_function_and_pipelines_agree_with_eager(self):
        function = tf.function(
            self.tokenizer.tokenize_with_offsets,
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        one = tf.function(
            self.tokenizer.tokenize_with_offsets,
            input_signature=[tf.TensorSpec([], tf.string)],
        )
        texts = tf.data.Dataset.from_tensor_slices(_TEXTS)
        ids = texts.batch(2).map(self.tokenizer.tokenize)
        self.assertEqual(
            [row for batch in ids for row in batch.to_list()],
            self.expected[0].to_list(),
        )
        batches = texts.batch(2).map(self.tokenizer.tokenize_with_offsets)
        singles = texts.map(self.tokenizer.tokenize_with_offsets)
        for i in range(3):
            expected = self.expected[i].to_list()
            self.assertEqual(
                function(tf.constant(_TEXTS))[i].to_list(), expected
            )
            self.assertEqual(
                [row for batch in batches for row in batch[i].to_list()],
                expected,
            )
            rows = [single[i].numpy().tolist() for single in singles]
            self.assertEqual(rows, expected)
            rows = [
                one(tf.constant(text))[i].numpy().tolist() for text in _TEXTS
            ]
            self.assertEqual(rows, expected)

    def test_made_inside_a_function(self):
        @tf.function
        def tokenize(text):
            return BertTokenizer(_VOCABULARY).tokenize(text)

        ids = tokenize(tf.constant(_TEXTS))
        self.assertEqual(ids.to_list(), self.expected[0].to_list())

    @pytest.mark.slow
    def test_saved_model_in_a_fresh_process(self):
        module = tf.Module()
        module.tokenizer = self.tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def serve(text):
            ids, starts, ends = self.tokenizer.tokenize_with_offsets(text)
            return {
                "ids": ids.flat_values,
                "row_splits": ids.row_splits,
                "starts": starts.flat_values,
                "ends": ends.flat_values,
                "words": self.tokenizer.split_words(text).row_lengths(),
            }

        folder = os.path.join(self.create_tempdir().full_path, "model")
        tf.saved_model.save(module, folder, signatures=serve)
        self._check_saved_model(folder)
        moved = folder + "_moved"
        os.rename(folder, moved)
        program = self.create_tempfile(content=_CLIENT).full_path
        (ended,) = scripts.run(
            ([program, moved], self.create_tempdir().full_path)
        )
        self.assertEqual(ended.status, 0, ended.stderr)
        ids, starts, ends = self.expected
        words = self.tokenizer.split_words(_TEXTS).row_lengths()
        values = [ids.flat_values, ids.row_splits, starts.flat_values]
        self.assertEqual(
            [json.loads(line) for line in ended.stdout.splitlines()[-5:]],
            [v.numpy().tolist() for v in [*values, ends.flat_values, words]],
        )

    def _check_saved_model(self, folder):
        """Checks for assets, tables and operators that a server lacks."""
        assets = os.path.join(folder, "assets")
        self.assertEmpty(os.listdir(assets) if os.path.exists(assets) else [])
        model = saved_model_pb2.SavedModel()
        with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
            model.ParseFromString(file.read())
        graph = model.meta_graphs[0].graph_def
        ops = {node.op for node in graph.node}
        for function in graph.library.function:
            ops |= {node.op for node in function.node_def}
        self.assertIn("FastBertNormalize", ops)
        text_ops = {op for op in ops if "Fast" in op or "TFText" in op}
        self.assertEqual(text_ops, _OPS_OF_TF_TEXT)
        for word in _STATEFUL_WORDS:
            self.assertEmpty([op for op in ops if word in op])


if __name__ == "__main__":
    tf.test.main()
