"""Tests for bert_tf.checkpoints.model_garden."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_garden
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.text.vocabulary import Vocabulary
from tests.support import environments
from tests.support import files_case
from tests.support import stored_models
from tests.support import tiny_model

_CONFIG = tiny_model.CONFIG
_VOCABULARY = Vocabulary(tiny_model.TOKENS)
_MAKER = str(
    pathlib.Path(__file__).parents[2] / "support" / "model_garden_maker.py"
)
_ENCODER = ("bert", "bert/pooler")
_PRETRAINING = (*_ENCODER, "cls/predictions", "cls/seq_relationship")
_LABELS = ["cold", "mild", "hot"]


def _inputs():
    rng = np.random.default_rng(20)
    lengths = np.array([9, 4, 7, 1])
    shape = (len(lengths), lengths.max())
    mask = np.arange(lengths.max()) < lengths[:, np.newaxis]
    return {
        "input_ids": rng.integers(len(_VOCABULARY), size=shape, dtype=np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": rng.integers(2, size=shape, dtype=np.int32),
        "masked_lm_positions": np.int32([[1, 8], [3, 0], [2, 6], [0, 0]]),
    }


def _stored(*parts, **changes):
    config = changes.get("config", _CONFIG)
    values = stored_models.weights(parts, config, scale=0.4)
    stored = stored_models.of_weights(values, config, _VOCABULARY)
    return dataclasses.replace(stored, **changes)


def _erf(config=_CONFIG):
    return dataclasses.replace(config, hidden_act="gelu_erf")


# Models that are written here and read by the Model Garden.
_EXPORTS = {
    "read_encoder": _stored(*_ENCODER),
    "read_pretrainer": _stored(*_PRETRAINING),
    "read_erf": _stored(*_PRETRAINING, config=_erf()),
    "read_classification": _stored(
        *_ENCODER, "output", task={"kind": "classification", "labels": _LABELS}
    ),
    "read_question_answering": _stored(*_ENCODER, "cls/squad"),
    "read_tagging": _stored(*_ENCODER, "cls/tagging"),
}


def _compute(stored):
    """Returns the outputs of our model."""
    model = bert_model.BertForPretraining(
        stored.config, return_encoder_outputs=True
    )
    weights = stored.weights
    pretraining = weights.select(
        lambda name: weight_map.part_of(name) in _PRETRAINING
    )
    checkpoint_loading.load_into(model, pretraining)
    outputs = dict(model(_inputs()))
    for head, features in (
        ("", "pooled_output"),
        ("cls/squad/", "sequence_output"),
        ("cls/tagging/", "sequence_output"),
    ):
        if f"{head}output_weights" in weights:
            kernel = np.transpose(weights[f"{head}output_weights"])
            outputs["logits"] = (
                outputs[features].numpy() @ kernel
                + weights[f"{head}output_bias"]
            )
    return outputs


def _write_beside(folder, config=_CONFIG):
    with open(os.path.join(folder, "bert_config.json"), "w") as file:
        file.write(config.to_json())
    _VOCABULARY.write(os.path.join(folder, "vocab.txt"))


@pytest.mark.thorough
class OfficialTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        np.savez(os.path.join(cls.directory, "inputs.npz"), **_inputs())
        _write_beside(cls.directory)
        for name, stored in _EXPORTS.items():
            folder = os.path.join(cls.directory, name)
            os.mkdir(folder)
            model_garden.write_model(folder, stored)
        environments.run(sys.executable, _MAKER, cls.directory)
        for name in os.listdir(cls.directory):
            if name.startswith("made_"):
                _write_beside(os.path.join(cls.directory, name))

    def _assert_same_outputs(self, name, stored):
        expected = np.load(os.path.join(self.directory, name, "outputs.npz"))
        self.assertNotEmpty(expected.files)
        received = _compute(stored)
        for key in expected.files:
            self.assertAllClose(received[key], expected[key], 0, 1e-5, key)

    @parameterized.parameters(
        ("encoder", "encoder", 0),
        ("functional_encoder", "encoder", 1),
        ("encoder_of_2020", "encoder", 0),
        ("pretrainer", "pretraining", 2 + 2 * 48 + 3),
        ("pretrainer_items", "masked_lm", 2),
        ("older_pretrainer", "pretraining", 0),
        ("classifier", "classification", 2 * 41 + 6),
        ("classifier_with_pooler", "classification", 2),
        ("span_labeler", "question_answering", 0),
        ("token_classifier", "tagging", 0),
    )
    def test_reads_what_the_model_garden_wrote(self, name, kind, expected):
        path = os.path.join(self.directory, f"made_{name}")
        self.assertEqual(formats.detect(path), "model_garden")
        stored = model_garden.read_model(path)
        self.assertEqual(stored.config, _CONFIG)
        self.assertEqual(stored.task["kind"], kind)
        self.assertEqual(stored.vocabulary.tokens, _VOCABULARY.tokens)
        self._assert_same_outputs(f"made_{name}", stored)
        self.assertEmpty(stored.report.missing)
        self.assertEmpty(stored.report.unused)
        self.assertLen(stored.report.expected, expected)

    @parameterized.parameters(*_EXPORTS)
    def test_the_model_garden_reads_what_was_written(self, name):
        # The maker process checks that all objects were matched.
        self._assert_same_outputs(name, _EXPORTS[name])

    def test_notes_the_unused_pooler_and_optimizer(self):
        path = os.path.join(self.directory, "made_pretrainer")
        report = model_garden.read_model(path).report
        self.assertContainsSubset(
            [
                "encoder/_pooler_layer/kernel",
                "encoder/_pooler_layer/bias",
                "global_step",
                "save_counter",
                "optimizer/_learning_rate",
            ],
            report.expected,
        )
        notes = " ".join(report.notes)
        self.assertIn("The pooler is taken from the head", notes)
        self.assertIn("optimizer", notes)

    def test_refuses_an_unknown_head(self):
        path = os.path.join(self.directory, "made_pretrainer_with_other_head")
        head = r"model/classification_heads/0/out_proj/bias"
        with self.assertRaisesRegex(UserError, f"also has .*{head}"):
            model_garden.read_model(path)
        stored = model_garden.read_model(path, re.compile("other|heads/0"))
        self.assertLen(stored.report.unused, 4)
        self.assertEqual(stored.task["kind"], "pretraining")

    def test_refuses_two_encoders(self):
        path = os.path.join(self.directory, "made_two_encoders")
        with self.assertRaisesRegex(UserError, "one BertEnc.*Received: 2 of"):
            model_garden.read_model(path)


class ModelGardenTest(files_case.FolderCase):
    def _write(self, stored=None):
        return model_garden.write_model(
            self.folder, stored or _EXPORTS["read_pretrainer"]
        )

    def _rewrite_config(self, **changes):
        path = self.path("bert_config.json")
        with open(path, "w") as file:
            json.dump(_CONFIG.to_dict() | changes, file)

    # === Notes and sentences ===

    def test_an_encoder_without_a_pooler_comes_back(self):
        self._write(_stored("bert", "cls/predictions"))
        stored = model_garden.read_model(self.folder)
        self.assertEqual(stored.task["kind"], "masked_lm")
        self.assertIn("bert/pooler", stored.report.absent_heads)

    # === Errors ===

    @parameterized.parameters(
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05"),
        ({"left_to_right": True}, "left_to_right=True"),
    )
    def test_refuses_unsupported_configs(self, changes, message):
        config = dataclasses.replace(_CONFIG, **changes)
        with self.assertRaisesRegex(UserError, message):
            self._write(_stored(*_ENCODER, config=config))
        self.assertEmpty(os.listdir(self.folder))

        self.assertEmpty(os.listdir(self.folder))

    @parameterized.parameters(
        ({"num_attention_heads": 4}, r"\(16, 2, 8\) .*expected \(16, 4, 4\)"),
        ({"type_vocab_size": 3}, r"_type_embedding_layer.*expected \(3, 16\)"),
        ({"embedding_size": 8}, "embedding_size=8"),
        ({"hidden_act": "swish"}, "hidden_act='swish'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05"),
        ({"layers": 7}, "Unknown keys in .*bert_config.json: layers"),
    )
    def test_refuses_a_config_of_another_model(self, changes, message):
        self._write()
        self._rewrite_config(**changes)
        with self.assertRaisesRegex(UserError, message) as caught:
            model_garden.read_model(self.folder)
        self.assertNotIn("\n", str(caught.exception))

    @parameterized.parameters(
        {"embedding_size": None, "backward_compatible": True},
        {"embedding_size": 16},
        {"pooler_type": "first_token_transform"},
    )
    def test_reads_keys_of_released_configs(self, **changes):
        self._write()
        self._rewrite_config(**changes)
        stored = model_garden.read_model(self.folder)
        self.assertEqual(stored.config, _CONFIG)


class ObjectCheckpointTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.prefix = os.path.join(self.create_tempdir().full_path, "x.ckpt")

    def test_reads_objects_in_a_cycle(self):
        root, child = tf.Module(), tf.Module()
        root.child, child.parent = child, root
        child.value = tf.Variable(4.0)
        tf.train.Checkpoint(root).write(self.prefix)
        checkpoint = model_garden.ObjectCheckpoint(self.prefix)
        self.assertEqual(
            [path for path, _ in checkpoint.variables(0)], ["child/value"]
        )

    def test_each_of_several_data_files_must_be_whole(self):
        root = tf.Module()
        for name in ("one", "two", "three"):
            setattr(root, name, tf.Variable(np.arange(1000.0)))
        policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=9000)
        tf.train.Checkpoint(root).write(
            self.prefix,
            tf.train.CheckpointOptions(experimental_sharding_callback=policy),
        )
        checkpoint = model_garden.ObjectCheckpoint(self.prefix)
        for _, variable in checkpoint.variables(0):
            self.assertAllEqual(checkpoint.read(variable), np.arange(1000.0))
        (first, *others) = sorted(tf.io.gfile.glob(f"{self.prefix}.data-*"))
        self.assertNotEmpty(others)
        os.truncate(first, os.path.getsize(first) - 400)
        checkpoint = model_garden.ObjectCheckpoint(self.prefix)
        with self.assertRaisesRegex(UserError, "damaged or incomplete"):
            for _, variable in checkpoint.variables(0):
                checkpoint.read(variable)


if __name__ == "__main__":
    tf.test.main()
