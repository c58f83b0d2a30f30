"""Tests of the gRPC interface, of unusual outputs, and of warmup."""

import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import input_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.apis import regression_pb2

from bert_tf.io import files
from bert_tf.serving import calls
from bert_tf.serving import errors
from bert_tf.serving import json_values
from bert_tf.serving.saved_model import SavedModelEngine
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import TensorSpec
from tests.support import toy_models

_CLASSIFY = "tensorflow/serving/classify"
_REGRESS = "tensorflow/serving/regress"


class GrpcTest(toy_models.ServedCase):
    FLAGS = {"allow_reload": True, "max_grpc_message_bytes": 16 << 20}

    @classmethod
    def flags(cls):
        cls.base_path = f"{cls.folder}/models/toy"
        cls.version = toy_models.write(cls.base_path, 3, factor=10.0)
        return {"base_path": cls.base_path} | cls.FLAGS

    def call(self, method, request):
        return method(request, timeout=toy_models.TIMEOUT_SECONDS)

    def request(self, signature, output_filter=(), version=None, **inputs):
        request = toy_models.predict_request(signature, **inputs)
        request.output_filter.extend(output_filter)
        if version is not None:
            request.model_spec.version.value = version
        return request

    def predict(self, *args, **inputs):
        """Returns the outputs by name."""
        request = self.request(*args, **inputs)
        return self.call(self.stub.Predict, request).outputs

    def assert_predict_fails(self, code, text, /, *args, **inputs):
        request = self.request(*args, **inputs)
        self.assert_grpc_refuses(code, text, self.stub.Predict, request)

    def examples(self, *values):
        examples = [_example(x=value) for value in values]
        return {"example_list": {"examples": examples}}

    def test_predict_answers_in_typed_fields(self):
        weights = np.array([[1, 2.5], [-1, 0]], np.float32)
        request = self.request("", text=["ab", "日本語!"], weights=weights)
        response = self.call(self.stub.Predict, request)
        spec = response.model_spec
        self.assertEqual((spec.name, spec.version.value), ("toy", 3))
        self.assertEqual(spec.signature_name, "serving_default")
        outputs = response.outputs
        # Clients read these typed fields, so they must not be empty.
        self.assertEqual(outputs["scaled"].float_val, [10, 25, -10, 0])
        self.assertEqual(outputs["length"].int_val, [2, 10])
        labels = ["café".encode(), b"long"]
        self.assertEqual(outputs["label"].string_val, labels)
        scaled = tf.make_ndarray(outputs["scaled"])
        self.assertAllEqual(scaled, [[10, 25], [-10, 0]])

    def test_reads_tensors_in_all_their_forms(self):
        content = tf.make_tensor_proto(np.array([1.0, 4.0], np.float32))
        self.assertTrue(content.tensor_content)
        typed = toy_models.tensor_proto(1, 2, float_val=[1, 4])
        for proto in (content, typed):
            values = self.predict("log", x=proto)["y"].float_val
            self.assertAllClose(values, [0, 10 * np.log(4)])
        # Missing values repeat the last one, so one string fills three.
        repeated = toy_models.tensor_proto(7, 3, string_val=[b"\xff"])
        values = self.predict("echo", text=repeated)["text"].string_val
        self.assertEqual(values, [b"\xff"] * 3)

    def test_ten_megabytes_are_echoed(self):
        texts = [b"long text " * (1 << 20), b"b"]
        values = self.predict("echo", text=texts)["text"].string_val
        self.assertEqual(values, texts)

    @parameterized.parameters(
        ("nix", {}, "FAILED_PRECONDITION", 'key "nix" not found'),
        ("log", {}, "INVALID_ARGUMENT", "Missing but required: {x}"),
        ("log", {"x": [1.0], "y": [1.0]}, "INVALID_ARGUMENT", "extra: {y}"),
        ("log", {"x": [1]}, "INVALID_ARGUMENT", "must be float32"),
        ("log", {"x": ["1"]}, "INVALID_ARGUMENT", "Received: string"),
        ("log", {"x": [[1.0]]}, "INVALID_ARGUMENT", "Received: [1,1]"),
        ("log", {"x": 1.0}, "INVALID_ARGUMENT", "must have the shape [?]"),
        ("echo", {"text": ["bad"]}, "INVALID_ARGUMENT", "bad text"),
    )
    def test_wrong_requests_are_refused(self, signature, inputs, code, message):
        self.assert_predict_fails(code, message, signature, **inputs)

    def test_refuses_invalid_tensors(self):
        unknown = toy_models.tensor_proto(1)
        unknown.tensor_shape.unknown_rank = True
        for proto in (
            unknown,
            toy_models.tensor_proto(1, -1),
            toy_models.tensor_proto(1, 1, tensor_content=b"123"),
            toy_models.tensor_proto(7, 1, string_val=[b"a", b"b"]),
            toy_models.tensor_proto(0),
            toy_models.tensor_proto(999),
        ):
            text = "tensor parsing error: x"
            self.assert_predict_fails("INVALID_ARGUMENT", text, "log", x=proto)
        huge = toy_models.tensor_proto(1, 1 << 40, float_val=[0])
        flag = "--max_request_rows"
        self.assert_predict_fails("RESOURCE_EXHAUSTED", flag, "log", x=huge)

    def test_refuses_wrong_names(self):
        for code, text, args in (
            ("INVALID_ARGUMENT", "alias not found in signature: z", [["z"]]),
            ("NOT_FOUND", "for request: Specific(toy, 8)", [(), 8]),
        ):
            self.assert_predict_fails(code, text, "log", *args, x=[1.0])
        for request, code, message in (
            ({}, "INVALID_ARGUMENT", "Missing ModelSpec"),
            ({"model_spec": {}}, "INVALID_ARGUMENT", "no name"),
            ({"model_spec": {"name": "n"}}, "NOT_FOUND", "Latest(n)"),
        ):
            request = predict_pb2.PredictRequest(**request)
            self.assert_grpc_refuses(code, message, self.stub.Predict, request)

    def test_classify_gives_labels_and_scores(self):
        request = classification_pb2.ClassificationRequest(
            model_spec={"name": "toy", "signature_name": "classify"},
            input=self.examples(0.5, -2),
        )
        response = self.call(self.stub.Classify, request)
        self.assertEqual(
            [
                [(item.label, item.score) for item in row.classes]
                for row in response.result.classifications
            ],
            [[("low", -5), ("high", 5)], [("low", 20), ("high", -20)]],
        )
        self.assertEqual(response.model_spec.version.value, 3)
        request.input.Clear()
        self.assert_grpc_refuses(
            "INVALID_ARGUMENT", "Input is empty", self.stub.Classify, request
        )

    def test_regress_reads_the_context(self):
        examples = self.examples(1.5)["example_list"]["examples"]
        request = regression_pb2.RegressionRequest(
            model_spec={"name": "toy", "signature_name": "regress"},
            input={
                "example_list_with_context": {
                    "context": examples[0],
                    "examples": [tf.train.Example()] * 2,
                }
            },
        )
        response = self.call(self.stub.Regress, request)
        self.assertEqual(
            [row.value for row in response.result.regressions], [15, 15]
        )

    def test_multi_inference_refuses_wrong_second_tasks(self):
        request = inference_pb2.MultiInferenceRequest(
            tasks=[
                {
                    "model_spec": {"name": "toy", "signature_name": "regress"},
                    "method_name": _REGRESS,
                }
            ],
            input=self.examples(2),
        )
        (result,) = self.call(self.stub.MultiInference, request).results
        self.assertEqual(result.model_spec.signature_name, "regress")
        self.assertEqual(result.regression_result.regressions[0].value, 20)
        task = request.tasks.add()
        task.CopyFrom(request.tasks[0])
        for name, signature, message in (
            ("toy", "regress", "Duplicate evaluation of signature: regress"),
            ("other", "regress", "must access the same model name"),
            ("", "regress", "empty model name"),
            ("toy", "nix", "not found in model graph: nix"),
            # Signatures of TensorFlow 2 never share their placeholders.
            ("toy", "classify", "Input tensor must be the same"),
        ):
            task.model_spec.name = name
            task.model_spec.signature_name = signature
            task.method_name = (
                _CLASSIFY if signature == "classify" else _REGRESS
            )
            self.assert_grpc_refuses(
                "INVALID_ARGUMENT", message, self.stub.MultiInference, request
            )

    def test_metadata_describes_the_signatures(self):
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec={"name": "toy"}, metadata_field=["signature_def"]
        )
        response = self.call(self.stub.GetModelMetadata, request)
        self.assertEqual(response.model_spec.version.value, 3)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        inputs = signatures.signature_def["total"].inputs
        self.assertEqual(inputs["ids"].dtype, tf.int32.as_datatype_enum)
        self.assertEqual(
            [dim.size for dim in inputs["ids"].tensor_shape.dim], [-1, -1]
        )
        for fields in ([], ["other"]):
            del request.metadata_field[:]
            request.metadata_field.extend(fields)
            self.assert_grpc_refuses(
                "INVALID_ARGUMENT",
                "etadata",
                self.stub.GetModelMetadata,
                request,
            )

    def test_status_of_known_model_is_available(self):
        request = get_model_status_pb2.GetModelStatusRequest(
            model_spec={"name": "toy"}
        )
        (entry,) = self.call(
            self.models.GetModelStatus, request
        ).model_version_status
        self.assertEqual(entry.version, 3)
        self.assertEqual(entry.state, entry.AVAILABLE)
        self.assertEqual(entry.status.error_code, 0)
        request.model_spec.name = "nix"
        self.assert_grpc_refuses(
            "NOT_FOUND",
            "Could not find any versions of model nix",
            self.models.GetModelStatus,
            request,
        )

    def test_reloads_only_if_that_is_allowed(self):
        _, config = self.enterContext(self.serving(rest_api_port=0))
        channel = self.enterContext(toy_models.connect(config))
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.assert_grpc_refuses(
            *("PERMISSION_DENIED", "--allow_reload"),
            models.HandleReloadConfigRequest,
            model_management_pb2.ReloadConfigRequest(),
        )

    def test_reload_config_changes_all_or_nothing(self):
        shutil.copytree(self.version, f"{self.folder}/second/8")
        request = model_management_pb2.ReloadConfigRequest()
        models = request.config.model_config_list.config
        models.add(name="toy", base_path=self.base_path)
        second = models.add(name="second", base_path=f"{self.folder}/second")
        second.version_labels["best"] = 8
        response = self.call(self.models.HandleReloadConfigRequest, request)
        self.assertEqual(response.status.error_code, 0)
        status = get_model_status_pb2.GetModelStatusRequest(
            model_spec={"name": "second", "version_label": "best"}
        )
        (entry,) = self.call(
            self.models.GetModelStatus, status
        ).model_version_status
        self.assertEqual(entry.version, 8)

        def refuse(code, text):
            method = self.models.HandleReloadConfigRequest
            self.assert_grpc_refuses(code, text, method, request)

        second.base_path = f"{self.folder}/nowhere"
        refuse("FAILED_PRECONDITION", "must be a folder of versions")
        # A bad configuration must change nothing, not even good models.
        second.base_path = f"{self.base_path}\0"
        del models[0]
        refuse("FAILED_PRECONDITION", "null byte")
        for name in ("toy", "second"):
            status = get_model_status_pb2.GetModelStatusRequest(
                model_spec={"name": name}
            )
            self.call(self.models.GetModelStatus, status)
        request.config.Clear()
        refuse("INVALID_ARGUMENT", "model_config_list")


_EXAMPLES = TensorSpec(tf.string, (None,))
_NUMBERS = TensorSpec(tf.float32, (None, None))
_STRINGS = TensorSpec(tf.string, (None, None))
_CALLS_CLASSIFY = Signature(
    "classify", {"inputs": _EXAMPLES}, {"classes": _STRINGS, "scores": _NUMBERS}
)
_CALLS_REGRESS = Signature(
    "regress", {"inputs": _EXAMPLES}, {"outputs": _NUMBERS}
)
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
        call = calls._classification(_CALLS_CLASSIFY, _TWO)
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
        call = calls._classification(_CALLS_CLASSIFY, _TWO)
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
        call = calls._regression(_CALLS_REGRESS, _TWO)
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
            calls._requested_outputs(_CALLS_CLASSIFY, ["scores", "scores"])
        names = calls._requested_outputs(_CALLS_CLASSIFY, ["scores", "classes"])
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
    def test_nan_does_not_change_float_digits(self, dtype, digits):
        outputs = {"y": np.array([0.1, np.nan], dtype)}
        written = json_values.write_predictions(outputs, True)
        self.assertEqual(written, b'{"predictions": [%s, NaN]}' % digits)

    def test_text_that_is_not_utf8_does_not_change_float_digits(self):
        scores = np.array([[0.1, 2.0]], np.float32)
        outputs = {"t": np.array([b"\xff"], object), "y": scores}
        for by_rows, expected in (
            (True, b'{"predictions": [{"t": "\xff", "y": [0.1, 2.0]}]}'),
            (False, b'{"outputs": {"t": ["\xff"], "y": [[0.1, 2.0]]}}'),
        ):
            written = json_values.write_predictions(outputs, by_rows)
            self.assertEqual(written, expected)


def _predict_log(text):
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = "echo"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([text, "b"]))
    return log


def _with_examples(kind, signature):
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, kind).request
    request.input.example_list.examples.append(_example(x=1))
    if kind == "multi_inference_log":
        task = request.tasks.add(method_name=_REGRESS)
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

    def test_too_many_records_are_refused(self):
        with (
            mock.patch.object(calls, "_MAX_WARMUP_RECORDS", 2),
            self.assertRaisesRegex(errors.RequestError, "the maximum .2"),
        ):
            self.run_records(*[_predict_log("a")] * 3)

    def test_refuses_a_file_that_holds_no_records(self):
        path = _write_warmup(self.directory)
        self.addCleanup(os.remove, path)
        files.write_text(path, "no records, but long enough for the first size")
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
                toy_models.refresh(server._service.manager)
                states = toy_models.states(config.rest_api_port)
        self.assertEqual(states, {"1": "AVAILABLE", "2": "END"})


if __name__ == "__main__":
    tf.test.main()
