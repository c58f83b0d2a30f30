"""Bidirectional LSTMs on top of the encoder, trained from scratch.

Training takes half as long as with `keras.layers.LSTM`, because the loop over
the tokens computes only the recurrence, for both directions at once. One
product before the loop projects all inputs. One product after the loop computes
the gradient of the recurrent kernel, which TensorFlow would sum step by step.

Shapes:
  B: batch size.
  S: sequence length.
  D: width of the inputs.
  U: LSTM units per direction.
"""

import keras
import tensorflow as tf

from bert_tf.modeling import dropout
from bert_tf.modeling import layers


@keras.saving.register_keras_serializable(package="bert_tf")
class BiLSTM(layers.BasicLayer):
    """An LSTM from left to right and another from right to left.

    At padding, states do not change, so the results do not depend on the amount
    of padding. States are float32; products are in the compute dtype. Weights
    are initialized as in `keras.layers.LSTM`.

    Args:
      units: U.
      for_inference: If true, the layer has no custom gradient and keeps no
        tensors for a gradient.
      **kwargs: As for `keras.layers.Layer`.

    Call arguments:
      inputs: <float>[B, S, D].
      input_mask: <int32>[B, S], 1 for tokens and 0 for padding.

    Returns:
      <float>[B, S, 2U] in the compute dtype. The states of both LSTMs are
      concatenated, the left-to-right LSTM first. They are 0 at padding.

    Reference:
      Hochreiter and Schmidhuber, 1997; Jozefowicz et al., 2015, section 2.2,
      for the forget gate's bias of 1.
    """

    def __init__(self, units, for_inference=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.for_inference = for_inference
        self.directions = [
            _Direction(units, dtype=self.dtype_policy, name=name)
            for name in ("forward", "backward")
        ]

    def build(self, inputs_shape, input_mask_shape=None):
        self.output_shape = (*inputs_shape[:-1], 2 * self.units)
        for direction in self.directions:
            direction.build(inputs_shape)

    def call(self, inputs, input_mask):
        def cast(x):
            return tf.cast(x, self.compute_dtype)

        batch, length, width = dropout.shape_of(inputs)
        kernels = [cast(x.kernel) for x in self.directions]
        biases = [tf.convert_to_tensor(x.bias) for x in self.directions]
        recurrent = [cast(x.recurrent_kernel) for x in self.directions]
        projected = tf.matmul(
            tf.reshape(cast(inputs), [-1, width]), tf.concat(kernels, axis=1)
        )
        projected = tf.reshape(projected, [batch, length, 2, 4 * self.units])
        projected = _by_step(tf.transpose(projected, [2, 1, 0, 3]))
        mask = tf.transpose(tf.cast(input_mask, tf.bool))[..., tf.newaxis]
        arguments = (
            projected,
            tf.stack(recurrent),
            tf.stack(biases)[:, tf.newaxis],
            _by_step(tf.stack([mask, mask])),
        )
        if self.for_inference:
            (states,) = _run_forward(*arguments, count=1)  # [S, 2, B, U]
        else:
            states = _trainable_states(*arguments)
        states = tf.stack([states[:, 0], states[::-1, 1]], axis=2)
        states = tf.where(mask[..., tf.newaxis], states, 0.0)  # [S, B, 2, U]
        states = tf.transpose(cast(states), [1, 0, 2, 3])
        return tf.reshape(states, [batch, length, 2 * self.units])

    def get_config(self):
        return super().get_config() | {
            "units": self.units,
            "for_inference": self.for_inference,
        }


class _Direction(layers.BasicLayer):
    """The weights of one LSTM: input, forget, cell and output gate."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.kernel = self.add_variable(
            "kernel", (input_shape[-1], 4 * self.units), "glorot_uniform"
        )
        self.recurrent_kernel = self.add_variable(
            "recurrent_kernel", (self.units, 4 * self.units), "orthogonal"
        )
        self.bias = self.add_variable("bias", (4 * self.units,), _initial_bias)


def _initial_bias(shape, dtype=None):
    zeros, ones = tf.zeros([shape[0] // 4], dtype), tf.ones([shape[0] // 4])
    return tf.concat([zeros, tf.cast(ones, dtype), zeros, zeros], axis=0)


def _by_step(x):
    """Reorders [2, S, B, ...] to [S, 2, B, ...], in the order of the steps."""
    return tf.stack([x[0], x[1, ::-1]], axis=1)


def _trainable_states(projected, kernel, bias, mask):
    """Returns the states <float32>[S, 2, B, U], with a fast custom gradient.

    Args:
      projected: <float>[S, 2, B, 4U], the products of inputs and kernels.
      kernel: <float>[2, U, 4U], the recurrent kernels.
      bias: <float32>[2, 1, 4U].
      mask: <bool>[S, 2, B, 1], false for padding.
    """

    @tf.custom_gradient
    def loop(projected, kernel, bias):
        states, cells, gates = _run_forward(projected, kernel, bias, mask)

        def gradient(upstream):
            into_gates = _run_backward(upstream, kernel, mask, cells, gates)
            before = tf.cast(_shift(states), kernel.dtype)
            into_kernel = tf.matmul(
                _rows_by_direction(before),
                _rows_by_direction(into_gates),
                transpose_a=True,
            )
            into_bias = tf.reduce_sum(
                tf.cast(_rows_by_direction(into_gates), tf.float32),
                axis=1,
                keepdims=True,
            )
            return into_gates, into_kernel, into_bias

        return states, gradient

    return loop(projected, kernel, bias)


def _run_forward(projected, kernel, bias, mask, count=3):
    """Returns states, cells <float32>[S, 2, B, U], and gates [S, 2, B, 4U].

    Returns only the first `count` of the three, and does not store the others.
    The arguments are as for `_trainable_states`.
    """
    steps, _, batch, _ = dropout.shape_of(projected)
    units = kernel.shape[1]
    read_projected, read_mask = _reader(projected), _reader(mask)

    def step(index, state, cell, *written):
        product = tf.matmul(tf.cast(state, kernel.dtype), kernel)
        total = tf.cast(read_projected(index), tf.float32) + bias
        total += tf.cast(product, tf.float32)
        entry, forget, candidate, exit_ = tf.split(total, 4, axis=-1)
        entry, forget, exit_ = map(tf.sigmoid, (entry, forget, exit_))
        candidate = tf.tanh(candidate)
        new_cell = forget * cell + entry * candidate
        is_token = read_mask(index)
        state = tf.where(is_token, exit_ * tf.tanh(new_cell), state)
        cell = tf.where(is_token, new_cell, cell)
        gates = tf.concat([entry, forget, candidate, exit_], axis=-1)
        values = (state, cell, gates)[:count]
        written = [
            array.write(index, value)
            for array, value in zip(written, values, strict=True)
        ]
        return index + 1, state, cell, *written

    zeros = tf.zeros([2, batch, units])
    arrays = [tf.TensorArray(tf.float32, steps) for _ in range(count)]
    results = tf.while_loop(
        lambda index, *_: index < steps,
        step,
        (tf.constant(0), zeros, zeros, *arrays),
    )
    return [array.stack() for array in results[3:]]


def _run_backward(upstream, kernel, mask, cells, gates):
    """Returns the gradient <float>[S, 2, B, 4U] of the inputs of the gates.

    `upstream` is the gradient of the states; `_run_forward` returned `cells`
    and `gates`.
    """
    steps = dropout.shape_of(upstream)[0]
    tensors = (upstream, mask, _shift(cells), cells, gates)
    readers = [_reader(x) for x in tensors]

    def step(index, into_state, into_cell, written):
        index -= 1
        above, is_token, before, cell, gate = (x(index) for x in readers)
        entry, forget, candidate, exit_ = tf.split(gate, 4, axis=-1)
        into_state += above
        # At padding, states did not change, so gradients pass unchanged.
        passed_state = tf.where(is_token, 0.0, into_state)
        passed_cell = tf.where(is_token, 0.0, into_cell)
        into_state -= passed_state
        squashed = tf.tanh(cell)
        into_cell -= passed_cell
        into_cell += into_state * exit_ * (1.0 - squashed * squashed)
        into_gates = tf.concat(
            [
                into_cell * candidate * entry * (1.0 - entry),
                into_cell * before * forget * (1.0 - forget),
                into_cell * entry * (1.0 - candidate * candidate),
                into_state * squashed * exit_ * (1.0 - exit_),
            ],
            axis=-1,
        )
        into_gates = tf.cast(into_gates, kernel.dtype)
        product = tf.matmul(into_gates, kernel, transpose_b=True)
        return (
            index,
            tf.cast(product, tf.float32) + passed_state,
            into_cell * forget + passed_cell,
            written.write(index, into_gates),
        )

    zeros = tf.zeros_like(upstream[0])
    array = tf.TensorArray(kernel.dtype, steps)
    results = tf.while_loop(
        lambda index, *_: index > 0,
        step,
        (tf.convert_to_tensor(steps), zeros, zeros, array),
    )
    return results[3].stack()


def _reader(x):
    """Returns a function that reads one step of a tensor [S, ...]."""
    return tf.TensorArray(x.dtype, dropout.shape_of(x)[0]).unstack(x).read


def _shift(x):
    """Shifts a tensor [S, ...] by one step; the first becomes zeros."""
    return tf.concat([tf.zeros_like(x[:1]), x[:-1]], axis=0)


def _rows_by_direction(x):
    """Reshapes [S, 2, B, width] to <float>[2, S * B, width]."""
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [2, -1, x.shape[-1]])
