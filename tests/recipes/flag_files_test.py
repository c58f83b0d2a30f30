"""Tests that the flag files run from the repository root."""

import pathlib
import random

import pytest
import tensorflow as tf

from bert_tf.io import files
from tests.support import made_once
from tests.support import scripts

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _succeed(root, *command_lines):
    """Runs scripts of a checkout; returns their standard errors."""
    ended = scripts.run(*((words, str(root)) for words in command_lines))
    for process in ended:
        if process.status:
            raise AssertionError(process.stderr[-2000:])
    return [process.stderr for process in ended]


def _link_checkout(folder):
    """Makes a checkout without data/ in a folder, which it returns."""
    root = pathlib.Path(folder)
    for entry in _ROOT.iterdir():
        if entry.name not in ("data", "output"):
            (root / entry.name).symlink_to(entry)
    return root


def _make_data(folder):
    """Makes a vocabulary of the right size, few records of both lengths."""
    root = _link_checkout(folder)
    words = [f"word{number}" for number in range(30522 - len(_SPECIAL))]
    files.write_text(
        str(root / "data/vocab.txt"), "\n".join([*_SPECIAL, *words]) + "\n"
    )
    rng = random.Random(5)
    documents = []
    for _ in range(4):
        sentences = [
            " ".join(rng.choices(words, k=rng.randint(9, 40)))
            for _ in range(30)
        ]
        documents.append("\n".join(sentences))
    corpus = str(root / "corpus.txt")
    files.write_text(corpus, "\n\n".join(documents))
    command_lines = [
        [
            "run/create_pretraining_data.py",
            f"--input_file={corpus}",
            f"--output_file=data/{name}/text.tfrecord",
            "--vocab_file=data/vocab.txt",
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={predictions}",
            f"--num_shards={shards}",
            "--dupe_factor=1",
            "--nosplit_sentences",
        ]
        for name, length, predictions, shards in (
            ("pretraining", 128, 20, 2),
            ("pretraining_512", 512, 77, 0),
        )
    ]
    _succeed(root, *command_lines)


class FlagFilesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        # A checkout of its own: the flag files name relative paths.
        self.root = _link_checkout(self.create_tempdir().full_path)
        made = pathlib.Path(made_once.folder("flag_files", _make_data))
        (self.root / "data").symlink_to(made / "data")

    @pytest.mark.thorough
    def test_base_trains_one_step(self):
        (log,) = _succeed(
            self.root,
            [
                "run/pretrain.py",
                "--flagfile=base.flags",
                "--num_train_steps=1",
                # The time is that of the rows.
                "--train_batch_size=2",
                "--eval_batch_size=2",
                "--max_eval_steps=1",
            ],
        )

        self.assertIn("110,106,428 parameters", log)
        self.assertIn("tokens/s", log)
        self.assertIn(" left", log)
        for name in ("eval_results.txt", "model/bert_config.json"):
            self.assertTrue((self.root / "output/base" / name).exists(), name)

    @pytest.mark.thorough
    def test_tiny_continues_in_phase_2(self):
        short = ("--num_train_steps=4", "--max_eval_steps=1")

        first, second = _succeed(
            self.root,
            [
                "run/pretrain.py",
                "--flagfile=tiny.flags",
                *short,
                "--stop_at_step=3",
            ],
            [
                "run/pretrain.py",
                "--flagfile=tiny_phase2.flags",
                *short,
                "--stop_at_step=4",
                "--train_batch_size=4",
                "--eval_batch_size=4",
            ],
        )

        self.assertIn("from scratch", first)
        self.assertIn("Resumed at step 3", second)
        for change in ("pretraining_512", "max_seq_length"):
            self.assertIn(change, second)
        results = files.read_bytes(
            str(self.root / "output/tiny/eval_results.txt")
        ).decode("utf-8")
        self.assertIn("global_step = 4", results)

    @pytest.mark.thorough
    def test_cpu_recipe_goes_from_text_to_a_model(self):
        text = "--input_file=docs/pretraining.md,docs/serving.md"
        _succeed(
            self.root,
            [
                "run/learn_vocabulary.py",
                "--flagfile=cpu_vocabulary.flags",
                text,
                "--output_file=cpu/vocab.txt",
                "--vocab_size=900",  # A later flag counts more.
            ],
        )
        data = [
            "run/create_pretraining_data.py",
            "--flagfile=cpu_data.flags",
            text,
            "--vocab_file=cpu/vocab.txt",
        ]
        _succeed(
            self.root,
            [*data, "--output_file=cpu/train.tfrecord"],
            [
                *data,
                "--output_file=cpu/heldout.tfrecord",
                "--masked_lm_prob=0.15",
                "--max_predictions_per_seq=10",
                "--dupe_factor=1",
            ],
        )
        (log,) = _succeed(
            self.root,
            [
                "run/pretrain.py",
                "--flagfile=cpu.flags",
                "--input_file=cpu/train.tfrecord",
                "--eval_input_file=cpu/heldout.tfrecord",
                "--output_dir=output/cpu",
                "--num_train_steps=4",
                "--train_batch_size=8",
            ],
        )
        self.assertIn("frequency line", log)
        self.assertIn("has learned no language yet", log)
        for name in ("eval_results.txt", "model/bert_config.json"):
            self.assertTrue((self.root / "output/cpu" / name).exists(), name)
        config = files.read_json(
            str(self.root / "output/cpu/model/bert_config.json")
        )
        self.assertEqual(config["vocab_size"], 900)


if __name__ == "__main__":
    tf.test.main()
