"""Tests for bert_tf.checkpoints.tensors."""

import os

import numpy as np
import safetensors.numpy
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import read_safetensors
from bert_tf.checkpoints.tensors import write_safetensors
from bert_tf.errors import UserError
from bert_tf.io import files
from tests.support import tiny_layers


def _tensors():
    return {
        "b.weight": tiny_layers.normal(3, 4),
        "a.weight": tiny_layers.normal(4, 3, seed=1).T,
        "ü.bias": tiny_layers.normal(5),
        "scalar": np.float32(7.5),
        "empty": np.zeros((0, 3), np.float32),
    }


class SafetensorsFileTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.create_tempdir().full_path
        self.path = os.path.join(folder, "x.safetensors")

    def test_writes_the_bytes_that_the_library_writes(self):
        values, metadata = _tensors(), {"format": "pt"}
        write_safetensors(self.path, Tensors.from_arrays(values), metadata)
        expected = safetensors.numpy.save(
            {name: np.asarray(x, order="C") for name, x in values.items()},
            metadata,
        )
        self.assertEqual(files.read_bytes(self.path), expected)

    def test_writes_whole_numbers_and_long_tensors(self):
        values = {
            "a": np.float32([1e-30, -0.0, np.nan]),
            "b": np.arange((1 << 22) + 3, dtype=np.float32),
            "step": np.array(7_000_000_000),
        }
        write_safetensors(
            self.path, Tensors.from_arrays(values), {}, integers=("step",)
        )
        self.assertEqual(
            files.read_bytes(self.path), safetensors.numpy.save(values)
        )

    def test_reads_a_file_that_is_not_on_a_local_disk(self):
        values = _tensors()
        write_safetensors(self.path, Tensors.from_arrays(values), {})
        tensors, types = read_safetensors(f"file://{self.path}")
        self.assertEqual(set(tensors), set(values))
        self.assertEqual(set(types.values()), {"F32"})
        self.assertAllEqual(tensors["b.weight"], values["b.weight"])
        with self.assertRaisesRegex(UserError, "damaged or incomplete"):
            read_safetensors(f"file://{self.path}.gone")
        os.truncate(self.path, 100)
        with self.assertRaisesRegex(UserError, "damaged or incomplete"):
            read_safetensors(f"file://{self.path}")

    @parameterized.parameters("float16", "bfloat16", "float64", "int64")
    def test_reads_tensors_of_other_types(self, dtype):
        value = (
            np.arange(6).reshape(2, 3).astype(tf.as_dtype(dtype).as_numpy_dtype)
        )
        safetensors.numpy.save_file({"x": value}, self.path)
        tensors, types = read_safetensors(self.path)
        self.assertLen(types, 1)
        self.assertEqual(tensors["x"].dtype, value.dtype)
        self.assertAllEqual(
            tensors["x"].astype(np.float32), np.arange(6).reshape(2, 3)
        )

    def test_refuses_a_file_cut_after_its_header_was_read(self):
        write_safetensors(self.path, Tensors.from_arrays(_tensors()), {})
        tensors, _ = read_safetensors(self.path)
        os.truncate(self.path, 100)
        with self.assertRaisesRegex(UserError, "damaged or incomplete"):
            tensors["b.weight"]  # noqa: B018


if __name__ == "__main__":
    tf.test.main()
