"""Tests for bert_tf.serving.warmup."""

import os
import tempfile

import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.serving import errors
from bert_tf.serving import warmup
from bert_tf.serving.saved_model import SavedModelEngine
from tests.support import toy_models

_REGRESS = "tensorflow/serving/regress"


def _predict(text):
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
        task = request.tasks.add(method_name=_REGRESS)
        task.model_spec.signature_name = signature
    else:
        request.model_spec.signature_name = signature
    return log


class WarmupTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.directory = toy_models.write(cls.folder)
        cls.servable = SavedModelEngine().load("toy", 1, cls.directory)
        cls.addClassCleanup(cls.servable.retire)

    def run_records(self, *records):
        path = os.path.join(self.directory, warmup.WARMUP_FILE)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                if not isinstance(record, bytes):
                    record = record.SerializeToString()
                writer.write(record)
        self.addCleanup(os.remove, path)
        return warmup.run(self.servable, self.directory)

    def test_a_version_without_requests(self):
        self.assertEqual(warmup.run(self.servable, self.directory), 0)

    def test_runs_all_kinds_of_requests(self):
        count = self.run_records(
            _predict("a"),
            _with_examples("classify_log", "classify"),
            _with_examples("regress_log", "regress"),
            _with_examples("multi_inference_log", "regress"),
        )
        self.assertEqual(count, 4)

    @parameterized.parameters(
        (_predict("bad"), "bad text"),
        (_with_examples("regress_log", "nix"), "name: nix"),
        (_with_examples("regress_log", "classify"), "one output Tensor"),
        (prediction_log_pb2.PredictionLog(), "Unsupported log_type"),
        (b"\xff\xff", "Failed to parse warmup record"),
    )
    def test_a_failing_request_fails_the_version(self, record, message):
        with self.assertRaisesRegex(errors.RequestError, message):
            self.run_records(_predict("a"), record)

    def test_too_many(self):
        with self.assertRaisesRegex(errors.RequestError, "exceeds the maximum"):
            self.run_records(*[_predict("a")] * 1001)

    def test_a_file_that_holds_no_records(self):
        path = os.path.join(self.directory, warmup.WARMUP_FILE)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"no records, but long enough for the first length")
        self.addCleanup(os.remove, path)
        with self.assertRaisesRegex(errors.RequestError, "TFRecord format"):
            warmup.run(self.servable, self.directory)

    def test_a_version_that_fails_is_not_served(self):
        with tempfile.TemporaryDirectory() as base_path:
            toy_models.copy(self.directory, base_path, 1)
            with toy_models.serving(base_path) as (server, config):
                version = toy_models.copy(self.directory, base_path, "new")
                path = os.path.join(version, warmup.WARMUP_FILE)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with tf.io.TFRecordWriter(path) as writer:
                    writer.write(_predict("bad").SerializeToString())
                os.rename(version, os.path.join(base_path, "2"))
                server.look_for_versions()
                name = os.path.basename(base_path)
                _, answer = toy_models.ask(
                    config.rest_api_port, "GET", f"/v1/models/{name}"
                )
        states = {
            entry["version"]: (entry["state"], entry["status"]["error_code"])
            for entry in answer["model_version_status"]
        }
        self.assertEqual(
            states,
            {"1": ("AVAILABLE", "OK"), "2": ("END", "INVALID_ARGUMENT")},
        )


if __name__ == "__main__":
    tf.test.main()
