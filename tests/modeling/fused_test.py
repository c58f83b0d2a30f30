"""Tests for bert_tf.modeling.fused."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import HIDDEN_ACTS
from bert_tf.modeling import dropout
from bert_tf.modeling import fused
from bert_tf.modeling import layouts

_BATCH, _LENGTH, _WIDTH, _HEADS = 3, 5, 8, 2
_LAYOUT = layouts.Padded(_HEADS)


def _normal(*shape, dtype="float32", seed=0):
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return tf.constant(values, tf.as_dtype(dtype))


def _rows(dtype, seed=0):
    return _normal(_BATCH, _LENGTH, _WIDTH, dtype=dtype, seed=seed)


def _keys(rate):
    return dropout.draw_keys(tf.range(_BATCH), 4) if rate else None


def _gradients(function, tensors):
    """Returns the result and the gradients of its weighted sum."""

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)
            weights = _normal(*result.shape, seed=99)
            total = tf.reduce_sum(tf.cast(result, tf.float32) * weights)
        return result, tape.gradient(total, tensors)

    return compute()


class FusedTest(tf.test.TestCase, parameterized.TestCase):
    def test_compiled_programs_hold_no_ynnpack(self):
        # In TensorFlow 2.21 it crashes where two layers run one program.
        program = fused._compile(fused._sum_matrices)
        ir = program.experimental_get_compiler_ir(tf.ones([320, 384]))
        self.assertNotIn("ynn", ir(stage="optimized_hlo"))

    def _assert_jit_agrees(self, function, tensors):
        """Compares the compiled function with the plain one."""
        dtype = tensors[0].dtype
        plain, plain_gradients = _gradients(
            lambda *x: function(*x, jit=False), tensors
        )
        compiled, gradients = _gradients(
            lambda *x: function(*x, jit=True), tensors
        )
        self.assertEqual(compiled.dtype, plain.dtype)
        # Values are rounded to bfloat16 twice, and sums add up the errors.
        tolerance = 1e-5 if dtype == tf.float32 else 3e-2
        for received, expected in [
            (compiled, plain),
            *zip(gradients, plain_gradients, strict=True),
        ]:
            self.assertEqual(received.dtype, expected.dtype)
            expected = tf.cast(expected, tf.float32)
            self.assertAllClose(
                tf.cast(received, tf.float32),
                expected,
                rtol=0,
                atol=tolerance * np.abs(expected).max(),
            )

    @parameterized.product(
        activation=HIDDEN_ACTS, dtype=("float32", "bfloat16")
    )
    def test_bias_activation_agrees_when_compiled(self, activation, dtype):
        self._assert_jit_agrees(
            lambda x, bias, jit: fused.bias_activation(
                x, bias, activation, jit=jit
            ),
            [_rows(dtype), _normal(_WIDTH)],
        )

    @parameterized.parameters("float32", "bfloat16")
    def test_bias_split_heads_agrees_when_compiled(self, dtype):
        self._assert_jit_agrees(
            lambda x, bias, jit: fused.bias_split_heads(
                x, bias, _LAYOUT, jit=jit
            ),
            [_rows(dtype), _normal(_WIDTH)],
        )

    @parameterized.product(rate=(0.0, 0.3), dtype=("float32", "bfloat16"))
    def test_residual_layer_norm_agrees_when_compiled(self, rate, dtype):
        self._assert_jit_agrees(
            lambda *tensors, jit: fused.bias_dropout_residual_layer_norm(
                *tensors, _keys(rate), epsilon=1e-12, rate=rate, jit=jit
            ),
            [
                _rows(dtype),
                _normal(_WIDTH),
                _rows(dtype, seed=1),
                _normal(_WIDTH, seed=2),
                _normal(_WIDTH, seed=3),
            ],
        )

    @parameterized.product(rate=(0.0, 0.3), dtype=("float32", "bfloat16"))
    def test_layer_norm_dropout_agrees_when_compiled(self, rate, dtype):
        self._assert_jit_agrees(
            lambda *tensors, jit: fused.layer_norm_dropout(
                *tensors,
                _keys(rate),
                epsilon=1e-12,
                rate=rate,
                dtype=dtype,
                jit=jit,
            ),
            [_rows("float32"), _normal(_WIDTH), _normal(_WIDTH, seed=2)],
        )

    @parameterized.product(rate=(0.0, 0.3), dtype=("float32", "bfloat16"))
    def test_masked_softmax_dropout_agrees_when_compiled(self, rate, dtype):
        mask = tf.sequence_mask([5, 2, 1], _LENGTH, dtype=tf.float32)
        attention_bias = (1.0 - mask[:, tf.newaxis, tf.newaxis]) * -10000.0
        self._assert_jit_agrees(
            lambda scores, jit: fused.masked_softmax_dropout(
                scores,
                attention_bias,
                _keys(rate),
                scale=0.5,
                rate=rate,
                jit=jit,
            ),
            [_normal(_BATCH, _HEADS, _LENGTH, _LENGTH, dtype=dtype)],
        )

    @parameterized.parameters(False, True)
    def test_dropout_comes_before_the_residual_and_after_the_bias(self, jit):
        tensors = [
            _rows("float32"),
            _normal(_WIDTH),
            _rows("float32", seed=1),
            tf.ones(_WIDTH),
            tf.zeros(_WIDTH),
        ]
        keys = _keys(0.5)
        received = fused.bias_dropout_residual_layer_norm(
            *tensors, keys, epsilon=0.0, rate=0.5, jit=jit
        )
        kept = dropout.draw_mask([_BATCH, _LENGTH, _WIDTH], 0.5, keys).numpy()
        total = np.where(kept, 2 * (tensors[0] + tensors[1]), 0) + tensors[2]
        total -= total.numpy().mean(-1, keepdims=True)
        expected = total / total.numpy().std(-1, keepdims=True)
        self.assertAllClose(received, expected, atol=1e-5)


if __name__ == "__main__":
    tf.test.main()
