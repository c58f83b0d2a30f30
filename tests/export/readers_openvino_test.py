"""Exports of ids run by OpenVINO."""

import os

import pytest
import tensorflow as tf

from tests.support import environments
from tests.support import ids_requests

_PROGRAM = os.path.join("tests", "support", "openvino_program.py")
_PACKAGES = ("openvino==2026.4.1",)


@pytest.mark.environment
class OpenvinoTest(ids_requests.ReaderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        environments.run(
            *(environments.make("openvino", *_PACKAGES), _PROGRAM),
            cls.requests.path,
            env=environments.clean_environment(),
        )


if __name__ == "__main__":
    tf.test.main()
