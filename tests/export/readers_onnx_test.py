"""Exports of ids converted by tf2onnx and run by onnxruntime."""

import os
import sys
import tempfile

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from tests.support import environments
from tests.support import every_head
from tests.support.ids_requests import IdsRequests

_PROGRAM = os.path.join("tests", "support", "onnx_program.py")
_PACKAGES = ("tf2onnx==1.17.0", "onnx==1.23.2", "onnxruntime==1.31.1")
_FIND_PACKAGES = "import site; print(site.getsitepackages()[0])"


@pytest.mark.environment
class OnnxTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.requests = IdsRequests(
            tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        )
        python = environments.make("onnx", *_PACKAGES)
        packages = environments.run(python, "-c", _FIND_PACKAGES).strip()
        environments.run(
            *(sys.executable, _PROGRAM, packages, cls.requests.path),
            env=environments.clean_environment()
            | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )

    @parameterized.parameters(*every_head.NAMES)
    def test_outputs_equal_the_model(self, name):
        largest, faults = self.requests.compare(name)
        self.assertEmpty(faults)
        # Other programs add in a different order.
        self.assertGreater(largest, 0)


if __name__ == "__main__":
    tf.test.main()
