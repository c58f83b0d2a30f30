"""Tests for bert_tf.experiments.task_folders and task_data."""

import collections
import gzip
import json
import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.experiments import jobs
from bert_tf.experiments import task_data
from bert_tf.experiments import task_folders
from tests.support import experiment_inputs
from tests.support import shared_data


class FoldersTestCase(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = self.create_tempdir().full_path
        self._tasks = os.path.join(self._folder, "tasks")

    def _write(self, name, text):
        path = os.path.join(self._tasks, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _find(self, name):
        return task_folders.find_tasks(self._tasks)[name]

    def _prepare(self, name, *limits):
        return task_data.prepare(self._find(name), self._folder, *limits)

    def _text(self, path):
        path = jobs.fill(path, {jobs.OUT: self._folder})
        with open(path, encoding="utf-8") as file:
            return file.read()

    def _rows(self, path):
        return [json.loads(x) for x in self._text(path).splitlines()]


class FindTest(FoldersTestCase):
    def test_official_files_need_no_description(self):
        self._write("MRPC/train.tsv", "x")
        self._write("MRPC/dev.tsv", "x")
        self._write("CoLA/train.tsv", "x")  # Without dev it is incomplete.
        self._write("squad/train-v1.1.json", "x")
        self._write("squad/dev-v1.1.json", "x")
        self._write("other/a.txt", "x")
        found = task_folders.find_tasks(self._tasks)
        self.assertEqual([*found], ["mrpc", "squad"])
        self.assertEqual(found["mrpc"].metric, "f1")
        self.assertEqual(found["mrpc"].official, "mrpc")
        self.assertIsNone(found["squad"].official)

    def test_description_wins_over_known_names(self):
        self._write("squad/train-v1.1.json", "x")
        self._write("squad/dev-v1.1.json", "x")
        self._write("squad/a.tsv", "x")
        values = {
            "kind": "classification",
            "train": "a.tsv",
            "columns": ["one", "two", "gold"],
            "metric": "macro_f1",
        }
        self._write("squad/task.json", json.dumps(values))
        task = self._find("squad")
        columns = {"text": "one", "text_pair": "two", "label": "gold"}
        self.assertEqual(task.columns, columns)
        self.assertEqual(task.metric, "macro_f1")

    @parameterized.parameters(
        ([], "must hold one JSON object"),
        ({"kind": "ner"}, "kind must be one of .*'ner'"),
        ({"kind": ["squad"]}, r"kind must be one of .*\['squad'\]"),
        ({"kind": "squad", "dev": "a.tsv"}, "train must name a file.*None"),
        ({"kind": "squad", "train": "b.tsv"}, "train must name.*'b.tsv'"),
        (
            {"kind": "squad", "train": "a.tsv", "test": "a.tsv"},
            "squad have train and dev. Received: test='a.tsv'",
        ),
        ({"kind": "squad", "metrics": "f1"}, "unknown keys: metrics"),
        (
            {"kind": "tagging", "train": "a.tsv", "metric": "accuracy"},
            "metric of tagging must be one of f1.*'accuracy'",
        ),
        (
            {"kind": "tagging", "train": "a.tsv", "columns": {"tags": 1}},
            "columns of tagging must be.*word, tag.*'tags'",
        ),
        (
            {"kind": "tagging", "train": "a.tsv", "columns": {"tag": [1]}},
            r"column tag must be a name or a number.*\[1\]",
        ),
    )
    def test_refuses_a_wrong_description(self, values, message):
        self._write("own/a.tsv", "x")
        self._write("own/task.json", json.dumps(values))
        with self.assertRaisesRegex(UserError, message):
            self._find("own")

    @pytest.mark.slow
    def test_finds_the_shared_folders_as_they_are(self):
        folder = shared_data.data("")
        found = task_folders.find_tasks(folder)
        kinds = collections.Counter(x.kind for x in found.values())
        self.assertEqual(
            kinds,
            {
                "classification": 6,
                "multiple_choice": 3,
                "tagging": 2,
                "squad": 1,
                "squad2": 1,
            },
        )
        for task in found.values():
            data = task_data.prepare(task, self._folder, 20, 10)
            self.assertEqual(data.num_dev, 10)
            # One row of each label, which are up to 150.
            self.assertBetween(data.num_train, 20, 150)
            if task.metric == "accuracy":
                self.assertBetween(data.majority, 10, 100)


class PrepareTest(FoldersTestCase):
    def test_sample_keeps_the_order_and_the_label(self):
        self._tasks = experiment_inputs.write_tasks(self._folder)
        every = self._rows(self._prepare("pairs").flags["train_file"])
        data = self._prepare("pairs", 20, 10)
        some = self._rows(data.flags["train_file"])
        self.assertLen(every, 60)
        self.assertLen(some, 20)
        self.assertEqual(some, [x for x in every if x in some])
        self.assertNotEqual(some, every[:20])
        expected = {
            "text": experiment_inputs.sentence(4),
            "text_pair": experiment_inputs.sentence(6),
            "label": "label1",
        }
        self.assertEqual(every[4], expected)
        test = self._rows(data.flags["test_file"])
        self.assertLen(test, 10)
        self.assertTrue(data.flags["do_predict"])
        self.assertNotIn(test[0], self._rows(data.flags["dev_file"]))
        labels = [x["label"] for x in self._rows(data.flags["dev_file"])]
        most = max(map(labels.count, labels))
        self.assertEqual(data.majority, 100 * most / 10)

    def test_sample_to_train_on_has_every_label(self):
        values = {"kind": "classification", "train": "a.tsv", "dev": "b.tsv"}
        self._write("many/task.json", json.dumps(values))
        rows = "".join(f"text {i}\tlabel{i % 40}\n" for i in range(400))
        for name in ("a.tsv", "b.tsv"):
            self._write(f"many/{name}", f"text\tlabel\n{rows}")
        data = self._prepare("many", 50, 20)
        train, dev = (
            self._rows(data.flags[x]) for x in ("train_file", "dev_file")
        )
        self.assertLen({x["label"] for x in train}, 40)
        self.assertBetween(len(train), 50, 70)
        self.assertLen(dev, 20)

    def test_only_known_tasks_have_rows_without_a_label(self):
        rows = "".join(f"a\tb\t{x}\n" for x in (1, "-1", "-", 0, "-1", 1))
        text = f"premise\thypothesis\tlabel\n{rows}"
        names = {"train": "dev.tsv.gz", "dev": "test.tsv.gz"}
        folder = os.path.join(self._tasks, "snli")
        self._write("own/a.tsv", text)
        columns = {"text": "premise", "text_pair": "hypothesis"}
        values = {"kind": "classification", "train": "a.tsv", "dev": "a.tsv"}
        self._write("own/task.json", json.dumps({**values, "columns": columns}))
        os.makedirs(folder)
        for name in names.values():
            with gzip.open(os.path.join(folder, name), "wt") as file:
                file.write(text)
        self.assertEqual(self._prepare("own").num_train, 6)
        self.assertEqual(self._prepare("snli").num_train, 3)

    def test_label_of_one_row_is_not_held_out(self):
        self._write(
            "own/task.json", '{"kind": "classification", "train": "a.tsv"}'
        )
        labels = ["x", "y", "x", "y", "rare", "x", "y", "x", "y", "x"]
        rows = "".join(f"text {i}\t{x}\n" for i, x in enumerate(labels))
        self._write("own/a.tsv", f"text\tlabel\n{rows}")
        data = self._prepare("own")
        dev = self._rows(data.flags["dev_file"])
        self.assertEqual([x["text"] for x in dev], ["text 9"])

    def test_task_without_dev_holds_out_a_part(self):
        self._tasks = experiment_inputs.write_tasks(self._folder)
        data = self._prepare("names")
        self.assertEqual((data.num_train, data.num_dev), (48, 12))
        train, dev = (
            self._text(data.flags[x]) for x in ("train_file", "dev_file")
        )
        self.assertEqual(train.count("\n\n"), 47)
        path = os.path.join(self._tasks, "names", "train.conll")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(f"{train}\n{dev}", file.read())

    def test_official_files_keep_their_names_and_header(self):
        rows = [f"{i}\tone {i}\ttwo\t{i % 2}" for i in range(50)]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows, ""])
        self._write("WNLI/train.tsv", text)
        self._write("WNLI/dev.tsv", "\n".join(text.split("\n")[:4]))
        data = self._prepare("wnli", 10, 10)
        self.assertEqual(data.flags["task_name"], "wnli")
        kept = self._text(f"{data.flags['data_dir']}/train.tsv").split("\n")
        self.assertEqual(kept[0], text.split("\n")[0])
        self.assertLen(kept, 12)
        self.assertContainsSubset(kept[1:-1], rows)
        self.assertAlmostEqual(data.majority, 200 / 3)

    def test_other_contents_have_another_folder(self):
        self._write("own/task.json", '{"kind": "tagging", "train": "a.txt"}')
        flags = []
        for word in ("red", "red", "blue"):
            text = "\n\n".join(f"{word} O\nParis{i} B-LOC" for i in range(9))
            self._write("own/a.txt", text)
            flags.append(self._prepare("own").flags["train_file"])
        self.assertEqual(flags[0], flags[1])
        self.assertNotEqual(flags[1], flags[2])

    def test_refuses_a_file_without_the_column(self):
        self._write(
            "own/task.json", '{"kind": "classification", "train": "a.tsv"}'
        )
        self._write("own/a.tsv", "text\tgold\nred\t1\n")
        with self.assertRaisesRegex(UserError, "a.tsv.*'label'"):
            self._prepare("own")

    def test_refuses_squad_in_another_form(self):
        self._write("own/task.json", '{"kind": "squad", "train": "a.json"}')
        self._write("own/a.json", '{"data": [{"text": "x"}]}')
        with self.assertRaisesRegex(UserError, "form of SQuAD.*paragraphs"):
            self._prepare("own")


if __name__ == "__main__":
    tf.test.main()
