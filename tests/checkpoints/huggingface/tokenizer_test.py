"""Tests for the tokenizer files of Hugging Face directories."""

import json
import os
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints.huggingface import tokenizer as huggingface_tokenizer
from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import LiteTokenizer
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.text.vocabulary import added_token
from tests.support import huggingface_case as case


def _changed(part, **values):
    """Returns a tokenizer.json in which values of one part are replaced."""
    contents = case.make_tokenizer_json()
    return {"tokenizer.json": contents | {part: contents[part] | values}}


# Files beside vocab.txt, and a pattern of the message that refuses them.
_REFUSED = (
    *(
        ({"added_tokens.json": added}, message)
        for added, message in (
            ({"x": 19}, "id 19, where the added token 'x' belongs.*size=19"),
            ({"x": 5}, "has 'the' at id 5, where the added token 'x'"),
            ({"x": "many"}, "must each have an id"),
        )
    ),
    (
        {"added_tokens.json": {"x": 19}}
        | {"tokenizer.json": case.make_tokenizer_json(added=[(19, "y")])},
        "have the id 19: 'x' and 'y'",
    ),
    (
        {"tokenizer.json": case.make_tokenizer_json([*case.TOKENS[:-1], "d"])},
        "different vocabularies, first at id 18",
    ),
    *(
        (_changed("model", vocab=x), "whose ids are whole numbers from 0")
        for x in ({"a": 0, "b": 19}, {"a": 0, "b": 0}, {"a": -1}, None)
    ),
    *(
        (
            {"tokenizer_config.json": {"tokenizer_class": x}},
            f"must be one of BertTokenizer.*: '{x}'",
        )
        for x in ("BertJapaneseTokenizer", "PreTrainedTokenizerFast")
    ),
    *(
        ({"tokenizer_config.json": {x: y}}, f"'{x}' must be .*Received: ")
        for x, y in (
            ("tokenize_chinese_chars", False),
            ("do_basic_tokenize", False),
            ("never_split", ["x"]),
        )
    ),
    (
        {"tokenizer_config.json": {"do_lower_case": "yes"}},
        "'do_lower_case' must be true or false or null",
    ),
    *(
        (_changed(part, **{key: value}), message)
        for part, key, value, message in (
            ("normalizer", "handle_chinese_chars", False, "handle_chinese"),
            ("normalizer", "clean_text", False, "'clean_text' must be True"),
            ("normalizer", "type", "Sequence", "must be one of BertNorm"),
            ("model", "continuing_subword_prefix", "@@", "must be '##'"),
            ("model", "unk_token", "<unk>", "must be '.UNK.'"),
            ("model", "type", "Unigram", "one of WordPiece. Received: 'U"),
            ("pre_tokenizer", "type", "Whitespace", "pre_tokenizer: 'type'"),
        )
    ),
    *(
        (
            {"tokenizer.json": case.make_tokenizer_json() | {part: value}},
            f"'{part}' must be an object",
        )
        for part in ("normalizer", "model", "pre_tokenizer")
        for value in (None, [3])
    ),
)


class TokenizerTest(case.DirectoryCase):
    @parameterized.parameters(
        (True, None, True, True),
        (False, None, False, False),
        (True, False, True, False),
        (False, True, False, True),
        (True, True, True, True),
    )
    def test_reads_case_and_accents_of_the_tokenizer(
        self, lower_case, accents, ours_lower, ours_accents
    ):
        self.write_all()
        self.write(
            "tokenizer_config.json",
            {"do_lower_case": lower_case, "strip_accents": accents},
        )
        expected = {
            "lower_case": ours_lower,
            "strip_accents": ours_accents,
            "preserve_special_tokens": False,
            "normalization": "original",
            "vocabulary_hash": Vocabulary(case.TOKENS).hash,
        }
        stored = self.read()
        self.assertEqual(stored.tokenizer_settings, expected)
        self.assertEqual(stored.vocabulary.tokens, tuple(case.TOKENS))
        # After a round trip tokenizer.json alone must keep the settings.
        self.path, _ = self.written(stored)
        self.assertEqual(self.read().tokenizer_settings, expected)
        self.remove("tokenizer_config.json")
        self.assertEqual(self.read().tokenizer_settings, expected)
        self.remove("vocab.txt")
        self.assertEqual(self.read().tokenizer_settings, expected)

    def test_the_longest_word_is_that_of_tokenizer_json(self):
        self.write_all()
        self.write("tokenizer.json", case.make_tokenizer_json())
        stored = self.read()
        self.path, _ = self.written(stored)
        for one in (stored, self.read()):
            ids = one.build_tokenizer().tokenize(f"{'b' * 101} cat")
            self.assertAllEqual(ids, [1, 6])
        values = case.make_tokenizer_json()
        for most in (0, 1000, "x"):
            values["model"]["max_input_chars_per_word"] = most
            self.write("tokenizer.json", values)
            self.assert_refused("an integer from 1 to 999")

    def test_tokenizer_config_wins_over_tokenizer_json(self):
        self.write_all()
        self.write("tokenizer.json", case.make_tokenizer_json(lowercase=False))
        stored = self.read()
        self.assertTrue(stored.tokenizer_settings["lower_case"])
        self.assertIn("differ on lower case", str(stored.report.notes))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "do_lower_case": True,
        }
        self.write("tokenizer_config.json", config)
        self.assertFalse(self.read().tokenizer_settings["lower_case"])

    @parameterized.parameters(
        (case.TOKENS, True), ([*case.TOKENS[:-1], "Paris"], False)
    )
    def test_lower_case_is_derived_from_the_vocabulary(self, tokens, expected):
        self.write_all()
        self.remove("tokenizer_config.json")
        self.write("vocab.txt", "\n".join(tokens))
        stored = self.read()
        self.assertEqual(stored.tokenizer_settings["lower_case"], expected)
        self.assertIn("does not say whether", str(stored.report.notes))

    @parameterized.parameters(*_REFUSED)
    def test_refuses_unsupported_tokenizer_files(self, files, message):
        self.write_all()
        for name, values in files.items():
            self.write(name, values)
        self.assert_refused(message)

    def test_notes_a_padded_table(self):
        self.write_all()
        self.write("vocab.txt", "\n".join(case.TOKENS[:-2]))
        stored = self.read()
        self.assertEqual(stored.vocabulary.tokens, tuple(case.TOKENS[:-2]))
        self.assertIn("17 lines, and the model's", str(stored.report.notes))

    @parameterized.parameters("both", "tokenizer.json", "vocab.txt")
    def test_lines_without_a_token_keep_their_rows(self, files):
        """Reads empty lines, U+2028 and repeats as transformers 5 has them."""
        lines = [*case.TOKENS[:15], "\u2028", "a", "", "a"]
        theirs = ["" if line == "\u2028" else line for line in lines]
        self.write_all()
        if files != "vocab.txt":
            self.write("tokenizer.json", case.make_tokenizer_json(theirs))
        self.write("vocab.txt", "\n".join(lines) + "\n")
        if files == "tokenizer.json":
            self.remove("vocab.txt")
        vocabulary = self.read().vocabulary
        self.assertEqual(vocabulary.id("a"), 18)
        self.assertLen(vocabulary, 19)
        self.assertNotIn("", vocabulary)

    @parameterized.parameters(
        "tokenizer_config.json", "special_tokens_map.json"
    )
    def test_other_special_tokens_are_refused(self, file):
        self.write_all()
        spelled = {key: {"content": x} for key, x in case.SPECIAL.items()}
        self.write(file, spelled)
        self.assertEqual(self.read().vocabulary.cls_id, 2)
        self.write(file, spelled | {"cls_token": "<s>"})
        self.assert_refused(r"'cls_token' must be '\[CLS\]'.*Received: '<s>'")


_TESTDATA = pathlib.Path(__file__).resolve().parents[2] / "testdata"
# Token ids and byte offsets of transformers, for added tokens of all flags.
_GOLDEN = json.loads((_TESTDATA / "added_tokens.json").read_text("utf-8"))
_TEXT = "the <e1>THE <E1> xa\nb"


class _Served(tf.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self._tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(self, text):
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(text)
        dense = (x.to_tensor(-1) for x in (ids, starts, ends))
        return dict(zip(("ids", "starts", "ends"), dense, strict=True))


class AddedTokensTest(case.DirectoryCase):
    def read_golden(self, values):
        tokens = _GOLDEN["vocabulary"]
        contents = case.make_tokenizer_json(
            tokens, lowercase=values["lower_case"]
        )
        self.write(
            "tokenizer.json",
            contents | {"added_tokens": values["added_tokens"]},
        )
        vocabulary, settings, *_ = huggingface_tokenizer.read(
            self.path, len(tokens) + 20
        )
        return BertTokenizer(
            vocabulary, settings["lower_case"], preserve_special_tokens=True
        )

    @parameterized.parameters(*range(len(_GOLDEN["cases"])))
    def test_are_found_as_in_transformers(self, number):
        values = _GOLDEN["cases"][number]
        tokenizer = self.read_golden(values)
        texts, ids, offsets = zip(*values["rows"], strict=True)
        found, *places = tokenizer.tokenize_with_offsets(texts)
        self.assertEqual(found.to_list(), list(ids))
        self.assertEqual(tokenizer.tokenize(texts).to_list(), list(ids))
        for place, column in zip(places, (0, 1), strict=True):
            expected = [[pair[column] for pair in row] for row in offsets]
            self.assertEqual(place.to_list(), expected)

    def test_are_found_in_a_savedmodel(self):
        values = _GOLDEN["cases"][0]
        module = _Served(self.read_golden(values))
        path = self.create_tempdir().full_path
        tf.saved_model.save(module, path)
        texts = tf.constant([row[0] for row in values["rows"]] + ["", "\0a"])
        answer = tf.saved_model.load(path).tokenize(texts)
        for name, value in module.tokenize(texts).items():
            self.assertAllEqual(value, answer[name])
        ids = [row[1] for row in values["rows"]]
        for row, expected in zip(answer["ids"].numpy(), ids, strict=False):
            self.assertEqual(row[row >= 0].tolist(), expected)

    def make(self, **flags):
        tokens = [*case.TOKENS, "<e1>", ""]
        return Vocabulary(
            tokens,
            added_tokens=[
                added_token(
                    len(tokens) - 2, False, {"content": "<e1>"} | flags
                ),
                added_token(len(tokens) - 1, False, {"content": "\n"}),
            ],
        )

    def words(self, vocabulary, **settings):
        tokenizer = BertTokenizer(vocabulary, **settings)
        return [x.decode() for x in tokenizer.split_words(_TEXT).numpy()]

    def test_added_tokens_are_words(self):
        self.assertEqual(
            self.words(self.make()),
            ["the", "<e1>", "the", "<", "e1", ">", "xa", "\n", "b"],
        )
        self.assertEqual(
            self.words(self.make(normalized=True)),
            ["the", "<e1>", "the", "<e1>", "xa", "\n", "b"],
        )

    def test_special_tokens_keep_their_rule(self):
        for preserve in (False, True):
            tokenizer = BertTokenizer(
                self.make(), preserve_special_tokens=preserve
            )
            ids = tokenizer.tokenize("<e1>[SEP]").numpy()
            self.assertEqual(ids[0], len(case.TOKENS))
            self.assertEqual(
                ids[1:].tolist() == [tokenizer.vocabulary.sep_id], preserve
            )

    @parameterized.parameters("added", "decoder", "tokenizer", "special")
    def test_survive_conversion_there_and_back(self, where):
        self.write_all()
        tokens, content = case.TOKENS[:-2], ("<e1>", "\n")
        first = len(tokens)
        self.write("vocab.txt", "\n".join(tokens))
        flags = {"lstrip": True, "normalized": False, "special": False}
        rows = [
            flags | {"id": first + i, "content": x}
            for i, x in enumerate(content)
        ]
        named = [{"content": x, "lstrip": True} for x in content]
        added = {"added_tokens.json": {x["content"]: x["id"] for x in rows}}
        of_kind = {
            "added": added,
            "special": added
            | {
                "special_tokens_map.json": {
                    "additional_special_tokens": [*named, "the"]
                }
            },
            "decoder": {
                "tokenizer_config.json": {
                    "do_lower_case": True,
                    "added_tokens_decoder": {str(x["id"]): x for x in rows},
                }
            },
            "tokenizer": {
                "tokenizer.json": case.make_tokenizer_json(tokens)
                | {"added_tokens": rows}
            },
        }
        for name, contents in of_kind[where].items():
            self.write(name, contents)
        if where == "added":
            flags = {"normalized": True}
        flags |= {"special": where == "special"}
        stored = self.read()
        added = {x["content"]: x for x in stored.vocabulary.added_tokens}
        for i, x in enumerate(content):
            expected = added_token(first + i, False, flags | {"content": x})
            self.assertEqual(added[x], expected)
        self.assertEqual("the" in added, where == "special")
        path = self.create_tempdir().full_path
        for name in ("bert_tf", "huggingface", "bert_tf"):
            path = os.path.join(path, name)
            os.mkdir(path)
            formats.module_of(name).write_model(path, stored)
            again = formats.read(path, name)
            self.assertEqual(
                again.vocabulary.added_tokens, stored.vocabulary.added_tokens
            )
            self.assertEqual(again.vocabulary.hash, stored.vocabulary.hash)
            stored = again
        # Training data is made from vocab.txt alone, so its hash must be equal.
        beside = Vocabulary.from_file(os.path.join(path, "vocab.txt"))
        self.assertEqual(beside.hash, stored.vocabulary.hash)
        ids = stored.build_tokenizer().tokenize("the  <e1>\n").numpy()
        self.assertContainsSubset({first, first + 1}, set(np.ravel(ids)))

    def test_are_refused_where_nothing_finds_them(self):
        with self.assertRaisesRegex(UserError, "added tokens.*--input=ids"):
            LiteTokenizer(BertTokenizer(self.make()))
        with self.assertRaisesRegex(UserError, "Expected normalization"):
            BertTokenizer(self.make(), normalization=ASCII_LOWER).settings()
        with self.assertRaisesRegex(UserError, "where the added token 'x'"):
            Vocabulary(
                case.TOKENS,
                added_tokens=[added_token(1, True, {"content": "x"})],
            )


if __name__ == "__main__":
    tf.test.main()
