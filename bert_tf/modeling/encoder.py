"""The stack of encoder layers, and rematerialization to save memory.

With `remat`, only the inputs and outputs of layers are kept, and the backward
pass computes each layer again. So only one layer's activations are in memory at
a time, but training takes a third more computation. Dropout masks stay equal.
Results may differ by rounding, unless the functions in `fused` are compiled.
Source: Chen et al., 2016, "Training deep nets with sublinear memory cost".

Hidden states are [B, S, H], or [tokens, H] without padding; see `layouts`.

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size.
  N: attention heads.
"""

import keras
import tensorflow as tf

from bert_tf.modeling import activations
from bert_tf.modeling import attention
from bert_tf.modeling import layers

# Dropouts of a layer: attention weights, attention output and layer output.
_DROPOUTS_PER_LAYER = 3


@keras.saving.register_keras_serializable(package="bert_tf")
class EncoderLayer(layers.BertLayer):
    """Self-attention and feed-forward, each with residual and layer norm.

    Call arguments and results are the same as in `attention.Attention`.
    Source: modeling.py:826-880 of the original.
    """

    def __init__(self, config, dropout_id=0, fuse=False, **kwargs):
        super().__init__(config, dropout_id, fuse, **kwargs)
        self.attention = self.add_layer(
            attention.Attention, "attention", dropout_id
        )
        self.intermediate = self.add_layer(layers.Intermediate, "intermediate")
        self.residual_output = self.add_layer(layers.ResidualOutput, "output")

    def build(self, hidden_states_shape, attention_bias_shape=None):
        self.attention.build(hidden_states_shape)
        self.intermediate.build(hidden_states_shape)
        inner = self.bert_config.intermediate_size
        self.residual_output.build((*hidden_states_shape[:-1], inner))

    def set_dropout_id(self, dropout_id):
        """Sets the id of the first dropout, an integer or <uint32>[]."""
        self.dropout_id = self.attention.dropout_id = dropout_id
        self.attention.self_attention.dropout_id = dropout_id

    def call(
        self, hidden_states, attention_bias, dropout_seeds=None, layout=None
    ):
        layout = layout or self.padded
        attended, probs = self.attention(
            hidden_states,
            attention_bias,
            dropout_seeds=dropout_seeds,
            layout=layout,
        )
        inner = self.intermediate(attended)
        width = self.bert_config.hidden_size
        keys = layout.draw_keys(dropout_seeds, self.dropout_id + 2, width)
        return self.residual_output(inner, attended, keys), probs


@keras.saving.register_keras_serializable(package="bert_tf")
class Encoder(layers.BertLayer):
    """`num_hidden_layers` encoder layers, named layer_0, layer_1, ...

    Args:
      config: The model's `BertConfig`, or its dictionary.
      remat: Whether the backward pass recomputes layers.
      **kwargs: As for `BertLayer`.

    Call arguments: As for `EncoderLayer`.

    Returns:
      Two lists with one entry per layer: hidden states <float>[..., H], rows of
      the layout, and attention weights <float>[B, N, S, S], all in the compute
      dtype. The second list may be empty if `needs_weights` is False.
    """

    def __init__(self, config, dropout_id=0, fuse=False, remat=False, **kwargs):
        super().__init__(config, dropout_id, fuse, **kwargs)
        self.remat = remat
        # Whether calls must return attention weights.
        self.needs_weights = False
        # Whether all layers in a graph share one function. `fit` sets this to
        # start sooner. Scripts do not, because gradients would be added in
        # another order, which changes the last digits of results.
        self.shares_graph = False
        self.encoder_layers = [
            self.add_layer(
                EncoderLayer,
                f"layer_{index}",
                dropout_id + index * _DROPOUTS_PER_LAYER,
            )
            for index in range(self.bert_config.num_hidden_layers)
        ]

    def build(self, hidden_states_shape, attention_bias_shape=None):
        self.output_shape = hidden_states_shape
        for layer in self.encoder_layers:
            layer.build(hidden_states_shape)

    def call(
        self, hidden_states, attention_bias, dropout_seeds=None, layout=None
    ):
        arguments = {"dropout_seeds": dropout_seeds, "layout": layout}
        # Recompute only in training: inference has no seeds and no gradients.
        if self.remat and dropout_seeds is not None:
            return self._rematerialize(
                hidden_states, attention_bias, arguments
            ), []
        returns_weights = self.needs_weights or tf.executing_eagerly()
        if self.shares_graph and not returns_weights:
            return self._call_one_function(
                hidden_states, attention_bias, arguments
            ), []
        outputs, weights = [], []
        for layer in self.encoder_layers:
            hidden_states, probs = layer(
                hidden_states, attention_bias, **arguments
            )
            outputs.append(hidden_states)
            weights.append(probs)
        return outputs, weights

    def _call_one_function(self, hidden_states, attention_bias, arguments):
        """Calls one function for all layers, and returns their hidden states.

        TensorFlow then builds and optimizes one graph and its gradient. A graph
        for each layer would take most of the startup time.
        """
        first, *_ = self.encoder_layers
        dropout_ids = [layer.dropout_id for layer in self.encoder_layers]

        # With inlining, TensorFlow would slowly optimize a copy for each layer.
        @tf.function(
            autograph=False, experimental_attributes={"_noinline": True}
        )
        def encoder_layer(inputs, dropout_id, weights):
            values = [*zip(first.variables, weights, strict=True)]
            first.set_dropout_id(dropout_id)
            with keras.StatelessScope(values), activations.in_function():
                return first(inputs, attention_bias, **arguments)[0]

        outputs = [hidden_states]
        try:
            for layer, dropout_id in zip(
                self.encoder_layers, dropout_ids, strict=True
            ):
                weights = [tf.convert_to_tensor(x) for x in layer.variables]
                # Hide the constant, or TensorFlow copies the function for each.
                number = tf.raw_ops.PlaceholderWithDefault(
                    input=tf.constant(dropout_id, tf.uint32), shape=[]
                )
                outputs.append(encoder_layer(outputs[-1], number, weights))
        finally:
            first.set_dropout_id(dropout_ids[0])
        return outputs[1:]

    def _rematerialize(self, hidden_states, attention_bias, arguments):
        """Returns the hidden states of all layers and keeps nothing else."""
        outputs = []
        for layer in self.encoder_layers:

            def compute(inputs, layer=layer):
                return layer(inputs, attention_bias, **arguments)[0]

            hidden_states = tf.recompute_grad(compute)(hidden_states)
            outputs.append(hidden_states)
        return outputs

    def get_config(self):
        return super().get_config() | {"remat": self.remat}


def keep_recomputation(num_local_replicas):
    """Keeps TensorFlow from undoing rematerialization on several devices.

    Control dependencies delay the recomputation of a layer until the backward
    pass needs it. If a process uses several devices (`num_local_replicas`),
    TensorFlow's optimizer would drop these dependencies, so all layers would be
    recomputed and kept at once.
    """
    if num_local_replicas > 1:
        tf.config.optimizer.set_experimental_options(
            {"dependency_optimization": False}
        )
