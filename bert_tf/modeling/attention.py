"""Multi-head self-attention over padded sequences.

Hidden states are rows of a layout (see `layouts`); attention itself is always
computed for all positions of a batch.

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size.
  N: attention heads.
  D: head size, H / N.
"""

import keras
import tensorflow as tf

from bert_tf.modeling import dropout
from bert_tf.modeling import fused
from bert_tf.modeling import layers


def build_attention_bias(input_mask, left_to_right=False):
    """Returns the bias that masks attention scores; the original's `adder`.

    The mask 1 1 0 gives 0 0 -10000 for every query; left to right, the first
    query gets 0 -10000 -10000. With minus infinity, the softmax would be NaN if
    a row has only padding. Source: modeling.py:705-713 of the original.

    Args:
      input_mask: <int32>[B, S], 1 for tokens and 0 for padding.
      left_to_right: Whether a token attends only to itself and the tokens
        before it (paper, Table 5).

    Returns:
      <float32>[B, 1, 1, S], or [B, 1, S, S] if `left_to_right`.
    """
    # TensorFlow Lite cannot convert [:, tf.newaxis, ...], so use expand_dims.
    mask = tf.expand_dims(tf.cast(input_mask, tf.float32), 1)
    mask = tf.expand_dims(mask, 1)
    if left_to_right:
        position = tf.range(dropout.shape_of(mask)[-1])
        seen = position[tf.newaxis, :] <= position[:, tf.newaxis]  # [S, S]
        mask *= tf.cast(seen, tf.float32)
    return (1.0 - mask) * -10000.0


@keras.saving.register_keras_serializable(package="bert_tf")
class SelfAttention(layers.BertLayer):
    """Lets every token attend to every token that is not padding.

    `Attention` adds the output projection, residual connection and layer norm.
    Source: modeling.py:559-751 of the original.

    Call arguments:
      hidden_states: <float>[..., H], rows of the layout.
      attention_bias: <float32>[B, 1, 1 or S, S] from `build_attention_bias`.
      dropout_seeds: <int32>[B], or None for no dropout.
      layout: The layout of the rows; by default padded, [B, S, H].

    Returns:
      A pair in the compute dtype: the context, shaped like `hidden_states`
      <float>[..., H], and the attention weights after dropout,
      <float>[B, N, S, S].

    Reference:
      Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.2.
    """

    def build(self, hidden_states_shape, attention_bias_shape=None):
        config = self.bert_config
        self.head_size = config.hidden_size // config.num_attention_heads
        width, shape = config.hidden_size, hidden_states_shape
        if self.for_inference:
            name = "query_key_value"
            self.query_key_value = self.project(3 * width, shape, name)
            return
        self.query = self.project(width, shape, "query")
        self.key = self.project(width, shape, "key")
        self.value = self.project(width, shape, "value")

    def call(
        self, hidden_states, attention_bias, dropout_seeds=None, layout=None
    ):
        layout = layout or self.padded
        if self.for_inference:
            return self._infer(hidden_states, attention_bias, layout)
        query, key, value = (
            fused.bias_split_heads(
                projection(hidden_states),
                tf.convert_to_tensor(projection.bias),
                layout,
                jit=self.fuse,
            )
            for projection in (self.query, self.key, self.value)
        )  # [B, N, S, D] each
        probs = fused.masked_softmax_dropout(
            tf.matmul(query, key, transpose_b=True),
            attention_bias,
            dropout.draw_keys(dropout_seeds, self.dropout_id),
            scale=self.head_size**-0.5,
            rate=self.bert_config.attention_probs_dropout_prob,
            jit=self.fuse,
        )  # [B, N, S, S]
        return layout.merge_heads(tf.matmul(probs, value)), probs

    def _infer(self, hidden_states, attention_bias, layout):
        """Returns the results of `call`, computed in the compute dtype.

        No casts separate the operations, so TensorFlow's optimizer fuses the
        product of queries and keys, the scale and the attention bias into one.
        """
        parts = layout.split_heads(
            self.query_key_value.affine(hidden_states), like=hidden_states
        )
        query, key, value = tf.unstack(parts, num=3)  # [B, N, S, D] each
        scores = tf.matmul(query, key, transpose_b=True)
        scale = tf.constant(self.head_size**-0.5, scores.dtype)
        probs = tf.nn.softmax(
            scores * scale + tf.cast(attention_bias, scores.dtype)
        )
        return layout.merge_heads(tf.matmul(probs, value)), probs


@keras.saving.register_keras_serializable(package="bert_tf")
class Attention(layers.BertLayer):
    """Self-attention with output projection, residual and layer norm.

    Call arguments: As for `SelfAttention`.

    Returns:
      The hidden states <float>[..., H], rows of the layout, and the attention
      weights <float>[B, N, S, S], both in the compute dtype.
    """

    def __init__(self, config, dropout_id=0, fuse=False, **kwargs):
        super().__init__(config, dropout_id, fuse, **kwargs)
        self.self_attention = self.add_layer(SelfAttention, "self", dropout_id)
        self.residual_output = self.add_layer(layers.ResidualOutput, "output")

    def build(self, hidden_states_shape, attention_bias_shape=None):
        self.self_attention.build(hidden_states_shape)
        self.residual_output.build(hidden_states_shape)

    def call(
        self, hidden_states, attention_bias, dropout_seeds=None, layout=None
    ):
        layout = layout or self.padded
        context, probs = self.self_attention(
            hidden_states,
            attention_bias,
            dropout_seeds=dropout_seeds,
            layout=layout,
        )
        width = self.bert_config.hidden_size
        keys = layout.draw_keys(dropout_seeds, self.dropout_id + 1, width)
        return self.residual_output(context, hidden_states, keys), probs
