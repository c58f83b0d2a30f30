"""KerasHub presets of our models for tests."""

import dataclasses
import os

import keras_hub as their_library
import numpy as np

from bert_tf.checkpoints import keras_hub
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_layers
from tests.support import tiny_model

VOCABULARY = Vocabulary(tiny_model.TOKENS)
CONFIG = tiny_layers.replace(
    vocab_size=len(VOCABULARY), attention_probs_dropout_prob=0.2
)
ENCODER = ("bert", "bert/pooler")
TEXT = "The cat, dogs sitting on 東mat."


def make_stored(*heads, config=CONFIG, parts=ENCODER, **task):
    """Returns a model with distinct weights and three labels."""
    rows = [
        row
        for row in weight_map.rows(config)
        if weight_map.part_of(row.name) in (*parts, *heads)
    ]
    weights = {
        row.name: 0.5
        * tiny_layers.normal(*weight_map.shape_of(row, config, 3), seed=index)
        for index, row in enumerate(rows)
    }
    settings = stored_model.tokenizer_settings(VOCABULARY, True)
    return StoredModel(
        "there",
        config,
        Tensors.from_arrays(weights),
        VOCABULARY,
        settings,
        {"kind": weight_map.kind_of(weights)} | task,
    )


def make_stored_with(**changes):
    """Returns the encoder with other fields replaced."""
    config = changes.get("config", CONFIG)
    vocabulary = changes.get("vocabulary", VOCABULARY)
    settings = stored_model.tokenizer_settings(vocabulary, True)
    changes = {"tokenizer_settings": settings} | changes
    return dataclasses.replace(make_stored(config=config), **changes)


def make_inputs(config=CONFIG):
    """Returns inputs with padding and segments, by our and their names."""
    ours = tiny_layers.inputs(batch=4, length=7)
    ours["input_ids"] %= config.vocab_size
    ours["segment_ids"] %= config.type_vocab_size
    return ours, {
        "token_ids": ours["input_ids"],
        "padding_mask": ours["input_mask"],
        "segment_ids": ours["segment_ids"],
    }


def build_our_model(stored):
    model = bert_model.BertModel(stored.config)
    checkpoint_loading.load_into(model, dict(stored.weights))
    return model


def compute_our_outputs(stored, inputs):
    return build_our_model(stored)(inputs)


def rename_golden_inputs(golden_outputs):
    return {
        "token_ids": golden_outputs["input_ids"],
        "padding_mask": golden_outputs["input_mask"],
        "segment_ids": golden_outputs["segment_ids"],
    }


class PresetCase:
    def setUp(self):
        super().setUp()
        self.directory = self.create_tempdir().full_path

    def write(self, stored=None, **options):
        return keras_hub.write_model(
            self.directory, stored or make_stored(), **options
        )

    def path(self, name):
        return os.path.join(self.directory, name)

    def edit(self, name, **changes):
        """Changes the config in a JSON file of the preset."""
        values = files.read_json(self.path(name))
        values["config"].update(changes)
        files.write_json(self.path(name), values)

    def their_backbone(self, seed=5, **changes):
        """Returns a KerasHub backbone with distinct weights."""
        arguments = {
            "vocabulary_size": len(VOCABULARY),
            "num_layers": 3,
            "num_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 12,
            "dropout": 0.25,
            "max_sequence_length": 9,
            "num_segments": 3,
        }
        backbone = their_library.models.BertBackbone(**arguments | changes)
        return tiny_layers.randomize(backbone, seed)

    def their_tokenizer(self, **settings):
        return their_library.models.BertTokenizer(
            vocabulary=list(VOCABULARY.tokens), **settings
        )

    def assert_same_outputs(self, ours, theirs, mask):
        tokens = mask.astype(bool)
        self.assertAllClose(
            ours["sequence_output"].numpy()[tokens],
            theirs["sequence_output"].numpy()[tokens],
            rtol=0,
            atol=1e-5,
        )
        self.assertAllClose(
            ours["pooled_output"], theirs["pooled_output"], rtol=0, atol=1e-5
        )

    def assert_same_model(self, received, expected):
        self.assertEqual(received.config, expected.config)
        self.assertEqual(
            dict(received.weights.shapes), dict(expected.weights.shapes)
        )
        for name, value in expected.weights.items():
            self.assertEqual(received.weights[name].dtype, np.float32)
            self.assertAllEqual(received.weights[name], value, name)
