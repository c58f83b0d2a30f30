"""Combinations of encoder layers for feature-based models (paper, Table 7).

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size.
  L: encoder layers.
"""

import keras
import tensorflow as tf

from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.errors import UserError
from bert_tf.modeling import layers

_FOUR = 4
# The least number of encoder layers that each needs.
_LEAST_LAYERS = {
    "second_to_last_hidden": 2,
    "weighted_sum_last_four_hidden": _FOUR,
    "concat_last_four_hidden": _FOUR,
}


@keras.saving.register_keras_serializable(package="bert_tf")
class LayerCombination(layers.BertLayer):
    """One of the six combinations of the encoder's layers in Table 7.

    - embeddings: the sum of the embeddings, normalized.
    - second_to_last_hidden, last_hidden: the output of one encoder layer.
    - weighted_sum_last_four_hidden, weighted_sum_all_layers (the paper's
      Weighted Sum All 12 Layers): the paper does not specify the weights. They
      are learned here, as in ELMo, with which that table compares: a softmax
      over the layers, equal at first, times a scale, 1 at first. The
      embeddings are not one of the layers.
    - concat_last_four_hidden: concatenated, the last layer's output last.

    Args:
      config: The model's `BertConfig`, or its dictionary.
      combination: One of `bert_tf.config.LAYER_COMBINATIONS`.
      **kwargs: As for `BertLayer`.

    Call arguments:
      embedding_output: <float>[B, S, H].
      encoder_outputs: A list of <float>[B, S, H], one for each of L layers.

    Returns:
      <float>[B, S, H], or [B, S, 4H] if layers are concatenated, in the
      compute dtype.

    Raises:
      UserError: If the combination is unknown, or the encoder has too few
        layers for it.

    Reference:
      Peters et al., 2018, https://arxiv.org/abs/1802.05365, equation 1.
    """

    def __init__(self, config, combination, **kwargs):
        super().__init__(config, **kwargs)
        _check(combination, self.bert_config.num_hidden_layers)
        self.combination = combination

    @property
    def is_weighted(self):
        """True if the combination has weights of its own."""
        return self.combination.startswith("weighted_sum")

    @property
    def width(self):
        """Width of the result."""
        parts = _FOUR if self.combination == "concat_last_four_hidden" else 1
        return parts * self.bert_config.hidden_size

    def build(self, embedding_output_shape, encoder_outputs_shape=None):
        if not self.is_weighted:
            return
        number = self.bert_config.num_hidden_layers
        if self.combination == "weighted_sum_last_four_hidden":
            number = _FOUR
        self.layer_weights = self.add_variable("weights", (number,), "zeros")
        self.scale = self.add_variable("scale", (1,), "ones")

    def call(self, embedding_output, encoder_outputs):
        if self.combination == "embeddings":
            return embedding_output
        if self.combination == "last_hidden":
            return encoder_outputs[-1]
        if self.combination == "second_to_last_hidden":
            return encoder_outputs[-2]
        if self.combination == "concat_last_four_hidden":
            return tf.concat(encoder_outputs[-_FOUR:], axis=-1)
        shares = tf.nn.softmax(tf.convert_to_tensor(self.layer_weights))
        summed = encoder_outputs[-self.layer_weights.shape[0] :]
        total = tf.add_n(
            [
                tf.cast(layer, tf.float32) * share
                for layer, share in zip(summed, tf.unstack(shares), strict=True)
            ]
        )
        return tf.cast(total * self.scale, self.compute_dtype)

    def get_config(self):
        return super().get_config() | {"combination": self.combination}


def _check(combination, num_layers):
    if combination not in LAYER_COMBINATIONS:
        raise UserError(
            "The layer combination must be one of "
            f"{', '.join(LAYER_COMBINATIONS)}. Received: {combination!r}."
        )
    least = _LEAST_LAYERS.get(combination, 1)
    if num_layers < least:
        raise UserError(
            f"The layer combination {combination} needs an encoder of "
            f"{least} layers at least. Received: one of {num_layers}."
        )
