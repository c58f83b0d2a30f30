"""Builds a fused, inference-only copy of a model.

In the copy, one product computes queries, keys and values, and TensorFlow fuses
product, bias and activation into one operation. Weights and activations share a
dtype. The copy has no dropout and no gradient.
"""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import layers


def prepare(
    model: keras.Model,
    precision: str = "float32",
    shares_weights: bool = False,
    **values: Any,
) -> keras.Model:
    """Returns a copy of a model in the form that predicts fastest.

    Args:
      model: A model of `bert_tf.modeling`.
      precision: "float32", "bfloat16" or "float16". Layer normalization, logits
        and the sum of the embeddings are float32 in every precision.
      shares_weights: As for `copy_weights`.
      **values: Arguments of the class to change, for instance
        `heads=["masked_lm"]` to copy only this head.
    """
    config = model.get_config() | {
        "for_inference": True,
        "fuse": False,
        "dtype": precision,
        **values,
    }
    with layers.without_initial_values():
        prepared = type(model).from_config(config)
    copy_weights(model, prepared, shares_weights)
    return prepared


def copy_weights(
    model: keras.Model, prepared: keras.Model, shares_weights: bool = False
) -> None:
    """Copies the weights of a model into the copy that `prepare` returned.

    With `shares_weights`, the copy saves time and memory: it uses the model's
    own variables where dtype and devices match.
    """
    weights = bert_model.named_variables(model)
    for name, variable in bert_model.named_variables(prepared).items():
        own = weights.get(name)
        if shares_weights and own is not None and _kind(own) == _kind(variable):
            variable._value = own._value
            continue
        # query_key_value concatenates three weights, in the order of its name.
        names = [name]
        if "/query_key_value/" in name:
            kinds = ("query", "key", "value")
            names = [name.replace("query_key_value", x) for x in kinds]
        parts = [tf.convert_to_tensor(weights[x]) for x in names]
        value = parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)
        variable.assign(tf.cast(value, variable.dtype))


def _kind(variable: keras.Variable) -> tuple[str, type]:
    # The type differs if a strategy keeps a copy on each device.
    return variable.dtype, type(variable._value)
