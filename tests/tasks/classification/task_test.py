"""Tests of the classification task and its flags."""

import json
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

from bert_tf.commands import finetune_classifier
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.errors import UserError
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import ClassificationTask
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
    def test_single_label_loss_is_cross_entropy(self):
        losses = _single().losses(
            {"logits": tf.constant(_LOGITS)}, {"label_ids": tf.constant([0, 1])}
        )
        self.assertAllClose(
            losses, -special.log_softmax(_LOGITS, -1)[[0, 1], [0, 1]]
        )

    def test_multi_label_loss_is_mean_over_labels(self):
        label_ids = np.array([[1, 0, 1], [0, 0, 0]], np.float32)
        losses = _multi().losses(
            {"logits": tf.constant(_LOGITS)},
            {"label_ids": tf.constant(label_ids)},
        )
        right = special.log_expit(np.where(label_ids, _LOGITS, -_LOGITS))
        self.assertAllClose(losses, -right.mean(-1))

    def test_regression_loss_is_squared_error(self):
        losses = _regression().losses(
            {"logits": tf.constant([[1.5], [-2.0]])},
            {"label_ids": tf.constant([1.0, 1.0])},
        )
        self.assertAllClose(losses, [0.25, 9.0])

    def test_class_weights_weight_rows_by_label(self):
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
        self.tokenizer = tiny_model.tokenizer()

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

    def test_single_label_predicts_softmax_and_scores(self):
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
            # x has a wrong prediction and y is missed, so only z scores.
            {
                "accuracy": 0.5,
                "macro_f1": 1 / 3,
                # Each answer has its own bin; only the first is correct.
                "expected_calibration_error": (
                    1 - expected[0, 2] + expected[1, 0]
                )
                / 2,
            },
        )

    def test_multi_label_predicts_by_sigmoid(self):
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
        # 4 labels are predicted, 3 are references, and 2 are both.
        scores = task.score(examples, predictions)
        self.assertAllClose(scores["micro_f1"], 4 / 7)

    def test_answers_below_threshold_are_rejected(self):
        task = _single(reject_below=0.8, reject_label="none")
        examples = _examples("z", "none", "x", "none")
        logits = np.float32([[0, 0, 9], [0, 0, 9], [1, 0, 0], [0, 1, 1]])
        predictions = self.predict(task, examples, logits)
        described = [
            task.prediction_to_json(*pair)
            for pair in zip(examples, predictions, strict=True)
        ]
        self.assertEqual(
            [row["label"] for row in described], ["z", "z", "none", "none"]
        )
        stated = special.softmax(logits, -1).max(-1)
        self.assertAllClose([row["probability"] for row in described], stated)
        scores = task.score(examples, predictions)
        # Only rows 0 and 2 have a known label; there, rejections count.
        self.assertEqual(scores["accuracy"], 1)
        self.assertEqual(scores["coverage"], 0.5)
        self.assertEqual(scores["answer_precision"], 0.5)
        self.assertAllClose(
            scores["expected_calibration_error"], 1 - stated[[0, 2]].mean()
        )

    def test_regression_predicts_the_raw_score(self):
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

    def test_num_rows_counts_windows_with_stride(self):
        pair = InputExample("", "a b c d e", "f g")
        self.assertEqual(_single().num_rows(pair), 1)
        self.assertEqual(_single(doc_stride=3).num_rows(pair), 3)

    def test_probabilities_of_windows_are_averaged(self):
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


class ReportTest(files_case.FilesCase):
    def report(self, task, split, labels, values):
        task.write_report(
            self.path(),
            split,
            _examples(*labels),
            list(np.float32(values)),
        )
        return sorted(os.listdir(self.folder))

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def test_test_results_equal_the_originals(self):
        task = _single(files={"test": "test.csv"})
        names = self.report(
            task, "test", [None] * 2, [[0.1, 0.25, 0.65], [1e-8, 1.0, 0.0]]
        )
        self.assertEqual(names, ["test_results.tsv"])
        # The original writes str() of NumPy's <float32>, so these digits.
        self.assertEqual(
            self.text("test_results.tsv"), "0.1\t0.25\t0.65\n1e-08\t1.0\t0.0\n"
        )

    def test_each_test_set_has_its_results_file(self):
        files = {"test_matched": "m.tsv", "test_mismatched": "mm.tsv"}
        for split in files:
            names = self.report(
                _single(files=files), split, [None], [[0.5, 0.25, 0.25]]
            )
        # The original writes only the first file.
        self.assertEqual(
            names, ["test_mismatched_results.tsv", "test_results.tsv"]
        )

    def test_texts_outside_of_the_labels_have_no_accuracy(self):
        task = _single(
            files={"test": "x.csv"}, reject_label="none", reject_below=0.5
        )
        values = [[0.25, 0.3, 0.45], [0.1, 0.3, 0.6]]
        self.report(task, "test", ["none"] * 2, values)
        self.assertIn("0 examples", self.text("test_confusion_matrix.txt"))
        scores = task.score(_examples("none", "none"), np.float32(values))
        self.assertEqual(scores, {"coverage": 0.5, "answer_precision": 0.0})

    def test_calibration_is_about_texts_that_a_label_fits(self):
        task = _single(reject_label="none", reject_below=0.5)
        values = [[0.2, 0.1, 0.7], [0.6, 0.3, 0.1], [0.9, 0.1, 0.0]]
        self.report(task, "dev", ["z", "y", "none"], values)
        lines = self.text("calibration.txt").splitlines()
        # The bins 0.7 (correct) and 0.6 (wrong) are off by 0.3 and 0.6.
        title = "2 answers, calibration error 45.00%"
        self.assertEqual(lines[0], f"{title}; 1 left out, as no label fits")
        self.assertEqual(lines[3].split(), ["100", "60.00", "50.00"])
        self.assertEqual(lines[-1].split(), ["10", "70.00", "100.00"])

    def test_confusion_matrix_counts_right_answers(self):
        values = np.eye(3)[[2, 2, 0, 1]]
        names = self.report(_single(), "dev", "xzxy", values)
        self.assertEqual(
            names,
            [
                f"{name}.{ending}"
                for name in ("calibration", "confusion_matrix")
                for ending in ("png", "txt")
            ],
        )
        text = self.text("confusion_matrix.txt")
        self.assertIn("4 examples, 3 correct (75.00%)", text)
        self.assertRegex(text, r"\[0\] x +1 +0 +1\n")
        names = self.report(_single(), "dev_mismatched", "xzxy", values)
        self.assertContainsSubset(
            ["dev_mismatched_confusion_matrix.png"], names
        )


class InputsTest(files_case.FilesCase):
    def read(self, task, name, contents):
        return [
            (example.text_a, example.text_b)
            for example in task.read_inputs(self.write(name, contents))
        ]

    def official(self, name):
        official = glue_tasks.get_task(name)
        return _single(name=name, official=official)

    def test_custom_columns_are_read(self):
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
    def test_finds_official_columns_of_pairs(self, name, file, contents):
        self.assertEqual(
            self.read(self.official(name), file, contents), [("A", "B")]
        )

    @parameterized.parameters(
        ("a.txt", "A b\nC\n"),
        ("a.tsv", "index\tsentence\n7\tA b\n8\tC\n"),
        ("a.tsv", "gj04\t1\t\tA b\ngj04\t0\t*\tC\n"),
    )
    def test_finds_official_columns_of_texts(self, file, contents):
        self.assertEqual(
            self.read(self.official("cola"), file, contents),
            [("A b", None), ("C", None)],
        )

    @parameterized.parameters(
        ("A b", "A b", None), ({"body": "A", "x": 3}, "A", None)
    )
    def test_rows_of_texts_become_examples(self, row, text_a, text_b):
        task = _single(columns=Columns("body"))
        self.assertEqual(
            task.example_from_row(row), InputExample("", text_a, text_b)
        )

    @parameterized.parameters(
        (("A", "B"),), (["A", "B"],), ({"hypothesis": "B", "premise": "A"},),
        ({"sentence1": "A", "sentence2": "B", "label": 0},),
    )  # fmt: skip
    def test_pairs_in_any_form_become_examples(self, row):
        self.assertEqual(
            self.official("mnli").example_from_row(row),
            InputExample("", "A", "B"),
        )

    @parameterized.parameters(
        (("A", "B"), "Expected a text .str.. Received: .'A', 'B'. .tuple"),
        ({"body": None}, "Expected a text"),
        (3, "Received: 3 .int"),
        ({"text": "A"}, "Expected the columns 'body'. Received: 'text'"),
        ({}, "Received: none"),
    )
    def test_rejects_rows_that_are_not_texts(self, row, message):
        with self.assertRaisesRegex(UserError, message):
            _single(columns=Columns("body")).example_from_row(row)

    def test_texts_to_train_on_are_not_empty(self):
        task = _single(columns=Columns("body"), labels=("a", "b"))
        for row in (" ", {"body": ""}):
            example = task.example_from_row(row)  # Valid for prediction.
            with self.assertRaisesRegex(UserError, "a text that is not empty"):
                task.add_label(example, "a")

    @parameterized.parameters(("A",), ({"sentence1": "A"},), (["A", "B", "C"],))
    def test_rejects_rows_that_are_not_pairs(self, row):
        with self.assertRaisesRegex(UserError, "pair of texts|'sentence1' and"):
            self.official("rte").example_from_row(row)


class JsonTest(tf.test.TestCase):
    def test_task_json_restores_the_task(self):
        for task in (
            _single(doc_stride=3, head="bilstm", max_seq_length=9),
            _single(class_weights=(0.5, 2.25, 1.0)),
            _single(temperature=1.5, reject_below=0.7, reject_label="no"),
            _multi(temperature=0.5, thresholds=(0.5, 0.25, 0.75)),
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

    def test_labels_alone_determine_the_task(self):
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


_MNLI = ("contradiction", "entailment", "neutral")


class _TestCase(files_case.FilesCase):
    def build(self, stored_task=None, **flags):
        flags = {
            "output_dir": str(self.folder),
            "pretrained_model_dir": "model",
        } | flags
        return finetune_classifier.build_task(
            ClassifierConfig(**flags), stored_task
        )

    def assert_refused(self, message, *args, **flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self.build(*args, **flags)
        self.assertNotIn("\n", str(caught.exception))


class OfficialTest(_TestCase):
    def official(self, name, *args, **flags):
        return self.build(
            *args, task_name=name, data_dir=str(self.folder), **flags
        )

    def assert_official_refused(self, message, name, *args, **flags):
        self.assert_refused(
            message, *args, task_name=name, data_dir=str(self.folder), **flags
        )

    def test_finds_files_of_requested_splits(self):
        names = {
            "train": "train.tsv",
            "dev_matched": "dev_matched.tsv",
            "dev_mismatched": "dev_mismatched.jsonl",
        }
        for name in (*names.values(), "test_matched.tsv.gz"):
            self.write(name, "")
        task = self.official("MNLI", do_train=True, do_eval=True)
        expected = {split: self.path(name) for split, name in names.items()}
        self.assertEqual(task.files, expected)
        self.assertEqual((task.name, task.labels), ("mnli", _MNLI))
        self.assertEqual(task.metric_names, ("accuracy",))
        with self.assertLogs(level="WARNING") as logs:
            task = self.official("mnli", do_predict=True)
        self.assertIn("test_mismatched, which is left out", logs.output[0])
        self.assertEqual(list(task.files), ["test_matched"])

    def test_ax_has_only_a_test_set(self):
        self.write("AX.tsv", "")
        for flag in ("do_train", "do_eval"):
            self.assert_official_refused(
                f"--{flag} needs .* only test", "ax", **{flag: True}
            )
        # A stored model may have the labels in another order.
        labels = ["entailment", "neutral", "contradiction"]
        task = self.official("ax", {"labels": labels}, do_predict=True)
        self.assertEqual(task.labels, tuple(labels))
        self.assert_official_refused(
            "the labels 0, 1, and AX has",
            "ax",
            {"labels": ["0", "1"]},
            do_predict=True,
        )

    def test_language_flag_overrides_the_stored_one(self):
        self.write("xnli.dev.tsv", "")
        task = self.official("xnli", do_eval=True, language="sw")
        self.assertEqual(task.language, "sw")
        self.assertEqual(self.official("xnli", do_eval=True).language, "zh")
        stored = {"language": "de"}
        task = self.official("xnli", stored, do_eval=True)
        self.assertEqual(task.language, "de")
        task = self.official("xnli", stored, do_eval=True, language="sw")
        self.assertEqual(task.language, "sw")
        self.assert_official_refused(
            "--language is for xnli", "snli", do_eval=True, language="de"
        )


class _CustomCase(_TestCase):
    def setUp(self):
        super().setUp()
        self.train = self.write(
            "train.csv", "body,kind\nA,10\nB,9\nC,10\nD,x y\nE,10\n"
        )
        self.flags = {
            "task_name": "custom",
            "train_file": self.train,
            "text_column": "body",
            "label_column": "kind",
        }


class CustomTest(_CustomCase):
    def test_labels_come_from_the_training_data(self):
        task = self.build(**self.flags, do_train=True)
        self.assertEqual(task.labels, ("10", "9", "x y"))
        self.assertEqual(task.columns, Columns("body", None, ("kind",)))
        self.assertEqual(
            task.metric_names, ("accuracy", "macro_f1", "matthews_correlation")
        )
        self.assertEqual(task.files, {"train": self.train})

    def test_labels_and_columns_come_from_the_model(self):
        stored = self.build(**self.flags, do_train=True).to_json()
        dev = self.write("dev.csv", "")
        flags = {"task_name": "custom", "do_eval": True, "dev_file": dev}
        task = self.build(stored, **flags)
        self.assertEqual(task.labels, ("10", "9", "x y"))
        self.assertEqual(task.columns, Columns("body", None, ("kind",)))
        self.assertEqual(task.files, {"dev": dev})
        self.assert_refused(
            "trained with --problem_type=single_label. .*=regression",
            stored,
            **flags,
            problem_type="regression",
        )

    def test_model_without_label_names_needs_train_file(self):
        dev = self.write("dev.csv", "")
        flags = {"task_name": "custom", "do_eval": True, "dev_file": dev}
        for stored in (None, {}, {"labels": None}):
            self.assert_refused("give the --train_file", stored, **flags)
        self.assert_refused(
            "fine-tuned for classification. .* kind='question_answering'; add",
            {"kind": "question_answering"},
            **flags,
        )
        task = self.build({}, **self.flags | flags)
        self.assertEqual(task.labels, ("10", "9", "x y"))

    def test_multi_label_reads_names_or_columns(self):
        flags = {
            "task_name": "custom",
            "problem_type": "multi_label",
            "do_train": True,
        }
        names = self.write("names.csv", "text,label\nA,b;a\nB,\nC,c\n")
        task = self.build(**flags, train_file=names, label_separator=";")
        self.assertEqual(task.labels, ("a", "b", "c"))
        self.assertEqual(task.metric, "micro_f1")
        self.assertEqual(task.read("train")[0].label, ("b", "a"))
        columns = self.write("columns.csv", "text,b,a\nA,1,0\nB,0,0\n")
        # A label that never occurs must still be a label.
        task = self.build(**flags, train_file=columns, label_column="b, a")
        self.assertEqual(task.labels, ("b", "a"))
        self.assertEqual(task.read("train")[0].label, ("b",))

    @parameterized.parameters(
        ("--label_separator is for", {"label_separator": ";"}),
        ("multi_label. Received: --label_column=kind,x and .*single_label",
         {"label_column": "kind,x"}),
        ("different columns. Received: 'body' twice", {"label_column": "body"}),
        ("different columns. Received: 'body' twice",
         {"text_pair_column": "body"}),
        ("--label_separator is for", {
            "label_separator": ";", "label_column": "kind,x",
            "problem_type": "multi_label"}),
    )  # fmt: skip
    def test_rejects_contradictory_flags(self, message, flags):
        self.assert_refused(message, **self.flags | flags, do_train=True)


class ClassWeightsTest(_CustomCase):
    def weights(self, text, **flags):
        return self.build(
            **self.flags | flags, do_train=True, class_weights=text
        ).class_weights

    def test_balanced_gives_labels_equal_total_weight(self):
        # 5 examples of 3 labels, so each label has a total weight of 5 / 3.
        weights = self.weights("balanced")
        self.assertAllClose(weights, [5 / 9, 5 / 3, 5 / 3])

    def test_given_weights_follow_label_order(self):
        self.assertEqual(self.weights("x y:2.5, 10:0.5"), (0.5, 1.0, 2.5))

    def test_labels_with_commas_are_refused(self):
        train = self.write("commas.csv", 'body,kind\nA,"a, b"\nB,it\'s: c\n')
        self.assertEqual(
            self.weights("it's: c:2", train_file=train), (1.0, 2.0)
        )
        with self.assertRaisesRegex(UserError, "no label may have a comma"):
            self.weights("a, b:3", train_file=train)

    def test_balanced_without_examples_of_a_label(self):
        self.write("train.tsv", "sentence\tlabel\nA\t1\nB\t1\n")
        self.assert_refused(
            "examples of every label; .*train.tsv has none of '0'",
            task_name="sst-2",
            data_dir=str(self.folder),
            do_train=True,
            class_weights="balanced",
        )

    @parameterized.parameters(
        ("8:2", "name labels once each, .* '8:2', .* '10', '9', 'x y'"),
        ("9:2,9:3", "once each"),
        ("9", "once each"),
        ("", "once each"),
        ("9:2,", "once each, .* Received: ''"),
        ("9:2,8:3,10:4", "Received: '8:3', and"),
        ("9:2:3", "Received: '9:2:3', and"),
        ("9:0", "numbers above 0. Received: '9:0'"),
        ("9:many", "above 0"),
        ("9:inf", "above 0"),
        ("9:nan", "above 0"),
    )
    def test_wrong_weights_are_refused(self, text, message):
        self.assert_refused(
            message, **self.flags, do_train=True, class_weights=text
        )

    def test_rejects_other_problem_types(self):
        train = self.write("scores.csv", "body,kind\nA,1\nB,2\n")
        for problem_type in ("regression", "multi_label"):
            self.assert_refused(
                f"single-label problems. Received: .*{problem_type}",
                **self.flags | {"train_file": train},
                problem_type=problem_type,
                do_train=True,
                class_weights="balanced",
            )


if __name__ == "__main__":
    tf.test.main()
