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
# Kinds whose number of labels varies; multiple choice always has one.
LABELLED = ("classification", "tagging")


def build(kind="pretraining", optimizer=False, tokens=None, **config_changes):
    """Returns a model of a kind, with a pooler."""
    vocabulary = Vocabulary(tokens or tiny_model.TOKENS)
    config = BertConfig.from_dict(
        tiny_model.CONFIG.to_dict()
        | {"vocab_size": len(vocabulary)}
        | config_changes
    )
    parts = (weight_map.ENCODER, weight_map.POOLER, *weight_map.HEADS[kind])
    values = weights(parts, config)
    state = {}
    if optimizer:
        for suffix in weight_map.SLOT_SUFFIXES:
            slots = {name + suffix: x.shape for name, x in values.items()}
            state |= tiny_model.random_values(slots, seed=len(state) + 2)
        state[weight_map.GLOBAL_STEP] = np.int64(123456789012)
    lower_case = stored_model.derive_lower_case(vocabulary)
    task = {"kind": kind}
    if kind in LABELLED:
        task["labels"] = list(LABELS)
    return of_weights(
        values,
        config,
        vocabulary,
        lower_case,
        task=task,
        optimizer_state=Tensors.from_arrays(state),
    )


def weights(parts, config, num_labels=3, scale=0.5):
    """Returns distinct weights of some parts of a model, by name."""
    shapes = {
        row.name: weight_map.shape_of(row, config, num_labels)
        for row in weight_map.rows(config)
        if weight_map.part_of(row.name) in parts
    }
    return tiny_model.random_values(shapes, scale, seed=1)


def of_weights(values, config, vocabulary, lower_case=True, **changes):
    """Returns a model; its kind follows from the weights, without a task."""
    settings = stored_model.tokenizer_settings(vocabulary, lower_case)
    if "task" not in changes:
        changes["task"] = {"kind": weight_map.kind_of(values)}
    return StoredModel(
        **{
            "path": "memory",
            "config": config,
            "weights": Tensors.from_arrays(values),
            "vocabulary": vocabulary,
            "tokenizer_settings": settings,
        }
        | changes
    )
