"""Tests for bert_tf.experiments.corpus."""

import os

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.experiments import corpus as corpora
from bert_tf.experiments import jobs
from bert_tf.io import files


def _write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _documents(path):
    with open(path, encoding="utf-8") as file:
        return [x for x in file.read().split("\n\n") if x.strip()]


class CorpusTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = self.create_tempdir().full_path

    def _prepare(self, names, megabytes=None, held_out=1.0):
        sums = [files.sha256(name) for name in names]
        corpus = corpora.prepare(names, sums, self._folder, megabytes, held_out)
        folder = jobs.fill(corpus.folder, {jobs.OUT: self._folder})
        targets = (corpora.TRAIN_FILE, corpora.HELD_OUT_FILE)
        return [_documents(os.path.join(folder, x)) for x in targets]

    def test_each_document_goes_to_one_side_even_if_it_occurs_twice(self):
        text = "\n\n".join(f"line {i}\nsecond {i}" for i in range(300))
        names = [_write(self._folder, x, text) for x in ("a.txt", "b.txt")]
        train, held_out = self._prepare(names)
        self.assertEmpty(set(train) & set(held_out))
        self.assertLen(set(train) | set(held_out), 300)
        # 2% of the text, in both files.
        self.assertBetween(len(held_out), 8, 16)

    def test_cut_corpus_holds_out_the_same_documents(self):
        text = "\n\n".join(f"document {i} " + 99 * "x" for i in range(200))
        names = [_write(self._folder, "a.txt", text)]
        train, held_out = self._prepare(names)
        fewer, same = self._prepare(names, megabytes=0.01)
        self.assertEqual(held_out, same)
        self.assertLen(train, 200 - len(held_out))
        self.assertBetween(len(fewer), 80, 100)
        self.assertContainsSubset(fewer, train)

    def test_order_of_the_files_does_not_matter(self):
        os.makedirs(os.path.join(self._folder, "z"))
        names = [
            _write(self._folder, name, f"{name}\n\nsecond of {name}\n")
            for name in ("b.txt", "c.txt", "z/a.txt", "z/b.txt")
        ]
        first = self._prepare(names)
        self.assertEqual(self._prepare(names[::-1]), first)
        self.assertLen(os.listdir(os.path.join(self._folder, "data")), 1)

    def test_two_documents_are_one_for_each_side(self):
        names = [_write(self._folder, "a.txt", "one\n\n\ntwo\n")]
        train, held_out = self._prepare(names)
        self.assertEqual((len(train), len(held_out)), (1, 1))

    def test_refuses_a_single_document(self):
        names = [_write(self._folder, "a.txt", "one\ntwo\n")]
        with self.assertRaisesRegex(UserError, "two documents.*Received: 1"):
            self._prepare(names)

    def test_refuses_a_glob_without_files(self):
        pattern = os.path.join(self._folder, "*.gz")
        with self.assertRaisesRegex(UserError, "--corpus"):
            corpora.find_files(pattern)


if __name__ == "__main__":
    tf.test.main()
