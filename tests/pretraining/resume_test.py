"""Tests that killed pretraining processes resume bit for bit."""

import os

import pytest
import tensorflow as tf

from tests.support import killed_process
from tests.support import tiny_pretraining

_SCRIPT = os.path.join("run", "pretrain.py")
_STEPS = 60


def _start(**flags):
    return killed_process.start(tiny_pretraining.command_line(_SCRIPT, **flags))


class PretrainResumeTest(tf.test.TestCase):
    @pytest.mark.thorough
    def test_killed_twice_equals_uninterrupted(self):
        folder = self.create_tempdir().full_path
        flags = tiny_pretraining.write_flags(
            folder,
            num_train_steps=_STEPS,
            iterations_per_loop=1,
            save_checkpoints_steps=7,
            unpad="on",
        )
        killed_process.assert_resumes(self, _start, flags, _STEPS)


if __name__ == "__main__":
    tf.test.main()
