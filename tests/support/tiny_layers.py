"""A tiny configuration, and layers with distinct weights, for tests."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import task_models

CONFIG = BertConfig(
    vocab_size=19,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=7,
    type_vocab_size=3,
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.3,
)
WIDER = dataclasses.replace(
    CONFIG,
    vocab_size=31,
    hidden_size=24,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=11,
    type_vocab_size=2,
)
# Class, arguments, and the prefix of the head's weight names.
MODELS = (
    (task_models.BertForClassification, {"num_labels": 3}, ""),
    (task_models.BertForTagging, {"num_labels": 4}, "cls/tagging/"),
    (task_models.BertForQuestionAnswering, {}, "cls/squad/"),
    (task_models.BertForMultipleChoice, {}, "cls/multiple_choice/"),
)
# Class and arguments of models of a wider configuration.
_LABELS = {"labels": ["a", "b", "c"]}
_OUTPUTS = ("all_layers", "embeddings", "attention_probs")
_FEATURES = {
    "approach": "feature_based",
    "layer_combination": "weighted_sum_all_layers",
    "lstm_size": 5,
}
WIDER_MODELS = {
    "encoder": (bert_model.BertModel, {f"return_{x}": True for x in _OUTPUTS}),
    "pretraining": (bert_model.BertForPretraining, {}),
    "left_to_right": (task_models.BertForClassification, _LABELS),
    "classification": (task_models.BertForClassification, _LABELS),
    "bilstm": (
        task_models.BertForClassification,
        _LABELS | {"head": "bilstm", "lstm_size": 5},
    ),
    "question_answering": (task_models.BertForQuestionAnswering, {}),
    "tagging": (task_models.BertForTagging, _LABELS),
    "feature_based": (task_models.BertForTagging, _LABELS | _FEATURES),
    "multiple_choice": (task_models.BertForMultipleChoice, {}),
}


def wider_model(name, changes=(), **arguments):
    """Returns one of WIDER_MODELS, whose weights differ everywhere.

    Args:
      name: The model.
      changes: Changed values of the configuration.
      **arguments: Further arguments of the model.
    """
    config = dataclasses.replace(
        WIDER, **{"left_to_right": name == "left_to_right"} | dict(changes)
    )
    cls, own = WIDER_MODELS[name]
    model = cls(config, **own | arguments)
    rng = np.random.default_rng(5)
    for variable in bert_model.named_variables(model).values():
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    return model


def wider_inputs(name):
    """Returns inputs of one of WIDER_MODELS; padding has random ids."""
    rng = np.random.default_rng(4)
    shape = (3, 2, 9) if name == "multiple_choice" else (3, 9)
    lengths = rng.integers(4, 10, (*shape[:-1], 1))
    mask = (np.arange(9) < lengths).astype(np.int32)
    values = {
        "input_ids": rng.integers(1, 31, shape, np.int32),
        "input_mask": mask,
        "segment_ids": (np.arange(9) >= 3).astype(np.int32) * mask,
    }
    if name == "pretraining":
        values["masked_lm_positions"] = np.array([[1, 3], [2, 0], [1, 2]])
    return {x: tf.constant(value) for x, value in values.items()}


def replace(**changes):
    """Returns the tiny configuration with other values."""
    return BertConfig.from_dict(CONFIG.to_dict() | changes)


def randomize(layer, seed=0, scale=0.5):
    """Randomizes all weights; zero biases would hide a missing bias."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(rng.normal(scale=scale, size=weight.shape))
    return layer


def normal(*shape, seed=0):
    """Returns distinct <float32> values."""
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape).astype(np.float32)


def integers(limit, *shape, seed=0):
    """Returns <int32> values below `limit`."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(limit, size=shape).astype(np.int32)


def inputs(batch=3, length=5):
    """Returns the model's inputs, with rows of unequal lengths."""
    lengths = length - np.arange(batch) % length
    mask = np.arange(length) < lengths[:, np.newaxis]
    return {
        "input_ids": integers(CONFIG.vocab_size, batch, length),
        "input_mask": mask.astype(np.int32),
        "segment_ids": integers(CONFIG.type_vocab_size, batch, length, seed=1),
    }


def inputs_of(cls):
    """Returns three examples, with four choices each for multiple choice."""
    if cls is not task_models.BertForMultipleChoice:
        return inputs()
    return {name: x.reshape(3, 4, 5) for name, x in inputs(batch=12).items()}


def logits(model, states):
    """Returns the logits that the head of a model computes from `states`."""
    head = model.head
    return states @ head.output_weights.numpy().T + head.output_bias.numpy()
