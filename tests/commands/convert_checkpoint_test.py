"""Tests for run/convert_checkpoint.py, as a program."""

import os
import pathlib
import signal

import pytest
import tensorflow as tf

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from tests.support import files_case
from tests.support import scripts
from tests.support import stored_models

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Kills itself when all is written, but before the output has its name.
_KILLED = """
import os, signal, sys
from bert_tf.commands import convert_checkpoint
from bert_tf.flags import cli
from bert_tf.io import files
files.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
cli.run(convert_checkpoint.main)
"""


@pytest.mark.slow
class ConvertCheckpointTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.stored = stored_models.build()
        self.source = os.path.join(self.folder, "model")
        os.mkdir(self.source)
        model_directory.write_model(self.source, self.stored)
        self.output = os.path.join(self.folder, "out")

    def _run(self, *program):
        command = [
            *program,
            f"--input={self.source}",
            f"--output={self.output}",
            "--to=tf1",
        ]
        (ended,) = scripts.run((command, _ROOT))
        return ended

    def test_killed_process_leaves_no_output(self):
        program = self.create_tempfile(content=_KILLED).full_path
        killed = self._run(program)
        self.assertEqual(killed.status, -signal.SIGKILL, killed.stderr)
        self.assertFalse(os.path.exists(self.output))
        names = sorted(os.listdir(self.folder))
        self.assertLen(names, 3)
        self.assertEqual(names[1], "out.lock")
        self.assertRegex(names[2], r"^out\.tmp-")
        conversion.run(
            ConvertCheckpointConfig(
                input=self.source, output=self.output, target_format="tf1"
            )
        )
        self.assertEqual(formats.detect(self.output), "tf1")
        # The next run removes the lock and the folder of the killed process.
        self.assertCountEqual(os.listdir(self.folder), [names[0], "out"])


if __name__ == "__main__":
    tf.test.main()
