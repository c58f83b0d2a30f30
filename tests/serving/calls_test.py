"""Tests for bert_tf.serving.calls: unusual outputs, and warmup requests."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import input_pb2
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.serving import calls
from bert_tf.serving import errors
from bert_tf.serving import json_values
from bert_tf.serving.saved_model import SavedModelEngine
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import TensorSpec
from tests.support import toy_models

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


class JsonTest(tf.test.TestCase, parameterized.TestCase):
    def test_outputs_must_have_equal_numbers_of_rows(self):
        outputs = {"a": np.zeros(2), "b": np.zeros(3)}
        with self.assertRaisesRegex(errors.RequestError, "b has inconsistent"):
            json_values.write_predictions(outputs, True)
        written = json_values.write_predictions(outputs, False)
        expected = b'{"outputs":{"a":[0.0,0.0],"b":[0.0,0.0,0.0]}}'
        self.assertEqual(written, expected)

    @parameterized.parameters(
        (np.float32, b"0.1"), (np.float16, b"0.099975586")
    )
    def test_float_digits_beside_nan(self, dtype, digits):
        outputs = {"y": np.array([0.1, np.nan], dtype)}
        written = json_values.write_predictions(outputs, True)
        self.assertEqual(written, b'{"predictions": [%s, NaN]}' % digits)


_REGRESS_METHOD = "tensorflow/serving/regress"


def _predict_log(text):
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = "echo"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([text, "b"]))
    return log


def _with_examples(kind, signature):
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, kind).request
    example = request.input.example_list.examples.add()
    example.features.feature["x"].float_list.value.append(1)
    if kind == "multi_inference_log":
        task = request.tasks.add(method_name=_REGRESS_METHOD)
        task.model_spec.signature_name = signature
    else:
        request.model_spec.signature_name = signature
    return log


def _write_warmup(directory, *records):
    """Writes messages, or bytes in place of one; returns the path."""
    path = os.path.join(directory, calls.WARMUP_FILE)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            if not isinstance(record, bytes):
                record = record.SerializeToString()
            writer.write(record)
    return path


class WarmupTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.directory = toy_models.write(cls.folder)
        cls.servable = SavedModelEngine().load("toy", 1, cls.directory)
        cls.addClassCleanup(cls.servable.retire)

    def run_records(self, *records):
        path = _write_warmup(self.directory, *records)
        self.addCleanup(os.remove, path)
        return calls.warm_up(self.servable, self.directory)

    def test_a_version_without_requests(self):
        self.assertEqual(calls.warm_up(self.servable, self.directory), 0)

    def test_runs_all_kinds_of_requests(self):
        count = self.run_records(
            _predict_log("a"),
            _with_examples("classify_log", "classify"),
            _with_examples("regress_log", "regress"),
            _with_examples("multi_inference_log", "regress"),
        )
        self.assertEqual(count, 4)

    @parameterized.parameters(
        (_predict_log("bad"), "bad text"),
        (_with_examples("regress_log", "nix"), "name: nix"),
        (_with_examples("regress_log", "classify"), "one output Tensor"),
        (prediction_log_pb2.PredictionLog(), "Unsupported log_type"),
        (b"\xff\xff", "Failed to parse warmup record"),
    )
    def test_a_failing_request_fails_the_version(self, record, message):
        with self.assertRaisesRegex(errors.RequestError, message):
            self.run_records(_predict_log("a"), record)

    def test_too_many(self):
        with self.assertRaisesRegex(errors.RequestError, "exceeds the maximum"):
            self.run_records(*[_predict_log("a")] * 1001)

    def test_a_file_that_holds_no_records(self):
        path = _write_warmup(self.directory)
        with open(path, "wb") as file:
            file.write(b"no records, but long enough for the first length")
        self.addCleanup(os.remove, path)
        with self.assertRaisesRegex(errors.RequestError, "TFRecord format"):
            calls.warm_up(self.servable, self.directory)

    def test_a_version_that_fails_is_not_served(self):
        with tempfile.TemporaryDirectory() as base_path:
            toy_models.copy(self.directory, base_path, 1)
            flags = {"model_name": "toy"}
            with toy_models.serving(base_path, **flags) as (server, config):
                version = toy_models.copy(self.directory, base_path, "new")
                _write_warmup(version, _predict_log("bad"))
                os.rename(version, os.path.join(base_path, "2"))
                server._service.manager.refresh()
                states = toy_models.states(config.rest_api_port)
        self.assertEqual(states, {"1": "AVAILABLE", "2": "END"})


if __name__ == "__main__":
    tf.test.main()
