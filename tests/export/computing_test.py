"""Tests for export.computing."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export import computing
from bert_tf.modeling import task_models
from bert_tf.modeling.bert import named_variables
from tests.support import tiny_model


def _logits(outputs):
    return {x: t for x, t in outputs.items() if x.endswith("logits")}


class ComputingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(0, 3, 7)
    def test_parts_give_what_all_at_once_gives(self, count):
        model = task_models.BertForQuestionAnswering(tiny_model.CONFIG)
        for name, value in tiny_model.random_weights(model).items():
            named_variables(model)[name].assign(value)
        rng = np.random.default_rng(count)
        ids = tf.constant(rng.integers(0, 16, [count, 9]), tf.int32)
        lengths = rng.integers(1, 10, [count, 1])
        inputs = {
            "input_ids": ids,
            "input_mask": tf.constant(np.arange(9) < lengths, tf.int32),
            "segment_ids": tf.constant(
                rng.integers(0, 2, [count, 9]), tf.int32
            ),
        }
        specs = {
            name: tf.TensorSpec([None, None], x.dtype)
            for name, x in inputs.items()
        }
        compute = tf.function(
            lambda rows: computing.compute(model, rows, 3, _logits),
            input_signature=[specs],
        )
        outputs = compute(inputs)
        self.assertEqual(set(outputs), {"start_logits", "end_logits"})
        expected = computing.compute(model, inputs)
        for name, values in outputs.items():
            self.assertEqual(values.shape, [count, 9])
            self.assertAllClose(values, expected[name], atol=1e-6)

    def test_no_part_has_more_rows_than_are_allowed(self):
        counts = []

        def model(inputs, training):
            self.assertFalse(training)
            ids = inputs["input_ids"]
            # In the order of the parts, as they are computed one by one.
            count = tf.py_function(
                lambda x: counts.append(len(x)) or len(x), [ids], tf.int32
            )
            with tf.control_dependencies([count]):
                return {"logits": tf.cast(ids, tf.float32), "states": ids}

        compute = tf.function(
            lambda ids, most: computing.compute(
                model, {"input_ids": ids}, most, _logits
            ),
            input_signature=[
                tf.TensorSpec([None, 2], tf.int32),
                tf.TensorSpec([], tf.int32),
            ],
        )
        ids = tf.reshape(tf.range(22), [11, 2])
        for most, expected in ((4, [4, 4, 3]), (11, [11])):
            counts.clear()
            outputs = compute(ids, tf.constant(most))
            self.assertAllEqual(outputs["logits"], ids)
            self.assertEqual(list(outputs), ["logits"])
            self.assertEqual(counts, expected)


if __name__ == "__main__":
    tf.test.main()
