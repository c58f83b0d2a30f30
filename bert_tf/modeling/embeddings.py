"""The sum of word, segment and position embeddings.

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size.
"""

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.modeling import layers


@tf.custom_gradient
def lookup(table, ids):
    """Gathers rows of a table, with a dense gradient.

    `tf.gather` has a sparse gradient, whose repeated rows distort a global
    norm and which replicas cannot add up cheaply.

    Args:
      table: <float>[rows, width].
      ids: <int32>[...].

    Returns:
      <float>[..., width].
    """
    rows, width = table.shape

    def gradient(upstream):
        flat = tf.reshape(upstream, [-1, width])
        indices = tf.reshape(ids, [-1])
        return tf.math.unsorted_segment_sum(flat, indices, rows), None

    return tf.gather(table, ids), gradient


@keras.saving.register_keras_serializable(package="bert_tf")
class Embeddings(layers.BertLayer):
    """layer_norm(word + segment + position), then dropout.

    Source: modeling.py:433-520 of the original.

    Call arguments:
      input_ids: <int32>[B, S].
      segment_ids: <int32>[B, S].
      dropout_seeds: <int32>[B], or None for no dropout.
      layout: The layout of the result, see `layouts`; by default padded.

    Returns:
      <float>[..., H], rows of the layout, by default [B, S, H], in the compute
      dtype.

    Raises:
      UserError: If S is above `max_position_embeddings`.
    """

    def build(self, input_ids_shape, segment_ids_shape=None):
        config = self.bert_config
        self.output_shape = (*input_ids_shape, config.hidden_size)
        self.word_embeddings = self._add_table(
            "word_embeddings", config.vocab_size
        )
        self.token_type_embeddings = self._add_table(
            "token_type_embeddings", config.type_vocab_size
        )
        self.position_embeddings = self._add_table(
            "position_embeddings", config.max_position_embeddings
        )
        self.layer_norm = layers.LayerNorm(
            config.layer_norm_eps,
            config.hidden_dropout_prob,
            self.fuse,
            dtype=self.dtype_policy,
            name="LayerNorm",
        )
        self.layer_norm.build((*input_ids_shape, config.hidden_size))

    def _add_table(self, name, rows):
        return self.add_variable(
            name,
            (rows, self.bert_config.hidden_size),
            layers.truncated_normal(self.bert_config.initializer_range),
            self.variable_dtype,
        )

    def call(self, input_ids, segment_ids, dropout_seeds=None, layout=None):
        layout = layout or self.padded
        positions = self._positions(self._length(input_ids))
        input_ids = layout.select(input_ids)
        segment_ids = layout.select(segment_ids)
        table = tf.convert_to_tensor(self.word_embeddings)
        # Without a gradient, plain `tf.gather` runs on every server.
        look_up = tf.gather if self.for_inference else lookup
        words = tf.cast(look_up(table, input_ids), tf.float32)
        # For so few segments a product with one-hot rows is faster than
        # gathering, above all in the backward pass.
        segments = tf.matmul(
            tf.one_hot(segment_ids, self.bert_config.type_vocab_size),
            tf.cast(self.token_type_embeddings, tf.float32),
        )
        positions = layout.select_positions(tf.cast(positions, tf.float32))
        width = self.bert_config.hidden_size
        keys = layout.draw_keys(dropout_seeds, self.dropout_id, width)
        return self.layer_norm(words + segments + positions, keys)

    def _positions(self, length):
        """Returns the embeddings of the first positions, <float>[S, H]."""
        if self.for_inference:
            # TensorFlow Lite keeps tables in int8 only if they are gathered
            # from.
            return tf.gather(self.position_embeddings, tf.range(length))
        return self.position_embeddings[:length]

    def _length(self, input_ids):
        """Returns S: an integer if it is known, as exports require."""
        length = input_ids.shape[1]
        if length is None:
            return tf.shape(input_ids)[1]
        if length > self.bert_config.max_position_embeddings:
            raise UserError(
                "A sequence cannot be longer than `max_position_embeddings`. "
                f"Received: a sequence of {length}, max_position_embeddings="
                f"{self.bert_config.max_position_embeddings}."
            )
        return length
