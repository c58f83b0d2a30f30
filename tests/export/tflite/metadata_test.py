"""Tests for export.tflite.metadata; clients_test.py runs its readers."""

import io
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.errors import UserError
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import metadata
from bert_tf.inference.lite_model import LiteModel
from tests.support import client_models

_NAMES = ("input_ids", "input_mask", "segment_ids")


def _convert():
    """Returns a file that sums its inputs with different weights."""
    weights = tf.Variable(np.arange(1, 3 * 4 * 32 + 1, dtype=np.float32))

    def function(**inputs):
        x = tf.stack([tf.cast(inputs[name], tf.float32) for name in _NAMES], 1)
        kernel = tf.reshape(weights, [3 * 32, 4])
        x = tf.matmul(tf.reshape(x, [-1, 3 * 32]), kernel)
        return {"probabilities": x}

    specs = {name: tf.TensorSpec([1, 32], tf.int32) for name in _NAMES}
    return conversion.convert(function, specs)


def _add(content, **values):
    return metadata.add_metadata(
        content,
        **{
            "name": "topics",
            "description": "Says what a text is about.",
            "vocabulary": client_models.VOCABULARY,
            "labels": client_models.LABELS,
        }
        | values,
    )


def _rows():
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 9, (1, 32)).astype(np.int32) for name in _NAMES
    }


@pytest.mark.slow
class MetadataTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.content = _convert()
        cls.added = _add(cls.content)

    def test_appends_uncompressed_files(self):
        with zipfile.ZipFile(io.BytesIO(self.added)) as archive:
            self.assertIsNone(archive.testzip())
            self.assertEqual(archive.namelist(), ["vocab.txt", "labels.txt"])
            for info in archive.infolist():
                self.assertEqual(info.compress_type, zipfile.ZIP_STORED)
            self.assertEqual(
                archive.read("vocab.txt").decode(),
                client_models.VOCABULARY.to_text(),
            )
            self.assertEqual(
                archive.read("labels.txt").decode().split("\n"),
                [*client_models.LABELS, ""],
            )

    def test_outputs_do_not_change(self):
        rows = _rows()
        self.assertAllEqual(
            LiteModel(self.added).run(rows)["probabilities"],
            LiteModel(self.content).run(rows)["probabilities"],
        )

    def test_weights_are_aligned(self):
        model = schema.Model.GetRootAs(self.added, 0)
        large = [
            model.Buffers(i).DataAsNumpy()
            for i in range(model.BuffersLength())
            if model.Buffers(i).DataLength() > 64
        ]
        start = np.frombuffer(self.added, np.uint8).ctypes.data
        self.assertGreaterEqual(len(large), 2)
        for data in large:
            self.assertEqual((data.ctypes.data - start) % 16, 0)

    @parameterized.parameters(
        (("a", "b"), "Each of the 4 probabilities .* Received: 2 labels"),
        (
            ("a", "b", "", "d"),
            "must not be empty.* Received: 'a', 'b', '', 'd'",
        ),
    )
    def test_rejects_labels_that_do_not_fit(self, labels, message):
        with self.assertRaisesRegex(UserError, message):
            _add(self.content, labels=labels)


if __name__ == "__main__":
    tf.test.main()
