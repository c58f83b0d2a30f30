"""Tests for bert_tf.stored_model."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import stored_model
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.shared_data import data


class StoredModelTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (True, ("cat", "##s", "[unused7]", "[Name]", "<S>", "\u211d", "東")),
        (False, ("cat", "Cat")),
        (False, ("cat", "##S")),
        (False, ("über", "Über")),
    )
    def test_derive_lower_case(self, expected, tokens):
        vocabulary = Vocabulary(SPECIAL_TOKENS + tokens)
        self.assertIs(stored_model.derive_lower_case(vocabulary), expected)

    @parameterized.parameters(
        ("uncased", True),
        ("chinese", True),
        ("cased", False),
        ("multilingual-cased", False),
    )
    def test_derive_lower_case_of_released_vocabularies(self, name, expected):
        path = data(f"vocab/bert-base-{name}-vocab.txt")
        vocabulary = Vocabulary.from_file(path)
        self.assertIs(stored_model.derive_lower_case(vocabulary), expected)

    @parameterized.parameters(
        (True, None), (True, False), (False, None), (False, True)
    )
    def test_settings_are_those_of_the_tokenizer(self, lower_case, accents):
        vocabulary = Vocabulary(SPECIAL_TOKENS + ("cat", "##s"))
        tokenizer = BertTokenizer(
            vocabulary, lower_case=lower_case, strip_accents=accents
        )
        self.assertEqual(
            stored_model.tokenizer_settings(vocabulary, lower_case, accents),
            tokenizer.settings(),
        )


if __name__ == "__main__":
    tf.test.main()
