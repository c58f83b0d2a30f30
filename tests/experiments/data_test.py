"""Tests for bert_tf.experiments.data and corpus."""

import collections
import gzip
import json
import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.experiments import corpus
from bert_tf.experiments import data
from tests.support import experiment_inputs
from tests.support import shared_data

_CLASSIFICATION = '{"kind": "classification", "train": "a.tsv"}'


class DataTestCase(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.tasks = os.path.join(self.folder, "tasks")

    def write(self, name, text):
        path = os.path.join(self.tasks, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
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
    def test_official_files_need_no_description(self):
        for name in (
            *("MRPC/train.tsv", "MRPC/dev.tsv"),
            "CoLA/train.tsv",  # Without dev it is incomplete.
            *("squad/train-v1.1.json", "squad/dev-v1.1.json"),
            "other/a.txt",
        ):
            self.write(name, "x")
        found = data.find_tasks(self.tasks)
        self.assertEqual([*found], ["mrpc", "squad"])
        self.assertEqual(
            (found["mrpc"].metric, found["mrpc"].is_glue), ("f1", 1)
        )
        self.assertFalse(found["squad"].is_glue)
        self.assertEmpty(data.find_tasks(None))

    def test_description_wins_over_known_names(self):
        for name in ("train-v1.1.json", "dev-v1.1.json", "a.tsv"):
            self.write(f"squad/{name}", "x")
        values = {"kind": "classification", "train": "a.tsv"}
        values |= {"columns": {"label": "gold"}, "metric": "macro_f1"}
        self.write("squad/task.json", json.dumps(values))
        task = data.find_tasks(self.tasks)["squad"]
        columns = {"text": "text", "text_pair": None, "label": "gold"}
        self.assertEqual(task.columns, columns)
        self.assertEqual(task.metric, "macro_f1")

    @parameterized.parameters(
        ([], "one JSON object"),
        ({"kind": "ner"}, "kind must be one of .*'ner'"),
        ({"kind": ["squad"]}, r"kind must be one of .*\['squad'\]"),
        ({"kind": "squad", "dev": "a.tsv"}, "train must name a file.*None"),
        ({"kind": "squad", "train": "b.tsv"}, "train must name.*'b.tsv'"),
        (
            {"kind": "squad", "train": "a.tsv", "test": "a.tsv"},
            "squad has train and dev alone. Received: 'a.tsv'",
        ),
        ({"kind": "squad", "metrics": "f1"}, "keys must.*Received.*metrics"),
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
            r"tag must be a column's name or number.*\[1\]",
        ),
    )
    def test_refuses_a_wrong_description(self, values, message):
        self.write("own/a.tsv", "x")
        self.write("own/task.json", json.dumps(values))
        with self.assertRaisesRegex(UserError, f"own/task.json: .*{message}"):
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
            # One row of each label, at least.
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
        values = {"kind": "classification", "train": "a.tsv", "dev": "b.tsv"}
        self.write("many/task.json", json.dumps(values))
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

    def test_label_of_one_row_is_not_held_out(self):
        self.write("own/task.json", _CLASSIFICATION)
        labels = ["x", "y", "x", "y", "rare", "x", "y", "x", "y", "x"]
        rows = "".join(f"text {i}\t{x}\n" for i, x in enumerate(labels))
        self.write("own/a.tsv", f"text\tlabel\n{rows}")
        dev = self.rows(self.prepare("own").flags["dev_file"])
        self.assertEqual([x["text"] for x in dev], ["text 9"])

    def test_task_without_dev_holds_out_a_part(self):
        self.tasks = experiment_inputs.write_tasks(self.folder)
        task = self.prepare("names")
        self.assertEqual(task.num_train, 48)
        names = ("train_file", "dev_file")
        train, dev = (self.text(task.flags[x]) for x in names)
        self.assertEqual(train.count("\n\n"), 47)
        path = os.path.join(self.tasks, "names", "train.conll")
        self.assertEqual(f"{train}\n{dev}", self.text(path))

    def test_official_files_keep_their_names_and_header(self):
        rows = [f"{i}\tone {i}\ttwo\t{i % 2}" for i in range(50)]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows, ""])
        self.write("WNLI/train.tsv", text)
        self.write("WNLI/dev.tsv", "\n".join(text.split("\n")[:4]))
        task = self.prepare("wnli", 10, 10)
        self.assertEqual(task.flags["task_name"], "wnli")
        kept = self.text(f"{task.flags['data_dir']}/train.tsv").split("\n")
        self.assertEqual(kept[0], text.split("\n")[0])
        self.assertLen(kept, 12)
        self.assertContainsSubset(kept[1:-1], rows)
        self.assertAlmostEqual(task.majority, 200 / 3)

    def test_other_contents_have_another_folder(self):
        self.write("own/task.json", '{"kind": "tagging", "train": "a.txt"}')
        flags = []
        for word in ("red", "red", "blue"):
            text = "\n\n".join(f"{word} O\nParis{i} B-LOC" for i in range(9))
            self.write("own/a.txt", text)
            flags.append(self.prepare("own").flags["train_file"])
        self.assertEqual(flags[0], flags[1])
        self.assertNotEqual(flags[1], flags[2])

    @parameterized.parameters(
        (_CLASSIFICATION, "text\tgold\nred\t1\n", "a.tsv.*'label'"),
        (
            '{"kind": "regression", "train": "a.tsv"}',
            "text\tlabel\nred\tx\n",
            "a.tsv, line 2 must have a number as label. Received: 'x'",
        ),
        (
            '{"kind": "squad", "train": "a.tsv"}',
            '{"data": [{"text": "x"}]}',
            "form of SQuAD.*paragraphs",
        ),
        (
            '{"kind": "tagging", "train": "a.tsv"}',
            "red O\n",
            "own must have rows.*no dev rows",
        ),
    )
    def test_refuses_another_form(self, task, text, message):
        self.write("own/task.json", task)
        self.write("own/a.tsv", text)
        with self.assertRaisesRegex(UserError, message):
            self.prepare("own")


class CorpusTest(DataTestCase):
    def _split(self, names, megabytes=None):
        """Returns the documents to train on, and those held out."""
        scale = {"corpus_megabytes": megabytes, "held_out_megabytes": 1.0}
        sums = corpus.find_files(",".join(names))
        folder = os.path.join(self.folder, corpus.folder_name(sums, scale))
        corpus.split([*sums], folder, scale)
        return [
            self.text(os.path.join(folder, x)).strip("\n").split("\n\n")
            for x in (corpus.TRAIN_FILE, corpus.HELD_OUT_FILE)
        ]

    def test_each_document_goes_to_one_side_even_if_it_occurs_twice(self):
        text = "\n\n".join(f"line {i}\nsecond {i}" for i in range(300))
        names = [self.write(x, text) for x in ("a.txt", "b.txt")]
        train, held_out = self._split(names)
        self.assertEmpty({*train} & {*held_out})
        self.assertLen({*train, *held_out}, 300)
        # 2% of the text, in both files.
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
            self._split([os.path.join(self.folder, "*.gz")])


if __name__ == "__main__":
    tf.test.main()
