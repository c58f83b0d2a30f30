"""Tests for bert_tf.checkpoints.tf1.model."""

import json
import os
import re
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.checkpoints.tf1 import model as tf1_model
from bert_tf.errors import UserError
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_layers

_TOKENS = (*SPECIAL_TOKENS, *(f"token{n}" for n in range(13)), "##s")
_DATA = "bert_model.ckpt.data-00000-of-00001"
_INDEX = "bert_model.ckpt.index"


def _arrays(*heads):
    """Returns distinct weights for encoder, pooler and heads."""
    parts = ("bert", "bert/pooler", *heads)
    return {
        row.name: tiny_layers.normal(
            *weight_map.shape_of(row, tiny_layers.CONFIG, 5), seed=index
        )
        for index, row in enumerate(weight_map.rows(tiny_layers.CONFIG))
        if weight_map.part_of(row.name) in parts
    }


def _slots(arrays):
    return {
        name + suffix: tiny_layers.normal(*value.shape, seed=seed) ** 2
        for seed, suffix in enumerate(weight_map.SLOT_SUFFIXES, 100)
        for name, value in arrays.items()
    }


def _stored(arrays, state=None, config=tiny_layers.CONFIG, **changes):
    vocabulary = Vocabulary(_TOKENS)
    values = {
        "path": "elsewhere",
        "config": config,
        "weights": Tensors.from_arrays(arrays),
        "vocabulary": vocabulary,
        "tokenizer_settings": stored_model.tokenizer_settings(vocabulary, True),
        "task": {"kind": weight_map.kind_of(arrays)},
        "optimizer_state": Tensors.from_arrays(state or {}),
    }
    return StoredModel(**(values | changes))


class Tf1ModelTest(files_case.FolderCase):
    def _write(self, tensors=None, config=None, tokens=_TOKENS):
        """Writes a directory without `write_model`."""
        tensors = _arrays() if tensors is None else tensors
        tf1_checkpoint.write(self.path("bert_model.ckpt"), tensors)
        config = tiny_layers.CONFIG.to_dict() if config is None else config
        with open(self.path("bert_config.json"), "w") as file:
            json.dump(config, file)
        with open(self.path("vocab.txt"), "w") as file:
            file.write("".join(f"{token}\n" for token in tokens))

    def _assert_refused(self, message, path=None):
        with self.assertRaisesRegex(UserError, message) as caught:
            tf1_model.read_model(path or self.folder)
        self.assertNotIn("\n", str(caught.exception))

    # === Round trips ===

    @parameterized.parameters(
        ("encoder", ()),
        ("pretraining", ("cls/predictions", "cls/seq_relationship")),
        ("masked_lm", ("cls/predictions",)),
        ("next_sentence", ("cls/seq_relationship",)),
        ("classification", ("output",)),
        ("question_answering", ("cls/squad",)),
        ("tagging", ("cls/tagging",)),
        ("multiple_choice", ("cls/multiple_choice",)),
    )
    def test_round_trip(self, kind, heads):
        arrays = _arrays(*heads)
        state = _slots(arrays) | {"global_step": np.int64(3_000_000_000)}
        tf1_model.write_model(self.folder, _stored(arrays, state))
        self.assertEqual(formats.detect(self.folder), "tf1")
        found = tf1_model.read_model(self.folder)
        self.assertEqual(found.task, {"kind": kind})
        self.assertEqual(found.config, tiny_layers.CONFIG)
        self.assertEqual(found.vocabulary.tokens, _TOKENS)
        self.assertCountEqual(found.weights, arrays)
        for name, value in arrays.items():
            self.assertAllEqual(found.weights[name], value)
        self.assertCountEqual(found.optimizer_state, state)
        for name, value in state.items():
            self.assertAllEqual(found.optimizer_state[name], value)
            self.assertEqual(found.optimizer_state[name].dtype, value.dtype)
        self.assertEqual(
            set(found.report.loaded) | set(state), set(arrays) | set(state)
        )

    def test_encoder_without_pooler(self):
        arrays = _arrays("cls/squad")
        for suffix in ("kernel", "bias"):
            del arrays[f"bert/pooler/dense/{suffix}"]
        tf1_model.write_model(self.folder, _stored(arrays))
        found = tf1_model.read_model(self.folder)
        self.assertCountEqual(found.weights, arrays)
        self.assertIn("bert/pooler", found.report.absent_heads)

    def test_a_weight_without_gradient_has_no_slots(self):
        arrays = _arrays("cls/squad")
        state = {
            name: value
            for name, value in _slots(arrays).items()
            if not name.startswith("bert/pooler/")
        }
        self._write(arrays | state)
        found = tf1_model.read_model(self.folder)
        self.assertCountEqual(found.optimizer_state, state)

    def test_one_tensor_at_a_time(self):
        tf1_model.write_model(self.folder, _stored(_arrays()))
        read = []
        reader = tf.train.load_checkpoint(self.path("bert_model.ckpt"))
        spy = mock.Mock(wraps=reader)
        spy.get_tensor.side_effect = lambda name: (
            read.append(name) or reader.get_tensor(name)
        )
        with mock.patch.object(tf.train, "load_checkpoint", return_value=spy):
            found = tf1_model.read_model(self.folder)
        self.assertEmpty(read)
        found.weights["bert/pooler/dense/bias"]
        self.assertEqual(read, ["bert/pooler/dense/bias"])

    # === Settings that the original reads differently ===

    @parameterized.parameters(
        ({"hidden_act": "gelu_erf"}, 'hidden_act "gelu_erf"'),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05, .* with 1e-12"),
        ({"left_to_right": True}, "left_to_right True, .* with False"),
    )
    def test_sentences_on_unsupported_configs(self, changes, message):
        config = tiny_layers.replace(**changes)
        sentences = tf1_model.write_model(
            self.folder, _stored(_arrays(), config=config)
        )
        self.assertLen(sentences, 2)
        self.assertRegex(sentences[0], message)
        self.assertEqual(tf1_model.read_model(self.folder).config, config)

    def test_config_has_the_keys_of_the_original(self):
        tf1_model.write_model(self.folder, _stored(_arrays()))
        with open(self.path("bert_config.json")) as file:
            self.assertCountEqual(
                json.load(file),
                [
                    "attention_probs_dropout_prob",
                    "hidden_act",
                    "hidden_dropout_prob",
                    "hidden_size",
                    "initializer_range",
                    "intermediate_size",
                    "max_position_embeddings",
                    "num_attention_heads",
                    "num_hidden_layers",
                    "type_vocab_size",
                    "vocab_size",
                ],
            )

    def test_sentences_on_settings_that_are_not_carried(self):
        vocabulary = Vocabulary(_TOKENS)
        stored = _stored(
            _arrays("cls/tagging"),
            tokenizer_settings=stored_model.tokenizer_settings(
                vocabulary, lower_case=False, strip_accents=True
            ),
            task={
                "kind": "tagging",
                "labels": ["O", "B", "I", "X", "Y"],
                "max_seq_length": 96,
                "doc_stride": None,
                "context": "sentence",
            },
        )
        sentences = tf1_model.write_model(self.folder, stored)
        self.assertEqual(
            sentences,
            [
                "A TF1 checkpoint does not keep the tokenizer's settings: give "
                "--do_lower_case=False to the original.",
                "The model strips accents; the original strips them if and "
                "only if it lower-cases.",
                "The original has no head cls/tagging; it ignores these "
                "weights.",
                "A TF1 checkpoint does not keep the names of the 5 labels.",
                "A TF1 checkpoint has no place for context, max_seq_length of "
                "the task; not carried.",
            ],
        )

    def test_without_vocabulary(self):
        stored = _stored(_arrays(), vocabulary=None, tokenizer_settings=None)
        sentences = tf1_model.write_model(self.folder, stored)
        self.assertEqual(
            sentences, ["The vocabulary is unknown: no vocab.txt."]
        )
        found = tf1_model.read_model(self.folder)
        self.assertIsNone(found.vocabulary)
        self.assertIsNone(found.tokenizer_settings)

    @parameterized.parameters(("cat", True), ("Cat", False))
    def test_lower_case_is_derived_with_a_note(self, token, expected):
        self._write(tokens=(*_TOKENS[:-1], token))
        found = tf1_model.read_model(self.folder)
        self.assertIs(found.tokenizer_settings["lower_case"], expected)
        self.assertIn(f"lower_case={expected}", found.report.notes[0])

    # === Recognizing checkpoints ===

    def test_recognizes_a_prefix_and_its_files(self):
        self._write()
        for suffix in ("", ".index", ".data-00000-of-00001"):
            path = self.path("bert_model.ckpt" + suffix)
            self.assertTrue(tf1_model.recognizes(path))
            self.assertEqual(
                tf1_model.read_model(path).config, tiny_layers.CONFIG
            )
        self.assertFalse(tf1_model.recognizes(self.path("bert_model")))
        self.assertFalse(tf1_model.recognizes(self.path("vocab.txt")))
        self.assertFalse(tf1_model.recognizes("nowhere"))
        self.assertFalse(tf1_model.recognizes("what://ever"))

    def test_object_based_checkpoints_are_not_recognized(self):
        self._write()
        for name in (_INDEX, _DATA):
            os.remove(self.path(name))
        self.assertFalse(tf1_model.recognizes(self.folder))
        module = tf.Module()
        module.x = tf.Variable(1.0)
        tf.train.Checkpoint(m=module).write(self.path("bert_model.ckpt"))
        self.assertFalse(tf1_model.recognizes(self.folder))
        self.assertFalse(tf1_model.recognizes(self.path("bert_model.ckpt")))
        self._assert_refused("object-based checkpoint of")

    # === Bad input ===

    def test_missing_config(self):
        self._write()
        os.remove(self.path("bert_config.json"))
        self.assertEqual(formats.detect(self.folder), "tf1")
        self._assert_refused("needs the bert_config.json .* there is no")

    def test_a_directory_in_place_of_the_config(self):
        self._write()
        os.remove(self.path("bert_config.json"))
        os.makedirs(self.path("bert_config.json"))
        self._assert_refused("bert_config.json must be a regular file")

    def test_a_path_that_tensorflow_reads_as_a_pattern(self):
        folder = self.path("a[1]")
        os.makedirs(folder)
        tf1_model.write_model(folder, _stored(_arrays()))
        self._assert_refused("move or rename it", folder)

    @parameterized.parameters(
        (b"", "not valid JSON"),
        (b"\xff\xfe{", "bert_config.json is not"),
        (b"[" * 100_000, "bert_config.json is not"),
        (b"[]", "must hold one JSON object"),
        (b'{"hidden_size": 8}', "lacks the key `vocab_size`"),
        (b'{"vocab_size": 19, "embedding_size": 128}', "embedding_size"),
    )
    def test_garbled_config(self, contents, message):
        self._write()
        with open(self.path("bert_config.json"), "wb") as file:
            file.write(contents)
        self._assert_refused(message)

    def test_vocabulary_of_another_size(self):
        self._write(tokens=(*_TOKENS, "x"))
        self._assert_refused("vocab.txt has 20 lines.*is 19")

    @parameterized.parameters(
        ({"num_hidden_layers": 3}, "lacks bert/encoder/layer_2/"),
        ({"num_hidden_layers": 1}, "also has bert/encoder/layer_1/"),
        ({"intermediate_size": 24}, "intermediate/dense/bias"),
        ({"hidden_size": 16}, r"embeddings \(19, 8\)"),
        ({"type_vocab_size": 2}, "token_type_embeddings"),
    )
    def test_config_of_another_model(self, changes, message):
        self._write(config=tiny_layers.CONFIG.to_dict() | changes)
        self._assert_refused(f"not hold the BERT that its config.*{message}")

    @parameterized.parameters(
        (np.full([8], "x"), "string"), (np.arange(8), "int64")
    )
    def test_weights_must_be_floats(self, values, dtype):
        self._write(_arrays() | {"bert/pooler/dense/bias": values})
        self._assert_refused(f"expected floating .*bias is {dtype}")

    @parameterized.parameters(np.float16, np.float64)
    def test_weights_of_other_types_become_float32_with_a_note(self, dtype):
        arrays = _arrays()
        name = "bert/pooler/dense/bias"
        arrays[name] = arrays[name].astype(dtype)
        self._write(arrays)
        stored = tf1_model.read_model(self.folder)
        self.assertIn(
            f"type {np.dtype(dtype).name}, which become float32",
            " ".join(stored.report.notes),
        )
        self.assertEqual(stored.weights[name].dtype, np.float32)
        self.assertAllEqual(
            stored.weights[name], arrays[name].astype(np.float32)
        )

    def test_missing_and_unused_weights_may_be_allowed(self):
        arrays = _arrays("cls/predictions")
        lost = arrays.pop("cls/predictions/transform/dense/bias")
        arrays["cls/predictions/extra/kernel"] = lost
        self._write(arrays | _slots(arrays))
        self._assert_refused("transform/dense/bias; .*extra/kernel")
        found = tf1_model.read_model(
            self.folder, re.compile("predictions/(transform/dense/b|extra/)")
        )
        self.assertEqual(
            found.report.missing, ("cls/predictions/transform/dense/bias",)
        )
        self.assertCountEqual(
            found.report.unused,
            [
                "cls/predictions/extra/kernel",
                "cls/predictions/extra/kernel/adam_m",
                "cls/predictions/extra/kernel/adam_v",
            ],
        )
        self.assertNotIn(
            "cls/predictions/extra/kernel/adam_m", found.optimizer_state
        )

    @parameterized.parameters(
        ({"what/adam_m": np.zeros(3, np.float32)}, "what/adam_m belongs to no"),
        (
            {"bert/pooler/dense/bias/adam_v": np.zeros(9, np.float32)},
            r"bias/adam_v has the shape \(9,\)",
        ),
        ({"bert/pooler/dense/bias/adam_m": None}, "bias/adam_m is missing"),
        ({"global_step": np.zeros(2, np.int64)}, r"global_step has the shape"),
    )
    def test_slots_of_no_weight(self, changes, message):
        arrays = _arrays()
        tensors = arrays | _slots(arrays) | changes
        self._write({n: x for n, x in tensors.items() if x is not None})
        self._assert_refused(f"does not belong to its weights: .*{message}")

    @parameterized.parameters(
        (_INDEX, 0), (_INDEX, 100), (_DATA, 0), (_DATA, -1), (_DATA, None)
    )
    def test_truncated(self, name, length):
        self._write()
        if length is None:
            os.remove(self.path(name))
        else:
            size = os.path.getsize(self.path(name)) if length < 0 else 0
            os.truncate(self.path(name), size + length)
        self.assertEqual(formats.detect(self.folder), "tf1")
        self._assert_refused("bert_model.ckpt is damaged or incomplete")

    def test_damaged_values_are_found_on_access(self):
        arrays = _arrays()
        self._write(arrays)
        with open(self.path(_DATA), "r+b") as file:
            file.seek(40)
            file.write(b"\xa5\x5a")
        found = tf1_model.read_model(self.folder)
        with self.assertRaisesRegex(UserError, "is damaged or") as caught:
            dict(found.weights)
        self.assertNotIn("\n", str(caught.exception))
        target = self.create_tempdir().full_path
        with self.assertRaisesRegex(UserError, "is damaged or"):
            tf1_model.write_model(target, found)


if __name__ == "__main__":
    tf.test.main()
