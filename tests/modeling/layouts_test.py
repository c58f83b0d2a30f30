"""Tests for bert_tf.modeling.layouts: removing padding changes no output."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.modeling import inference
from bert_tf.modeling import layouts
from tests.support import tiny_layers

_LENGTH = 9
_ONE_LAYER = {"num_hidden_layers": 1}


def _of_tokens(outputs, mask):
    """Returns outputs with 0 for padding, as float32 arrays."""

    def zero(values):
        values = tf.cast(values, tf.float32).numpy()
        is_token = mask.numpy() > 0
        shape = mask.shape.as_list()
        if values.ndim >= len(shape) + 2 and values.shape[-1] == shape[-1]:
            # Attention probabilities, [..., N, S, S]: padding's rows become 0.
            return values * is_token[..., np.newaxis, :, np.newaxis]
        if values.shape[: len(shape)] == tuple(shape):
            rest = [1] * (values.ndim - len(shape))
            return values * is_token.reshape(*shape, *rest)
        return values

    return tf.nest.map_structure(zero, outputs)


class ModelsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *((name, "float32") for name in tiny_layers.WIDER_MODELS),
        ("encoder", "bfloat16"),
        ("pretraining", "bfloat16"),
        ("feature_based", "bfloat16"),
        # Without `inference.prepare`; the next test covers the other models.
        ("bilstm", None),
        ("question_answering", None),
        ("feature_based", None),
    )
    def test_outputs_do_not_change(self, name, precision):
        model = tiny_layers.wider_model(name)
        tolerance = 2e-2 if precision == "bfloat16" else 1e-5
        if precision:
            model = inference.prepare(model, precision)
        inputs = tiny_layers.wider_inputs(name)
        if precision:
            # Only more than 256 rows are rounded up, so repeat the examples.
            inputs = {
                key: tf.tile(x, [25] + [1] * (x.shape.rank - 1))
                for key, x in inputs.items()
            }
        mask = inputs["input_mask"]
        compute = tf.function(lambda x: model(x, training=False))
        unpadded = inputs | layouts.find_tokens(mask, bool(precision))
        self.assertAllClose(
            _of_tokens(compute(unpadded), mask),
            _of_tokens(compute(inputs), mask),
            rtol=tolerance,
            atol=tolerance,
        )

    @parameterized.parameters(
        ("encoder", {}),
        ("encoder", {"fuse": True}),
        ("left_to_right", {"changes": _ONE_LAYER, "fuse": True}),
        ("tagging", {"changes": _ONE_LAYER, "fuse": True}),
        ("pretraining", {"fuse": True, "remat": True}),
        ("multiple_choice", {"changes": _ONE_LAYER, "fuse": True}),
    )
    @pytest.mark.slow
    def test_gradients_do_not_change(self, name, values):
        """Compares outputs and gradients, with dropout."""
        model = tiny_layers.wider_model(name, **values)
        inputs = tiny_layers.wider_inputs(name)
        mask = inputs["input_mask"]
        variables = [x.value for x in model.trainable_variables]
        seeds = tf.constant([7, 8, 9])

        @tf.function(autograph=False)
        def compute(inputs):
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True, dropout_seeds=seeds)
                loss = tf.constant(0.0)
                for number, x in enumerate(tf.nest.flatten(outputs)):
                    shape = x.shape.as_list()
                    if shape[1:2] == [_LENGTH]:
                        rest = [1] * (len(shape) - 2)
                        x *= tf.cast(
                            tf.reshape(mask, [-1, _LENGTH, *rest]), x.dtype
                        )
                    if shape[-2:] == [_LENGTH, _LENGTH]:
                        x *= tf.cast(mask[:, None, :, None], x.dtype)
                    # Weights differ, so swapped rows would change the loss.
                    weights = tf.sin(tf.range(tf.size(x), dtype=tf.float32))
                    loss += (1.0 + number) * tf.reduce_sum(
                        tf.reshape(x, [-1]) * weights
                    )
            gradients = tape.gradient(
                loss, variables, unconnected_gradients="zero"
            )
            return outputs, [tf.convert_to_tensor(x) for x in gradients]

        expected, gradients = compute(inputs)
        # Rows for all positions, for tokens only, and for tokens and padding.
        for num_rows in (None, "tokens", "parts"):
            if num_rows is None:
                every = tf.ones_like(mask)
                extra = layouts.find_tokens_of_parts(every, len(mask), 1)
            elif num_rows == "tokens":
                extra = layouts.find_tokens(mask)
            else:
                extra = layouts.find_tokens_of_parts(mask, len(mask), 3)
            outputs, received = compute(inputs | extra)
            self.assertAllClose(
                _of_tokens(outputs, mask),
                _of_tokens(expected, mask),
                rtol=1e-5,
                atol=1e-5,
            )
            for x, one, other in zip(
                model.trainable_variables, received, gradients, strict=True
            ):
                if x.path.endswith("key/bias"):
                    continue  # It has no effect: only rounding errors.
                scale = np.abs(other).max() or 1.0
                self.assertAllClose(
                    one / scale, other / scale, rtol=0, atol=1e-5, msg=x.path
                )


class FindTokensTest(tf.test.TestCase, parameterized.TestCase):
    def test_tokens_have_rows_in_order(self):
        mask = [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
        found = layouts.find_tokens(tf.constant(mask))
        self.assertAllEqual(
            found["token_indices"], [0, 1, 4, 5, 6, 7, 8, 9, 10]
        )
        self.assertAllEqual(
            found["token_places"], [[0, 1, 9, 9], [2, 3, 4, 5], [6, 7, 8, 9]]
        )

    @parameterized.parameters((255, 255), (256, 256), (257, 272), (290, 304))
    def test_inference_rounds_many_rows_up(self, num_tokens, num_rows):
        mask = np.zeros([3, 100], np.int32)
        mask.flat[:num_tokens] = 1
        found = layouts.find_tokens(tf.constant(mask), for_inference=True)
        self.assertAllEqual(
            found["token_indices"],
            [*np.flatnonzero(mask), *[0] * (num_rows - num_tokens)],
        )
        self.assertAllEqual(
            found["token_places"],
            np.where(mask, np.cumsum(mask).reshape(mask.shape) - 1, num_rows),
        )

    def test_parts_have_as_many_rows(self):
        mask = tf.constant([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
        found = layouts.find_tokens_of_parts(mask, 2, step=1)
        # The first part has four tokens. The second one has three, so it gets
        # one row of padding.
        self.assertAllEqual(
            found["token_indices"], [[0, 1], [2, 3], [0, 1], [3, 2]]
        )
        self.assertAllEqual(
            found["token_places"], [[0, 1, 2], [3, 4, 5], [0, 1, 3], [2, 4, 5]]
        )

    def test_parts_find_tokens_of_several_sequences(self):
        mask = tf.constant([[[1, 1, 0], [1, 0, 0]], [[0, 0, 0], [0, 0, 0]]])
        found = layouts.find_tokens_of_parts(mask, 1, step=1)
        self.assertAllEqual(found["token_indices"], [[0, 1, 3], [0, 1, 2]])
        self.assertAllEqual(found["token_places"].shape, [2, 2, 3])

    def test_numbers_of_rows_are_few_and_large_enough(self):
        rng = np.random.default_rng(3)
        counts = set()
        step = layouts.row_step([100])
        for length in rng.integers(0, 101, 150):
            mask = (np.arange(100) < rng.integers(0, length + 1, [4, 1])) * 1
            found = layouts.find_tokens_of_parts(tf.constant(mask), 4, step)
            num_rows = found["token_indices"].shape[1]
            counts.add(num_rows)
            self.assertLessEqual(mask.sum(), 4 * num_rows)
            self.assertLess(4 * num_rows, mask.sum() + 4 * step + 4)
            is_row = found["token_places"].numpy() < 4 * num_rows
            self.assertTrue(is_row[mask > 0].all())
        self.assertLessEqual(len(counts), 32)

    def test_lists_all_numbers_of_rows(self):
        step = layouts.row_step([100])
        for length in (100, 96, 90, 3):
            counts = set()
            for number in range(length + 1):
                mask = tf.sequence_mask([number], length, tf.int32)
                found = layouts.find_tokens_of_parts(mask, 1, step)
                counts.add(found["token_indices"].shape[1])
            self.assertCountEqual(layouts.row_counts([length], step), counts)


if __name__ == "__main__":
    tf.test.main()
