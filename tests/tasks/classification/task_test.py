"""Tests for bert_tf.tasks.classification.task."""

import json
import os
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

from bert_tf.errors import UserError
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification import task as classification
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_model

_LOGITS = np.array([[1.5, -0.5, 3.0], [2.0, 0.25, -1.0]], np.float32)


def _single(**options):
    return ClassificationTask(
        **{
            "name": "custom",
            "labels": ("x", "y", "z"),
            "metric_names": ("accuracy", "macro_f1"),
        }
        | options
    )


def _multi(**options):
    return _single(
        problem_type="multi_label", metric_names=("micro_f1",), **options
    )


def _regression(**options):
    return _single(
        labels=None,
        problem_type="regression",
        metric_names=("mean_squared_error", "pearson"),
        **options,
    )


def _examples(*labels):
    return [
        InputExample(f"dev.csv:{i}", "the cat", None, label)
        for i, label in enumerate(labels)
    ]


class LossTest(tf.test.TestCase):
    def test_single_label(self):
        losses = _single().losses(
            {"logits": tf.constant(_LOGITS)}, {"label_ids": tf.constant([0, 1])}
        )
        self.assertAllClose(
            losses, -special.log_softmax(_LOGITS, -1)[[0, 1], [0, 1]]
        )

    def test_multi_label(self):
        label_ids = np.array([[1, 0, 1], [0, 0, 0]], np.float32)
        losses = _multi().losses(
            {"logits": tf.constant(_LOGITS)},
            {"label_ids": tf.constant(label_ids)},
        )
        right = special.log_expit(np.where(label_ids, _LOGITS, -_LOGITS))
        self.assertAllClose(losses, -right.mean(-1))

    def test_regression(self):
        losses = _regression().losses(
            {"logits": tf.constant([[1.5], [-2.0]])},
            {"label_ids": tf.constant([1.0, 1.0])},
        )
        self.assertAllClose(losses, [0.25, 9.0])

    def test_class_weights(self):
        batch = {
            "input_ids": tf.zeros([3, 4], tf.int32),
            "label_ids": tf.constant([2, 0, 2]),
        }
        self.assertAllEqual(_single().loss_weights(batch), [1, 1, 1])
        weighted = _single(class_weights=(0.5, 1.0, 2.25))
        self.assertAllEqual(weighted.loss_weights(batch), [2.25, 0.5, 2.25])


class PredictionTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(Vocabulary(tiny_model.TOKENS))

    def predict(self, task, examples, logits):
        features = task.featurize(examples, self.tokenizer)
        self.assertLen(features, len(logits))
        return task.predict(
            examples, features, {"logits": list(logits)}, self.tokenizer
        )

    @parameterized.parameters("01", "10")
    def test_f1_is_of_the_official_label(self, labels):
        official = glue_tasks.get_task("mrpc")
        task = _single(
            labels=tuple(labels),
            metric_names=official.metrics,
            official=official,
        )
        right, predicted = "111100", "110100"
        logits = np.array(
            [[label == x for label in labels] for x in predicted], np.float32
        )
        examples = _examples(*right)
        scores = task.score(examples, self.predict(task, examples, logits))
        self.assertAllClose(scores, {"f1": 6 / 7, "accuracy": 5 / 6})

    def test_single_label(self):
        task = _single()
        examples = _examples("z", "y")
        predictions = self.predict(task, examples, _LOGITS)
        expected = special.softmax(_LOGITS.astype(np.float64), -1)
        self.assertAllClose(predictions, expected)
        described = task.prediction_to_json(examples[1], predictions[1])
        self.assertEqual(described["label"], "x")
        self.assertAllClose(described["probability"], expected[1, 0])
        self.assertAllClose(
            described["probabilities"],
            dict(zip("xyz", expected[1], strict=True)),
        )
        self.assertAllClose(
            task.score(examples, predictions),
            # x was predicted wrongly, y was missed.
            {"accuracy": 0.5, "macro_f1": 1 / 3},
        )

    def test_multi_label(self):
        task = _multi()
        examples = _examples(("x",), ("y", "z"))
        predictions = self.predict(task, examples, _LOGITS)
        described = [
            task.prediction_to_json(*pair)
            for pair in zip(examples, predictions, strict=True)
        ]
        self.assertEqual(
            [row["labels"] for row in described], [["x", "z"], ["x", "y"]]
        )
        self.assertAllClose(
            described[0]["probabilities"],
            dict(zip("xyz", special.expit(_LOGITS[0]), strict=True)),
        )
        # 4 labels are predicted, 3 are correct, 2 are both.
        self.assertAllClose(
            task.score(examples, predictions), {"micro_f1": 4 / 7}
        )

    def test_regression(self):
        task = _regression()
        examples = _examples(1.0, -1.0)
        predictions = self.predict(task, examples, np.float32([[2.5], [-1]]))
        self.assertEqual(
            task.prediction_to_json(examples[0], predictions[0]), {"score": 2.5}
        )
        self.assertAllClose(
            task.score(examples, predictions),
            {"mean_squared_error": 1.125, "pearson": 1.0},
        )
        self.assertEqual(task.metric, "mean_squared_error")
        self.assertFalse(task.more_is_better)
        self.assertTrue(_single().more_is_better)

    def test_num_rows(self):
        pair = InputExample("", "a b c d e", "f g")
        self.assertEqual(_single().num_rows(pair), 1)
        self.assertEqual(_single(doc_stride=3).num_rows(pair), 3)

    def test_windows_are_averaged(self):
        task = _single(max_seq_length=5, doc_stride=2)
        examples = [
            InputExample("1", "the dog sat on the mat", None, "x"),
            InputExample("2", "cat", None, "z"),
        ]
        logits = np.float32([[0, 1, 2], [3, 0, 0], [0, 0, 2], [0, 9, 1]])
        with self.assertLogs(level="INFO") as logs:
            predictions = self.predict(task, examples, logits)
        self.assertIn("1 of 2 texts have more than", logs.output[0])
        self.assertIn("in windows: 4 rows in all", logs.output[0])
        rows = special.softmax(logits.astype(np.float64), -1)
        self.assertAllClose(predictions, [rows[:3].mean(0), rows[3]])

    def test_truncated_texts_are_counted(self):
        task = _single(max_seq_length=4)
        with self.assertLogs(level="WARNING") as logs:
            task.featurize(
                [
                    InputExample("1", "the dog sat on"),
                    InputExample("2", "the dog"),
                ],
                self.tokenizer,
            )
        self.assertRegex(logs.output[0], "1 of 2 texts .*=4 tokens")


class ReportTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)

    def write(self, task, split, labels, values):
        task.write_report(
            str(self.folder),
            split,
            _examples(*labels),
            list(np.float32(values)),
        )
        return sorted(os.listdir(self.folder))

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def test_test_results_equal_the_originals(self):
        task = _single(files={"test": "test.csv"})
        names = self.write(
            task, "test", [None] * 2, [[0.1, 0.25, 0.65], [1e-8, 1.0, 0.0]]
        )
        self.assertEqual(names, ["test_results.tsv"])
        # str() of NumPy's <float32>, as in the original.
        self.assertEqual(
            self.text("test_results.tsv"), "0.1\t0.25\t0.65\n1e-08\t1.0\t0.0\n"
        )

    def test_several_test_sets(self):
        files = {"test_matched": "m.tsv", "test_mismatched": "mm.tsv"}
        for split in files:
            names = self.write(
                _single(files=files), split, [None], [[0.5, 0.25, 0.25]]
            )
        # The original has only the first one.
        self.assertEqual(
            names, ["test_mismatched_results.tsv", "test_results.tsv"]
        )

    def test_confusion_matrix(self):
        values = np.eye(3)[[2, 2, 0, 1]]
        names = self.write(_single(), "dev", "xzxy", values)
        self.assertEqual(
            names, ["confusion_matrix.png", "confusion_matrix.txt"]
        )
        text = self.text("confusion_matrix.txt")
        self.assertIn("4 examples, 3 right (75.00%)", text)
        self.assertRegex(text, r"\[0\] x +1 +0 +1\n")
        names = self.write(_single(), "dev_mismatched", "xzxy", values)
        self.assertContainsSubset(
            ["dev_mismatched_confusion_matrix.png"], names
        )

    def test_label_scores(self):
        names = self.write(
            _multi(),
            "dev",
            [("x", "y"), (), ("y",)],
            [[0.9, 0.2, 0.1], [0.1, 0.1, 0.5], [0.4, 0.7, 0.3]],
        )
        self.assertEqual(names, ["label_scores.png", "label_scores.txt"])
        text = self.text("label_scores.txt")
        self.assertRegex(text, r"y +100.00 +50.00 +66.67 +2 +1 +1\n")
        self.assertRegex(text, r"overall +66.67 +66.67 +66.67 +3 +3 +2\n")

    def test_table_has_the_numbers_of_the_plot(self):
        labels = ("天気", "旅行", *(f"l{i}" for i in range(19)))
        task = _single(labels=labels)
        self.write(task, "dev", ["旅行", "l0"], np.eye(21)[[0, 2]])
        text = self.text("confusion_matrix.txt")
        self.assertRegex(text, r"\n\[1\] 旅行 +\[0\] 天気 +1 +1\n")
        task = _multi(labels=("天気", "旅行", "z"))
        self.write(task, "dev", [("旅行",), ()], [[0.1, 0.9, 0.1]] * 2)
        text = self.text("label_scores.txt")
        self.assertRegex(text, r"\n\[1\] 旅行 +50.00 +100.00 .*\n\[2\] z ")

    def test_score_scatter(self):
        names = self.write(
            _regression(files={"test": "a.csv"}),
            "test",
            [0.0, 5.0, 4.75],
            [[0.5], [4.0], [4.5]],
        )
        self.assertEqual(
            names,
            [
                "test_results.tsv",
                "test_score_scatter.png",
                "test_score_scatter.txt",
            ],
        )
        self.assertEqual(
            self.text("test_score_scatter.txt").splitlines()[1:],
            [
                "0 to 0.5            1  0.0000          0.5000"
                "               0.5000",
                "4.5 to 5            2  4.8750          4.2500"
                "               0.6250",
            ],
        )

    def test_probabilities_of_a_real_prediction_sum_to_one(self):
        text = classification.results_text(
            [np.float32([1 / 3, 1 / 7, 11 / 21])]
        )
        self.assertAllClose(sum(map(float, text.split("\t"))), 1.0, atol=1e-7)


class InputsTest(files_case.FilesCase):
    def read(self, task, name, contents):
        return [
            (example.text_a, example.text_b)
            for example in task.read_inputs(self.write(name, contents))
        ]

    def official(self, name):
        official = glue_tasks.get_task(name)
        return _single(name=name, official=official)

    def test_custom_columns(self):
        task = _single(columns=Columns("b", "a", ("label",)))
        self.assertEqual(
            self.read(task, "a.csv", "a,b,label\nA,B,unknown\nC,D,\n"),
            [("B", "A"), ("D", "C")],
        )

    @parameterized.parameters(
        ("mrpc", "a.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
         "0\t1\t2\tA\tB\n"),
        ("mrpc", "a.txt", "sentence2\tsentence1\tlabel\nB\tA\t7\n"),
        ("snli", "a.jsonl", '{"premise": "A", "hypothesis": "B"}\n'),
        ("qqp", "a.csv", "question1,question2\nA,B\n"),
    )  # fmt: skip
    def test_official_columns_of_pairs(self, name, file, contents):
        self.assertEqual(
            self.read(self.official(name), file, contents), [("A", "B")]
        )

    @parameterized.parameters(
        ("a.txt", "A b\nC\n"),
        ("a.tsv", "index\tsentence\n7\tA b\n8\tC\n"),
        ("a.tsv", "gj04\t1\t\tA b\ngj04\t0\t*\tC\n"),
    )
    def test_official_columns_of_texts(self, file, contents):
        self.assertEqual(
            self.read(self.official("cola"), file, contents),
            [("A b", None), ("C", None)],
        )

    def test_missing_official_columns(self):
        with self.assertRaisesRegex(UserError, "no column 'question'.* 'text'"):
            self.read(self.official("qnli"), "a.csv", "text\nA\n")

    @parameterized.parameters(
        ("A b", "A b", None),
        ({"body": "A", "x": 3}, "A", None),
    )
    def test_rows_of_texts(self, row, text_a, text_b):
        task = _single(columns=Columns("body"))
        self.assertEqual(
            task.example_from_row(row), InputExample("", text_a, text_b)
        )

    @parameterized.parameters(
        (("A", "B"),), (["A", "B"],), ({"hypothesis": "B", "premise": "A"},),
        ({"sentence1": "A", "sentence2": "B", "label": 0},),
    )  # fmt: skip
    def test_rows_of_pairs(self, row):
        self.assertEqual(
            self.official("mnli").example_from_row(row),
            InputExample("", "A", "B"),
        )

    @parameterized.parameters(
        (("A", "B"), "must be a text, not empty. Received: .'A', 'B'"),
        (" ", "not empty"),
        ({"body": ""}, "not empty"),
        ({"body": None}, "must be a text"),
        (3, "Received: 3"),
        ({"text": "A"}, "must have the keys 'body'. Received: 'text'"),
        ({}, "Received: none"),
    )
    def test_rejects_rows_that_are_not_texts(self, row, message):
        with self.assertRaisesRegex(UserError, message):
            _single(columns=Columns("body")).example_from_row(row)

    @parameterized.parameters(("A",), ({"sentence1": "A"},), (["A", "B", "C"],))
    def test_rejects_rows_that_are_not_pairs(self, row):
        with self.assertRaisesRegex(UserError, "pair of texts|'sentence1' and"):
            self.official("rte").example_from_row(row)


class JsonTest(tf.test.TestCase):
    def test_json_round_trip(self):
        for task in (
            _single(doc_stride=3, head="bilstm", max_seq_length=9),
            _single(class_weights=(0.5, 2.25, 1.0)),
            _multi(columns=Columns("a", "b", ("x", "y", "z"))),
            _multi(columns=Columns("a", None, ("l",)), label_separator="|"),
            _regression(),
            _single(
                name="mnli",
                official=glue_tasks.get_task("mnli"),
                columns=Columns("sentence1", "sentence2"),
            ),
        ):
            values = json.loads(json.dumps(task.to_json()))
            self.assertEqual(ClassificationTask.from_json(values), task)
            self.assertNotIn("language", values)
        task = _single(
            name="xnli",
            official=glue_tasks.get_task("xnli"),
            columns=Columns("sentence1", "sentence2"),
            language="de",
        )
        values = task.to_json()
        self.assertEqual(values["language"], "de")
        self.assertEqual(ClassificationTask.from_json(values), task)

    def test_models_of_other_programs(self):
        task = ClassificationTask.from_json({"labels": ["no", "yes"]})
        self.assertEqual(task.problem_type, "single_label")
        self.assertEqual(task.metric, "accuracy")
        self.assertEqual(task.example_from_row("A").text_a, "A")
        self.assertEqual(task.example_from_row(["A", "B"]).text_b, "B")
        task = ClassificationTask.from_json({"labels": ["LABEL_0"]})
        self.assertEqual(task.problem_type, "regression")
        self.assertIsNone(task.labels)
        with self.assertRaisesRegex(UserError, "names of its labels"):
            ClassificationTask.from_json({"kind": "classification"})


if __name__ == "__main__":
    tf.test.main()
