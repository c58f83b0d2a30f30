"""Exports of ids run by OpenVINO."""

import os
import tempfile

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from tests.support import environments
from tests.support import every_head
from tests.support.ids_requests import IdsRequests

_PROGRAM = os.path.join("tests", "support", "openvino_program.py")
_PACKAGES = ("openvino==2026.4.1",)


@pytest.mark.environment
class OpenvinoTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.requests = IdsRequests(
            tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        )
        environments.run(
            *(environments.make("openvino", *_PACKAGES), _PROGRAM),
            cls.requests.path,
            env=environments.clean_environment(),
        )

    @parameterized.parameters(*every_head.NAMES)
    def test_outputs_equal_the_model(self, name):
        largest, faults = self.requests.compare(name)
        self.assertEmpty(faults)
        # Other programs add in a different order.
        self.assertGreater(largest, 0)


if __name__ == "__main__":
    tf.test.main()
