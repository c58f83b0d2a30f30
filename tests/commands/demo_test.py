"""Tests for bert_tf.commands.demo; `make demo` runs it on real text."""

import contextlib
import csv
import io
import os
import pathlib
import sys
import sysconfig
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.commands import demo
from bert_tf.data import corpus
from bert_tf.errors import UserError
from tests.support import files_case


def _prose(subject):
    return "\n\n".join(
        f"The {numeral} paragraph tells about {subject} what there is to tell."
        for numeral in ("first", "second", "third", "fourth")
    )


class WriteCorpusTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        paths = sysconfig.get_paths() | {"stdlib": f"{self.folder}/stdlib"}
        for patch in (
            mock.patch.object(sys, "path", [self.folder, *sys.path]),
            mock.patch.object(demo.sysconfig, "get_paths", lambda: paths),
            mock.patch.dict(demo.topics.topics, clear=True),
        ):
            self.enter_context(patch)

    def write_source(self, path, docstring):
        path = pathlib.Path(self.folder, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""{docstring}"""\n')

    def write_corpus(self, **options):
        """Returns the training and the held-out documents."""
        paths = [os.path.join(self.folder, x) for x in ("text.txt", "held.txt")]
        demo.write_corpus(*paths, **options)
        return [
            list(corpus.read_documents([path], may_be_empty=True))
            for path in paths
        ]

    def test_sentences_are_labeled_with_their_library(self):
        for i in range(100):
            for folder in ("one", "stdlib"):
                prose = _prose(f"module {i} of {folder}")
                self.write_source(f"{folder}/m{i}.py", prose)
        self.write_source("one/__init__.py", "")
        paths = [os.path.join(self.folder, x) for x in ("a.csv", "b.csv")]
        splits = self.write_corpus(sentence_files=paths, packages=["one"])
        self.assertLen(sum(splits, []), 200)
        self.assertBetween(len(splits[1]), 1, 30)
        for path, documents in zip(paths, splits, strict=True):
            paragraphs = {line for document in documents for line in document}
            with open(path, encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            labels = [row["library"] for row in rows]
            self.assertGreaterEqual(labels.count("one"), 4)
            self.assertEqual(labels.count("one"), labels.count("python"))
            for row in rows:
                folder = {"one": "one", "python": "stdlib"}[row["library"]]
                self.assertIn(f"of {folder} what", row["sentence"])
                self.assertIn(row["sentence"], paragraphs)


class DemoTest(files_case.FolderCase):
    def _run(self, num_train_steps):
        """Runs the demo on a small corpus; returns what it prints."""
        config = demo.DemoConfig(self.folder, num_train_steps)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            demo.main(config)
        return printed.getvalue()

    def _write_corpus(self, output_file, heldout_file, sentence_files):
        texts = (_prose(f"module {i}") for i in range(40))
        text = "\n\n".join(x.replace("\n\n", "\n") for x in texts)
        labels = 40 * ["numpy", "python"]
        rows = [f"Number {i} is {x}.,{x}" for i, x in enumerate(labels)]
        table = "\n".join(["sentence,library", *rows, ""])
        for path in (*sentence_files, heldout_file, output_file):
            contents = table if path.endswith(".csv") else text
            pathlib.Path(path).write_text(contents)

    @pytest.mark.thorough
    def test_runs_resumes_and_leaves_the_files(self):
        with mock.patch.object(demo, "write_corpus", self._write_corpus):
            text = self._run(2)
        for name in (
            "vocab.txt",
            "train.tfrecord",
            "pretrained_2_steps/learning_curves.png",
            "library_2_steps/confusion_matrix.png",
            "library_2_steps/model",
            "library_2_steps/served/library/1",
        ):
            self.assertTrue(os.path.exists(f"{self.folder}/{name}"), name)
        for shown in (
            "run/pretrain.py --flagfile=cpu.flags",
            demo.MASKED,
            "loss of word frequencies",
            *demo.SENTENCES,
        ):
            self.assertIn(shown, text)
        # The predictions are printed after pretraining and again at the end.
        self.assertEqual(text.count("  in text: "), 10)

        # A second run finds all files, so nothing is repeated but the server.
        with (
            mock.patch("bert_tf.commands.pretrain.main") as trained,
            mock.patch.object(demo, "write_corpus") as written,
        ):
            again = self._run(2)
        trained.assert_not_called()
        written.assert_not_called()
        self.assertIn(f"{self.folder}/vocab.txt already exists.", again)

        # Without --num_train_steps the demo refuses a model of two steps.
        for name in ("pretrained", "library"):
            os.rename(
                f"{self.folder}/{name}_2_steps",
                f"{self.folder}/{name}_{demo.TRAIN_STEPS}_steps",
            )
        with self.assertRaisesRegex(UserError, "must be 0.3 or more"):
            self._run(0)


if __name__ == "__main__":
    tf.test.main()
