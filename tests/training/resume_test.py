"""Tests for bert_tf.training.resume."""

import dataclasses
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.training import resume as resume_checks
from tests.support import tiny_pretraining


class RunIdentityTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
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


if __name__ == "__main__":
    tf.test.main()
