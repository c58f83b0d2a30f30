"""Fine-tuning that is killed and started again, as processes."""

import json
import os
import signal

import pytest
import tensorflow as tf

from bert_tf.interop import tf1_checkpoint
from tests import killed_process
from tests import tiny_finetuning

_SCRIPT = os.path.join("run", "finetune_classifier.py")
_STEPS = 62


def _start(**flags):
    return killed_process.start(tiny_finetuning.command_line(_SCRIPT, flags))


@pytest.mark.thorough
class FinetuneResumeTest(tf.test.TestCase):
    def test_killed_twice_equals_uninterrupted(self):
        flags = tiny_finetuning.flags(
            self.create_tempdir().full_path,
            num_train_epochs="5",
            save_checkpoints_steps=7,
            keep_best=True,
            evaluate_every_steps=10,
        )
        output_dir = flags["output_dir"]
        through = output_dir + "_through"
        process = _start(**flags | {"output_dir": through})
        log, _ = process.communicate(timeout=killed_process.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)

        for step in (16, 34):
            process = _start(**flags)
            log = killed_process.kill_after(process, output_dir, step)
            self.assertEqual(process.returncode, -signal.SIGKILL, log)
        process = _start(**flags)
        log, _ = process.communicate(timeout=killed_process.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)

        self.assertRegex(log, "Resumed at step [1-9]")
        lines = killed_process.read_metrics(output_dir)
        self.assertEqual(lines, killed_process.read_metrics(through))
        self.assertLen(lines, _STEPS)
        state = tf1_checkpoint.read(output_dir)
        for name, value in tf1_checkpoint.read(through).items():
            self.assertAllEqual(state[name], value, name)
        for folder in (output_dir, through):
            with open(
                os.path.join(folder, "eval_results.json"), encoding="utf-8"
            ) as file:
                lines.append(json.load(file))
        self.assertEqual(*lines[-2:])


if __name__ == "__main__":
    tf.test.main()
