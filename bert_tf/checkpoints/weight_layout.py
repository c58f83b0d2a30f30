"""How the formats keep the numbers of a weight; see `weight_map.Row.layout`."""

import numpy as np

from bert_tf.checkpoints import weight_map
from bert_tf.config import BertConfig


def to_format(
    value: np.ndarray, layout: str, weights_format: str, num_heads: int
) -> np.ndarray:
    """Rearranges a weight of ours as a format keeps it.

    Args:
      value: <float>, in our shape.
      layout: Of its `Row`.
      weights_format: One of the formats that `Row` names.
      num_heads: Attention heads of the model.

    Returns:
      A view of `value`, or a copy.
    """
    if weights_format in ("bert_tf", "tf1") or layout == "same":
        return value
    if weights_format == "huggingface":
        kernels = ("dense", "per_head_out", "per_head_in")
        return value.T if layout in kernels else value
    if layout == "per_head_out":
        return value.reshape(value.shape[0], num_heads, -1)
    if layout == "per_head_bias":
        return value.reshape(num_heads, -1)
    if layout == "per_head_in":
        return value.reshape(num_heads, -1, value.shape[1])
    return value.T if layout == "output" else value


def from_format(
    value: np.ndarray, layout: str, weights_format: str
) -> np.ndarray:
    """The reverse of `to_format`."""
    if weights_format in ("bert_tf", "tf1", "huggingface") or layout in (
        "same",
        "dense",
        "output",
    ):
        # Transposing undoes itself.
        return to_format(value, layout, weights_format, 1)
    if layout == "per_head_out":
        return value.reshape(value.shape[0], -1)
    if layout == "per_head_in":
        return value.reshape(-1, value.shape[-1])
    return value.reshape(-1)


def shape_in(
    row: weight_map.Row,
    weights_format: str,
    config: BertConfig,
    num_labels: int = 0,
) -> weight_map.Shape:
    """Returns the shape of a row's weight in a format."""
    ours = np.broadcast_to(
        np.int8(0), weight_map.shape_of(row, config, num_labels)
    )
    heads = config.num_attention_heads
    return to_format(ours, row.layout, weights_format, heads).shape
