"""Tests for bert_tf.text.lite_tokenizer."""

import tensorflow as tf

from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.text.lite_tokenizer import LiteTokenizer
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary

_VOCABULARY = Vocabulary(
    [*SPECIAL_TOKENS, *"a α Α Σ σ ς ##a ##α ##Σ ##σ ##ς é É".split()]
)


def _pieces(text, *options):
    tokenizer = LiteTokenizer(BertTokenizer(_VOCABULARY, *options))
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    return (
        [piece.decode() for piece in tokenizer.tokens(ids).numpy()],
        starts.numpy().tolist(),
        ends.numpy().tolist(),
    )


class LiteTokenizerTest(tf.test.TestCase):
    def test_every_capital_sigma_is_alike(self):
        pieces, starts, ends = _pieces("ΑΣ Σας")
        self.assertEqual(pieces, ["α", "##σ", "σ", "##α", "##ς"])
        self.assertEqual(starts, [0, 2, 5, 7, 9])
        self.assertEqual(ends, [2, 4, 7, 9, 11])

    def test_words_of_more_than_200_characters_are_cut(self):
        pieces, _, _ = _pieces("a" * 201)
        self.assertEqual(pieces, ["a"] + ["##a"] * 200)
        pieces, _, ends = _pieces("a" * 801)
        self.assertEqual(pieces, ["[UNK]"])
        self.assertEqual(ends, [801])

    def test_has_the_options_of_the_other(self):
        self.assertEqual(_pieces("É", True, False)[0], ["é"])
        self.assertEqual(_pieces("É ΑΣ", False)[0], ["É", "Α", "##Σ"])
        tokenizer = BertTokenizer(_VOCABULARY, True, False)
        self.assertEqual(
            LiteTokenizer(tokenizer).settings(), tokenizer.settings()
        )

    def test_reads_by_the_rules_of_mediapipe(self):
        tokenizer = BertTokenizer(_VOCABULARY, normalization=ASCII_LOWER)
        lite = LiteTokenizer(tokenizer)
        self.assertEqual(lite.settings(), tokenizer.settings())
        texts = ["É é A", "ΑΣ Σ aΣ", "a" * 100, "a" * 101]
        self.assertAllEqual(lite.tokenize(texts), tokenizer.tokenize(texts))
        # Only there a text ends at a NUL; here it is left out.
        self.assertLen(tokenizer.tokenize("a \0 a"), 1)
        self.assertLen(lite.tokenize("a \0 a"), 2)

    def test_refuses_to_keep_special_tokens(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        with self.assertRaisesRegex(UserError, "finds .MASK.*--input=ids"):
            LiteTokenizer(tokenizer)


if __name__ == "__main__":
    tf.test.main()
