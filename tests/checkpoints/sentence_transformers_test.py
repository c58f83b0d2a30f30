"""Tests of embeddings against sentence-transformers, in its environment."""

import json
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized

import bert_tf
from tests.support import environments
from tests.support import minilm

_PACKAGES = (*minilm.PEER, "sentence-transformers==6.2.0")
_PROGRAM = os.path.join("tests", "support", "sentence_transformers_program.py")
_POOLINGS = (
    ("cls", ["cls"]),
    ("max", ["max"]),
    ("mean_sqrt_len", ["mean_sqrt_len_tokens"]),
    ("mean+cls", ["mean", "cls"]),
)


@pytest.mark.environment
class SentenceTransformersTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        cls.path = minilm.directory()
        # The last text is longer than the model allows, so it is truncated.
        texts = [" ".join(parts) for parts in minilm.read_texts()]
        cls.texts = [*texts, " ".join(texts[:40])]
        requests = [
            {"path": cls.path},
            *(
                {"path": cls.path, "pooling": x, "save": cls._saved(name)}
                for name, x in _POOLINGS
            ),
        ]
        file = f"{cls.folder}/requests.json"
        with open(file, "w", encoding="utf-8") as output:
            json.dump([{"texts": cls.texts, **x} for x in requests], output)
        python = environments.make("sentence_transformers", *_PACKAGES)
        environments.run(python, _PROGRAM, file, cls.folder)

    @classmethod
    def _saved(cls, name):
        return f"{cls.folder}/{name}"

    def _check(self, model, number):
        received = model.predict(self.texts, verbose=0)
        expected = np.load(f"{self.folder}/{number}.npy")
        self.assertEqual(received.shape, expected.shape)
        scale = max(1, np.abs(expected).max())
        self.assertAllClose(received, expected, rtol=0, atol=1e-5 * scale)

    def test_embeddings_equal_sentence_transformers(self):
        self._check(bert_tf.load_model(self.path, "embeddings"), 0)

    @parameterized.parameters(*enumerate(_POOLINGS))
    def test_poolings_equal_sentence_transformers(self, number, pooling):
        name, _ = pooling
        model = bert_tf.load_model(self._saved(name), "embeddings")
        self.assertEqual((model.pooling, model.normalize), (name, False))
        self._check(model, 1 + number)


if __name__ == "__main__":
    tf.test.main()
