"""Tests for export.tflite.accuracy."""

import dataclasses
import functools
import json
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export.tflite import accuracy
from bert_tf.export.tflite import costs
from bert_tf.export.tflite import datasets
from bert_tf.export.tflite.accuracy import Accuracy
from bert_tf.export.tflite.accuracy import Report
from bert_tf.export.tflite.costs import Latency
from bert_tf.inference.lite_model import LiteModel
from tests.support import eval_files


@functools.cache
def _score(name, content=None, **flags):
    build = eval_files.prepare(name, **flags)
    content = content or eval_files.make(name, **flags)
    with (
        mock.patch.object(
            costs, "measure_latencies", lambda x, *_: {k: [] for k in x}
        ),
        mock.patch.object(costs, "measure_peak_memory", lambda *_: 1),
    ):
        return accuracy.Gate(build).measure({"none": content})["none"]


class AccuracyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        "classification", "question_answering", "multiple_choice", "tagging"
    )
    @pytest.mark.slow
    def test_a_file_scores_like_its_model(self, name):
        found = _score(name).accuracy
        self.assertAllClose(found.score, found.model_score)
        # SQuAD's own evaluator returns percent.
        points = 1.0 if name == "question_answering" else 100.0
        if name != "tagging":  # Which finds nothing in these rows.
            self.assertGreater(found.score, 0.0)
        self.assertAllClose(found.score, points * found.scores[found.metric])
        self.assertAllClose(found.drop, 0.0, atol=1e-3)
        self.assertAllClose(found.scores, found.model_scores, atol=1e-5)
        self.assertEqual(found.agreement, 1.0)
        self.assertEqual(found.num_examples, 9)

    @parameterized.named_parameters(
        ("free", "pair", {}),
        ("fixed", "classification", {"batch_size": 4, "max_seq_length": 10}),
    )
    def test_a_file_with_strings_scores_like_its_model(self, name, flags):
        found = _score(name, input="text", **flags).accuracy
        self.assertAllClose(found.scores, found.model_scores, atol=1e-5)
        self.assertEqual(found.agreement, 1.0)
        self.assertEqual(found.num_examples, 9)

    @pytest.mark.slow
    def test_pads_calls_of_fixed_shapes(self):
        flags = {"batch_size": 4, "max_seq_length": 10}
        build = eval_files.prepare("classification", **flags)
        rows = datasets.read_eval_set(build)
        model = LiteModel(eval_files.make("classification", **flags))
        computed = rows.compute_outputs(model)
        self.assertLen(computed["logits"], 9)
        self.assertEqual(rows.features.lengths.max(), 10)
        ours = rows.evaluate(computed)
        self.assertEqual(ours.agreement(rows.evaluate_model(build.model)), 1.0)

    @parameterized.parameters(
        ("dynamic", "try --quantization=float16"),
        ("none", "the model's outputs are"),
    )
    def test_rejects_a_drop(self, quantization, advice):
        report = _score("classification")
        worse = dataclasses.replace(
            report.accuracy, score=20.0, model_score=22.5, drop=2.5
        )
        report = dataclasses.replace(
            report, quantization=quantization, accuracy=worse
        )
        accuracy.require(report, 2.5)
        with self.assertRaisesRegex(
            UserError,
            r"accuracy .* at most --max_drop=1 points below .* 22.50 on .*dev"
            rf".* Received: 20.00 with --quantization={quantization}, 2.50 "
            rf"below; {advice}",
        ):
            accuracy.require(report, 1.0)

    def test_detects_another_model(self):
        # It predicts the other label of each row.
        rows = datasets.read_eval_set(eval_files.prepare("classification"))
        evaluation = rows.evaluate_model(
            eval_files.prepare("classification").model
        )
        logits = [
            -10.0 * np.eye(3)[["no", "yes", "ümlaut"].index(d["label"])]
            for d in evaluation.decisions
        ]
        other = rows.evaluate({"logits": logits})
        self.assertEqual(other.agreement(evaluation), 0.0)

    def test_regression_has_no_agreement(self):
        for name in ("question_answering", "tagging", "multiple_choice"):
            with self.assertRaisesRegex(UserError, "is for classification"):
                datasets.read_eval_set(eval_files.prepare(name, input="text"))
        rows = datasets.read_eval_set(eval_files.prepare("regression"))
        predictions = rows.task.predict(
            rows.examples, rows.features, {"logits": np.ones([9, 1])}, None
        )
        described = rows.task.prediction_to_json(
            rows.examples[0], predictions[0]
        )
        decision = datasets._without_numbers(described)
        evaluation = datasets.Evaluation({}, [decision])
        self.assertIsNone(evaluation.agreement(evaluation))

    def test_drop_of_errors_is_in_percent(self):
        self.assertAllClose(accuracy._percent_more(1.1, 1.0), 10.0)
        self.assertEqual(accuracy._percent_more(0.0, 0.0), 0.0)

    def test_rejects_nan(self):
        report = _score("classification")
        nan = dataclasses.replace(report.accuracy, drop=float("nan"))
        report = dataclasses.replace(report, accuracy=nan)
        self.assertFalse(accuracy.is_good_enough(report, 100.0))

    def test_times_the_median_length_and_the_longest(self):
        free = eval_files.prepare("classification")
        rows = datasets.read_eval_set(free)
        median = int(np.median(rows.features.lengths))
        longest = free.head.max_seq_length
        self.assertLess(median, longest)
        self.assertEqual(accuracy._lengths(free, rows), (median, longest))
        self.assertEqual(accuracy._lengths(free, None), (longest,))
        fixed = eval_files.prepare(
            "classification", batch_size=4, max_seq_length=10
        )
        self.assertEqual(accuracy._lengths(fixed, rows), (10,))

    def test_without_an_evaluation_set_there_is_no_score(self):
        self.assertIsNone(
            _score(
                "classification",
                eval_files.make("classification"),
                eval_file=None,
            ).accuracy
        )

    @parameterized.parameters(
        ("classification", "text\nthe cat\n", ".tsv", "no column 'label'"),
        ("classification", "text\tlabel\n", ".tsv", "no rows"),
        ("classification", "text\tlabel\na\tx\n", ".tsv", "label 'x', which"),
        ("pair", "text\tlabel\na\tno\n", ".tsv", "no column 'text_pair'"),
        ("question_answering", "[1]", ".json", "must be an object with 'data'"),
        ("fill_mask", "text\tlabel\na\tno\n", ".tsv", "fine-tuned for a task"),
    )
    def test_rejects_rows_of_another_task(self, name, text, end, message):
        path = os.path.join(self.create_tempdir().full_path, f"dev{end}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        build = eval_files.prepare(name, eval_file=path)
        with self.assertRaisesRegex(UserError, message):
            datasets.read_eval_set(build)


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
