"""Tests for tokens added in transformers: found in texts, kept in files."""

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

_TESTDATA = pathlib.Path(__file__).resolve().parents[2] / "testdata"
# Ids and byte offsets by transformers, for tokens with all kinds of flags.
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


class AddedTokensTest(
    case.DirectoryCase, tf.test.TestCase, parameterized.TestCase
):
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

    def test_are_words(self):
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

    def test_none_leave_the_tokenizer_as_it_is(self):
        vocabulary = Vocabulary(case.TOKENS)
        self.assertNotIn("added_tokens", BertTokenizer(vocabulary).settings())
        self.assertNotEqual(
            self.make().hash, Vocabulary([*case.TOKENS, "<e1>", ""]).hash
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
        # Data are made with the file alone.
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
