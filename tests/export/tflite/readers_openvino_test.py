"""Tests that the .tflite files of every head run in OpenVINO."""

import json
import os
import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.inference.lite_model import LiteModel
from tests.support import environments
from tests.support import every_head
from tests.support import rows_of_ids
from tests.support import tiny_builds

_PROGRAM = str(
    pathlib.Path(__file__).parents[2] / "support" / "openvino_program.py"
)
_PACKAGES = ("openvino==2026.4.1",)
_TOLERANCES = {"none": 1e-5, "float16": 5e-3, "dynamic": 0.05}
_CASES = [
    (name, quantization)
    for name in every_head.NAMES
    for quantization in _TOLERANCES
]


def _tensor_names(content):
    """Returns the tensor names of a signature's inputs and outputs."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    (signature,) = model.signatureDefs
    tensors = model.subgraphs[signature.subgraphIndex].tensors
    return {
        one.name.decode(): tensors[one.tensorIndex].name.decode()
        for one in [*signature.inputs, *signature.outputs]
    }


@pytest.mark.environment
class OpenvinoTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        requests = [_request(folder, *case) for case in _CASES]
        path = os.path.join(folder, "requests.json")
        pathlib.Path(path).write_text(json.dumps(requests))
        environments.run(
            *(environments.make("openvino", *_PACKAGES), _PROGRAM, path)
        )
        cls.outputs = {
            case: dict(np.load(request["outputs"]))
            for case, request in zip(_CASES, requests, strict=True)
        }

    @parameterized.parameters(*_CASES)
    def test_outputs_equal_those_of_litert(self, name, quantization):
        built = tiny_builds.make(name, quantization=quantization)
        outputs = self.outputs[name, quantization]
        model = LiteModel(built.content)
        tolerance = _TOLERANCES[quantization]
        for number, rows in enumerate(_calls(built)):
            expected = model.run(rows)
            for output, values in expected.items():
                actual = outputs.pop(f"{number}:{output}")
                self.assertEqual(actual.shape, values.shape)
                # Dynamic rounding may choose another of nearly equal indices.
                if values.dtype.kind == "f" or quantization != "dynamic":
                    self.assertAllClose(actual, values, tolerance, tolerance)
        self.assertEmpty(outputs)


def _calls(built):
    return [rows_of_ids.make(built, *shape) for shape in ((1, 5), (3, 12))]


def _request(folder, name, quantization):
    built = tiny_builds.make(name, quantization=quantization)
    path = os.path.join(folder, f"{name}_{quantization}")
    pathlib.Path(f"{path}.tflite").write_bytes(built.content)
    arrays = {
        f"{number}:{key}": array
        for number, rows in enumerate(_calls(built))
        for key, array in rows.items()
    }
    np.savez(f"{path}_inputs.npz", **arrays)
    return {
        "directory": f"{path}.tflite",
        "inputs": f"{path}_inputs.npz",
        "outputs": f"{path}_outputs.npz",
        "names": _tensor_names(built.content),
    }


if __name__ == "__main__":
    tf.test.main()
