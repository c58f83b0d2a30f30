"""Tests of text extraction with Apache Beam.

Apache Beam is installed in an environment of its own. The expected text is
extracted in this process, without Beam.
"""

import contextlib
import os
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.extract_text import ExtractTextConfig
from bert_tf.corpus import inputs
from bert_tf.errors import UserError
from tests.support import corpus_case
from tests.support import environments
from tests.support.repository import ROOT

_TWO_PROCESSES = {
    "runner": "DirectRunner",
    "beam_options": "--direct_running_mode=multi_processing "
    "--direct_num_workers=2",
}
# Small chunks make many parts; Beam's worker processes keep the usual size.
_PROGRAM = """
import sys
from bert_tf import commands
from bert_tf.corpus import inputs

inputs._CHUNK_BYTES = 2000
sys.argv[0] = "run/extract_text.py"
commands.run("extract_text")
"""
_FLAGS = {
    "input_file": "en=a-*.xml.bz2,de=b.jsonl",
    "output_file": "out/text.txt.gz",
    "num_shards": 3,
    "heldout_share": 0.2,
    "near_duplicate_threshold": 0.8,
    "min_paragraph_length": 9,
    "exclude_file": "test.tsv",
    "language_sampling": 0.5,
}


class WithoutBeamTest(corpus_case.CorpusCase):
    def test_error_explains_installation(self):
        self.write("a.txt", "Text.")
        with self.assertRaisesRegex(UserError, "-r requirements-beam"):
            self.extract("a.txt", runner="SparkRunner")
        self.assertEqual(os.listdir(self.folder), ["a.txt"])

    @parameterized.parameters(
        ({"runner": "DirectRunner", "num_processes": 2}, "--num_processes"),
        ({"beam_options": "--x"}, "--beam_options needs --runner"),
        ({"runner": "DataflowRunner"}, "share a disk"),
    )
    def test_refuses_flags_without_effect(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            ExtractTextConfig(input_file="x", output_file="x", **flags)


@pytest.mark.environment
class BeamTest(corpus_case.CorpusCase):
    def setUp(self):
        super().setUp()
        self.python = environments.make(
            "beam", "-r", "requirements.in", "-r", "requirements-beam.txt"
        )
        texts = [
            " ".join(f"word{i}-{place}" for place in range(20 + i))
            for i in range(90)
        ]
        texts[60] = f"changed {texts[30]}"
        texts[65] = f"short\n\n{texts[65]}"
        excluded = " ".join(f"word{i}" for i in range(13))
        texts[70] += f" {excluded}"
        for start in range(0, 90, 10):
            dump = corpus_case.dump(texts[start : start + 10])
            self.write(f"a-{start:02d}.xml.bz2", dump)
        self.write("b.jsonl", self.rows([f"Nummer {i}." for i in range(40)]))
        self.write("test.tsv", excluded + "\n")
        self.write("bad.xml", corpus_case.dump(texts).replace("Title 9", "&"))

    def run_beam(self, **flags):
        words = [f"--{name}={value}" for name, value in flags.items()]
        return environments.run(
            *(self.python, "-c", _PROGRAM, *words),
            cwd=self.folder,
            env=environments.clean_environment() | {"PYTHONPATH": str(ROOT)},
        )

    def run_here(self, flags):
        with (
            contextlib.chdir(self.folder),
            mock.patch.object(inputs, "_CHUNK_BYTES", 2000),
        ):
            return corpus_case.run_here(ExtractTextConfig(**flags))

    def contents(self, folder):
        return {
            path.name: path.read_bytes()
            for path in (self.folder / folder).iterdir()
        }

    def test_processes_write_the_text_of_a_local_run(self):
        expected = self.run_here(_FLAGS)
        self.assertEqual(
            self.dropped(expected),
            {
                "shares 13 words in a row with --exclude_file": 1,
                "near duplicate": 1,
                "short paragraph": 1,
            },
        )
        local = self.contents("out")
        (self.folder / "out").rename(self.folder / "local")
        self.run_beam(**_FLAGS, **_TWO_PROCESSES)
        made = self.contents("out")
        self.assertEqual(made.keys(), local.keys())
        for name in local:
            # A failing assertEqual would print the whole contents.
            self.assertTrue(made[name] == local[name], name)

    def test_broken_file_is_named_and_its_parts_are_kept(self):
        flags = _FLAGS | {"input_file": "b.jsonl,bad.xml"}
        del flags["language_sampling"]
        with self.assertRaisesRegex(RuntimeError, "bad.xml is broken XML"):
            self.run_beam(**flags, runner="DirectRunner")
        parts = os.listdir(self.folder / "out" / "text.txt.gz.work" / "parts")
        self.assertGreater(len(parts), 20)
        self.write("bad.xml", corpus_case.dump(["Text number 1."]))
        self.assertEqual(self.dropped(self.run_here(flags)), {})


if __name__ == "__main__":
    tf.test.main()
