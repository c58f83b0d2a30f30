"""Tests that the flag files run from the repository root."""

import os
import pathlib
import random
import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf.io import files

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class FlagFilesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        # A checkout with an empty data/: the flag files name relative paths.
        self.root = pathlib.Path(self.create_tempdir().full_path)
        for entry in _ROOT.iterdir():
            if entry.name not in ("data", "output"):
                (self.root / entry.name).symlink_to(entry)

    def _run(self, script, *flags):
        return subprocess.run(
            [sys.executable, f"run/{script}.py", *flags],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            check=False,
        )

    def _succeed(self, script, *flags):
        result = self._run(script, *flags)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return result.stderr

    def _make_data(self):
        """A vocabulary of the right size, few records of both lengths."""
        words = [f"word{number}" for number in range(30522 - len(_SPECIAL))]
        files.write_text(
            str(self.root / "data/vocab.txt"),
            "\n".join([*_SPECIAL, *words]) + "\n",
        )
        rng = random.Random(5)
        documents = []
        for _ in range(4):
            sentences = [
                " ".join(rng.choices(words, k=rng.randint(9, 40)))
                for _ in range(30)
            ]
            documents.append("\n".join(sentences))
        corpus = str(self.root / "corpus.txt")
        files.write_text(corpus, "\n\n".join(documents))
        for folder, length, predictions, shards in (
            ("pretraining", 128, 20, 2),
            ("pretraining_512", 512, 77, 0),
        ):
            self._succeed(
                "create_pretraining_data",
                f"--input_file={corpus}",
                f"--output_file=data/{folder}/text.tfrecord",
                "--vocab_file=data/vocab.txt",
                f"--max_seq_length={length}",
                f"--max_predictions_per_seq={predictions}",
                f"--num_shards={shards}",
                "--dupe_factor=1",
                "--nosplit_sentences",
            )

    @pytest.mark.thorough
    def test_base_trains_one_step(self):
        self._make_data()

        log = self._succeed(
            "pretrain", "--flagfile=base.flags", "--num_train_steps=1"
        )

        self.assertIn("110,106,428 parameters", log)
        self.assertIn("tokens/s", log)
        self.assertIn(" left", log)
        for name in ("eval_results.txt", "model/bert_config.json"):
            self.assertTrue((self.root / "output/base" / name).exists(), name)

    @pytest.mark.thorough
    def test_tiny_continues_in_phase_2(self):
        self._make_data()
        short = ("--num_train_steps=4", "--max_eval_steps=1")

        first = self._succeed(
            "pretrain", "--flagfile=tiny.flags", *short, "--stop_at_step=3"
        )
        second = self._succeed(
            "pretrain",
            "--flagfile=tiny_phase2.flags",
            *short,
            "--stop_at_step=4",
            "--train_batch_size=4",
        )

        self.assertIn("from scratch", first)
        self.assertIn("Resumed at step 3", second)
        for change in ("pretraining_512", "max_seq_length"):
            self.assertIn(change, second)
        results = files.read_bytes(
            str(self.root / "output/tiny/eval_results.txt")
        ).decode("utf-8")
        self.assertIn("global_step = 4", results)


if __name__ == "__main__":
    tf.test.main()
