"""The elementwise chains between the matrix products.

On a CPU they take as long as the products when each operation runs by itself,
and a fraction of it when XLA makes one loop of them; oneDNN's products in turn
are faster than XLA's, so only the chains are compiled. Each function takes
`jit`; without it the graph holds plain operations, as exports need.

All arithmetic is in float32, whatever the arguments' dtype; the result has the
dtype of the first argument unless said otherwise. `keys` come from
`dropout.draw_keys`; None means no dropout.
"""

import functools

import tensorflow as tf

from bert_tf.modeling import activations
from bert_tf.modeling import dropout
from bert_tf.modeling.dropout import shape_of


def _bias_activation(x, bias, *, activation):
    values = tf.cast(x, tf.float32) + bias
    return tf.cast(activations.get(activation)(values), x.dtype)


def _normalize(x, gamma, beta, epsilon):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    centred = x - mean
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred * (tf.math.rsqrt(variance + epsilon) * gamma) + beta


def _drop(x, keys, rate):
    if keys is None or rate == 0.0:
        return x
    kept = dropout.draw_mask(shape_of(x), rate, keys)
    return dropout.apply_mask(x, kept, rate)


def _residual_layer_norm(
    x, bias, residual, gamma, beta, keys, *, epsilon, rate
):
    values = _drop(tf.cast(x, tf.float32) + bias, keys, rate)
    values += tf.cast(residual, tf.float32)
    return tf.cast(_normalize(values, gamma, beta, epsilon), x.dtype)


def _masked_softmax(scores, adder, keys, *, scale, rate):
    values = tf.cast(scores, tf.float32) * scale + adder
    return tf.cast(_drop(tf.nn.softmax(values), keys, rate), scores.dtype)


def _layer_norm(x, gamma, beta, keys, *, epsilon, rate, dtype):
    values = _normalize(tf.cast(x, tf.float32), gamma, beta, epsilon)
    return tf.cast(_drop(values, keys, rate), dtype)


@functools.cache
def _compiled(chain, options):
    """Returns `chain` compiled, with a gradient that keeps arguments only.

    The backward pass computes the chain again from its arguments: within one
    compiled loop that costs less than reading stored intermediates, and the
    dropout mask is never kept.
    """
    options = dict(options)

    @tf.function(jit_compile=True, autograph=False)
    def forward(*tensors):
        return chain(*tensors, **options)

    @tf.function(jit_compile=True, autograph=False)
    def backward(upstream, *tensors):
        floats = [i for i, x in enumerate(tensors) if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch([tensors[i] for i in floats])
            outputs = chain(*tensors, **options)
        return tape.gradient(outputs, [tensors[i] for i in floats], upstream)

    @tf.custom_gradient
    def function(*tensors):
        def gradient(upstream):
            found = iter(backward(upstream, *tensors))
            return [
                next(found) if x.dtype.is_floating else None for x in tensors
            ]

        return forward(*tensors), gradient

    return function


def _run(chain, jit, tensors, **options):
    if not jit:
        return chain(*tensors, **options)
    if tensors[-1] is None:
        chain, tensors = _without_keys(chain), tensors[:-1]
    return _compiled(chain, tuple(options.items()))(*tensors)


@functools.cache
def _without_keys(chain):
    return lambda *tensors, **options: chain(*tensors, None, **options)


def bias_activation(x, bias, activation, *, jit=False):
    """Returns activation(x + bias).

    Args:
      x: <float>[..., width].
      bias: <float32>[width].
      activation: One of `bert_tf.config.HIDDEN_ACTS`.
      jit: Whether to compile.
    """
    return _run(_bias_activation, jit, (x, bias), activation=activation)


def bias_dropout_residual_layer_norm(
    x, bias, residual, gamma, beta, keys, *, epsilon, rate, jit=False
):
    """Returns layer_norm(dropout(x + bias) + residual).

    Args:
      x: <float>[batch, ..., width].
      bias: <float32>[width].
      residual: <float>[batch, ..., width].
      gamma: <float32>[width].
      beta: <float32>[width].
      keys: <uint32>[batch, 2] or None.
      epsilon: Added to the variance.
      rate: Probability of dropping an element.
      jit: Whether to compile.
    """
    tensors = (x, bias, residual, gamma, beta, keys)
    return _run(_residual_layer_norm, jit, tensors, epsilon=epsilon, rate=rate)


def masked_softmax_dropout(scores, adder, keys, *, scale, rate, jit=False):
    """Returns dropout(softmax(scores * scale + adder)).

    Args:
      scores: <float>[batch, heads, queries, keys].
      adder: <float32>, of a shape that broadcasts to that of `scores`.
      keys: <uint32>[batch, 2] or None.
      scale: Factor of the scores.
      rate: Probability of dropping an element.
      jit: Whether to compile.
    """
    tensors = (scores, adder, keys)
    return _run(_masked_softmax, jit, tensors, scale=scale, rate=rate)


def layer_norm_dropout(
    x, gamma, beta, keys, *, epsilon, rate, dtype, jit=False
):
    """Returns dropout(layer_norm(x)).

    Args:
      x: <float>[batch, ..., width].
      gamma: <float32>[width].
      beta: <float32>[width].
      keys: <uint32>[batch, 2] or None.
      epsilon: Added to the variance.
      rate: Probability of dropping an element.
      dtype: Of the result.
      jit: Whether to compile.
    """
    options = {"epsilon": epsilon, "rate": rate, "dtype": dtype}
    return _run(_layer_norm, jit, (x, gamma, beta, keys), **options)
