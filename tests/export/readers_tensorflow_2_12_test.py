"""Tests that exports run in TensorFlow 2.12, as in TensorFlow Serving 2.12."""

import json
import os
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export import savedmodel
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.run import Answer
from bert_tf.io import files
from tests.support import environments
from tests.support import every_head
from tests.support import tensorflow_2_12_program as program

_REQUIREMENTS = "tests/export/tensorflow_2_12.txt"


def _python():
    return environments.make(
        "tensorflow_2_12", "--no-deps", "-r", _REQUIREMENTS
    )


@pytest.mark.environment
class Tensorflow212Test(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*every_head.NAMES)
    def test_outputs_equal_the_model(self, name):
        """Calls all signatures with the texts of the exporter."""
        published = every_head.publish()[name]
        with mock.patch.object(verification, "call", self._call):
            report = savedmodel.verify(
                published.output_dir, published.model_dir
            )
        self.assertEmpty(report.faults, report.text())
        compared = [check for check in report.checks if check.largest]
        self.assertNotEmpty(compared, report.text())

    def _call(self, directory, calls):
        """Runs calls in TensorFlow 2.12, in place of `verification.call`."""
        folder = self.create_tempdir().full_path
        asked, answered = (os.path.join(folder, x) for x in ("ask", "answer"))
        requests = [
            [
                call.signature,
                {x: program.encode(y) for x, y in call.inputs.items()},
            ]
            for call in calls
        ]
        files.write_json(asked, requests)
        environments.run(
            *(_python(), program.__file__, directory, asked, answered)
        )
        return [
            Answer({x: program.decode(y) for x, y in answer.items()})
            for answer in json.loads(files.read_bytes(answered))
        ]


if __name__ == "__main__":
    tf.test.main()
