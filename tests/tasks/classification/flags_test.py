"""Tests for bert_tf.tasks.classification.flags."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands import finetune_classifier
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.errors import UserError
from bert_tf.tasks.classification.examples import Columns
from tests.support import files_case

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

    def test_files_of_requested_splits(self):
        for name in (
            "train.tsv",
            "dev_matched.tsv",
            "dev_mismatched.jsonl",
            "test_matched.tsv.gz",
        ):
            self.write(name, "")
        task = self.official("MNLI", do_train=True, do_eval=True)
        self.assertEqual(
            task.files,
            {
                split: str(self.folder / file)
                for split, file in (
                    ("train", "train.tsv"),
                    ("dev_matched", "dev_matched.tsv"),
                    ("dev_mismatched", "dev_mismatched.jsonl"),
                )
            },
        )
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
        # Its model has the labels in another order.
        labels = ["entailment", "neutral", "contradiction"]
        task = self.official("ax", {"labels": labels}, do_predict=True)
        self.assertEqual(task.labels, tuple(labels))
        self.assert_official_refused(
            "the labels 0, 1, and AX has",
            "ax",
            {"labels": ["0", "1"]},
            do_predict=True,
        )

    def test_languages(self):
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
        task = self.build(
            stored, task_name="custom", do_eval=True, dev_file=dev
        )
        self.assertEqual(task.labels, ("10", "9", "x y"))
        self.assertEqual(task.columns, Columns("body", None, ("kind",)))
        self.assertEqual(task.files, {"dev": dev})
        self.assert_refused(
            "trained with --problem_type=single_label. .*=regression",
            stored,
            task_name="custom",
            do_eval=True,
            dev_file=dev,
            problem_type="regression",
        )

    def test_model_without_label_names(self):
        dev = self.write("dev.csv", "")
        for stored in (None, {}, {"labels": None}):
            self.assert_refused(
                "give the --train_file",
                stored,
                task_name="custom",
                do_eval=True,
                dev_file=dev,
            )
        self.assert_refused(
            "fine-tuned for classification. .* kind='question_answering'; add",
            {"kind": "question_answering"},
            task_name="custom",
            do_eval=True,
            dev_file=dev,
        )
        task = self.build({}, **self.flags, do_eval=True, dev_file=dev)
        self.assertEqual(task.labels, ("10", "9", "x y"))

    def test_multi_label(self):
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
        # A label that never occurs is still a label.
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

    def test_balanced(self):
        # 5 examples, 3 labels; all labels have the same total weight.
        weights = self.weights("balanced")
        self.assertAllClose(weights, [5 / 9, 5 / 3, 5 / 3])

    def test_weights(self):
        self.assertEqual(self.weights("x y:2.5, 10:0.5"), (0.5, 1.0, 2.5))

    def test_labels_with_commas(self):
        train = self.write(
            "commas.csv",
            'body,kind\nA,"card, arrival"\nB,card\nC,"pin, card:2"\nD,pin\n',
        )
        for text, expected in (
            ("card, arrival:3,pin:2", (1.0, 3.0, 2.0, 1.0)),
            ("pin:2, card:0.5 ,card, arrival : 3", (0.5, 3.0, 2.0, 1.0)),
            ("pin, card:2:4,pin:5,card:6", (6.0, 1.0, 5.0, 4.0)),
        ):
            weights = self.weights(text, train_file=train)
            self.assertEqual(weights, expected, text)

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
    def test_rejects_weights(self, text, message):
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
