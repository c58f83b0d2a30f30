"""Tests for the configurations of bert_tf/recipes/configs."""

import functools
import pathlib

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import BertConfig
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.modeling import bert
from bert_tf.recipes import releases

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
        model = bert.BertForPretraining(config)
    return sum(int(np.prod(variable.shape)) for variable in model.weights)


def _count_parameters(config):
    """Counts with one and two layers; each further one adds the same."""
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
    def test_named_sizes(self, name, size, parameters):
        config = _read(name)
        self.assertEqual(config, _read(_size_name(*size)))
        self.assertEqual(_count(config), parameters)
        self.assertEqual(_count_parameters(config), parameters)


if __name__ == "__main__":
    tf.test.main()
