"""Tests for bert_tf.checkpoints.new_tokens."""

import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import new_tokens
from bert_tf.checkpoints.new_tokens import NewToken
from bert_tf.checkpoints.new_tokens import NewTokens
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import reference_tokenizer

_TOKENS = (
    "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] a e f h i m o r t x cat the met "
    "##a ##e ##h ##i ##o ##r ##s ##t ##x ##ho ##hot ##tr ##xa ##te É 東 ."
).split()
_VOCABULARY = Vocabulary(_TOKENS)


class NewPiecesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "words.txt")

    def _write(self, contents):
        with open(self.path, "wb") as file:
            file.write(
                contents if isinstance(contents, bytes) else contents.encode()
            )

    def _read(self, contents, lower_case=True, **options):
        self._write(contents)
        tokenizer = BertTokenizer(_VOCABULARY, lower_case, **options)
        return new_tokens.read(self.path, "--new_words_file", tokenizer)

    def _assert_refused(self, contents, message, **options):
        with self.assertRaisesRegex(UserError, message):
            self._read(contents, **options)

    def test_words_are_split_with_the_old_vocabulary(self):
        new = self._read("methotrexate\nmetho\ncats\n")
        self.assertEqual(
            [added.token for added in new.tokens],
            ["methotrexate", "metho", "cats"],
        )
        ids = {token: i for i, token in enumerate(_TOKENS)}
        for added in new.tokens:
            expected = reference_tokenizer.split_tokens(added.token, ids)
            self.assertEqual(
                [_TOKENS[i] for i in added.old_ids], expected, added.token
            )
        self.assertEqual(
            [_TOKENS[i] for i in new.tokens[0].old_ids],
            ["met", "##hot", "##r", "##e", "##xa", "##te"],
        )
        self.assertEqual((new.existing, new.repeated), ((), ()))

    def test_words_are_normalized_as_text_is(self):
        new = self._read("Méthe\n\u200b東\n")
        self.assertEqual(
            new.existing, ((2, "東"),), "the zero-width space is dropped"
        )
        (added,) = new.tokens
        self.assertEqual(added.token, "methe")
        self.assertEqual((added.line, added.text), (1, "Méthe"))
        new = self._read("Méthe\n", lower_case=False)
        self.assertEqual(new.tokens[0].token, "Méthe")
        new = self._read("Méthe\n", strip_accents=False)
        self.assertEqual(new.tokens[0].token, "méthe")

    def test_single_chinese_character_and_the_missing_last_line_end(self):
        new = self._read("京\nfoo\n語")
        self.assertEqual([x.token for x in new.tokens], ["京", "foo", "語"])
        unknown = (_VOCABULARY.unk_id,)
        self.assertEqual(
            [x.old_ids for x in new.tokens],
            [unknown, tuple(map(_TOKENS.index, ("f", "##o", "##o"))), unknown],
        )

    def test_continuations(self):
        new = self._read("##Hotxa\n##tea\n##é\n##zz\nhotxa\n")
        self.assertEqual(
            [x.token for x in new.tokens], ["##hotxa", "##tea", "##zz", "hotxa"]
        )
        self.assertEqual(
            [[_TOKENS[i] for i in x.old_ids] for x in new.tokens],
            [
                ["##hot", "##xa"],
                ["##te", "##a"],
                ["[UNK]"],
                ["h", "##o", "##t", "##xa"],
            ],
        )
        self.assertEqual(new.existing, ((3, "##e"),))

    def test_existing_and_repeated_words_are_left_out_and_listed(self):
        new = self._read("cat\nfoo\nThe\nFOO\nfoo\nhi\n")
        self.assertEqual(
            [(x.line, x.token) for x in new.tokens], [(2, "foo"), (6, "hi")]
        )
        self.assertEqual(new.existing, ((1, "cat"), (3, "the")))
        self.assertEqual(new.repeated, ((4, "foo"), (5, "foo")))

    def test_only_existing_words(self):
        self._assert_refused(
            "cat\nThe\n", "words.txt: the vocabulary .* all of its 2 words"
        )

    @parameterized.parameters(
        ("foo\nbar baz\n", "line 2: 'bar baz' is not one word but 2"),
        ("c++\n", r"line 1: 'c\+\+' is not one word but 3 \('c' '\+' '\+'\)"),
        ("x\nstate-of\nfoo\na.b\n", r"line 2: 'state-of' .*\(nor 1 other line"),
        ("東京\n", "line 1: '東京' is not one word but 2 .*Chinese char"),
        ("[unused0]\n", r"line 1: '\[unused0\]' is not one word but 3"),
        ("[MASK]\n", r"line 1: '\[MASK\]' is not one word but 3"),
        ("foo\n \n", "line 2: ' ' holds nothing that the tokenizer keeps"),
        ("\u0301\n", "line 1: .* holds nothing"),
        ("##\n", "line 1: '##' holds nothing"),
        ("##東\n", "line 1: '##東' does not continue a word"),
        ("##.\n", "line 1: '##.' does not continue a word"),
        ("##a b\n", "line 1: '##a b' does not continue a word"),
        ("foo\n" + "o" * 201 + "\n", "line 2: has 201 characters"),
        ("##" + "o" * 200 + "\n", "line 1: has 200 characters"),
    )
    def test_words_that_no_text_could_match(self, contents, message):
        self._assert_refused(contents, message)

    def test_longest_words(self):
        new = self._read("o" * 200 + "\n##" + "o" * 199 + "\n")
        self.assertEqual([len(x.old_ids) for x in new.tokens], [200, 199])

    @parameterized.parameters(
        (b"", "words.txt is empty; expected one word"),
        (b"foo\n\nhi\n", "words.txt, line 2: empty"),
        (b"foo\r\nhi\r\n", r"line 1: ends with \\r\\n"),
        (b"\xef\xbb\xbffoo\n", "line 1: begins with a byte order mark"),
        (b"foo\nb\xe9\n", "line 2: not UTF-8 at byte 5"),
    )
    def test_damaged_file(self, contents, message):
        self._assert_refused(contents, message)

    def test_missing_file(self):
        with self.assertRaisesRegex(UserError, "--new_words_file.*word"):
            new_tokens.read(
                self.path, "--new_words_file", BertTokenizer(_VOCABULARY)
            )

    def test_every_new_word_maps_to_its_token(self):
        new = self._read("Foo\n##hotxa\n")
        extended = Vocabulary([*_TOKENS, "foo", "##hotxa"])
        new_tokens.check_matched(new, BertTokenizer(extended))
        with self.assertRaisesRegex(UserError, r"line 1: 'Foo' .*\[UNK\]"):
            new_tokens.check_matched(new, BertTokenizer(extended, False))
        only_continuation = NewTokens(
            "words.txt", (NewToken("##hotxa", 1, "##hotxa", (3,)),)
        )
        new_tokens.check_matched(only_continuation, BertTokenizer(extended))


if __name__ == "__main__":
    tf.test.main()
