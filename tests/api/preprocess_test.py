"""Tests of `preprocess`, and of calling a tokenizer."""

import tempfile

import tensorflow as tf

import bert_tf
from bert_tf.errors import UserError
from tests.support import tiny_model

_TEXTS = ["the cat sat on the mat", "dogs"]


class PreprocessTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(
            tempfile.mkdtemp(), config=tiny_model.ONE_LAYER
        )
        cls.tokenizer = bert_tf.load_tokenizer(cls.path)

    def test_tokenizers_and_models_agree(self):
        model = bert_tf.load_model(self.path, "encoder")
        for x in (_TEXTS, (_TEXTS, ["cat", "the dog"])):
            features = bert_tf.preprocess(model, x)
            expected = bert_tf.preprocess(self.tokenizer, x)
            for name, value in expected.items():
                # The model reads 12 tokens.
                self.assertAllEqual(features[name], value[:, :12])

    def test_calling_a_tokenizer_packs(self):
        tokens = self.tokenizer.tokenize(_TEXTS)
        second = self.tokenizer.tokenize(["cat cat", ""])
        packed = bert_tf.pack(tokens, second, 16, self.tokenizer.vocabulary)
        received = self.tokenizer(_TEXTS, ["cat cat", None])
        for name, value in packed.items():
            self.assertAllEqual(received[name], value)
        graph = tf.function(self.tokenizer.__call__)(tf.constant(_TEXTS))
        self.assertAllEqual(
            graph["input_ids"], self.tokenizer(_TEXTS)["input_ids"]
        )
        self.assertEqual(graph["input_ids"].shape, (2, 8))
        short = self.tokenizer(_TEXTS, max_seq_length=4)["input_ids"]
        self.assertAllEqual(short[0], [2, 5, 6, 3])

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(UserError, "knows no labels"):
            bert_tf.preprocess(self.tokenizer, _TEXTS, [0, 1])
        own = bert_tf.BertModel(tiny_model.ONE_LAYER)
        with self.assertRaisesRegex(UserError, "Received: BertModel"):
            bert_tf.preprocess(own, _TEXTS)
        with self.assertRaisesRegex(UserError, "list of texts.*'the cat"):
            self.tokenizer(_TEXTS[0])


if __name__ == "__main__":
    tf.test.main()
