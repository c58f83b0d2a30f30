"""Tests of resuming a run, and of --overwrite_output_dir."""

import contextlib
import dataclasses
import os
import pathlib
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
from bert_tf.training import resume as resume_checks
from tests.support import files_case
from tests.support import tiny_pretraining


class RunIdentityTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.config = tiny_pretraining.make_config(self.folder)
        for name in "ab":
            self._write(name, 300_000 * "x")

    def _path(self, name):
        return pathlib.Path(self.folder, f"{name}.tfrecord")

    def _write(self, name, text):
        self._path(name).write_text(text)

    def _describe(self, config=None, bert_config=None, **changes):
        return (
            resume_checks.describe(
                config or self.config,
                bert_config or tiny_pretraining.CONFIG,
                sorted(map(str, pathlib.Path(self.folder).glob("?.tfrecord"))),
                None,
                "12ab",
            )
            | changes
        )

    def _check(self, before, now, allow_changes=False):
        config = dataclasses.replace(
            self.config, allow_changed_data=allow_changes
        )
        resume_checks.check_continuation(before, now, 7, config)

    def _check_refused(self, message, before, now):
        with self.assertRaisesRegex(UserError, message):
            self._check(before, now)
        with self.assertLogs(level="WARNING") as logs:
            self._check(before, now, allow_changes=True)
        self.assertRegex(logs.output[0], f"as allowed: .*{message}")

    def test_accepts_the_same_settings(self):
        with self.assertNoLogs(level="INFO"):
            self._check(self._describe(), self._describe())

    @parameterized.parameters(
        300_001 * "x", "y" + 299_999 * "x", 299_999 * "x" + "y"
    )
    def test_names_a_record_file_that_changed(self, text):
        before = self._describe()
        self._write("b", text)
        self._check_refused(
            "b.tfrecord was changed or replaced", before, self._describe()
        )

    def test_names_new_and_missing_record_files(self):
        before = self._describe()
        self._path("a").rename(self._path("c"))
        self._check_refused(
            "a.tfrecord was used and is not now, c.tfrecord was not used and",
            before,
            self._describe(),
        )

    def test_names_another_order_of_the_records(self):
        def describe(*folders):
            paths = [f"{self.folder}/{name}.tfrecord" for name in folders]
            return resume_checks.describe(
                self.config, tiny_pretraining.CONFIG, paths, None, "12ab"
            )

        self._check_refused(
            "they come in another order", describe("a", "b"), describe("b", "a")
        )

    def test_distinguishes_files_of_the_same_name(self):
        def describe():
            return self._describe() | resume_checks.describe(
                self.config,
                tiny_pretraining.CONFIG,
                [f"{self.folder}/{x}/part.tfrecord" for x in ("wiki", "books")],
                None,
                "12ab",
            )

        for folder in ("wiki", "books"):
            pathlib.Path(self.folder, folder).mkdir()
            self._write(f"{folder}/part", 9 * "x")
        before = describe()
        self._write("wiki/part", 9 * "y")
        self._check_refused(r"part.tfrecord was changed", before, describe())
        self._write("wiki/part", 9 * "x")
        self._write("books/part", 9 * "y")
        self._check_refused(
            r"part.tfrecord \(2\) was changed", before, describe()
        )

    def test_other_records_are_a_new_phase(self):
        before = self._describe()
        elsewhere = dataclasses.replace(self.config, input_file="there/*")
        with self.assertNoLogs(level="INFO"):
            self._check(before, self._describe(elsewhere))
        self._write("b", "others")
        with self.assertLogs(level="WARNING") as logs:
            self._check(before, self._describe(elsewhere))
        self.assertIn("New phase from step 7 on", logs.output[0])

    def test_a_manifest_reveals_other_changes(self):
        before = self._describe(data_fingerprint="12")
        self._check(before, self._describe(data_fingerprint=None))
        self._check_refused(
            "their manifest describes other data",
            before,
            self._describe(data_fingerprint="34"),
        )

    def test_names_a_change_of_vocabulary_or_model(self):
        before = self._describe()
        wider = dataclasses.replace(
            tiny_pretraining.CONFIG, intermediate_size=32
        )
        self._check_refused(
            "bert_config.intermediate_size was 16 and is 32 now",
            before,
            self._describe(bert_config=wider),
        )
        self._check_refused(
            "vocabulary_hash was '12ab' and is '34cd' now",
            before,
            self._describe(vocabulary_hash="34cd"),
        )

    def test_devices_may_change(self):
        before = self._describe()
        moved = dataclasses.replace(
            self.config,
            distribution_strategy="multi_worker_mirrored",
            worker_hosts="a:1,b:1",
            task_index=1,
            num_gpus=2,
            xla="off",
            remat=True,
        )
        tolerant = dataclasses.replace(self.config, max_corrupt_records=3)
        with self.assertNoLogs(level="INFO"):
            self._check(before, self._describe(moved))
            self._check(before, self._describe(tolerant))

    def test_logs_a_change_of_other_options(self):
        before = self._describe()
        now = dataclasses.replace(self.config, weight_decay_rate=0.25)
        with self.assertLogs(level="WARNING") as logs:
            self._check(before, self._describe(now))
        (line,) = logs.output
        self.assertIn(
            "Changed at step 7: --weight_decay_rate was 0.01 and is 0.25 now.",
            line,
        )


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
    output_dir: str = options.option("", options.REQUIRED)
    do_train: bool = options.option("", True)
    overwrite_output_dir: bool = options.option("", True)
    start: str | None = options.option("", reads="model")


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

    def test_overwriting_needs_do_train(self):
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
