"""Tests for bert_tf.experiments.data."""

import collections
import gzip
import json
import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.experiments import data
from bert_tf.io import files
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue_tasks
from tests.support import experiment_inputs
from tests.support import files_case
from tests.support import shared_data

_OWN = '{"kind": "classification", "train": "a.tsv", "dev": "b.tsv"}'


class DataTestCase(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.tasks = self.path("tasks")

    def write(self, name, text):
        path = os.path.join(self.tasks, name)
        files.write_text(path, text)
        return path

    def prepare(self, name, *limits):
        task = data.find_tasks(self.tasks)[name]
        return data.prepare(task, self.folder, *limits)

    def text(self, path):
        path = path.replace(data.OUT, self.folder)
        with open(path, encoding="utf-8") as file:
            return file.read()

    def rows(self, path):
        return [json.loads(x) for x in self.text(path).splitlines()]


class FindTest(DataTestCase):
    def test_known_names_need_no_description_which_wins(self):
        for name in (
            *("MRPC/train.tsv", "MRPC/dev.tsv"),
            "CoLA/train.tsv",  # Without dev it is incomplete.
            *("squad/train-v1.1.json", "squad/dev-v1.1.json"),
            "other/a.txt",
        ):
            self.write(name, "x")
        found = data.find_tasks(self.tasks)
        self.assertEqual([*found], ["mrpc", "squad"])
        self.assertEqual(found["mrpc"].metric, "f1")
        self.assertEmpty(data.find_tasks(None))
        values = {"kind": "tagging", "train": "dev-v1.1.json"}
        values |= {"columns": {"tag": 2}, "metric": "recall"}
        self.write("squad/task.json", json.dumps(values))
        task = data.find_tasks(self.tasks)["squad"]
        self.assertEqual(task.columns, {"word": 0, "tag": 2})
        self.assertEqual(task.metric, "recall")

    @parameterized.parameters(
        ([], ": kind"),
        ({"kind": ["squad"], "train": "a"}, r": kind\.$"),
        ({"kind": "tagging"}, "--list prints.*: train"),
        ({"kind": "tagging", "train": "b"}, ": train"),
        ({"kind": "squad", "train": "a"}, ": dev"),
        ({"kind": "tagging", "train": "a", "metrics": "f1"}, ": metrics"),
        ({"kind": "tagging", "train": "a", "metric": "x"}, ": metric"),
        ({"kind": "tagging", "train": "a", "columns": {"tags": 1}}, ": tags"),
        ({"kind": "tagging", "train": "a", "columns": [1]}, ": columns"),
        ({"kind": "squad", "train": "a", "dev": "a", "test": "a"}, ": test"),
    )
    def test_refuses_a_wrong_description(self, values, message):
        self.write("own/a", "x")
        self.write("own/task.json", json.dumps(values))
        with self.assertRaisesRegex(UserError, f"own/task.json .*{message}"):
            data.find_tasks(self.tasks)

    @pytest.mark.slow
    def test_finds_the_shared_folders_as_they_are(self):
        found = data.find_tasks(shared_data.data(""))
        self.assertEqual(
            collections.Counter(x.kind for x in found.values()),
            {
                "classification": 5,
                "multiple_choice": 3,
                "tagging": 2,
                "squad": 1,
                "squad2": 1,
            },
        )
        for task in found.values():
            prepared = data.prepare(task, self.folder, 20, 10)
            # Every label keeps a row, so there may be more than 20 rows.
            self.assertBetween(prepared.num_train, 20, 90)
            if task.metric == "accuracy":
                self.assertBetween(prepared.majority, 10, 100)


class PrepareTest(DataTestCase):
    def test_sample_keeps_the_order_and_the_label(self):
        self.tasks = experiment_inputs.write_tasks(self.folder)
        every = self.rows(self.prepare("pairs").flags["train_file"])
        task = self.prepare("pairs", 20, 10)
        train, dev, test = (
            self.rows(task.flags[f"{x}_file"]) for x in ("train", "dev", "test")
        )
        self.assertEqual([len(every), len(train), len(dev)], [60, 20, 10])
        self.assertEqual(train, [x for x in every if x in train])
        self.assertNotEqual(train, every[:20])
        row = {"text": experiment_inputs.sentence(4), "label": "label1"}
        row["text_pair"] = experiment_inputs.sentence(6)
        self.assertEqual(every[4], row)
        self.assertTrue(task.flags["do_predict"])
        self.assertLen(test, 10)
        self.assertNotIn(test[0], dev)
        labels = collections.Counter(x["label"] for x in dev)
        self.assertEqual(task.majority, 100 * max(labels.values()) / 10)

    def test_sample_to_train_on_has_every_label(self):
        self.write("many/task.json", _OWN)
        rows = "".join(f"text {i}\tlabel{i % 40}\n" for i in range(400))
        for name in ("a.tsv", "b.tsv"):
            self.write(f"many/{name}", f"text\tlabel\n{rows}")
        flags = self.prepare("many", 50, 20).flags
        train = self.rows(flags["train_file"])
        self.assertLen({x["label"] for x in train}, 40)
        self.assertBetween(len(train), 50, 70)
        self.assertLen(self.rows(flags["dev_file"]), 20)

    def test_only_known_tasks_have_rows_without_a_label(self):
        rows = "".join(f"a\tb\t{x}\n" for x in (1, "-1", "-", 0, "-1", 1))
        text = f"premise\thypothesis\tlabel\n{rows}"
        self.write("own/a.tsv", text)
        columns = {"text": "premise", "text_pair": "hypothesis"}
        values = {"kind": "classification", "train": "a.tsv", "dev": "a.tsv"}
        self.write("own/task.json", json.dumps({**values, "columns": columns}))
        for name in ("dev", "test"):
            path = self.write(f"snli/{name}.tsv.gz", "")
            with gzip.open(path, "wt") as file:
                file.write(text)
        self.assertEqual(self.prepare("own").num_train, 6)
        self.assertEqual(self.prepare("snli").num_train, 3)

    def test_taggers_hold_out_a_part(self):
        self.tasks = experiment_inputs.write_tasks(self.folder)
        task = self.prepare("names")
        self.assertEqual(task.num_train, 48)
        names = ("train_file", "dev_file")
        train, dev = (self.text(task.flags[x]) for x in names)
        self.assertEqual(train.count("\n\n"), 47)
        path = os.path.join(self.tasks, "names", "train.conll")
        self.assertEqual(f"{train}\n{dev}", self.text(path))

    def test_official_files_are_read_by_their_task(self):
        rows = [f"{i}\tone {i}\ttwo\t{i % 2}" for i in range(50)]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows, ""])
        self.write("WNLI/train.tsv", text)
        self.write("WNLI/dev.tsv", "\n".join(text.split("\n")[:4]))
        task = self.prepare("wnli", 10, 10)
        self.assertEqual(task.flags["task_name"], "wnli")
        folder = task.flags["data_dir"].replace(data.OUT, self.folder)
        official = glue_tasks.get_task("wnli")
        read = {}
        for split in ("train", "dev"):
            path = official.find_file(folder, split)
            read[split] = classification_examples.read_official(
                official, path, split
            )
        self.assertEqual([len(x) for x in read.values()], [10, 3])
        for x in read["train"]:
            number = int(x.text_a.split()[1])
            self.assertEqual((x.text_b, x.label), ("two", str(number % 2)))
        self.assertAlmostEqual(task.majority, 200 / 3)

    def test_questions_are_sampled_in_order(self):
        questions = [{"id": str(i), "question": "?"} for i in range(20)]
        paragraphs = [
            {"context": f"context {i}", "qas": questions[5 * i : 5 * i + 5]}
            for i in range(4)
        ]
        text = json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})
        for name in ("train-v2.0.json", "dev-v2.0.json"):
            self.write(f"squad/{name}", text)
        task = self.prepare("squad2", 8, None)
        self.assertTrue(task.flags["version_2_with_negative"])
        kept, every = (
            [
                (int(y["id"]) // 5, x["context"], y)
                for x in json.loads(self.text(task.flags[name]))["data"][0][
                    "paragraphs"
                ]
                for y in x["qas"]
            ]
            for name in ("train_file", "predict_file")
        )
        self.assertEqual([x for *_, x in every], questions)
        self.assertEqual(kept, [x for x in every if x in kept])
        self.assertLen(kept, 8)
        for number, context, _ in every:
            self.assertEqual(context, f"context {number}")

    @parameterized.parameters(
        (_OWN, "text\tgold\nred\t1\n", "a.tsv.*'label'"),
        (
            '{"kind": "squad", "train": "a.tsv", "dev": "a.tsv"}',
            '{"data": [{"text": "x"}]}',
            "a.tsv must be .*'paragraphs'",
        ),
        (
            '{"kind": "tagging", "train": "a.tsv"}',
            "red O\n",
            "own has no dev rows",
        ),
    )
    def test_refuses_data_that_does_not_fit_its_task(self, task, text, message):
        self.write("own/task.json", task)
        for name in ("a.tsv", "b.tsv"):
            self.write(f"own/{name}", text)
        with self.assertRaisesRegex(UserError, message):
            self.prepare("own")


class CorpusTest(DataTestCase):
    def _split(self, names, megabytes=None):
        """Returns the training documents and the held-out documents."""
        scale = {"corpus_megabytes": megabytes, "held_out_megabytes": 1.0}
        sums = data.find_corpus(",".join(names))
        folder = self.path(data.corpus_name(sums, scale))
        data.split_corpus([*sums], folder, scale)
        return [
            self.text(f"{folder}/{x}.txt").strip("\n").split("\n\n")
            for x in (data.TRAIN, data.HELD_OUT)
        ]

    def test_each_document_goes_to_one_side_even_if_it_occurs_twice(self):
        text = "\n\n".join(f"line {i}\nsecond {i}" for i in range(300))
        names = [self.write(x, text) for x in ("a.txt", "b.txt")]
        train, held_out = self._split(names)
        self.assertEmpty({*train} & {*held_out})
        self.assertLen({*train, *held_out}, 300)
        # 2% of 600 documents are about 12; the two files have equal texts.
        self.assertBetween(len(held_out), 8, 16)

    def test_cut_corpus_holds_out_the_same_documents(self):
        text = "\n\n".join(f"document {i} " + 99 * "x" for i in range(200))
        names = [self.write("a.txt", text)]
        train, held_out = self._split(names)
        fewer, same = self._split(names, megabytes=0.01)
        self.assertEqual(held_out, same)
        self.assertLen(train, 200 - len(held_out))
        self.assertBetween(len(fewer), 80, 100)
        self.assertContainsSubset(fewer, train)

    def test_order_of_the_files_does_not_matter(self):
        names = [
            self.write(name, f"{name}\n\nsecond of {name}\n")
            for name in ("b.txt", "c.txt", "z/a.txt", "z/b.txt")
        ]
        first = self._split(names)
        self.assertEqual(self._split(names[::-1]), first)
        folders = [x for x in os.listdir(self.folder) if "corpus" in x]
        self.assertLen(folders, 1)

    def test_two_documents_are_one_for_each_side(self):
        train, held_out = self._split([self.write("a.txt", "one\n\n\ntwo\n")])
        self.assertEqual((len(train), len(held_out)), (1, 1))
        with self.assertRaisesRegex(UserError, "two documents.*Received: 1"):
            self._split([self.write("b.txt", "one\ntwo\n")])
        with self.assertRaisesRegex(UserError, "--corpus matches no file"):
            self._split([self.path("*.gz")])


if __name__ == "__main__":
    tf.test.main()
