"""Tests for bert_tf.data.beam.

Apache Beam is installed in an environment of its own. The expected files are
made in this process, without Beam.
"""

import contextlib
import dataclasses
import gzip
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.commands.learn_vocabulary import LearnVocabularyConfig
from bert_tf.data import create as pretraining_data
from bert_tf.data import vocabulary_building
from bert_tf.errors import UserError
from bert_tf.io import worker_processes
from tests.support import environments
from tests.support import ports
from tests.support.repository import ROOT

_PROGRAM = str(ROOT / "tests" / "support" / "beam_program.py")
_JOB_SERVER = "apache_beam.runners.portability.local_job_service_main"
_TWO_PROCESSES = {
    "runner": "DirectRunner",
    "beam_options": "--direct_running_mode=multi_processing "
    "--direct_num_workers=2",
}
_WORDS = "the cat sat on a mat and dogs ran home to eat fish caf\u00e9 "
_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split(), "."]
_DATA = {
    "input_file": "text-*",
    "vocab_file": "vocab.txt",
    "max_seq_length": 24,
    "max_predictions_per_seq": 4,
    "dupe_factor": 6,
    "num_shards": 2,
    "strip_accents": False,
}


def _text(num_documents, seed):
    rng = np.random.default_rng(seed)
    words = _WORDS.split()
    documents = []
    for _ in range(num_documents):
        lines = []
        for _ in range(rng.integers(1, 6)):
            sentences = [
                " ".join(rng.choice(words, rng.integers(2, 9))).capitalize()
                for _ in range(rng.integers(1, 4))
            ]
            lines.append(". ".join(sentences) + ".")
        documents.append("\n".join(lines))
    return "\n\n".join(documents) + "\n"


def _write_input(folder):
    """Writes inputs: one compressed, one blank, two without a last newline."""
    texts = {
        "text-0": _text(40, 1),
        "text-1": "\n \n",
        "text-2": _text(30, 2).rstrip(),
        "text-3": "\n\n" + _text(20, 3).rstrip(),
        "vocab.txt": "\n".join(_TOKENS) + "\n",
        "blank.txt": "\n",
        "flags.json": json.dumps(_DATA),
    }
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    with gzip.open(os.path.join(folder, "text-4.gz"), "wt") as file:
        file.write(_text(20, 4))
    with open(os.path.join(folder, "latin.txt"), "wb") as file:
        file.write(b"Ab cd.\nGh \xe9.\n")


def _contents(folder):
    return {
        path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()
    }


class WithoutBeamTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (pretraining_data.create, CreatePretrainingDataConfig),
        (vocabulary_building.run, LearnVocabularyConfig),
    )
    def test_error_explains_installation(self, run, config_cls):
        folder = self.create_tempdir().full_path
        flags = {"input_file": "x", "output_file": f"{folder}/out/x"}
        if config_cls is CreatePretrainingDataConfig:
            flags["vocab_file"] = "x"
        with self.assertRaisesRegex(UserError, "-r requirements-beam"):
            run(config_cls(runner="SparkRunner", **flags))
        self.assertEmpty(os.listdir(folder))
        # If Beam were installed here, the error would not have been tested.
        self.assertIsNone(importlib.util.find_spec("apache_beam"))

    @parameterized.parameters(
        ({"runner": "DirectRunner", "num_processes": 2}, "--num_processes"),
        ({"beam_options": "--x"}, "--beam_options needs --runner"),
        ({"runner": "DirectRunner", "generator": "original"}, "--runner"),
    )
    def test_rejects_flags_without_effect(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            CreatePretrainingDataConfig(
                input_file="x", output_file="x", vocab_file="x", **flags
            )


@pytest.mark.environment
class BeamTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.python = environments.make(
            "beam", "-r", "requirements.in", "-r", "requirements-beam.txt"
        )
        ours = self.create_tempdir("ours").full_path
        beams = os.path.join(self.create_tempdir().full_path, "beams")
        _write_input(ours)
        # A second gzip file would differ in its time stamp, so copy the first.
        shutil.copytree(ours, beams)
        self.folders = {"ours": ours, "beams": beams}

    def run_beam(self, *words):
        """Returns what the program writes to standard output."""
        return environments.run(
            self.python,
            *words,
            cwd=self.folders["beams"],
            env=environments.clean_environment()
            | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"},
        )

    def run_script(self, name, config, **flags):
        config = dataclasses.replace(config, **(flags or _TWO_PROCESSES))
        words = [
            f"--{field.name}={getattr(config, field.name)}"
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != field.default
        ]
        self.run_beam(str(ROOT / "run" / name), *words)

    def create_here(self, output_file):
        with (
            contextlib.chdir(self.folders["ours"]),
            mock.patch.object(worker_processes, "pool", ThreadPoolExecutor),
        ):
            pretraining_data.create(
                CreatePretrainingDataConfig(output_file=output_file, **_DATA)
            )

    def assert_same_files(self, folder):
        ours = _contents(os.path.join(self.folders["ours"], folder))
        beams = _contents(os.path.join(self.folders["beams"], folder))
        self.assertEqual(ours.keys(), beams.keys())
        for name, contents in ours.items():
            # A failing assertEqual would print the whole contents.
            self.assertTrue(contents == beams[name], name)

    def test_processes_write_the_records_of_the_local_generator(self):
        self.create_here("out/x.tfrecord")
        config = CreatePretrainingDataConfig(
            output_file="out/x.tfrecord", **_DATA
        )
        self.run_script("create_pretraining_data.py", config)
        self.assertIn(
            "x-00001-of-00002.tfrecord",
            os.listdir(os.path.join(self.folders["beams"], "out")),
        )
        self.assert_same_files("out")

    def test_a_job_server_writes_the_same_records(self):
        """Uses Beam's own job server; Flink's has the same protocol."""
        self.create_here("out/x.tfrecord")
        (port,) = ports.free(1)
        server = subprocess.Popen(
            [self.python, "-m", _JOB_SERVER, f"--port={port}"],
            env=environments.clean_environment(),
        )
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.run_script(
            "create_pretraining_data.py",
            CreatePretrainingDataConfig(output_file="out/x.tfrecord", **_DATA),
            runner="FlinkRunner",
            beam_options=f"--job_endpoint=localhost:{port} "
            "--environment_type=LOOPBACK",
        )
        self.assert_same_files("out")

    def test_processes_learn_the_local_vocabulary(self):
        config = LearnVocabularyConfig(
            input_file="text-*",
            output_file="out/vocab.txt",
            vocab_size=160,
            num_unused=99,
            heldout_fraction=0.07,
        )
        with contextlib.chdir(self.folders["ours"]):
            vocabulary_building.run(config)
        self.run_script("learn_vocabulary.py", config)
        self.assertLen(
            os.listdir(os.path.join(self.folders["beams"], "out")), 2
        )
        self.assert_same_files("out")

    def test_other_disks_agree_and_stopped_runs_resume_without_beam(self):
        self.create_here("out/x.tfrecord")
        output = self.run_beam(_PROGRAM).splitlines()[-1]
        found = json.loads(output)
        ours = _contents(os.path.join(self.folders["ours"], "out"))
        for where in ("elsewhere", "copied"):
            made = found[where]
            self.assertEqual(made.keys(), ours.keys())
            for name, contents in ours.items():
                # A manifest names its output file, which differs here.
                if not name.endswith(".manifest.json"):
                    self.assertTrue(bytes.fromhex(made[name]) == contents, name)
        self.assertIn("Stopped.", found["stopped"])
        begun = os.path.join(self.folders["beams"], "begun")
        self.assertEqual(os.listdir(begun), ["x.tfrecord.work"])
        self.assertIn("latin.txt is not UTF-8 at byte", found["not_utf8"])
        self.assertIn("corpus is empty: no line of text", found["empty"])
        self.assertIn("not know: direct_num_worker.", found["unknown"])
        self.assertIn("written as for a shell", found["unbalanced"])
        self.assertIn("DataflowRunner cannot be used: ", found["missing"])
        self.folders["ours"] = self.folders["beams"]
        self.create_here("begun/x.tfrecord")
        for name, contents in _contents(begun).items():
            if not name.endswith(".manifest.json"):
                self.assertTrue(contents == ours[name], name)


if __name__ == "__main__":
    tf.test.main()
