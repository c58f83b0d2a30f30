"""Tests for bert_tf.serving.calls with unusual outputs."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import input_pb2

from bert_tf.serving import calls
from bert_tf.serving import errors
from bert_tf.serving import json_tensors
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import TensorSpec

_EXAMPLES = TensorSpec(tf.string, (None,))
_NUMBERS = TensorSpec(tf.float32, (None, None))
_STRINGS = TensorSpec(tf.string, (None, None))
_CLASSIFY = Signature(
    "classify",
    {"inputs": _EXAMPLES},
    {"classes": _STRINGS, "scores": _NUMBERS},
)
_REGRESS = Signature("regress", {"inputs": _EXAMPLES}, {"outputs": _NUMBERS})
_TWO = np.array([b"", b""], object)
_LABELS = np.array([[b"no", b"yes"]] * 2, object)
_SCORES = np.zeros([2, 2], np.float32)


def _example(**values):
    example = tf.train.Example()
    for name, value in values.items():
        example.features.feature[name].float_list.value.append(value)
    return example


class InferenceTest(tf.test.TestCase, parameterized.TestCase):
    def test_labels_that_are_not_utf_8_become_text(self):
        labels = np.array([[b"a\xff", "é".encode()]] * 2, object)
        call = calls._classification(_CLASSIFY, _TWO)
        result = call.respond({"classes": labels, "scores": _SCORES})
        row = [item.label for item in result.classifications[1].classes]
        self.assertEqual(row, ["a\ufffd", "é"])

    @parameterized.parameters(
        ({"scores": _SCORES.astype(np.float64)}, "scores .* DT_FLOAT"),
        ({"scores": _SCORES[0]}, "batch_size num_classes. but got .2"),
        ({"scores": _SCORES[:1]}, "scores output batch size of 2. Got: 1"),
        ({"scores": _SCORES[:, :1]}, "should match in dim_size.*2 vs. 1"),
        ({"classes": _SCORES}, "classes Tensor of DT_STRING"),
    )
    def test_refuses_invalid_classes(self, changes, message):
        call = calls._classification(_CLASSIFY, _TWO)
        outputs = {"classes": _LABELS, "scores": _SCORES} | changes
        with self.assertRaisesRegex(errors.RequestError, message):
            call.respond(outputs)

    @parameterized.parameters(
        (np.zeros([2, 2], np.float32), "or .batch_size, 1. but got .2, 2"),
        (np.zeros([2, 1, 1], np.float32), "but got .2, 1, 1"),
        (np.zeros([3], np.float32), "Expected: 2 Got: 3"),
        (np.zeros([2]), "DT_FLOAT. Got: float64"),
    )
    def test_refuses_invalid_scores(self, value, message):
        call = calls._regression(_REGRESS, _TWO)
        with self.assertRaisesRegex(errors.RequestError, message):
            call.respond({"outputs": value})

    def test_examples_override_the_context(self):
        request = input_pb2.Input()
        request.example_list_with_context.context.CopyFrom(_example(x=1, y=2))
        request.example_list_with_context.examples.add().CopyFrom(_example(x=3))
        (serialized,) = calls._examples(request)
        features = tf.train.Example.FromString(serialized).features.feature
        values = {x: f.float_list.value[0] for x, f in features.items()}
        self.assertEqual(values, {"x": 3, "y": 2})

    def test_refuses_duplicate_outputs(self):
        with self.assertRaisesRegex(errors.RequestError, "alias: scores"):
            calls._requested_outputs(_CLASSIFY, ["scores", "scores"])
        names = calls._requested_outputs(_CLASSIFY, ["scores", "classes"])
        self.assertEqual(names, ("scores", "classes"))


class JsonTest(tf.test.TestCase):
    def test_outputs_must_have_equal_numbers_of_rows(self):
        outputs = {"a": np.zeros(2), "b": np.zeros(3)}
        with self.assertRaisesRegex(
            errors.RequestError, "b has inconsistent batch size: 3 expecting: 2"
        ):
            json_tensors.write_predictions(outputs, True)
        self.assertEqual(
            json_tensors.write_predictions(outputs, False),
            b'{"outputs":{"a":[0.0,0.0],"b":[0.0,0.0,0.0]}}',
        )

    def test_float_digits_with_and_without_nan(self):
        values = np.array([0.1, np.nan], np.float32)
        self.assertEqual(
            json_tensors.write_predictions({"y": values}, True),
            b'{"predictions": [0.1, NaN]}',
        )
        half = np.array([0.1, np.nan], np.float16)
        self.assertEqual(
            json_tensors.write_predictions({"y": half}, True),
            b'{"predictions": [0.099975586, NaN]}',
        )


if __name__ == "__main__":
    tf.test.main()
