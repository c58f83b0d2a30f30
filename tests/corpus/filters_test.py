"""Tests of the filters of documents, and of the exclusion of test data."""

import bz2
import os
import pathlib

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import parquet

from bert_tf.commands.extract_text import ExtractTextConfig
from bert_tf.corpus import filters
from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Tally
from bert_tf.errors import UserError

_GERMAN = "Der Himmel über der Stadt ist heute besonders blau und klar."


class CleanTest(tf.test.TestCase):
    def test_drops_by_length_letters_and_language(self):
        config = ExtractTextConfig(
            input_file="",
            output_file="",
            fix_encoding=True,
            min_paragraph_length=5,
            min_letter_share=0.5,
            min_document_length=20,
            languages="de,fr",
        )
        document = Document(
            "1", ("abc", "12 34 5a6", "schÃ¶n und gut", _GERMAN)
        )
        kept, dropped = filters.clean(document, config)
        self.assertEqual(kept.paragraphs, ("schön und gut", _GERMAN))
        self.assertEqual(
            [(x.reason, x.text) for x in dropped],
            [("short paragraph", "abc"), ("few letters", "12 34 5a6")],
        )
        for text, reason in (
            ("The sky above the town is very blue today.", "other language"),
            ("Zu kurz dafür.", "short document"),
            ("abc", "empty document"),
        ):
            kept, dropped = filters.clean(Document("2", (text,)), config)
            self.assertIsNone(kept)
            self.assertEqual(dropped[-1].reason, reason)

    def test_letters_of_other_scripts_count(self):
        self.assertEqual(filters.letter_share("हिन्दी 12"), 0.75)
        self.assertEqual(filters.letter_share(" "), 0.0)


class DecontaminationTest(tf.test.TestCase):
    def test_reads_json_jsonl_and_columns(self):
        words = [f"w{i}" for i in range(40)]
        folder = self.create_tempdir()
        folder.create_file("a.jsonl", f'{{"x": "{" ".join(words[:13])}"}}\n')
        # Two columns of 12 words are not joined, so b.tsv has no 13 words.
        columns = "\t".join([" ".join(words[13:25]), " ".join(words[25:37])])
        folder.create_file("b.tsv", columns + "\n")
        # Two lines of a cell are joined, so c.csv has 13 words in a row.
        cell = " ".join(words[25:32]) + ",\n" + " ".join(words[32:38])
        folder.create_file("c.csv", f'id,text\n1,"{cell}"\n')
        hashes = filters.read_ngrams(f"{folder.full_path}/*")
        self.assertLen(hashes, 2)
        text = ("Before it. " + ", ".join(words[:13]).upper(), "more")
        self.assertTrue(filters.is_excluded(Document("", text), hashes))
        text = (" ".join(words[1:37]),)
        self.assertFalse(filters.is_excluded(Document("", text), hashes))
        folder.create_file("d.csv", '"' + "x" * 200000)
        with self.assertRaisesRegex(UserError, "d.csv, line 1 is not CSV"):
            filters.read_ngrams(f"{folder.full_path}/d.csv")
        with self.assertRaisesRegex(UserError, "would exclude nothing"):
            filters.read_ngrams(f"{folder.full_path}/b.tsv")

    def test_reads_parquet_and_refuses_other_archives(self):
        words = " ".join(f"w{i}" for i in range(13))
        folder = self.create_tempdir().full_path
        rows = {"q": ["short", None], "answers": [[], [{"text": words}]]}
        path = os.path.join(folder, "dev.parquet")
        parquet.write_table(pa.table(rows), path)
        document = Document("", (f"See {words}.",))
        hashes = filters.read_ngrams(path)
        self.assertLen(hashes, 1)
        self.assertTrue(filters.is_excluded(document, hashes))
        lines = os.path.join(folder, "dev.ndjson")
        pathlib.Path(lines).write_text(f'{{"q": "\\u0077 {words}"}}\n', "utf-8")
        self.assertLen(filters.read_ngrams(lines), 2)
        packed = os.path.join(folder, "dev.json.bz2")
        pathlib.Path(packed).write_bytes(bz2.compress(b"[]"))
        with self.assertRaisesRegex(UserError, r"Received \.bz2: .*unpack"):
            filters.read_ngrams(packed)
        with open(path, "r+b") as file:
            file.seek(10)
            file.write(b"\xff" * 20)
        with self.assertRaisesRegex(UserError, "dev.parquet is damaged"):
            filters.read_ngrams(path)


class TallyTest(tf.test.TestCase):
    def test_samples_do_not_depend_on_the_order(self):
        order = np.random.default_rng(3).permutation(100)
        dropped = [filters.Dropped(str(i), "r", f"text {i}") for i in order]
        whole = _tally(dropped)
        merged = _tally(sorted(dropped[:60], key=lambda x: x.id))
        merged.merge(_tally(dropped[60:]))
        self.assertEqual(merged.to_json(), whole.to_json())
        self.assertEqual(whole.reasons["r"].count, 100)
        samples = [int(name) for _, name, _ in whole.reasons["r"].samples]
        self.assertLen(set(samples), 10)
        self.assertGreater(max(samples), 50)


def _tally(dropped):
    tally = Tally()
    for one in dropped:
        tally.add(one)
    return tally


if __name__ == "__main__":
    tf.test.main()
