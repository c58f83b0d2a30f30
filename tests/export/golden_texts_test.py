"""Tests that exports tokenize the golden texts like the original."""

import gzip
import json
import os

import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Call
from bert_tf.modeling import bert as bert_model
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_exports
from tests.support import tiny_model
from tests.support.shared_data import golden

_LENGTH = 40


def _export(folder, vocab_file):
    """Exports an encoder with a vocabulary; returns its version directory."""
    vocabulary = Vocabulary.from_file(vocab_file)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=_LENGTH,
        type_vocab_size=2,
    )
    model = os.path.join(folder, "model")
    weights = tiny_model.random_weights(bert_model.BertModel(config))
    task = {"kind": "encoder", "max_seq_length": _LENGTH}
    tiny_model.write_weights(model, config, weights, task, vocabulary)
    return tiny_exports.export(model, os.path.join(folder, "out"), buckets="40")


@pytest.mark.slow
class GoldenTextsTest(tf.test.TestCase):
    def test_tokenizes_golden_texts_like_the_original(self):
        strings_file = golden("tokenization/strings.jsonl.gz")
        vocab_file = golden("vocab/bert-base-uncased-vocab.txt")
        with gzip.open(strings_file) as file:
            rows = [json.loads(line) for line in file]
        self.assertGreater(len(rows), 4000)
        version = _export(self.create_tempdir().full_path, vocab_file)
        texts = reference.to_array([row["text"] for row in rows])
        call = Call("tokenize", {"text": texts})
        (answer,) = verification.call(version, [call])
        self.assertIsNone(answer.error)
        expected = tf.ragged.constant(
            [row["uncased"] for row in rows]
        ).to_tensor()
        self.assertAllEqual(answer.outputs["input_ids"], expected)
        # Padding has a start of -1, so it does not count.
        is_piece = answer.outputs["starts"] >= 0
        lengths = [len(row["uncased"]) for row in rows]
        self.assertAllEqual(is_piece.sum(1), lengths)


if __name__ == "__main__":
    tf.test.main()
