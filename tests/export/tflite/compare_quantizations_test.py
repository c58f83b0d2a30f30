"""Tests for export.tflite.accuracy: the comparison of all quantizations."""

import dataclasses
import json
import os

import tensorflow as tf

from bert_tf.export.tflite import accuracy
from bert_tf.export.tflite.accuracy import Accuracy
from bert_tf.export.tflite.accuracy import Report
from bert_tf.export.tflite.costs import Latency


def _report(quantization, score, **values):
    found = Accuracy(
        eval_file="dev.tsv",
        num_examples=1000,
        metric="accuracy",
        score=score,
        model_score=91.25,
        drop=91.25 - score,
        agreement=0.9815,
        scores={"accuracy": score / 100},
        model_scores={"accuracy": 0.9125},
    )
    report = Report(
        quantization,
        23_400_000,
        [Latency(128, 1, 15.5), Latency(128, 2, 8.25)],
        51_000_000,
        found,
    )
    return dataclasses.replace(report, **values)


class CompareQuantizationsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "a.b.tflite")

    def test_paths_have_the_quantization_before_the_suffix(self):
        self.assertEqual(
            accuracy.path_of("x/a.b.tflite", "dynamic"),
            "x/a.b.dynamic.tflite",
        )
        self.assertEqual(accuracy.path_of("x.y/a", "none"), "x.y/a.none")

    def test_writes_a_table_of_all_files(self):
        text = accuracy.write_comparison(
            self.path,
            [_report("none", 91.25), _report("full_int8", 62.5)],
            ["full_int8"],
        )
        lines = text.splitlines()
        self.assertRegex(
            lines[0],
            r"^quantization +MB +accuracy +drop +agreement, % +ms, 128 tokens,"
            r" 1 thread +ms, 128 tokens, 2 threads +memory, MB$",
        )
        self.assertRegex(lines[1], r"^model +91\.25$")
        self.assertRegex(
            lines[2],
            r"^none +23\.4 +91\.25 +\+0\.00 +98\.15 +15\.50 +8\.25 +51$",
        )
        self.assertRegex(lines[3], r"^full_int8 \(refused\) +23\.4 +62\.50 +\+")
        stem = self.path.removesuffix(".tflite")
        with open(f"{stem}.ladder.txt", encoding="utf-8") as file:
            self.assertEqual(file.read(), text)
        with open(f"{stem}.ladder.json", encoding="utf-8") as file:
            none, full = json.load(file)
        self.assertTrue(none["is_published"])
        self.assertFalse(full["is_published"])
        self.assertEqual(full["accuracy"]["score"], 62.5)
        self.assertEqual(full["latencies"][1]["threads"], 2)
        with open(f"{stem}.ladder.png", "rb") as file:
            self.assertStartsWith(file.read(), b"\x89PNG")

    def test_missing_measurements_have_no_column(self):
        reports = [_report("none", 1.0, accuracy=None, peak_memory=None)]
        text = accuracy.write_comparison(self.path, reports)
        self.assertNotIn("memory", text)
        self.assertNotIn("accuracy", text)
        self.assertLen(text.splitlines(), 2)

    def test_regression_has_no_agreement(self):
        report = _report("none", 1.0)
        found = dataclasses.replace(report.accuracy, agreement=None)
        text = accuracy.table([dataclasses.replace(report, accuracy=found)])
        self.assertRegex(text.splitlines()[2], r" - ")


if __name__ == "__main__":
    tf.test.main()
