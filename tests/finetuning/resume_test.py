"""Tests that fine-tuning resumes after interruptions."""

import dataclasses
import json
import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import run_folder
from tests.support import finetuning_case
from tests.support import killed_process
from tests.support import logical_devices
from tests.support import tiny_finetuning

logical_devices.make()

_SCRIPT = os.path.join("run", "finetune_classifier.py")
_STEPS = 62


@pytest.mark.slow
class ResumeTest(finetuning_case.FinetuningCase):
    @parameterized.parameters(
        ({},),
        ({"keep_best": True, "evaluate_every_steps": 6, "unpad": "on"},),
    )
    def test_resumes_bit_for_bit(self, values):
        through = self.config(output_dir=self.path("through"), **values)
        if values:
            finetuning_case.run(through)
        else:
            self.copy_finished()
            os.rename(self.path("output"), through.output_dir)
        config = self.config(save_checkpoints_steps=7, **values)
        self.interrupt(config, 10)
        if values:
            with (
                finetuning_case.die_evaluating(),
                self.assertRaises(finetuning_case.Interrupted),
            ):
                finetuning_case.run(config)
        results = finetuning_case.run(config)
        self.assertEqual(
            finetuning_case.metrics(config.output_dir),
            finetuning_case.metrics(through.output_dir),
        )
        self.assertLen(
            finetuning_case.metrics(config.output_dir),
            finetuning_case.NUM_STEPS,
        )
        self.assert_same_state(through.output_dir, config.output_dir)
        self.assert_same_weights("through/model", "output/model")
        written = finetuning_case.read_json(
            self.path("through"), "eval_results.json"
        )
        self.assertEqual(results["dev"], written["dev"])
        # Training has finished, so another run must not start a step.
        with finetuning_case.die_at(0):
            self.assertEqual(finetuning_case.run(config), results)

    def test_refuses_to_resume_with_other_settings(self):
        self.copy_finished()
        for values, message in (
            (
                {"learning_rate": "0.02"},
                "--learning_rate was 0.003 and is 0.02",
            ),
            ({"num_frozen_layers": 1}, "--num_frozen_layers was 0"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.tune(**values)
        tiny_finetuning.write_rows(self.path("train.csv"), 50, seed=9)
        with self.assertRaisesRegex(
            UserError, r"file of the train data was changed .*: \S+train\.csv"
        ):
            self.tune()
        # New devices need no permission, so only the data is allowed here.
        allowed = self.config(
            num_train_epochs="2.08",
            allow_changed_data=True,
            do_eval=False,
            distribution_strategy="mirrored",
            num_gpus=2,
        )
        with self.assertLogs(level="INFO") as logs:
            finetuning_case.run(allowed)
        text = "\n".join(logs.output)
        for message in (
            "as allowed: the file of the train data was",
            "as allowed: --num_train_epochs was 2.0 and is 2.08 now",
            "Changed at step 25: the strategy was 'OneDeviceStrategy' and is "
            "'MirroredStrategy' now; the number of replicas was 1 and is 2 now",
        ):
            self.assertIn(message, text)
        self.assertEqual(
            finetuning_case.metrics(allowed.output_dir)[-1]["step"], 26
        )

    def test_overwriting_starts_over(self):
        self.copy_finished()
        config = self.config(overwrite_output_dir=True, num_frozen_layers=1)
        mine = os.path.join(config.output_dir, "notes.txt")
        files.write_text(mine, "mine")
        written = set(os.listdir(config.output_dir)) - {"notes.txt"}
        with (
            finetuning_case.die_at(3),
            self.assertRaises(finetuning_case.Interrupted),
            self.assertLogs(level="INFO") as logs,
        ):
            finetuning_case.run(config)
        self.assertIn("Starting over: removed", "".join(logs.output))
        steps = [
            row["step"] for row in finetuning_case.metrics(config.output_dir)
        ]
        self.assertLess(max(steps, default=0), 4)
        # Only files that this run has written again may be left.
        left = written & set(os.listdir(config.output_dir))
        self.assertLessEqual(
            left,
            {"train.log", "train_metrics.jsonl", "summaries"}
            | {run_folder.WRITTEN_FILE},
        )
        self.assertEqual(files.read_bytes(mine), b"mine")

    def test_detects_another_pretrained_model_at_the_same_path(self):
        results = self.copy_finished()
        config = self.config()
        finetuning_case.change_weights(config.pretrained_model_dir, 0.1)
        with self.assertRaisesRegex(
            UserError,
            r"output \(step 25\): the model of --pretrained_model_dir was "
            rf"changed or replaced: {config.pretrained_model_dir}\. .*"
            "--overwrite_output_dir, or add --allow_changed_data",
        ):
            finetuning_case.run(config)
        allowed = dataclasses.replace(config, allow_changed_data=True)
        with self.assertLogs(level="WARNING") as logs:
            self.assertEqual(finetuning_case.run(allowed), results)
        self.assertIn(
            "as allowed: the model of --pretrained_model_dir was",
            "\n".join(logs.output),
        )

    def test_paths_and_evaluation_flags_may_change(self):
        results = self.copy_finished()
        moved = self.path("moved.csv")
        os.rename(self.path("train.csv"), moved)
        again = self.config(
            train_file=moved,
            do_predict=True,
            eval_batch_size=3,
            iterations_per_loop=5,
        )
        self.assertAllClose(finetuning_case.run(again)["dev"], results["dev"])
        self.assertTrue(os.path.exists(self.path("output/test_results.tsv")))


def _start(**flags):
    return killed_process.start(tiny_finetuning.command_line(_SCRIPT, flags))


@pytest.mark.thorough
class KilledTest(tf.test.TestCase):
    def test_killed_twice_equals_uninterrupted(self):
        flags = tiny_finetuning.flags(
            self.create_tempdir().full_path,
            num_train_epochs="5",
            save_checkpoints_steps=7,
            keep_best=True,
            evaluate_every_steps=10,
        )
        results = []
        for folder in killed_process.assert_resumes(
            self, _start, flags, _STEPS
        ):
            with open(
                os.path.join(folder, "eval_results.json"), encoding="utf-8"
            ) as file:
                results.append(json.load(file))
        self.assertEqual(*results)


if __name__ == "__main__":
    tf.test.main()
