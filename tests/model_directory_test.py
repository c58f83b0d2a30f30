"""Tests for bert_tf.model_directory and bert_tf.model_card."""

import json
import os
import shutil

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import model_card
from bert_tf import model_directory
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.interop import tf1_checkpoint
from bert_tf.modeling import model as bert_model
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.shared_data import golden

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
_CONFIG = BertConfig(
    vocab_size=len(_TOKENS),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=10,
    type_vocab_size=2,
)
_TASK = {"kind": "pretraining", "max_seq_length": 10}


def _weights(config=_CONFIG):
    """Different values in every weight."""
    model = bert_model.BertForPretraining(config)
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=variable.shape).astype(np.float32)
        for name, variable in bert_model.named_variables(model).items()
    }


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

    def test_what_was_written_is_read_back_after_a_move(self):
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
        model = model_directory.build_model(found)
        for name, variable in bert_model.named_variables(model).items():
            self.assertAllEqual(variable, self.weights[name])

    def test_golden_weights_give_golden_outputs(self):
        tensors = tf1_checkpoint.read(golden("model/bert_model.ckpt.index"))
        with open(golden("model/bert_config.json")) as file:
            config = BertConfig.from_json(file.read(), "golden")
        self._write(
            config=config,
            weights=tensors,
            vocabulary=None,
            tokenizer_settings=None,
        )
        model = model_directory.build_model(
            model_directory.read_model(self.path)
        )
        expected = np.load(golden("model/forward.npz"))
        names = ("input_ids", "input_mask", "segment_ids")
        outputs = model({name: expected[name] for name in names})
        self.assertAllClose(
            outputs["pooled_output"],
            expected["pooled_output"],
            rtol=0,
            atol=1e-5,
        )

    def test_writing_replaces_whole_and_leaves_nothing_else(self):
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
        with self.assertRaisesRegex(UserError, "has 7 lines.*is 8"):
            self._write(vocabulary=Vocabulary(_TOKENS[:-1]))
        with self.assertRaises(TypeError):
            self._write(task={"kind": "pretraining", "what": object()})
        model_directory.read_model(self.path)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["model"])

    def test_without_vocabulary_text_is_refused(self):
        self._write(vocabulary=None, tokenizer_settings=None)
        found = model_directory.read_model(self.path)
        self.assertIsNone(found.vocabulary)
        with self.assertRaisesRegex(UserError, "has no vocab.txt"):
            found.build_tokenizer()

    @parameterized.parameters(
        "bert_config.json",
        "vocab.txt",
        "tokenizer.json",
        "task.json",
        "model.weights.safetensors",
        "README.md",
    )
    def test_changed_or_missing_files_are_found(self, name):
        self._write()
        file = os.path.join(self.path, name)
        with open(file, "r+b") as opened:
            opened.seek(-2, os.SEEK_END)
            opened.write(b"~")
        with self.assertRaisesRegex(UserError, f"{name} is not what"):
            model_directory.read_model(self.path)
        os.remove(file)
        with self.assertRaisesRegex(UserError, f"{name} is missing"):
            model_directory.read_model(self.path)

    def test_rejects_what_is_no_model_directory(self):
        with self.assertRaisesRegex(UserError, "Expected a model directory"):
            model_directory.read_model(self.path)
        os.makedirs(self.path)
        self.assertFalse(model_directory.recognizes(self.path))
        with self.assertRaisesRegex(UserError, "Expected a model directory"):
            model_directory.read_model(self.path)
        with open(os.path.join(self.path, "checksums.json"), "w") as file:
            json.dump({"format": "other"}, file)
        with self.assertRaisesRegex(UserError, "does not belong"):
            model_directory.read_model(self.path)

    def test_build_model_wants_pretraining_heads(self):
        encoder = {
            name: value
            for name, value in self.weights.items()
            if name.startswith("bert/")
        }
        self._write(weights=encoder, task={"kind": "encoder"})
        with self.assertRaisesRegex(UserError, "kind='encoder'"):
            model_directory.build_model(model_directory.read_model(self.path))

    def test_model_card_names_data_metrics_and_versions(self):
        card = model_card.build(
            "Tiny",
            "A test.",
            {"Metrics": {"loss": 1.23456789}, "Flags": {"a": "x|y"}, "D": {}},
            "python run/fill_mask.py",
        )
        self.assertIn("| loss | 1.23457 |", card)
        self.assertIn("| a | x\\|y |", card)
        self.assertIn("## D\n\nNone.", card)
        self.assertIn(f"| tensorflow | {tf.__version__} |", card)


if __name__ == "__main__":
    tf.test.main()
