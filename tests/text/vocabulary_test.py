"""Tests for bert_tf.text.vocabulary."""

import hashlib
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.text.vocabulary import Vocabulary
from tests.support.shared_data import golden

_TOKENS = ["a", "[SEP]", "##b", "[CLS]", "[PAD]", "[MASK]", "é", "[UNK]"]
_TEXT = "\n".join(_TOKENS) + "\n"


class VocabularyTest(tf.test.TestCase, parameterized.TestCase):
    def _file(self, contents):
        path = os.path.join(self.create_tempdir().full_path, "vocab.txt")
        with open(path, "wb") as file:
            file.write(
                contents if isinstance(contents, bytes) else contents.encode()
            )
        return path

    def test_ids_are_line_numbers(self):
        vocabulary = Vocabulary.from_file(self._file(_TEXT))
        self.assertEqual(vocabulary.tokens, tuple(_TOKENS))
        self.assertLen(vocabulary, 8)
        self.assertEqual(
            [vocabulary.id(token) for token in _TOKENS], list(range(8))
        )
        self.assertIn("##b", vocabulary)
        self.assertNotIn("b", vocabulary)
        self.assertEqual(
            (
                vocabulary.pad_id,
                vocabulary.unk_id,
                vocabulary.cls_id,
                vocabulary.sep_id,
                vocabulary.mask_id,
            ),
            (4, 7, 3, 1, 5),
        )
        with self.assertRaisesRegex(UserError, r"does not contain .b."):
            vocabulary.id("b")

    def test_hash_is_that_of_the_file_it_writes(self):
        vocabulary = Vocabulary(_TOKENS)
        path = os.path.join(self.create_tempdir().full_path, "new", "vocab.txt")
        vocabulary.write(path)
        with open(path, "rb") as file:
            contents = file.read()
        self.assertEqual(contents, _TEXT.encode())
        self.assertEqual(vocabulary.hash, hashlib.sha256(contents).hexdigest())
        # The last line end may be missing.
        same = Vocabulary.from_file(self._file(_TEXT.removesuffix("\n")))
        self.assertEqual(same.hash, vocabulary.hash)
        other = Vocabulary([*_TOKENS[1:], _TOKENS[0]])
        self.assertNotEqual(other.hash, vocabulary.hash)

    @parameterized.parameters(
        ("uncased", 30522, 101, "the", 1996),
        ("cased", 28996, 101, "the", 1103),
        ("multilingual-cased", 119547, 101, "the", 10105),
        ("chinese", 21128, 101, "\u2028", 343),
    )
    def test_reads_the_released_vocabularies(self, name, size, cls_id, *token):
        path = golden(f"vocab/bert-base-{name}-vocab.txt")
        vocabulary = Vocabulary.from_file(path)
        self.assertLen(vocabulary, size)
        self.assertEqual(vocabulary.cls_id, cls_id)
        self.assertEqual(vocabulary.id(token[0]), token[1])
        with open(path, "rb") as file:
            self.assertEqual(vocabulary.to_text().encode(), file.read())

    @parameterized.parameters(
        (b"\xef\xbb\xbf" + _TEXT.encode(), "line 1: .*byte order mark"),
        (_TEXT.replace("\n", "\r\n"), r"line 1: ends with \\r\\n"),
        (_TEXT.replace("é", "é "), "line 7: 'é ' has white space"),
        (_TEXT.replace("é", "\u3000é"), "line 7: .*has white space"),
        (_TEXT.replace("é", "## "), "line 7: .*has white space"),
        (_TEXT.replace("é", "a\0b"), "line 7: .*no NUL. Received: 'a.x00b'"),
        (_TEXT.replace("é", "##" + "é" * 129), "line 7: .* of 258 bytes"),
        (_TEXT.replace("é", "ü").encode("latin-1"), "line 7: .* byte 31"),
        (_TEXT.replace("[CLS]\n", ""), r"lacks \[CLS\]"),
        ("a\nb", r"lacks \[UNK\], \[CLS\], \[SEP\]"),
        ("", "is empty"),
    )
    def test_rejects(self, contents, message):
        with self.assertRaisesRegex(UserError, rf"vocab\.txt.*{message}"):
            Vocabulary.from_file(self._file(contents))

    def test_empty_and_repeated_lines_keep_their_rows(self):
        text = _TEXT.replace("é", "") + "\n \n##b\n"
        vocabulary = Vocabulary.from_file(self._file(text))
        self.assertLen(vocabulary, 11)
        self.assertEqual(vocabulary.id("##b"), 10)
        self.assertNotIn("", vocabulary)
        self.assertEqual(vocabulary.token_ids, (0, 1, 3, 4, 5, 7, 10))
        self.assertEqual(vocabulary.to_text(), text)

    def test_padding_and_masks_may_have_no_token(self):
        text = _TEXT.replace("[PAD]\n", "").replace("[MASK]\n", "")
        vocabulary = Vocabulary.from_file(self._file(text))
        self.assertEqual(vocabulary.pad_id, 0)
        with self.assertRaisesRegex(UserError, "vocab.txt does not contain"):
            _ = vocabulary.mask_id

    def test_rejects_a_missing_file(self):
        with self.assertRaisesRegex(UserError, "no/vocab.txt"):
            Vocabulary.from_file("no/vocab.txt")

    def test_rejects_a_token_with_a_line_end(self):
        with self.assertRaisesRegex(UserError, "line 9: .*line end"):
            Vocabulary([*_TOKENS, "x\ny"])

    def test_size_must_be_that_of_the_model(self):
        vocabulary = Vocabulary.from_file(self._file(_TEXT))
        self.assertEqual(vocabulary.check_size(8), [])
        self.assertRegex(*vocabulary.check_size(9), "vocab.txt has 8 .* 9 rows")
        with self.assertLogs(level="WARNING") as logs:
            vocabulary.warn_of_size(9)
        self.assertRegex(logs.output[0], "vocab.txt has 8 .* 9 rows.*otherwise")
        with self.assertRaisesRegex(UserError, "vocab.txt has 8 lines.* is 7"):
            vocabulary.check_size(7)
        # Empty lines at the end need no rows.
        longer = Vocabulary([*_TOKENS, "", ""])
        self.assertEqual(longer.check_size(8), [])


if __name__ == "__main__":
    tf.test.main()
