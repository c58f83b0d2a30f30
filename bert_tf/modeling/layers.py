"""Base classes of layers, projections and layer normalization.

Shapes:
  B: batch size.
  S: sequence length.
  T: rows of unpadded hidden states.
  H: hidden size.
  I: intermediate size.
"""

import contextlib

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.modeling import activations
from bert_tf.modeling import dropout
from bert_tf.modeling import fused
from bert_tf.modeling import layouts


class TruncatedNormal(keras.initializers.TruncatedNormal):
    """The initializer of kernels; it is skipped in `without_initial_values`."""

    is_skipped = False

    def __call__(self, shape, dtype=None):
        if self.is_skipped:
            return tf.raw_ops.Empty(shape=shape, dtype=dtype)
        return super().__call__(shape, dtype)


@contextlib.contextmanager
def without_initial_values():
    """Skips random initial values, to save time if weights are loaded next."""
    TruncatedNormal.is_skipped = True
    try:
        yield
    finally:
        TruncatedNormal.is_skipped = False


def initialize(variable, anew=False):
    """Sets the initial value if it may be skipped, or always with `anew`."""
    if anew or isinstance(variable.initial, TruncatedNormal):
        initializer = keras.initializers.get(variable.initial)
        variable.assign(initializer(tuple(variable.shape), variable.dtype))


def as_config(config):
    """Returns a `BertConfig`, made from its dictionary if necessary."""
    if isinstance(config, BertConfig):
        return config
    return BertConfig.from_dict(config)


class Configured:
    """A mixin for layers and models with a `BertConfig`."""

    def add_layer(self, cls, name, dropout_id=0, **kwargs):
        """Returns a new layer with the same configuration and precision."""
        return cls(
            self.bert_config,
            dropout_id=dropout_id,
            fuse=self.fuse,
            for_inference=self.for_inference,
            dtype=self.dtype_policy,
            name=name,
            **kwargs,
        )

    def get_config(self):
        return super().get_config() | {
            "config": self.bert_config.to_dict(),
            "fuse": self.fuse,
            "for_inference": self.for_inference,
        }


# Maps old to new keys, so that .keras files of earlier versions still load.
_OLD_KEYS = {
    "salt": "dropout_id",
    "adder": "attention_bias",
    "adder_shape": "attention_bias_shape",
}


def _rename_old_keys(values):
    return {_OLD_KEYS.get(key, key): value for key, value in values.items()}


class BasicLayer(keras.layers.Layer):
    """A layer that casts its inputs and weights itself.

    Keras' automatic casting would also round the attention bias and the
    weights of layer normalization to the compute dtype.
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)

    def add_variable(self, name, shape, initializer, dtype="float32"):
        """Adds a variable that keeps its own dtype when it is read."""
        variable = self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            dtype=dtype,
            autocast=False,
        )
        variable.initial = initializer  # For `initialize`.
        return variable


class BertLayer(Configured, BasicLayer):
    """A layer that takes its sizes and rates from a `BertConfig`.

    Args:
      config: The model's `BertConfig`, or its dictionary.
      dropout_id: The id of this layer's first dropout, unique in the model. The
        layer's other dropouts have the next ids.
      fuse: Whether to compile elementwise operations, see `fused`.
      for_inference: Whether the layer is only for inference, see `inference`.
      **kwargs: As for `keras.layers.Layer`.
    """

    def __init__(
        self, config, dropout_id=0, fuse=False, for_inference=False, **kwargs
    ):
        super().__init__(**kwargs)
        self.bert_config = as_config(config)
        self.dropout_id = dropout_id
        self.fuse = fuse
        self.for_inference = for_inference

    @property
    def padded(self):
        """The layout of hidden states of all positions."""
        return layouts.Padded(
            self.bert_config.num_attention_heads, self.for_inference
        )

    def project(self, width, input_shape, name="dense"):
        """Returns a new, built `Projection` of this layer's precision."""
        projection = Projection(
            width,
            self.bert_config.initializer_range,
            dtype=self.dtype_policy,
            name=name,
        )
        projection.build(input_shape)
        return projection

    def activate(self, projection, inputs, activation):
        """Returns activation(inputs . kernel + bias) of a projection."""
        if self.for_inference:
            return projection.affine(inputs, activation)
        return fused.bias_activation(
            projection(inputs),
            tf.convert_to_tensor(projection.bias),
            activation,
            jit=self.fuse,
        )

    def get_config(self):
        return super().get_config() | {"dropout_id": self.dropout_id}

    @classmethod
    def from_config(cls, config):
        return super().from_config(_rename_old_keys(config))

    def build_from_config(self, config):
        if "shapes_dict" in config:
            shapes = _rename_old_keys(config["shapes_dict"])
            config = config | {"shapes_dict": shapes}
        super().build_from_config(config)

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **_rename_old_keys(kwargs))


@keras.saving.register_keras_serializable(package="bert_tf")
class Projection(BasicLayer):
    """A matrix product and its bias.

    `call` only multiplies: a function in `fused` adds the bias together with
    later operations. `affine` also adds the bias, for inference. The kernel is
    [input width, width] as in `keras.layers.Dense`.

    Args:
      width: Number of columns of the kernel.
      initializer_range: Standard deviation of the kernel's initializer.

    Call arguments:
      inputs: <float>[..., input width].

    Returns:
      <float>[..., width] in the compute dtype.

    Attributes:
      column_scales: <float32>[width] or None. `affine` divides column i of the
        kernel by scale i, and multiplies column i of the result by it. So a
        quantized kernel can have one scale for all columns.
      input_scales: <float32>[input width] or None, as `column_scales`. `affine`
        divides column i of the inputs by scale i, and multiplies row i of the
        kernel by it.
      on_rows: None, or a function that `affine` calls before the activation
        with the inputs <float>[..., input width] and the product plus bias,
        <float>[rows, width].
    """

    def __init__(self, width, initializer_range=0.02, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.initializer_range = initializer_range
        self.column_scales = None
        self.input_scales = None
        self.on_rows = None

    def build(self, input_shape):
        self.kernel = self.add_variable(
            "kernel",
            (input_shape[-1], self.width),
            TruncatedNormal(stddev=self.initializer_range),
            self.variable_dtype,
        )
        self.bias = self.add_variable(
            "bias", (self.width,), "zeros", self.variable_dtype
        )

    def call(self, inputs):
        return self._with_width(self._multiply(inputs), inputs)

    def affine(self, inputs, activation="linear"):
        """Returns activation(inputs . kernel + bias), for inference.

        Everything is computed in the compute dtype, so TensorFlow's optimizer
        can fuse product, bias and activation into one operation.
        """
        activate = activations.get(activation)
        if self.column_scales is not None:
            return activate(self._scaled(inputs))
        rows = self._add_bias(inputs, self.bias)
        if self.on_rows is not None:
            self.on_rows(inputs, rows)
        return self._with_width(activate(rows), inputs)

    def _scaled(self, inputs):
        """Returns inputs . kernel + bias, computed with scaled columns."""
        columns = tf.constant(self.column_scales, self.compute_dtype)
        of_inputs = tf.constant(self.input_scales, self.compute_dtype)
        rows = self._add_bias(
            tf.cast(inputs, self.compute_dtype) * (1.0 / of_inputs),
            self.bias / columns,
            of_inputs[:, tf.newaxis] / columns,
        )
        # Reshape between the product and the scaling: otherwise TensorFlow
        # Lite's converter would merge the scales into the kernel.
        return self._reshape(rows, inputs) * columns

    def _add_bias(self, inputs, bias, factor=None):
        rows = self._multiply(inputs, factor)
        return tf.nn.bias_add(rows, tf.cast(bias, self.compute_dtype))

    def _multiply(self, inputs, factor=None):
        """Returns inputs . (kernel * factor), <float>[rows, width]."""
        # Flatten the inputs to a matrix: a product for each example would be
        # slower, and the kernel's gradient would need a sum over the batch.
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
        kernel = tf.cast(self.kernel, self.compute_dtype)
        if factor is not None:
            kernel *= factor
        return tf.matmul(tf.cast(rows, self.compute_dtype), kernel)

    def _with_width(self, rows, inputs):
        # A needless reshape would keep TensorFlow from fusing product and bias.
        if inputs.shape.rank == 2:
            return rows
        return self._reshape(rows, inputs)

    def _reshape(self, rows, inputs):
        shape = [*dropout.shape_of(inputs)[:-1], self.width]
        return tf.reshape(rows, shape)

    def get_config(self):
        return super().get_config() | {
            "width": self.width,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class LayerNorm(BasicLayer):
    """Layer normalization over the last axis, followed by dropout.

    Source: modeling.py:362-372 of the original.

    Args:
      epsilon: Added to the variance.
      dropout_prob: Probability of dropping an element of the result.
      fuse: Whether to compile the chain.

    Call arguments:
      inputs: <float>[B, ..., width].
      keys: <uint32>[B, 2 or 3] from `dropout.draw_keys`; None for no dropout.

    Returns:
      <float>[B, ..., width] in the compute dtype.
    """

    def __init__(self, epsilon=1e-12, dropout_prob=0.0, fuse=False, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.dropout_prob = dropout_prob
        self.fuse = fuse

    def build(self, input_shape):
        self.beta = self.add_variable("beta", (input_shape[-1],), "zeros")
        self.gamma = self.add_variable("gamma", (input_shape[-1],), "ones")

    def call(self, inputs, keys=None):
        return fused.layer_norm_dropout(
            inputs,
            tf.convert_to_tensor(self.gamma),
            tf.convert_to_tensor(self.beta),
            keys,
            epsilon=self.epsilon,
            rate=self.dropout_prob,
            dtype=self.compute_dtype,
            jit=self.fuse,
        )

    def get_config(self):
        return super().get_config() | {
            "epsilon": self.epsilon,
            "dropout_prob": self.dropout_prob,
            "fuse": self.fuse,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class Intermediate(BertLayer):
    """activation(inputs . kernel + bias): the feed-forward's first half.

    Source: modeling.py:866-871 of the original.

    Call arguments:
      inputs: <float>[..., H], rows of a layout.

    Returns:
      <float>[..., I] in the compute dtype.
    """

    def build(self, input_shape):
        width = self.bert_config.intermediate_size
        self.dense = self.project(width, input_shape)

    def call(self, inputs):
        return self.activate(self.dense, inputs, self.bert_config.hidden_act)


@keras.saving.register_keras_serializable(package="bert_tf")
class ResidualOutput(BertLayer):
    """layer_norm(dropout(inputs . kernel + bias) + residual).

    This layer ends both halves of an encoder layer, attention and feed-forward.
    Source: modeling.py:857-880 of the original.

    Call arguments:
      inputs: <float>[..., H or I], rows of a layout.
      residual: <float>[..., H].
      keys: <uint32>[B, 2] or [T, 3] from `draw_keys`, or None for no dropout.

    Returns:
      <float>[..., H] in the compute dtype.
    """

    def build(self, inputs_shape, residual_shape=None):
        config = self.bert_config
        self.dense = self.project(config.hidden_size, inputs_shape)
        # Training reads the weights of this layer but never calls it, so Keras
        # would not build it.
        self.layer_norm = LayerNorm(
            config.layer_norm_eps, dtype=self.dtype_policy, name="LayerNorm"
        )
        self.layer_norm.build((*inputs_shape[:-1], config.hidden_size))

    def call(self, inputs, residual, keys=None):
        if self.for_inference:
            return self.layer_norm(self.dense.affine(inputs) + residual)
        return fused.bias_dropout_residual_layer_norm(
            self.dense(inputs),
            tf.convert_to_tensor(self.dense.bias),
            residual,
            tf.convert_to_tensor(self.layer_norm.gamma),
            tf.convert_to_tensor(self.layer_norm.beta),
            keys,
            epsilon=self.bert_config.layer_norm_eps,
            rate=self.bert_config.hidden_dropout_prob,
            jit=self.fuse,
        )
