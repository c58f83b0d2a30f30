"""All public layers, each with a tiny configuration and inputs.

A layer with an entry here runs through all conformance tests.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from bert_tf.modeling import attention
from bert_tf.modeling import bert
from bert_tf.modeling import bilstm
from bert_tf.modeling import encoder
from bert_tf.modeling import heads
from bert_tf.modeling import layers
from bert_tf.modeling import task_models
from tests.support import tiny_layers

MODULES = (
    attention,
    bilstm,
    encoder,
    heads,
    layers,
    bert,
    task_models,
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A layer to test.

    Attributes:
      cls: The class.
      arguments: Arguments of its constructor.
      inputs: Inputs by the names of the call's arguments.
      num_variables: Number of its weights.
      float32_outputs: Outputs that no policy rounds; "" means all.
    """

    cls: type
    arguments: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    num_variables: int
    float32_outputs: tuple[str, ...] = ()

    def build(self, **kwargs):
        """Returns the layer with distinct weights."""
        layer = self.cls(**self.arguments, **kwargs)
        layer(**self.inputs())
        return tiny_layers.randomize(layer)


def _hidden(name="hidden_states"):
    return lambda: {name: tiny_layers.normal(3, 5, 8)}


def _attention_inputs():
    mask = tiny_layers.inputs()["input_mask"]
    return _hidden()() | {
        "attention_bias": attention.build_attention_bias(mask).numpy()
    }


def _embedding_inputs():
    names = ("input_ids", "segment_ids")
    return {name: tiny_layers.inputs()[name] for name in names}


def _masked_lm_inputs():
    return {
        "sequence_output": tiny_layers.normal(3, 5, 8),
        "word_embeddings": tiny_layers.normal(19, 8, seed=1),
        "masked_lm_positions": tiny_layers.integers(5, 3, 2),
    }


def _pretraining_inputs():
    positions = {"masked_lm_positions": tiny_layers.integers(5, 3, 2)}
    return {"inputs": tiny_layers.inputs() | positions}


def _multiple_choice_inputs():
    """Returns three examples with two choices each."""
    inputs = tiny_layers.inputs(batch=6).items()
    return {"inputs": {name: x.reshape(3, 2, 5) for name, x in inputs}}


_CONFIG = {"config": tiny_layers.CONFIG}
# The outputs of the encoder give each of its weights a large gradient.
# One layer, as other models are the encoder of two layers and a head.
_MODEL = {
    "config": tiny_layers.replace(num_hidden_layers=1),
    "return_encoder_outputs": True,
}
_PRETRAINING_LOGITS = ("masked_lm_logits", "next_sentence_logits")

_ENTRIES = (
    Entry(layers.Projection, {"width": 6}, _hidden("inputs"), 2),
    Entry(layers.LayerNorm, {"epsilon": 0.01}, _hidden("inputs"), 2),
    Entry(layers.Intermediate, _CONFIG, _hidden("inputs"), 2),
    Entry(
        layers.ResidualOutput,
        _CONFIG,
        lambda: {
            "inputs": tiny_layers.normal(3, 5, 12),
            "residual": tiny_layers.normal(3, 5, 8),
        },
        4,
    ),
    Entry(bert.Embeddings, _CONFIG, _embedding_inputs, 5),
    Entry(attention.SelfAttention, _CONFIG, _attention_inputs, 6),
    Entry(attention.Attention, _CONFIG, _attention_inputs, 10),
    Entry(encoder.EncoderLayer, _CONFIG, _attention_inputs, 16),
    Entry(encoder.Encoder, _CONFIG, _attention_inputs, 32),
    Entry(heads.Pooler, _CONFIG, _hidden("sequence_output"), 2),
    Entry(heads.Transform, _CONFIG, _hidden("inputs"), 4),
    Entry(heads.MaskedLMHead, _CONFIG, _masked_lm_inputs, 5, ("",)),
    Entry(
        heads.LinearHead,
        _CONFIG | {"num_outputs": 3},
        _hidden("inputs"),
        2,
        ("",),
    ),
    Entry(
        heads.LayerCombination,
        _CONFIG | {"combination": "weighted_sum_all_layers"},
        lambda: {
            "embedding_output": tiny_layers.normal(3, 5, 8),
            "encoder_outputs": [
                tiny_layers.normal(3, 5, 8, seed=n) for n in (1, 2)
            ],
        },
        2,
    ),
    Entry(
        bilstm.BiLSTM,
        {"units": 3},
        lambda: {
            "inputs": tiny_layers.normal(3, 5, 8),
            "input_mask": tiny_layers.inputs()["input_mask"],
        },
        6,
    ),
    Entry(
        bert.BertModel, _CONFIG, lambda: {"inputs": tiny_layers.inputs()}, 39
    ),
    Entry(
        bert.BertForPretraining,
        _MODEL,
        _pretraining_inputs,
        30,
        _PRETRAINING_LOGITS,
    ),
    Entry(
        task_models.BertForClassification,
        _MODEL | {"labels": ["no", "maybe", "yes"]},
        lambda: {"inputs": tiny_layers.inputs()},
        25,
        ("logits",),
    ),
    Entry(
        task_models.BertForTagging,
        _MODEL | {"num_labels": 4, "head_dropout_prob": 0.3},
        lambda: {"inputs": tiny_layers.inputs()},
        25,
        ("logits",),
    ),
    Entry(
        task_models.BertForQuestionAnswering,
        _MODEL,
        lambda: {"inputs": tiny_layers.inputs()},
        25,
        ("start_logits", "end_logits"),
    ),
    Entry(
        task_models.BertForMultipleChoice,
        _MODEL,
        _multiple_choice_inputs,
        25,
        ("logits",),
    ),
)

ENTRIES = tuple((entry.cls.__name__, entry) for entry in _ENTRIES)
