"""What every layer is made of: projections and layer normalisation.

Shapes:
  B: batch size.
  S: sequence length.
  H: hidden size.
  I: intermediate size.
"""

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.modeling import activations
from bert_tf.modeling import fused


def truncated_normal(stddev):
    """Returns a new initializer; one that is shared would repeat its values."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


def as_config(config):
    """Returns the `BertConfig` that `config`, maybe its dictionary, means."""
    if isinstance(config, BertConfig):
        return config
    return BertConfig.from_dict(config)


class Configured:
    """What layers and models share: a `BertConfig`, and parts of the same.

    It stands before the Keras class among the bases.
    """

    def add_layer(self, cls, name, salt=0, **kwargs):
        """Returns a new layer of the same configuration and precision."""
        return cls(
            self.bert_config,
            salt=salt,
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


class BasicLayer(keras.layers.Layer):
    """A layer that casts for itself.

    Keras' automatic casting would also round the attention adder and the
    weights of the normalisation to the compute dtype.

    Args:
      **kwargs: As for `keras.layers.Layer`.
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)

    def add_variable(self, name, shape, initializer, dtype="float32"):
        """Adds a variable that is read in its own dtype."""
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            dtype=dtype,
            autocast=False,
        )

    def project(self, width, initializer_range, name="dense"):
        """Returns a new `Projection` of this layer's precision."""
        return Projection(
            width, initializer_range, dtype=self.dtype_policy, name=name
        )


class BertLayer(Configured, BasicLayer):
    """A layer whose sizes and rates are those of a `BertConfig`.

    Args:
      config: The model's `BertConfig`, or its dictionary.
      salt: Tells this layer's dropout from that of others; a layer with
        several dropouts takes the salts that follow as well.
      fuse: Whether to compile the elementwise chains, see `fused`.
      for_inference: Whether to have the form of `inference.prepare`.
      **kwargs: As for `keras.layers.Layer`.
    """

    def __init__(
        self, config, salt=0, fuse=False, for_inference=False, **kwargs
    ):
        super().__init__(**kwargs)
        self.bert_config = as_config(config)
        self.salt = salt
        self.fuse = fuse
        self.for_inference = for_inference

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
        return super().get_config() | {"salt": self.salt}


@keras.saving.register_keras_serializable(package="bert_tf")
class Projection(BasicLayer):
    """A matrix product whose bias the caller adds.

    The bias belongs to the elementwise chain that follows (see `fused`), so
    this layer only multiplies, and holds the bias; `affine` does both. The
    kernel is [input width, width] as in `keras.layers.Dense`.

    Args:
      width: Columns of the kernel.
      initializer_range: Standard deviation of the kernel's initializer.

    Call arguments:
      inputs: <float>[..., input width].

    Returns:
      <float>[..., width] in the compute dtype.

    Attributes:
      column_scales: <float32>[width] or None: what `affine` divides columns by
        and then multiplies them with, for a form in between that has one scale
        for all of them.
      input_scales: <float32>[input width]: what it divides the columns of
        inputs by and multiplies the kernel's rows with, for the same reason;
        None exactly where `column_scales` is.
      on_rows: Called by `affine` with <float>[..., input width], its inputs,
        and <float>[rows, width], what it computes before the activation; or
        None.
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
            truncated_normal(self.initializer_range),
            self.variable_dtype,
        )
        self.bias = self.add_variable(
            "bias", (self.width,), "zeros", self.variable_dtype
        )

    def call(self, inputs):
        return self._with_width(self._multiply(inputs), inputs)

    def affine(self, inputs, activation="linear"):
        """Returns activation(inputs . kernel + bias), for inference.

        All is computed in the compute dtype. TensorFlow's optimizer makes one
        operation of product, bias and activation where nothing stands between
        them.

        Args:
          inputs: <float>[..., input width].
          activation: One of `bert_tf.config.HIDDEN_ACTS`.

        Returns:
          <float>[..., width] in the compute dtype.
        """
        activate = activations.get(activation)
        if self.column_scales is not None:
            return activate(self._scaled(inputs))
        rows = self._add_bias(inputs, self.bias)
        if self.on_rows is not None:
            self.on_rows(inputs, rows)
        return self._with_width(activate(rows), inputs)

    def _scaled(self, inputs):
        """Returns inputs . kernel + bias, of scaled columns in between."""
        columns = tf.constant(self.column_scales, self.compute_dtype)
        of_inputs = tf.constant(self.input_scales, self.compute_dtype)
        rows = self._add_bias(
            tf.cast(inputs, self.compute_dtype) * (1.0 / of_inputs),
            self.bias / columns,
            of_inputs[:, tf.newaxis] / columns,
        )
        # Inputs before, and rows behind their new shape: a factor that stands
        # right beside the product (as here, where inputs are a matrix)
        # TensorFlow Lite's converter takes back into the kernel.
        return self._with_width(rows, inputs) * columns

    def _add_bias(self, inputs, bias, factor=None):
        rows = self._multiply(inputs, factor)
        return tf.nn.bias_add(rows, tf.cast(bias, self.compute_dtype))

    def _multiply(self, inputs, factor=None):
        """Returns <float>[rows, width], of the kernel times a factor."""
        # One product of two matrices: a batch of products with the same
        # kernel is slower, and its gradient sums over the batch afterwards.
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
        kernel = tf.cast(self.kernel, self.compute_dtype)
        if factor is not None:
            kernel *= factor
        return tf.matmul(tf.cast(rows, self.compute_dtype), kernel)

    def _with_width(self, rows, inputs):
        shape = [*fused.shape_of(inputs)[:-1], self.width]
        return tf.reshape(rows, shape)

    def get_config(self):
        return super().get_config() | {
            "width": self.width,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class LayerNorm(BasicLayer):
    """Layer normalisation over the last axis, followed by dropout.

    Source: modeling.py:362-372 of the original.

    Args:
      epsilon: Added to the variance.
      dropout_prob: Probability of dropping an element of the result.
      fuse: Whether to compile the chain.

    Call arguments:
      inputs: <float>[B, ..., width].
      keys: <uint32>[B, 2] from `dropout.draw_keys`, or None for no dropout.

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
      inputs: <float>[B, S, H].

    Returns:
      <float>[B, S, I] in the compute dtype.
    """

    def build(self, input_shape):
        config = self.bert_config
        self.dense = self.project(
            config.intermediate_size, config.initializer_range
        )
        self.dense.build(input_shape)

    def call(self, inputs):
        return self.activate(self.dense, inputs, self.bert_config.hidden_act)


@keras.saving.register_keras_serializable(package="bert_tf")
class ResidualOutput(BertLayer):
    """layer_norm(dropout(inputs . kernel + bias) + residual).

    Closes both halves of an encoder layer; modeling.py:857-880 of the
    original.

    Call arguments:
      inputs: <float>[B, S, H or I].
      residual: <float>[B, S, H].
      keys: <uint32>[B, 2] from `dropout.draw_keys`, or None for no dropout.

    Returns:
      <float>[B, S, H] in the compute dtype.
    """

    def build(self, inputs_shape, residual_shape=None):
        config = self.bert_config
        self.dense = self.project(config.hidden_size, config.initializer_range)
        self.dense.build(inputs_shape)
        # In training it holds the weights only: the chain in `call`
        # normalises.
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
