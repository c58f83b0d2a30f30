"""Tests of fine-tuning, prediction and distillation with several workers."""

import json
import os

import pytest
import tensorflow as tf

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands.finetune_classifier import ClassifierConfig
from tests.support import finetune_workers_program
from tests.support import killed_process
from tests.support import tiny_finetuning
from tests.support import worker_processes

_PROGRAM = os.path.join("tests", "support", "finetune_workers_program.py")
_SCRIPT = os.path.join("run", "finetune_classifier.py")


def _read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def _read_lines(*path):
    return [json.loads(line) for line in _read(*path).splitlines()]


@pytest.mark.thorough
class FinetuneWorkersTest(tf.test.TestCase):
    def test_two_workers_equal_one_process(self):
        folder = self.create_tempdir().full_path
        alone = os.path.join(folder, "alone")
        together = os.path.join(folder, "together")
        flags = finetune_workers_program.flags(folder, together)
        with worker_processes.started(
            2, *tiny_finetuning.command_line(_PROGRAM, flags)
        ) as workers:
            chief_log, log = worker_processes.finish(workers)
        finetune_workers_program.main(
            ClassifierConfig(**flags | {"output_dir": alone})
        )

        self._assert_same_runs(alone, together)
        # Both workers compute and log everything, but only the chief writes.
        for text in ("the best on dev", "has failed: Step 2", "Trial 3 of 3"):
            self.assertIn(text, chief_log)
            self.assertIn(text, log)
        for text in ("The model is in", "Wrote the predictions", "tokens/s"):
            self.assertIn(text, chief_log)
            self.assertNotIn(text, log)

        restarted = os.path.join(folder, "restarted")
        self._run_with_interruption(flags | {"output_dir": restarted})
        self.assertEqual(
            killed_process.read_metrics(restarted),
            killed_process.read_metrics(together),
        )
        state = tf1_checkpoint.read(restarted)
        for name, value in tf1_checkpoint.read(together).items():
            self.assertAllEqual(state[name], value, name)
        for name in ("eval_results.json", "dev_predictions.jsonl"):
            self.assertEqual(_read(restarted, name), _read(together, name))

    def _assert_same_runs(self, alone, together):
        for name in ("", "student", "tagger"):
            expected = os.path.join(alone, name)
            received = os.path.join(together, name)
            self.assertAllClose(
                json.loads(_read(received, "eval_results.json")),
                json.loads(_read(expected, "eval_results.json")),
                atol=1e-4,
            )
            self._assert_same_answers(
                _read_lines(received, "dev_predictions.jsonl"),
                _read_lines(expected, "dev_predictions.jsonl"),
            )
            if name != "tagger":  # Several trials write to runs/.
                self.assertAllClose(
                    killed_process.read_metrics(received),
                    killed_process.read_metrics(expected),
                    rtol=1e-4,
                    atol=1e-4,
                )
        self._assert_same_answers(
            _read_lines(together, "answers.jsonl"),
            _read_lines(alone, "answers.jsonl"),
        )
        self.assertEqual(
            _read(together, "tagger", "runs.txt"),
            _read(alone, "tagger", "runs.txt"),
        )

    def _assert_same_answers(self, received, expected):
        self.assertLen(received, len(expected))
        for mine, theirs in zip(received, expected, strict=True):
            self.assertEqual(mine.keys(), theirs.keys())
            for name, value in theirs.items():
                if isinstance(value, float | dict):
                    # Other rows differ by 1e-3, so a wrong row is detected.
                    self.assertAllClose(mine[name], value, rtol=0, atol=1e-5)
                else:
                    self.assertEqual(mine[name], value)

    def _run_with_interruption(self, flags):
        """Kills one worker, then starts both again and lets them finish."""
        arguments = tiny_finetuning.command_line(_SCRIPT, flags)
        with worker_processes.started(2, *arguments) as workers:
            chief, other = workers
            killed_process.wait_for_step(chief.process, flags["output_dir"], 5)
            other.kill()
            self.assertEqual(chief.wait(), 1, chief.log)
            self.assertRegex(chief.log, "Worker 1 .*is gone")
        with worker_processes.started(2, *arguments) as workers:
            chief_log, _ = worker_processes.finish(workers)
        self.assertRegex(chief_log, "Resumed at step [45]:")


if __name__ == "__main__":
    tf.test.main()
