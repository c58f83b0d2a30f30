"""Tests of embeddings: pooling, files, forms of rows, and similarity."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.errors import UserError
from bert_tf.tasks import dev_split
from bert_tf.tasks.embeddings.examples import EmbeddingsFiles
from bert_tf.tasks.embeddings.task import EmbeddingsTask
from bert_tf.tasks.task_files import SplitKey
from tests.support import tiny_model

_TEXTS = ["the cat sat", "dog", "東 , the dog sitting on the mat . mats cat"]
_POOLS = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len": lambda x: x.sum(0) / len(x) ** 0.5,
}


def _expect(path, pooling, normalize, length=12):
    """Returns the embeddings of each text alone, without padding."""
    encoder = bert_tf.load_model(path, "encoder", max_seq_length=length)
    rows = []
    for text in _TEXTS:
        ids = encoder.preprocessor([text])
        count = ids["input_mask"].sum()
        ids = {name: x[:, :count] for name, x in ids.items()}
        states = encoder(ids)["sequence_output"].numpy()[0]
        row = [_POOLS[one](states) for one in pooling.split("+")]
        rows.append(np.concatenate(row))
    rows = np.stack(rows)
    if normalize:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


class EmbeddingsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.path = tiny_model.write_initialized(f"{self.folder}/model", 4)

    @parameterized.parameters(
        ("cls", True),
        ("max", False),
        ("mean", False),
        ("mean_sqrt_len", False),
        ("max+cls+mean", True),
    )
    def test_predictions_are_pooled_tokens(self, pooling, normalize):
        model = bert_tf.load_model(
            self.path, "embeddings", pooling=pooling, normalize=normalize
        )
        received = model.predict(_TEXTS, verbose=0)
        self.assertEqual(received.dtype, np.float32)
        expected = _expect(self.path, pooling, normalize)
        self.assertAllClose(received, expected, rtol=0, atol=1e-5)

    def test_encoders_have_normalized_means_of_all_positions(self):
        model = bert_tf.load_model(self.path, "embeddings")
        self.assertEqual(model.preprocessor.max_seq_length, 12)
        received = model.predict(_TEXTS, verbose=0)
        expected = _expect(self.path, "mean", True)
        self.assertAllClose(received, expected, rtol=0, atol=1e-5)
        self.assertEqual(model.predict([], verbose=0).shape, (0, 16))
        # Batch size and the form of the rows must not change embeddings.
        rows = [{"sentence": x} for x in _TEXTS]
        others = model.predict(rows, batch_size=1, verbose=0)
        self.assertAllClose(others, received, rtol=0, atol=1e-6)
        dataset = tf.data.Dataset.from_tensor_slices(_TEXTS)
        others = model.predict(dataset, verbose=0)
        self.assertAllClose(others, received, rtol=0, atol=1e-6)

    def test_task_json_has_pooling_normalization_and_length(self):
        task = EmbeddingsTask(
            pooling="cls+max", normalize=False, max_seq_length=6
        )
        path = tiny_model.write_task(f"{self.folder}/task", task)
        model = bert_tf.load_model(path)
        self.assertIsInstance(model, bert_tf.BertForEmbeddings)
        self.assertEqual(model.preprocessor.task, task)
        received = model.predict(_TEXTS, verbose=0)
        expected = _expect(path, "cls+max", False, length=6)
        self.assertAllClose(received, expected, rtol=0, atol=1e-5)
        bert_tf.save_model(model, f"{self.folder}/saved")
        saved = bert_tf.load_model(f"{self.folder}/saved")
        self.assertEqual(saved.preprocessor.task, task)
        self.assertAllEqual(saved.predict(_TEXTS, verbose=0), received)

    @pytest.mark.slow
    def test_keras_files_keep_arguments(self):
        model = bert_tf.load_model(self.path, "embeddings", pooling="max")
        model.save(f"{self.folder}/x.keras")
        loaded = bert_tf.load_model(f"{self.folder}/x.keras")
        self.assertEqual((loaded.pooling, loaded.normalize), ("max", True))
        received = loaded.predict(_TEXTS, verbose=0)
        self.assertAllEqual(received, model.predict(_TEXTS, verbose=0))

    def test_similarity_is_the_cosine(self):
        model = bert_tf.load_model(self.path, "embeddings", normalize=False)
        vectors = model.predict(_TEXTS, verbose=0)
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = unit @ unit.T
        for pair in ((_TEXTS,), (vectors, _TEXTS), (vectors, 3 * vectors)):
            received = model.similarity(*pair)
            self.assertAllClose(received, expected, rtol=0, atol=1e-6)
        self.assertEqual(model.similarity(_TEXTS[:1], _TEXTS).shape, (1, 3))
        # A single vector must count as one row.
        received = model.similarity(vectors[0], vectors)
        self.assertAllClose(received, expected[:1], rtol=0, atol=1e-6)
        for shape in ((3, 5), (1, 3, 16)):
            with self.assertRaisesRegex(UserError, r"embeddings \[rows, 16\]"):
                model.similarity(np.ones(shape, np.float32), vectors)

    def test_reads_the_text_column_of_a_table(self):
        model = bert_tf.load_model(self.path, "embeddings")
        table = pd.DataFrame({"id": [1, 2, 3], "text": _TEXTS})
        self.assertAllEqual(
            model.predict(table, verbose=0), model.predict(_TEXTS, verbose=0)
        )

    def test_validation_split_is_that_of_dev_fraction(self):
        model = bert_tf.load_model(self.path, "embeddings")
        pairs = [(f"the cat {i}", f"mat {i}") for i in range(10)]
        is_dev = dev_split.choose([SplitKey(x) for x, _ in pairs], 0.3)
        for labels in (None, [i / 10 for i in range(10)]):
            *_, dev = model.preprocessor.split(pairs, labels, None, 0.3)
            chosen = [i for i in range(10) if is_dev[i]]
            self.assertEqual(dev[0], [pairs[i] for i in chosen])
            if labels:
                self.assertEqual(dev[1], [labels[i] for i in chosen])

    @parameterized.parameters(
        ([""], "a text that is not empty"),
        (["cat", " \t"], "Row 1 .* a text that is not empty"),
        ([7], "Expected a text"),
        ([("cat", "dog")], "Expected a text"),
        ([{"words": "cat"}], "the columns 'text'"),
        (None, "Expected raw rows"),
        ({"cat"}, "Expected raw rows"),
    )
    def test_rejects_rows_that_are_not_texts(self, rows, message):
        model = bert_tf.load_model(self.path, "embeddings")
        with self.assertRaisesRegex(UserError, message):
            model.predict(rows, verbose=0)

    def test_rejects_an_unknown_pooling(self):
        with self.assertRaisesRegex(UserError, "Received: 'mean.Dense'"):
            bert_tf.load_model(self.path, "embeddings", pooling="mean+Dense")

    @parameterized.parameters(
        ("a.txt", "cat\ndog\n"),
        ("a.csv", "id,text\n1,cat\n2,dog\n"),
        ("a.jsonl", '{"sentence": "cat"}\n{"sentence": "dog"}\n'),
    )
    def test_files_of_texts_are_read(self, name, contents):
        path = self.create_tempfile(name, contents).full_path
        found = [x.text_a for x in EmbeddingsFiles().read_inputs(path)]
        self.assertEqual(found, ["cat", "dog"])

    def test_names_the_line_of_an_empty_text(self):
        path = self.create_tempfile("a.txt", "cat\n\ndog\n").full_path
        with self.assertRaisesRegex(UserError, "line 2 has an empty text"):
            list(EmbeddingsFiles().read_inputs(path))


if __name__ == "__main__":
    tf.test.main()
