"""Models in memory, of every kind, with random weights and real words."""

import numpy as np

from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model

LABELS = ("no", "maybe", "yes")
# Heads with labels, the multiple-choice one apart, which always has one.
LABELLED = ("classification", "tagging")


def build(kind="pretraining", optimizer=False, tokens=None, **config_changes):
    """Returns a model of a kind, with a pooler."""
    vocabulary = Vocabulary(tokens or tiny_model.TOKENS)
    config = BertConfig.from_dict(
        tiny_model.CONFIG.to_dict()
        | {"vocab_size": len(vocabulary)}
        | config_changes
    )
    shapes = {
        row.name: weight_map.shape_of(row, config, len(LABELS))
        for row in weight_map.rows(config)
        if weight_map.part_of(row.name)
        in {weight_map.ENCODER, weight_map.POOLER, *weight_map.HEADS[kind]}
    }
    weights = _random(shapes, seed=1)
    state = {}
    if optimizer:
        for suffix in weight_map.SLOT_SUFFIXES:
            slots = {name + suffix: shape for name, shape in shapes.items()}
            state |= _random(slots, seed=len(state) + 2)
        state[weight_map.GLOBAL_STEP] = np.int64(123456789012)
    lower_case = stored_model.derive_lower_case(vocabulary)
    task = {"kind": kind}
    if kind in LABELLED:
        task["labels"] = list(LABELS)
    return StoredModel(
        path="memory",
        config=config,
        weights=Tensors.from_arrays(weights),
        vocabulary=vocabulary,
        tokenizer_settings=stored_model.tokenizer_settings(
            vocabulary, lower_case
        ),
        task=task,
        optimizer_state=Tensors.from_arrays(state),
    )


def _random(shapes, seed):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(scale=0.5, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
