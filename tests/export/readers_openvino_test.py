"""Tests that exports of ids run in OpenVINO."""

import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.support import environments
from tests.support import every_head
from tests.support import ids_requests

_PROGRAM = os.path.join("tests", "support", "openvino_program.py")


@pytest.mark.environment
class OpenvinoTest(ids_requests.IdsCase):
    @staticmethod
    def ask(path):
        python = environments.make("openvino", "openvino==2026.4.1")
        environments.run(python, _PROGRAM, path)

    @parameterized.parameters(*every_head.NAMES)
    def test_outputs_equal_the_model(self, name):
        self.check(name)


if __name__ == "__main__":
    tf.test.main()
