"""Tests for run/finetune_classifier.py's messages for bad input."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.task import ClassificationTask
from tests.support import tiny_model
from tests.support.classifier_script import ClassifierScript


class BadInputTest(ClassifierScript, parameterized.TestCase, tf.test.TestCase):
    """Errors are one sentence, before training starts."""

    def setUp(self):
        super().setUp()
        self.model = tiny_model.write(
            str(self.folder / "pretrained"), kind="encoder"
        )
        self.good = self.write("good.csv", "text,label\nthe cat,a\ndog,b\n")

    def assert_own_refused(self, message, **flags):
        self.assert_refused(
            message,
            **{
                "task_name": "custom",
                "pretrained_model_dir": self.model,
                "train_file": self.good,
                "do_train": True,
            }
            | flags,
        )
        self.assertFalse(self.output.exists())

    @parameterized.parameters(
        ("train.csv, line 3 must have 2 columns like the first line. "
         "Received: 3", "text,label\nx,a\ny,b,c\n"),
        ("train.csv, line 4 must have 2 columns",
         '\ufefftext,label\r\n"x\r\ny",a\r\nz\r\n'),
        ("line 3 has no label in column 'label'", "text,label\nx,a\ny, \n"),
        ("line 2 has an empty text in column 'text'", "text,label\n ,a\n"),
        ("'sentence', 'label'; name another with --text_column",
         "sentence,label\nx,a\n"),
    )  # fmt: skip
    def test_training_data(self, message, contents):
        train = self.write("train.csv", contents)
        self.assert_own_refused(message, train_file=train)

    @parameterized.parameters(
        ("dev_file", "do_eval", "dev.csv, line 3 has the label 'c', .*'a', 'b'",
         "text,label\nx,a\ny,c\n"),
        ("dev_file", "do_eval", "line 2 has no label", "text,label\nx,\n"),
        ("dev_file", "do_eval", "no column 'label'", "text\nx\n"),
        ("test_file", "do_predict", "line 2 has an empty text", "text\n \nx\n"),
        ("test_file", "do_predict", "1 of 2 have none, .* dev.csv:3",
         "text,label\nx,a\ny,\n"),
        ("test_file", "do_predict", "no column 'text'", "body\nx\n"),
    )  # fmt: skip
    def test_dev_and_test_data(self, flag, do_flag, message, contents):
        path = self.write("dev.csv", contents)
        self.assert_own_refused(message, **{flag: path, do_flag: True})

    def test_missing_pair_column_names_its_flag(self):
        train = self.write("train.csv", "text,more,label\nx,y,a\n")
        self.assert_own_refused(
            "no column 'other'; .*; name another with --text_pair_column",
            train_file=train,
            text_pair_column="other",
        )

    def test_official_files(self):
        flags = {
            "data_dir": str(self.folder),
            "do_train": True,
            "pretrained_model_dir": self.model,
        }
        self.assert_refused(
            "no file train.tsv or .* of RTE", task_name="rte", **flags
        )
        self.write("train.tsv", "sentence\tlabel\nx\t1\ny\t2\n")
        self.assert_refused(
            "train.tsv, line 3 has the label '2', .* '0', '1'",
            task_name="sst-2",
            **flags,
        )
        self.assert_refused("no column 'sentence1'", task_name="rte", **flags)
        self.write("train.tsv", "sentence\tlabel\nx\t1\ty\n")
        self.assert_refused(
            "line 2 must have 2 columns", task_name="sst-2", **flags
        )

    def test_models_of_other_tasks(self):
        for task in (
            ClassificationTask(
                name="custom", labels=("a", "c"), metric_names=("accuracy",)
            ),
            ClassificationTask(
                name="custom",
                labels=None,
                problem_type="regression",
                metric_names=("pearson",),
            ),
        ):
            self.write("dev.tsv", "sentence\tlabel\nx\t1\ny\t0\n")
            model = tiny_model.write_task(
                str(self.folder / f"model_{task.problem_type}"), task
            )
            self.assert_refused(
                "labels a, c, and SST-2 has 0, 1|not fine-tuned .*regression",
                task_name="sst-2",
                data_dir=str(self.folder),
                pretrained_model_dir=model,
                do_eval=True,
            )
        official = glue_tasks.get_task("cola")
        cola = ClassificationTask(
            name="cola",
            labels=official.labels,
            metric_names=official.metrics,
            official=official,
        )
        self.assert_refused(
            r"task \(sst-2: classification; .*Received: cola: classification",
            task_name="sst-2",
            data_dir=str(self.folder),
            pretrained_model_dir=tiny_model.write_task(
                str(self.folder / "cola"), cola
            ),
            do_eval=True,
        )
        self.assert_refused(
            "no fine-tuned model for this task|trained for it",
            task_name="sst-2",
            data_dir=str(self.folder),
            pretrained_model_dir=self.model,
            do_eval=True,
        )


if __name__ == "__main__":
    tf.test.main()
