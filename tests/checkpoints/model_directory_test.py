"""Tests for bert_tf.checkpoints.model_directory."""

import hashlib
import os
import shutil
from unittest import mock

import numpy as np
import safetensors.numpy
import tensorflow as tf
import yaml
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import stored_models
from tests.support import tiny_layers

_TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "Über",
    "\u2028",
    "##s",
]
_CONFIG = tiny_layers.replace(
    vocab_size=len(_TOKENS), max_position_embeddings=10, type_vocab_size=2
)
_TASK = {"kind": "pretraining", "max_seq_length": 10}


def _weights(kind="pretraining"):
    """Returns weights with different values; heads have three labels."""
    stored = stored_models.build(kind, tokens=_TOKENS, **_CONFIG.to_dict())
    return dict(stored.weights)


class ModelDirectoryTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.weights = _weights()

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "model")
        self.vocabulary = Vocabulary(_TOKENS)
        self.settings = BertTokenizer(self.vocabulary, False).settings()

    def _write(self, **changes):
        values = {
            "config": _CONFIG,
            "weights": self.weights,
            "vocabulary": self.vocabulary,
            "tokenizer_settings": self.settings,
            "task": _TASK,
            "readme": "# Ein kleines Modell – mit Umlaut\n",
        }
        model_directory.write(self.path, **(values | changes))

    def test_moved_directory_is_read_unchanged(self):
        self._write()
        moved = self.path + "-moved"
        shutil.move(self.path, moved)
        found = model_directory.read_model(moved)
        self.assertEqual(found.config, _CONFIG)
        self.assertEqual(found.vocabulary.tokens, tuple(_TOKENS))
        self.assertEqual(found.task, _TASK)
        self.assertEqual(found.tokenizer_settings, self.settings)
        self.assertAllEqual(found.build_tokenizer().tokenize("Übers"), [5, 7])
        self.assertEqual(found.weights.keys(), self.weights.keys())
        model = checkpoint_loading.build_model(found)
        for name, variable in bert_model.named_variables(model).items():
            self.assertAllEqual(variable, self.weights[name])

    def test_writing_replaces_the_whole_directory(self):
        self._write()
        self._write(vocabulary=None, tokenizer_settings=None)
        self.assertCountEqual(
            os.listdir(self.path),
            [
                "README.md",
                "bert_config.json",
                "checksums.json",
                "model.weights.safetensors",
                "task.json",
            ],
        )
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["model"])

    def test_failed_writing_keeps_the_earlier_directory(self):
        self._write()
        other = Vocabulary(_TOKENS[:-1] + ["##x"])
        with self.assertRaisesRegex(UserError, "another vocabulary"):
            self._write(vocabulary=other)
        with self.assertRaisesRegex(UserError, "or neither"):
            self._write(vocabulary=None)
        with self.assertRaisesRegex(UserError, "has 9 lines.*is 8"):
            longer = Vocabulary([*_TOKENS, "x"])
            settings = BertTokenizer(longer).settings()
            self._write(vocabulary=longer, tokenizer_settings=settings)
        with self.assertRaises(TypeError):
            self._write(task={"kind": "pretraining", "what": object()})
        model_directory.read_model(self.path)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["model"])

    def test_directories_of_the_first_version_are_read(self):
        """Weight files equal the safetensors library's, as in version 1."""
        self._write()
        file = os.path.join(self.path, "model.weights.safetensors")
        with open(file, "rb") as opened:
            self.assertEqual(
                opened.read(), safetensors.numpy.save(self.weights)
            )
        checksums = files.read_json(os.path.join(self.path, "checksums.json"))
        self.assertEqual(checksums["version"], 1)
        for name, expected in checksums["sha256"].items():
            received = hashlib.sha256(
                files.read_bytes(os.path.join(self.path, name))
            ).hexdigest()
            self.assertEqual(received, expected)

    # === Every kind of model ===

    def test_rejects_parts_that_do_not_fit_together(self):
        for task, message in (
            ({}, "lacks the key 'kind'"),
            ({"kind": "translation"}, "'kind' must be .*'translation'"),
            ({"kind": "tagging"}, "lack the head cls/tagging"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self._write(task=task)
        with self.assertRaisesRegex(UserError, "names 2 labels.*tagging has 3"):
            self._write(
                weights=_weights("tagging"),
                task={"kind": "tagging", "labels": ["O", "B"]},
            )
        for name, value, message in (
            ("cls/predictions/output_bias", None, "lacks .*output_bias"),
            ("bert/what", np.zeros(3, np.float32), "also has bert/what"),
            (
                "bert/embeddings/LayerNorm/beta",
                np.zeros(3, np.float32),
                r"another shape bert/embeddings/LayerNorm/beta \(3,\)",
            ),
        ):
            weights = dict(self.weights) | {name: value}
            weights = {n: x for n, x in weights.items() if x is not None}
            with self.assertRaisesRegex(UserError, message):
                self._write(weights=weights)
        self.assertFalse(os.path.exists(self.path))

    # === The optimizer's state ===

    def _write_with_state(self, state):
        os.makedirs(self.path)
        model_directory.write_model(
            self.path,
            stored_models.of_weights(
                self.weights,
                _CONFIG,
                self.vocabulary,
                tokenizer_settings=self.settings,
                task=_TASK,
                optimizer_state=Tensors.from_arrays(state),
            ),
        )

    def _state(self):
        rng = np.random.default_rng(1)
        slots = {
            name + suffix: rng.normal(size=value.shape).astype(np.float32)
            for name, value in self.weights.items()
            for suffix in ("/adam_m", "/adam_v")
        }
        return slots | {"global_step": np.int64(1 << 40)}

    def test_rejects_optimizer_state_of_other_weights(self):
        state = self._state() | {"bert/what/adam_m": np.zeros(3, np.float32)}
        message = "does not belong .* it also has bert/what/adam_m"
        with self.assertRaisesRegex(UserError, message):
            self._write_with_state(state)
        self.assertEmpty(os.listdir(self.path))
        os.rmdir(self.path)
        with mock.patch.object(stored_model, "check"):
            self._write_with_state(state)
        message = f"optimizer_state.safetensors .*{message}"
        with self.assertRaisesRegex(UserError, message):
            model_directory.read_model(self.path)

    # === The output directory of a training run ===

    def _write_run(self, steps=(7, 12), **task):
        run = os.path.dirname(self.path)
        self._write(task=_TASK | {"global_step": 7} | task)
        state = self._state()
        for step in steps:
            tensors = {n: x + np.float32(step) for n, x in self.weights.items()}
            tf1_checkpoint.write(
                os.path.join(run, f"model.ckpt-{step}"),
                tensors | state | {"global_step": np.int64(step)},
            )
        return run

    @parameterized.parameters(
        ("", 12), ("model.ckpt-7", 7), ("model.ckpt-12.index", 12)
    )
    def test_reads_an_output_directory_of_training(self, name, step):
        run = os.path.join(self._write_run(), name).rstrip("/")
        self.assertTrue(model_directory.recognizes(run))
        self.assertEqual(formats.detect(run), "bert_tf")
        found = model_directory.read_model(run)
        self.assertEqual(found.vocabulary.tokens, tuple(_TOKENS))
        self.assertEqual(found.tokenizer_settings, self.settings)
        self.assertEqual(found.task, _TASK | {"global_step": step})
        self.assertEqual(found.optimizer_state["global_step"], step)
        for name, value in self.weights.items():
            self.assertAllEqual(found.weights[name], value + np.float32(step))
        for name, value in self._state().items():
            if name != "global_step":
                self.assertAllEqual(found.optimizer_state[name], value)
        self.assertRegex(found.report.notes[0], f"model.ckpt-{step}")

    @parameterized.parameters(((),), ((7, 12),))
    def test_fine_tuning_output_is_its_exported_model(self, steps):
        run = self._write_run(steps, kind="encoder")
        self.assertTrue(model_directory.recognizes(run))
        found = model_directory.read_model(run)
        self.assertEqual(found.task["global_step"], 7)
        self.assertAllClose(found.weights, self.weights, rtol=0, atol=0)

    def test_rejects_other_output_directories(self):
        run = self._write_run(steps=())
        self.assertFalse(model_directory.recognizes(run))
        for name in ("bert_model.ckpt", "model.ckpt-8"):
            path = os.path.join(run, name)
            self.assertFalse(model_directory.recognizes(path))
        tf1_checkpoint.write(os.path.join(run, "bert_model.ckpt"), self.weights)
        self.assertFalse(model_directory.recognizes(run))
        self.assertFalse(
            model_directory.recognizes(os.path.join(run, "bert_model.ckpt"))
        )
        self.assertFalse(model_directory.recognizes("nowhere"))
        self.assertFalse(model_directory.recognizes("what://ever"))

    # === Damage ===

    def test_rejects_other_directories(self):
        with self.assertRaisesRegex(UserError, "Expected a model directory"):
            model_directory.read_model(self.path)
        os.makedirs(self.path)
        self.assertFalse(model_directory.recognizes(self.path))
        with self.assertRaisesRegex(UserError, "Expected a model directory"):
            model_directory.read_model(self.path)
        for contents, message in (
            ({"format": "other"}, "'format' must be"),
            (["a"], "must hold one JSON object"),
            (
                {"format": "bert_tf model directory", "version": 1}
                | {"sha256": {}},
                "checksums.json is incomplete",
            ),
            (
                {"format": "bert_tf model directory", "version": 1},
                "lacks the key 'sha256'",
            ),
        ):
            files.write_json(
                os.path.join(self.path, "checksums.json"), contents
            )
            with self.assertRaisesRegex(UserError, message):
                model_directory.read_model(self.path)


class CardTest(tf.test.TestCase, parameterized.TestCase):
    def _header(self, *arguments, **options):
        card = model_directory.card_header(*arguments, **options)
        _, header, rest = card.split("---\n")
        self.assertEqual(rest, "\n")
        return yaml.safe_load(header)

    def test_header_describes_an_official_task(self):
        header = self._header(
            {
                "kind": "classification",
                "name": "mrpc",
                "results": {
                    "dev": {"f1": 0.87654, "loss": 0.5, "recall": 1e-9}
                },
            },
            "bert-tiny (https://there/x.zip, SHA-256 01)",
            {"train": "/data/glue/train.tsv", "dev": "glue/dev.tsv"},
        )
        (model,) = header.pop("model-index")
        (result,) = model["results"]
        self.assertEqual(
            header,
            {
                "license": "apache-2.0",
                "base_model": "google/bert_uncased_L-2_H-128_A-2",
                "library_name": "bert_tf",
                "pipeline_tag": "text-classification",
                "tags": ["bert", "bert_tf", "tensorflow", "keras"],
                "datasets": ["nyu-mll/glue"],
                "metrics": ["f1", "recall"],
            },
        )
        self.assertEqual(
            result["dataset"],
            {"type": "nyu-mll/glue", "name": "dev.tsv", "split": "dev"},
        )
        scores = [(x["type"], x["value"]) for x in result["metrics"]]
        self.assertEqual(scores, [("f1", 0.8765), ("recall", 0.0)])

    @parameterized.parameters(
        ("hf://ada/films@main", "ada/films", "unknown"),
        (f"hf://google-bert/bert-base-cased@{'a' * 40}", None, "apache-2.0"),
        ("kaggle://keras/bert/keras/tiny/2", None, "unknown"),
        ("a Keras model", None, "unknown"),
        ("", None, "unknown"),
    )
    def test_base_and_license_follow_the_source(
        self, source, base, license_name
    ):
        header = self._header({"kind": "encoder"}, source)
        self.assertEqual(header["license"], license_name)
        if base or not source.startswith("hf://"):
            self.assertEqual(header.get("base_model"), base)

    def test_a_model_on_disk_hands_them_on(self):
        folder = self.create_tempdir()
        folder.create_file(
            "model/README.md",
            content="---\nlicense: mit\ntags: []\nbase_model: ada/films\n---\n"
            "license: other\n",
        )
        header = self._header({"kind": "encoder"}, folder.full_path)
        self.assertEqual(header["license"], "mit")
        self.assertEqual(header["base_model"], "ada/films")

    def test_leaves_out_scores_of_other_programs(self):
        results = {"dev": {"f1": "high", "accuracy": float("nan")}, "test": 3}
        header = self._header({"kind": "encoder", "results": results})
        self.assertNotIn("model-index", header)

    def test_paths_have_no_folders(self):
        card = model_directory.build_card(
            "A model",
            "From /films/ada/films (https://there/a/b) and hf://ada/films/x.",
            {
                "Notes": {
                    1: "'/z/a/b.csv', ~/c/d.txt;../e/f and /i/g/h/",
                    2: "1,000 tokens/s, run/predict.py, [MASK]/a/b",
                }
            },
            "cat /etc/x/y",
        )
        self.assertIn(
            "From films (https://there/a/b) and hf://ada/films/x.", card
        )
        self.assertIn("| 1 | 'b.csv', d.txt;f and h/ |", card)
        self.assertIn("tokens/s, run/predict.py, [MASK]/a/b |", card)
        self.assertIn("cat /etc/x/y", card)


if __name__ == "__main__":
    tf.test.main()
