"""Tests for export.tflite.metadata; clients_test.py runs its readers."""

import hashlib
import io
import zipfile

import flatbuffers
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


def _convert(outputs=("probabilities",), width=4):
    """Returns a file that sums its inputs with different weights."""
    weights = tf.Variable(np.arange(1, 3 * width * 32 + 1, dtype=np.float32))

    def function(**inputs):
        x = tf.stack([tf.cast(inputs[name], tf.float32) for name in _NAMES], 1)
        kernel = tf.reshape(weights, [3 * 32, width])
        x = tf.matmul(tf.reshape(x, [-1, 3 * 32]), kernel)
        return {name: x + i for i, name in enumerate(outputs)}

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


class _Table:
    """A table of a flatbuffer with fields by number."""

    def __init__(self, buffer, position):
        self._table = flatbuffers.table.Table(buffer, position)

    @classmethod
    def root(cls, buffer):
        offset = flatbuffers.encode.Get(flatbuffers.packer.uoffset, buffer, 0)
        return cls(buffer, offset)

    def _at(self, number):
        offset = self._table.Offset(4 + 2 * number)
        return offset and offset + self._table.Pos

    def string(self, number):
        return self._table.String(self._at(number)).decode()

    def byte(self, number):
        flags = flatbuffers.number_types.Uint8Flags
        return self._table.Get(flags, self._at(number))

    def table(self, number):
        at = self._at(number)
        return _Table(self._table.Bytes, self._table.Indirect(at))

    def tables(self, number):
        offset = self._at(number)
        if not offset:
            return []
        start = self._table.Vector(offset - self._table.Pos)
        count = self._table.VectorLen(offset - self._table.Pos)
        return [
            _Table(self._table.Bytes, self._table.Indirect(start + 4 * i))
            for i in range(count)
        ]


def _read(content):
    """Returns the root table of the metadata in a file."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    (buffer,) = [
        model.buffers[entry.buffer].data.tobytes()
        for entry in model.metadata
        if entry.name == b"TFLITE_METADATA"
    ]
    assert buffer[4:8] == b"M001"
    return _Table.root(buffer)


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

    def test_names_tensors_as_clients_expect(self):
        root = _read(self.added)
        self.assertEqual(root.string(0), "topics")
        self.assertEqual(root.string(1), "Says what a text is about.")
        digest = hashlib.sha256(self.content).hexdigest()
        self.assertEqual(root.string(2), f"sha256:{digest}")
        (graph,) = root.tables(3)
        model = schema.ModelT.InitFromPackedBuf(self.content, 0)
        (signature,) = model.signatureDefs
        names = {x.tensorIndex: x.name.decode() for x in signature.inputs}
        ours = {"input_ids": "ids", "input_mask": "mask"}
        self.assertEqual(
            [tensor.string(0) for tensor in graph.tables(2)],
            [ours.get(names[i], names[i]) for i in model.subgraphs[0].inputs],
        )
        (output,) = graph.tables(3)
        self.assertEqual(output.string(0), "probability")
        (labels,) = output.tables(6)
        self.assertEqual((labels.string(0), labels.byte(2)), ("labels.txt", 2))
        (unit,) = graph.tables(5)
        self.assertEqual(unit.byte(0), 4)
        (vocabulary,) = unit.table(1).tables(0)
        self.assertEqual(vocabulary.string(0), "vocab.txt")
        self.assertEqual(vocabulary.byte(2), 5)

    def test_outputs_are_in_the_order_of_the_graph(self):
        content = _convert(("start_logits", "end_logits"))
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        names = {
            x.tensorIndex: x.name.decode()
            for x in model.signatureDefs[0].outputs
        }
        (graph,) = _read(_add(content, labels=())).tables(3)
        self.assertEqual(
            [tensor.string(0) for tensor in graph.tables(3)],
            [names[index] for index in model.subgraphs[0].outputs],
        )
        self.assertEmpty(graph.tables(3)[0].tables(6))

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

    def test_without_labels_there_is_no_labels_file(self):
        added = _add(self.content, labels=())
        with zipfile.ZipFile(io.BytesIO(added)) as archive:
            self.assertEqual(archive.namelist(), ["vocab.txt"])
        (graph,) = _read(added).tables(3)
        self.assertEmpty(graph.tables(3)[0].tables(6))

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

    def test_is_deterministic(self):
        self.assertEqual(_add(self.content), self.added)
        self.assertNotEqual(_read(_add(_convert(width=4)[:])).string(2)[:7], "")

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

    def test_labels_need_probabilities(self):
        content = _convert(("score",), 1)
        with self.assertRaisesRegex(UserError, "the output probabilities.*sco"):
            _add(content)

    def test_outputs_of_other_tasks_are_described(self):
        described = _add(_convert(("stars",)), labels=())
        self.assertEqual(described.count(b"An answer."), 1)


if __name__ == "__main__":
    tf.test.main()
