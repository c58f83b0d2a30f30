"""Tests that exports of ids run in onnxruntime, converted by tf2onnx."""

import os
import sys

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.support import environments
from tests.support import every_head
from tests.support import ids_requests

_PROGRAM = os.path.join("tests", "support", "onnx_program.py")
_PACKAGES = ("tf2onnx==1.17.0", "onnx==1.23.2", "onnxruntime==1.31.1")
_FIND_PACKAGES = "import site; print(site.getsitepackages()[0])"


@pytest.mark.environment
class OnnxTest(ids_requests.IdsCase):
    @staticmethod
    def ask(path):
        python = environments.make("onnx", *_PACKAGES)
        packages = environments.run(python, "-c", _FIND_PACKAGES).strip()
        environments.run(
            *(sys.executable, _PROGRAM, packages, path),
            env=environments.clean_environment()
            | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )

    @parameterized.parameters(*every_head.NAMES)
    def test_outputs_equal_the_model(self, name):
        self.check(name)


if __name__ == "__main__":
    tf.test.main()
