"""Tests of --overwrite_output_dir for training."""

import contextlib
import dataclasses
import os
from concurrent import futures
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import config as options
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import run_folder
from bert_tf.training import output as training_output

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
