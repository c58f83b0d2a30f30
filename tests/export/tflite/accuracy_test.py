"""Tests for export.on_device.accuracy: files scored beside their models."""

import dataclasses
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export.tflite import accuracy
from bert_tf.export.tflite import costs
from bert_tf.export.tflite import eval_set
from bert_tf.export.tflite import lite_outputs
from bert_tf.inference.lite_model import LiteModel
from tests.support import eval_files


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
    def test_a_file_scores_as_its_model(self, name):
        found = _score(name).accuracy
        self.assertAllClose(found.score, found.model_score)
        # SQuAD's own evaluator has points already.
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
    def test_a_file_of_strings_scores_as_its_model(self, name, flags):
        found = _score(name, input="text", **flags).accuracy
        self.assertAllClose(found.scores, found.model_scores, atol=1e-5)
        self.assertEqual(found.agreement, 1.0)
        self.assertEqual(found.num_examples, 9)

    def test_a_file_of_one_shape_is_filled_up(self):
        flags = {"batch_size": 4, "max_seq_length": 10}
        build = eval_files.prepare("classification", **flags)
        rows = eval_set.read(build)
        model = LiteModel(eval_files.make("classification", **flags))
        computed = lite_outputs.compute(rows, model)
        self.assertLen(computed["logits"], 9)
        self.assertEqual(rows.features.lengths.max(), 10)
        ours = rows.evaluate(computed)
        self.assertEqual(ours.agreement(rows.evaluate_model(build.model)), 1.0)

    @parameterized.parameters(
        ("dynamic", "try --quantization=float16"),
        ("none", "the model's numbers are near"),
    )
    def test_a_drop_is_refused(self, quantization, advice):
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

    def test_another_model_is_found_out(self):
        # One that says the other label of each row.
        rows = eval_set.read(eval_files.prepare("classification"))
        said = rows.evaluate_model(eval_files.prepare("classification").model)
        logits = [
            -10.0 * np.eye(3)[["no", "yes", "ümlaut"].index(d["label"])]
            for d in said.decisions
        ]
        other = rows.evaluate({"logits": logits})
        self.assertEqual(other.agreement(said), 0.0)

    def test_of_scores_nothing_is_decided(self):
        for name in ("question_answering", "tagging", "multiple_choice"):
            with self.assertRaisesRegex(UserError, "is for classification"):
                eval_set.read(eval_files.prepare(name, input="text"))
        rows = eval_set.read(eval_files.prepare("regression"))
        predictions = rows.task.predict(
            rows.examples, rows.features, {"logits": np.ones([9, 1])}, None
        )
        described = rows.task.describe(rows.examples[0], predictions[0])
        decision = eval_set._without_numbers(described)
        said = eval_set.Evaluation({}, [decision])
        self.assertIsNone(said.agreement(said))

    def test_errors_may_grow_by_percents(self):
        self.assertAllClose(accuracy._percent_more(1.1, 1.0), 10.0)
        self.assertEqual(accuracy._percent_more(0.0, 0.0), 0.0)

    def test_what_is_not_a_number_is_refused(self):
        report = _score("classification")
        nan = dataclasses.replace(report.accuracy, drop=float("nan"))
        report = dataclasses.replace(report, accuracy=nan)
        self.assertFalse(accuracy.is_good_enough(report, 100.0))

    def test_calls_are_timed_with_the_median_row_and_the_longest(self):
        free = eval_files.prepare("classification")
        rows = eval_set.read(free)
        median = int(np.median(rows.features.lengths))
        longest = free.head.max_seq_length
        self.assertLess(median, longest)
        self.assertEqual(accuracy._lengths(free, rows), (median, longest))
        self.assertEqual(accuracy._lengths(free, None), (longest,))
        fixed = eval_files.prepare(
            "classification", batch_size=4, max_seq_length=10
        )
        self.assertEqual(accuracy._lengths(fixed, rows), (10,))

    def test_without_rows_there_is_no_score(self):
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
    def test_rows_of_another_task_are_refused(self, name, text, end, message):
        path = os.path.join(self.create_tempdir().full_path, f"dev{end}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        build = eval_files.prepare(name, eval_file=path)
        with self.assertRaisesRegex(UserError, message):
            eval_set.read(build)


class AsOfModelTest(tf.test.TestCase):
    def _assert_same(self, name, logits, answer):
        task = eval_set.task_of(eval_files.prepare(name), "--eval_file")
        found = lite_outputs._as_of_model(task, answer)["logits"]
        self.assertAllClose(found, logits)

    def test_logits_come_back_from_probabilities(self):
        logits = np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
        self._assert_same(
            "classification", logits, {"probabilities": np.exp(logits)}
        )
        logits = np.array([[-2.0, 0.0, 3.0]])
        self._assert_same(
            "multi_label", logits, {"probabilities": 1 / (1 + np.exp(-logits))}
        )
        self._assert_same("regression", [[2.0]], {"score": np.array([2.0])})

    def test_certainty_is_finite(self):
        for name in ("classification", "multi_label"):
            task = eval_set.task_of(eval_files.prepare(name), "--eval_file")
            found = lite_outputs._as_of_model(
                task, {"probabilities": np.array([[0.0, 1.0, 0.0]])}
            )
            self.assertAllInRange(found["logits"], -1e3, 1e3)


if __name__ == "__main__":
    tf.test.main()
