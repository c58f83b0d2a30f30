"""Builds a fused, inference-only copy of a model.

One product computes queries, keys and values. TensorFlow fuses product, bias
and activation into one operation. Weights and activations share a dtype.
The copy has no dropout and no gradient.
"""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import layers

# The merged kernel has the query, key and value kernels in this order.
_MERGED = ("query", "key", "value")
_MERGED_NAME = "query_key_value"


def prepare(
    model: keras.Model,
    precision: str = "float32",
    shares_weights: bool = False,
    **values: Any,
) -> keras.Model:
    """Returns a copy of a model in the form that predicts fastest.

    Args:
      model: A model of `bert_tf.modeling`.
      precision: "float32", "bfloat16" or "float16". Sums of embeddings, layer
        normalization and logits are always computed in float32.
      shares_weights: As for `copy_weights`.
      **values: Arguments of the class, to leave out parts of the model; for
        instance `heads=["masked_lm"]`.

    Returns:
      A model of the same class with copies of the weights. The copy has the
      same inputs and outputs, without the parts that are left out.
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

    With `shares_weights` the copy uses the model's own variables, to save time
    and memory, if their dtype and devices match.
    """
    weights = bert_model.named_variables(model)
    for name, variable in bert_model.named_variables(prepared).items():
        if shares_weights and _are_alike(weights.get(name), variable):
            variable._value = weights[name]._value
            continue
        parts = [
            tf.convert_to_tensor(weights[part]) for part in _parts_of(name)
        ]
        value = parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)
        variable.assign(tf.cast(value, variable.dtype))


def _are_alike(own: keras.Variable | None, variable: keras.Variable) -> bool:
    """Returns whether both variables exist, with equal dtype and devices."""
    kind = (variable.dtype, type(variable._value))
    return own is not None and (own.dtype, type(own._value)) == kind


def _parts_of(name: str) -> list[str]:
    """Returns the names of the weights that are concatenated to `name`."""
    if f"/{_MERGED_NAME}/" not in name:
        return [name]
    return [name.replace(f"/{_MERGED_NAME}/", f"/{x}/") for x in _MERGED]
