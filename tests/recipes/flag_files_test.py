"""Tests of the recipes' flag files and configurations."""

import functools
import pathlib
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import BertConfig
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.modeling import bert as bert_model
from bert_tf.recipes import releases
from tests.support import made_once
from tests.support import scripts
from tests.support.repository import ROOT

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _succeed(root, *command_lines):
    """Runs scripts of a checkout; returns their standard errors."""
    ended = scripts.run(*((words, str(root)) for words in command_lines))
    for process in ended:
        if process.status:
            raise AssertionError(process.stderr[-2000:])
    return [process.stderr for process in ended]


def _link_checkout(folder):
    """Links a checkout without data/ and output/ into a folder; returns it."""
    root = pathlib.Path(folder)
    for entry in ROOT.iterdir():
        if entry.name not in ("data", "output"):
            (root / entry.name).symlink_to(entry)
    return root


def _make_data(folder):
    """Makes a vocabulary of BERT's size and a few records of both lengths."""
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
        # Flag files name relative paths, so this test has its own checkout.
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
                # A step's time grows with its rows, so take few.
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


# Layers, width and heads in Table 6 of the paper.
_TABLE_6 = (
    (3, 768, 12),
    (6, 768, 3),
    (6, 768, 12),
    (12, 768, 12),
    (12, 1024, 16),
    (24, 1024, 16),
)
_MINIATURES = tuple(
    (release.layers, release.hidden_size, release.heads)
    for release in releases.releases()
    if release.file.startswith("2020_02_20/")
)
_SIZES = tuple(sorted({*_TABLE_6, *_MINIATURES}))


def _read(name):
    return files.read_bert_config(f"configs/{name}/bert_config.json")


def _size_name(layers, width, heads):
    return f"L-{layers}_H-{width}_A-{heads}"


def _expected_parameters(layers, width):
    """Returns the parameters of encoder, pooler and pretraining heads."""
    embeddings = (30522 + 512 + 2) * width + 2 * width
    attention = 4 * (width * width + width) + 2 * width
    feed_forward = 2 * width * 4 * width + 4 * width + width + 2 * width
    pooler = width * width + width
    masked_lm = width * width + width + 2 * width + 30522
    next_sentence = 2 * width + 2
    return (
        embeddings
        + layers * (attention + feed_forward)
        + pooler
        + masked_lm
        + next_sentence
    )


@functools.cache
def _count(config):
    """Counts the variables of a model without giving them values."""
    with keras.StatelessScope(initialize_variables=False):
        model = bert_model.BertForPretraining(config)
    return sum(int(np.prod(variable.shape)) for variable in model.weights)


def _count_parameters(config):
    """Counts with one and two layers; each further layer adds as much."""
    values = config.to_dict()
    one, two = (
        _count(BertConfig.from_dict(values | {"num_hidden_layers": layers}))
        for layers in (1, 2)
    )
    return one + (config.num_hidden_layers - 1) * (two - one)


class ConfigsTest(tf.test.TestCase, parameterized.TestCase):
    def test_all_sizes_are_there(self):
        self.assertLen(set(_MINIATURES), 24)
        folders = pathlib.Path(paths.RECIPES, "configs").glob("L-*")
        self.assertCountEqual(
            [folder.name for folder in folders],
            [_size_name(*size) for size in _SIZES],
        )

    @parameterized.parameters(*_SIZES)
    def test_has_the_shape_and_number_of_parameters(self, layers, width, heads):
        config = _read(_size_name(layers, width, heads))
        self.assertEqual(
            config,
            BertConfig(
                vocab_size=30522,
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=4 * width,
                type_vocab_size=2,
            ),
        )
        self.assertEqual(
            _count_parameters(config), _expected_parameters(layers, width)
        )

    @parameterized.parameters(
        ("base", (12, 768, 12), 110_106_428),
        ("large", (24, 1024, 16), 336_226_108),
        ("tiny", (2, 128, 2), 4_433_468),
    )
    def test_named_sizes_have_known_parameters(self, name, size, parameters):
        config = _read(name)
        self.assertEqual(config, _read(_size_name(*size)))
        self.assertEqual(_count(config), parameters)
        self.assertEqual(_count_parameters(config), parameters)


if __name__ == "__main__":
    tf.test.main()
