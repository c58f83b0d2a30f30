"""The weights of a model under a format's names; the reverse of matching."""

import numpy as np

from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_layout
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError


def translate(
    weights: Tensors, config: BertConfig, weights_format: str
) -> tuple[Tensors, tuple[str, ...]]:
    """Renames and rearranges weights for a format.

    Args:
      weights: Canonical name to value.
      config: The shape of the model.
      weights_format: A column of `weight_map.Row`, or "tf1".

    Returns:
      The format's name to value, each contiguous and made when it is asked
      for; and the canonical names of weights that the format does not have.

    Raises:
      UserError: If there are BiLSTMs, without which the head over them would
        be another in a format that has none.
    """
    is_ours = weights_format in ("bert_tf", "tf1")
    if not is_ours and any(map(recurrent_heads.belongs, weights)):
        raise UserError(
            "The model has BiLSTMs under its head, and the format "
            f"{weights_format} has no such models; convert it to bert_tf, or "
            "another model."
        )
    named = [
        (row, weight_map.name_in(row, weights_format))
        for row in recurrent_heads.rows(config, weights.shapes)
        if row.name in weights
    ]
    rows = {name: row for row, name in named if name is not None}
    heads = config.num_attention_heads

    def convert(row, value):
        return weight_layout.to_format(value, row.layout, weights_format, heads)

    shapes = {
        name: convert(
            row, np.broadcast_to(np.int8(0), weights.shapes[row.name])
        ).shape
        for name, row in rows.items()
    }

    def read(name):
        row = rows[name]
        return np.ascontiguousarray(convert(row, weights[row.name]))

    left = tuple(row.name for row, name in named if name is None)
    return Tensors(shapes, read), left
