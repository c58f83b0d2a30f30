"""The elementwise chains between the matrix products, compiled by XLA.

On a CPU, a chain of separate operations takes as long as the products; XLA
makes one loop of the chain, which takes a fraction of that time. oneDNN's
products are faster than XLA's, so only the chains are compiled.

The gradients are written by hand and compiled. They compute the chain and the
dropout mask again, which costs less than reading stored values. Only the sums
along a row are slow, so the forward pass stores two numbers for each normalized
row. A separate compiled function adds up the rows: if one function computed
and added up the rows, XLA would compute all rows again for each column.

All arithmetic is in float32, whatever the arguments' dtype.

Arguments of all functions:
  x, residual: <float>[batch, ..., width]; results have the same dtype.
  bias, gamma, beta: <float32>[width].
  keys: <uint32>[batch, 2 or 3] from `dropout.draw_keys`; None for no dropout.
  epsilon: Added to the variance.
  rate: Probability of dropping an element.
  jit: Whether to compile. Exports need plain operations, so they set it to
    False; TensorFlow then derives the gradient.
"""

import functools

import tensorflow as tf

from bert_tf.modeling import activations
from bert_tf.modeling import dropout


@functools.cache
def _compile(function, *options):
    """Returns `function` compiled, with `options` as its last arguments."""

    @tf.function(jit_compile=True, autograph=False)
    def compiled(*tensors):
        return function(*tensors, *options)

    return compiled


def _float(x):
    return tf.cast(x, tf.float32)


def _sum_matrices(*tensors):
    return [tf.reduce_sum(_float(x), axis=0) for x in tensors]


def _sum_rows(*tensors):
    """Returns the sums <float32>[width] of <float>[..., width] tensors."""
    # Reshape outside of the compiled function. Inside, XLA would merge reshape
    # and sum into a sum over several axes, which takes five times as long.
    rows = [tf.reshape(x, [-1, x.shape[-1]]) for x in tensors]
    return _compile(_sum_matrices)(*rows)


# === activation(x + bias) ===


def _bias_activation(x, bias, activation):
    return tf.cast(activations.get(activation)(_float(x) + bias), x.dtype)


def _bias_activation_gradient(upstream, x, bias, activation):
    slope = activations.get_derivative(activation)(_float(x) + bias)
    return tf.cast(_float(upstream) * slope, x.dtype)


def bias_activation(x, bias, activation, *, jit=False):
    """Returns activation(x + bias); see `bert_tf.config.HIDDEN_ACTS`."""
    if not jit:
        activate = activations.get_ordered(activation)
        return tf.cast(activate(_float(x) + bias), x.dtype)

    @tf.custom_gradient
    def chain(x, bias):
        def gradient(upstream):
            backward = _compile(_bias_activation_gradient, activation)
            rows = backward(upstream, x, bias)
            return rows, *_sum_rows(rows)

        return _compile(_bias_activation, activation)(x, bias), gradient

    return chain(x, bias)


# === x + bias, split into heads ===


def _bias_split_heads(x, bias, layout):
    return layout.split_heads(tf.cast(_float(x) + bias, x.dtype))


def bias_split_heads(x, bias, layout, *, jit=False):
    """Returns x + bias, split into attention heads.

    `x` has the rows of a layout, see `layouts`; the result is <float>[batch,
    heads, length, width / heads].
    """
    if not jit:
        return _bias_split_heads(x, bias, layout)

    @tf.custom_gradient
    def chain(x, bias):
        def gradient(upstream):
            # Do not compile: TensorFlow transposes faster than XLA.
            rows = layout.merge_heads(upstream)
            return rows, *_sum_rows(rows)

        if layout.is_padded:
            return _compile(_bias_split_heads, layout)(x, bias), gradient
        # Do not compile: on a CPU, XLA slowly gathers row by row. Without XLA,
        # TensorFlow also fuses the bias with the product.
        values = tf.nn.bias_add(x, tf.cast(bias, x.dtype))
        return layout.split_heads(values), gradient

    return chain(x, bias)


# === layer_norm(dropout(x + bias) + residual) ===


def _standardize(x, epsilon):
    """Returns (x - mean) * factor, with mean 0 and variance 1 per row.

    Also returns the mean and the factor <float32>[..., 1].
    """
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
    factor = tf.math.rsqrt(variance + epsilon)
    return centred * factor, mean, factor


def _standardize_gradient(upstream, standard, factor):
    mean = tf.reduce_mean(upstream, axis=-1, keepdims=True)
    along = tf.reduce_mean(upstream * standard, axis=-1, keepdims=True)
    return factor * (upstream - mean - standard * along)


def _residual_sum(x, bias, residual, keys, rate):
    factor = dropout.draw_factor(x, rate, keys)
    return (_float(x) + bias) * factor + _float(residual), factor


def _residual_norm(x, bias, residual, gamma, beta, keys, epsilon, rate):
    total, _ = _residual_sum(x, bias, residual, keys, rate)
    standard, mean, factor = _standardize(total, epsilon)
    return tf.cast(standard * gamma + beta, x.dtype), mean, factor


def _residual_norm_gradient(
    upstream, x, bias, residual, gamma, mean, factor, keys, rate
):
    total, kept = _residual_sum(x, bias, residual, keys, rate)
    standard = (total - mean) * factor
    upstream = _float(upstream)
    into_sum = _standardize_gradient(upstream * gamma, standard, factor)
    gradients = (into_sum * kept, into_sum, upstream * standard)
    return [tf.cast(gradient, x.dtype) for gradient in gradients]


def bias_dropout_residual_layer_norm(
    x, bias, residual, gamma, beta, keys, *, epsilon, rate, jit=False
):
    """Returns layer_norm(dropout(x + bias) + residual)."""
    residual = tf.cast(residual, x.dtype)
    if not jit:
        return _residual_norm(
            x, bias, residual, gamma, beta, keys, epsilon, rate
        )[0]

    @tf.custom_gradient
    def chain(x, bias, residual, gamma, beta):
        forward = _compile(_residual_norm, epsilon, rate)
        result, mean, factor = forward(x, bias, residual, gamma, beta, keys)

        def gradient(upstream):
            backward = _compile(_residual_norm_gradient, rate)
            rows, into_residual, scaled = backward(
                upstream, x, bias, residual, gamma, mean, factor, keys
            )
            sums = _sum_rows(rows, scaled, upstream)
            return rows, sums[0], into_residual, sums[1], sums[2]

        return result, gradient

    return chain(x, bias, residual, gamma, beta)


# === dropout(layer_norm(x)) ===


def _norm(x, gamma, beta, keys, epsilon, rate, dtype):
    standard, mean, factor = _standardize(_float(x), epsilon)
    kept = dropout.draw_factor(x, rate, keys)
    return tf.cast((standard * gamma + beta) * kept, dtype), mean, factor


def _norm_gradient(upstream, x, gamma, mean, factor, keys, rate):
    standard = (_float(x) - mean) * factor
    upstream = _float(upstream) * dropout.draw_factor(x, rate, keys)
    rows = _standardize_gradient(upstream * gamma, standard, factor)
    return tf.cast(rows, x.dtype), upstream * standard, upstream


def layer_norm_dropout(
    x, gamma, beta, keys, *, epsilon, rate, dtype, jit=False
):
    """Returns dropout(layer_norm(x)), <float>[batch, ..., width] of `dtype`."""
    if not jit:
        return _norm(x, gamma, beta, keys, epsilon, rate, dtype)[0]

    @tf.custom_gradient
    def chain(x, gamma, beta):
        forward = _compile(_norm, epsilon, rate, dtype)
        result, mean, factor = forward(x, gamma, beta, keys)

        def gradient(upstream):
            backward = _compile(_norm_gradient, rate)
            rows, scaled, shifted = backward(
                upstream, x, gamma, mean, factor, keys
            )
            return rows, *_sum_rows(scaled, shifted)

        return result, gradient

    return chain(x, gamma, beta)


# === dropout(softmax(scores * scale + attention_bias)) ===


def _masked_softmax(scores, attention_bias, keys, scale, rate):
    probs = tf.nn.softmax(_float(scores) * scale + attention_bias)
    probs *= dropout.draw_factor(scores, rate, keys)
    return tf.cast(probs, scores.dtype)


def _masked_softmax_and_sums(scores, attention_bias, keys, scale, rate):
    """Returns probabilities, and each row's maximum and sum <float32>[..., 1].

    Compile it: plain operations would read the scores several times.
    """
    logits = _float(scores) * scale + attention_bias
    maximum = tf.reduce_max(logits, axis=-1, keepdims=True)
    exponentials = tf.exp(logits - maximum)
    total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    probs = exponentials / total * dropout.draw_factor(scores, rate, keys)
    return tf.cast(probs, scores.dtype), maximum, total


def _masked_softmax_gradient(
    upstream, scores, attention_bias, maximum, total, keys, scale, rate
):
    logits = _float(scores) * scale + attention_bias
    probs = tf.exp(logits - maximum) / total
    upstream = _float(upstream) * dropout.draw_factor(scores, rate, keys)
    weighted = probs * upstream
    mean = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    return tf.cast((weighted - probs * mean) * scale, scores.dtype)


def masked_softmax_dropout(
    scores, attention_bias, keys, *, scale, rate, jit=False
):
    """Returns dropout(softmax(scores * scale + attention_bias)).

    `scores` and the result are <float>[batch, heads, queries, keys]. The
    attention bias <float32> is broadcast to this shape and gets no gradient.
    """
    attention_bias = tf.stop_gradient(attention_bias)
    if not jit:
        return _masked_softmax(scores, attention_bias, keys, scale, rate)

    @tf.custom_gradient
    def chain(scores):
        forward = _compile(_masked_softmax_and_sums, scale, rate)
        result, maximum, total = forward(scores, attention_bias, keys)

        def gradient(upstream):
            backward = _compile(_masked_softmax_gradient, scale, rate)
            return backward(
                upstream, scores, attention_bias, maximum, total, keys
            )

        return result, gradient

    return chain(scores)
