"""Tests for export.tflite.datasets; accuracy_test.py tests evaluation."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export.tflite import datasets
from tests.support import eval_files


class CalibrationDataTest(tf.test.TestCase, parameterized.TestCase):
    def _write(self, text, ending=".tsv"):
        path = os.path.join(self.create_tempdir().full_path, f"rows{ending}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _build(self, name, path, **flags):
        return eval_files.prepare(
            name, quantization="full_int8", representative_file=path, **flags
        )

    @parameterized.parameters(
        "pair", "question_answering", "multiple_choice", "tagging"
    )
    def test_each_row_has_its_own_length(self, name):
        build = self._build(name, eval_files.write(name))
        found = list(datasets.read_calibration_set(build)())
        features = datasets.read_eval_set(build).features
        lengths = [x["input_ids"].shape[-1] for x in found]
        self.assertEqual(lengths, features.lengths.tolist())
        for inputs in found:
            self.assertEqual(inputs["input_ids"].shape[0], 1)
            self.assertEqual(
                sorted(inputs), ["input_ids", "input_mask", "segment_ids"]
            )

    def test_batches_of_a_fixed_shape(self):
        path = eval_files.write("classification")
        build = self._build(
            "classification", path, batch_size=4, max_seq_length=11
        )
        found = list(datasets.read_calibration_set(build)())
        self.assertEqual([x["input_ids"].shape for x in found], [(4, 11)] * 3)

    def test_samples_rows_evenly(self):
        rows = ["the " * (1 + i // 100) for i in range(900)]
        path = self._write("\n".join(rows) + "\n", ".txt")
        found = list(
            datasets.read_calibration_set(self._build("fill_mask", path))()
        )
        self.assertLen(found, datasets.MAX_CALIBRATION_ROWS)
        lengths = {x["input_ids"].shape[-1] for x in found}
        self.assertEqual(lengths, set(range(3, 12)))

    @parameterized.parameters(
        ("classification", "", "is empty|has no rows"),
        ("classification", "text\n", "has no rows"),
        ("classification", "words\nthe cat\n", "no column 'text'"),
        ("pair", "text\nthe cat\n", "no column 'text_pair'"),
        ("next_sentence", "text\nthe cat\n", "no column 'text_pair'"),
        ("question_answering", "text\nthe cat\n", "no column 'question'"),
        ("multiple_choice", "text\nthe cat\n", "no column"),
    )
    def test_rejects_files_that_are_empty_or_of_another_task(
        self, name, text, message
    ):
        build = self._build(name, self._write(text), eval_file=None)
        with self.assertRaisesRegex(UserError, message):
            datasets.read_calibration_set(build)

    def test_rejects_a_missing_file(self):
        build = self._build("pair", "/nowhere.tsv", eval_file=None)
        with self.assertRaisesRegex(
            UserError, "--representative_file.*no such"
        ):
            datasets.read_calibration_set(build)


class AsOfModelTest(tf.test.TestCase):
    def _assert_same(self, name, logits, answer):
        task = datasets.task_of(eval_files.prepare(name), "--eval_file")
        found = datasets._as_of_model(task, answer)["logits"]
        self.assertAllClose(found, logits)

    def test_recovers_logits_from_probabilities(self):
        logits = np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
        self._assert_same(
            "classification", logits, {"probabilities": np.exp(logits)}
        )
        logits = np.array([[-2.0, 0.0, 3.0]])
        self._assert_same(
            "multi_label", logits, {"probabilities": 1 / (1 + np.exp(-logits))}
        )
        self._assert_same("regression", [[2.0]], {"score": np.array([2.0])})

    def test_logits_of_certain_labels_are_finite(self):
        for name in ("classification", "multi_label"):
            task = datasets.task_of(eval_files.prepare(name), "--eval_file")
            found = datasets._as_of_model(
                task, {"probabilities": np.array([[0.0, 1.0, 0.0]])}
            )
            self.assertAllInRange(found["logits"], -1e3, 1e3)


if __name__ == "__main__":
    tf.test.main()
