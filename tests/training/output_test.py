"""Tests for bert_tf.training.output."""

import contextlib
import dataclasses
import io
import json
import os
from concurrent import futures
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import config as options
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import run_folder
from bert_tf.training import output as training_output


def _finetuning_rows(steps):
    return [
        {
            "step": step,
            "loss": 9 / step,
            "learning_rate": 1e-4 * step,
            "grad_norm": 2.0 + step % 3,
            "examples_per_second": 50.0 + step,
            "tokens_per_second": 900.0 + step,
        }
        for step in steps
    ]


def _evaluations(steps):
    return [
        {
            "global_step": step,
            "loss": 5 / step,
            "HasAns_f1": 60 + step / 10,
            "HasAns_total": 5928,
        }
        for step in steps
    ]


class ReportTest(tf.test.TestCase):
    def test_has_scores_existing_files_and_commands(self):
        folder = self.create_tempdir().full_path
        os.mkdir(os.path.join(folder, "model"))
        for name in ("dev_predictions.jsonl", "train.log", "model.ckpt-5.json"):
            with open(os.path.join(folder, name), "w", encoding="utf-8"):
                pass
        results = {"dev": {"accuracy": 0.91666, "loss": 0.25, "global_step": 7}}
        with mock.patch("sys.stdout", io.StringIO()) as written:
            training_output.print_report(folder, results, ["use a", "use b"])
        expected = f"""
Scores:

    dev: accuracy 0.9167, loss 0.25

Files in {folder}:

    model                  the model, for every script
    train.log              the log
    dev_predictions.jsonl  predictions of dev

Next:

    use a
    use b
"""
        self.assertEqual(written.getvalue(), expected)


class LearningCurvesTest(tf.test.TestCase):
    def _titles(self, train, evaluation):
        panels = training_output.measured_panels(train, evaluation)
        return [title for _, title, _ in panels]

    def test_finetuning_has_a_panel_for_each_measured_value(self):
        titles = [
            "Loss",
            "Learning rate",
            "Norm of the gradient",
            "Tokens per second",
        ]
        train = _finetuning_rows((1, 10, 20, 30))
        self.assertEqual(self._titles(train, []), titles)
        # One evaluation is a point in the panel of the loss.
        self.assertEqual(self._titles(train, _evaluations([30])), titles)
        # HasAns_total never changes.
        self.assertEqual(
            self._titles(train, _evaluations([10, 20, 30])),
            [*titles, "HasAns f1 on dev"],
        )
        # A model that does not learn shows constant metrics.
        stuck = [row | {"HasAns_f1": 50.0} for row in _evaluations([10, 20])]
        self.assertEqual(
            self._titles(train, stuck),
            [*titles, "HasAns f1 on dev", "HasAns total on dev"],
        )
        for row in train:
            row["grad_norm"] = row.pop("tokens_per_second") * np.nan
            row["learning_rate"] = None
        self.assertEqual(
            self._titles(train, []), ["Loss", "Norm of the gradient"]
        )
        self.assertEqual(self._titles([], []), ["Loss"])

    def test_draws_the_metrics_of_a_run(self):
        folder = self.create_tempdir().full_path
        train = _finetuning_rows(range(1, 60))
        lines = "".join(f"{json.dumps(row)}\n" for row in train)
        path = os.path.join(folder, "train_metrics.jsonl")
        files.write_text(path, lines)
        for panels in (None, training_output.PRETRAINING):
            training_output.draw_learning_curves(
                folder, _evaluations([20, 59]), panels, "A run"
            )
            path = os.path.join(folder, "learning_curves.png")
            picture = tf.io.decode_png(tf.io.read_file(path), 3).numpy()
            orange = np.all(picture == [0xD9, 0x5F, 0x02], axis=-1)
            self.assertGreater(orange.sum(), 500)


_OF_A_RUN = (
    "model.ckpt-7.index",
    "best/model.ckpt-3.index",
    "runs/rate_5e-05_batch_8_epochs_3_seed_1/run.json",
    "train_metrics.jsonl",
    "dev_predictions.jsonl",
    "report_of_a_new_task.txt",
)
_OTHERS = (
    "notes.txt",
    "model.ckpt-8.index",
    "best/idea.txt",
    "runs/mine/events",
    "runs/rate_5e-05_batch_8_epochs_3_seed_1/notes.txt",
    "my_model/checksums.json",
    "train.log",
)


@dataclasses.dataclass(frozen=True)
class _Flags:
    output_dir: str = options.option()
    do_train: bool = options.option(True)
    overwrite_output_dir: bool = options.option(True)
    start: str | None = options.option(None, reads="model")


class StartOverTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.create_tempdir().full_path
        self.enter_context(contextlib.chdir(folder))

    def _write(self, *names):
        for name in names:
            path = os.path.join("out", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").close()

    def _run(self):
        """Writes the files of a run, some of them in a thread."""
        with (
            run_folder.registering("out"),
            futures.ThreadPoolExecutor() as threads,
        ):
            for name in _OF_A_RUN[2:]:
                threads.submit(files.write_text, f"out/{name}", name).result()
            for name in _OF_A_RUN[:2]:
                files.write_text(f"out/{name}", name)
            with files.atomic_directory("out/model") as folder:
                files.write_text(f"{folder}/checksums.json", "")
        files.write_text("elsewhere.txt", "")

    def _start_over(self, **flags):
        config = _Flags(**{"output_dir": "out"} | flags)
        training_output.start_over(
            config, Coordinator(tf.distribute.get_strategy())
        )

    def _left(self):
        return {
            os.path.relpath(os.path.join(folder, name), "out")
            for folder, _, names in os.walk("out")
            for name in names
        }

    def test_removes_what_runs_registered_and_nothing_else(self):
        self._write(*_OTHERS)
        self._run()
        made = {*_OF_A_RUN, "model/checksums.json", run_folder.WRITTEN_FILE}
        self.assertEqual(self._left(), {*_OTHERS, *made})
        self._start_over(overwrite_output_dir=False)
        self._start_over(do_train=False)
        with mock.patch.object(Coordinator, "is_chief", False):
            self._start_over()
        self.assertEqual(self._left(), {*_OTHERS, *made})
        self._start_over()
        self.assertEqual(self._left(), {*_OTHERS})
        self.assertFalse(os.path.exists("out/model"))
        self.assertTrue(os.path.exists("elsewhere.txt"))

    def test_accepts_no_folder_and_an_empty_one(self):
        self._start_over()
        os.mkdir("out")
        self._start_over()
        self._write("train.log")
        self._start_over()
        self.assertEqual(self._left(), {"train.log"})

    def test_refuses_a_folder_of_other_files(self):
        self._write(*_OTHERS)
        with self.assertRaisesRegex(
            UserError, "out, in which none has registered best.*; choose"
        ):
            self._start_over()
        self.assertEqual(self._left(), set(_OTHERS))

    @parameterized.parameters(
        "out/model",
        "out/model.ckpt-7",
        "out/best/model.ckpt-3.index",
        "elsewhere,out/model",
    )
    def test_refuses_to_remove_an_input(self, path):
        self._run()
        before = self._left()
        named = path.rpartition(",")[2]
        with self.assertRaisesRegex(UserError, f"would remove --start={named}"):
            self._start_over(start=path)
        self.assertEqual(self._left(), before)

    def test_is_for_training(self):
        with self.assertRaisesRegex(UserError, "_dir needs --do_train"):
            ClassifierConfig(
                task_name="mrpc",
                data_dir="x",
                output_dir="out",
                do_eval=True,
                overwrite_output_dir=True,
            )


if __name__ == "__main__":
    tf.test.main()
