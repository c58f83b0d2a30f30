"""Tests of the gRPC interface with tensorflow-serving-api's stubs."""

import shutil

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import regression_pb2

from tests.support import toy_models

_CLASSIFY = "tensorflow/serving/classify"
_REGRESS = "tensorflow/serving/regress"


def _proto(dtype, *sizes, **values):
    proto = tensor_pb2.TensorProto(dtype=dtype, **values)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    return proto


class GrpcTest(toy_models.ServedCase, tf.test.TestCase, parameterized.TestCase):
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
        examples = [tf.train.Example() for _ in values]
        for example, value in zip(examples, values, strict=True):
            example.features.feature["x"].float_list.value.append(value)
        return {"example_list": {"examples": examples}}

    def test_predict(self):
        weights = np.array([[1, 2.5], [-1, 0]], np.float32)
        request = self.request("", text=["ab", "日本語!"], weights=weights)
        response = self.call(self.stub.Predict, request)
        spec = response.model_spec
        self.assertEqual((spec.name, spec.version.value), ("toy", 3))
        self.assertEqual(spec.signature_name, "serving_default")
        outputs = response.outputs
        # The fields that clients read by name.
        self.assertEqual(outputs["scaled"].float_val, [10, 25, -10, 0])
        self.assertEqual(outputs["length"].int_val, [2, 10])
        labels = ["café".encode(), b"long"]
        self.assertEqual(outputs["label"].string_val, labels)
        scaled = tf.make_ndarray(outputs["scaled"])
        self.assertAllEqual(scaled, [[10, 25], [-10, 0]])

    def test_predict_some_outputs_of_a_version(self):
        inputs = {"text": ["abc"], "weights": np.ones([1, 2], np.float32)}
        outputs = self.predict("serving_default", ["length"], 3, **inputs)
        self.assertEqual(list(outputs), ["length"])

    def test_tensors_in_all_their_forms(self):
        content = tf.make_tensor_proto(np.array([1.0, 4.0], np.float32))
        self.assertTrue(content.tensor_content)
        typed = _proto(1, 2, float_val=[1, 4])
        for proto in (content, typed):
            values = self.predict("log", x=proto)["y"].float_val
            self.assertAllClose(values, [0, 10 * np.log(4)])
        # The last value is repeated for missing ones.
        repeated = _proto(7, 3, string_val=[b"\xff"])
        values = self.predict("echo", text=repeated)["text"].string_val
        self.assertEqual(values, [b"\xff"] * 3)

    def test_no_rows(self):
        outputs = self.predict("log", x=np.zeros([0], np.float32))
        self.assertEqual(tf.make_ndarray(outputs["y"]).shape, (0,))

    def test_ten_megabytes(self):
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
    def test_wrong_requests(self, signature, inputs, code, message):
        self.assert_predict_fails(code, message, signature, **inputs)

    def test_refuses_invalid_tensors(self):
        unknown = _proto(1)
        unknown.tensor_shape.unknown_rank = True
        for proto in (
            unknown,
            _proto(1, -1),
            _proto(1, 1, tensor_content=b"123"),
            _proto(7, 1, string_val=[b"a", b"b"]),
            _proto(0),
            _proto(999),
        ):
            text = "tensor parsing error: x"
            self.assert_predict_fails("INVALID_ARGUMENT", text, "log", x=proto)

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

    def test_classify(self):
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

    def test_regress_with_a_context(self):
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

    def test_multi_inference(self):
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
            # Signatures of TensorFlow 2 have placeholders of their own.
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

    def test_metadata(self):
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

    def test_status(self):
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

    def test_reload_config(self):
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
        second.base_path = f"{self.folder}/nowhere"
        self.assert_grpc_refuses(
            "FAILED_PRECONDITION",
            "must be a folder of versions",
            self.models.HandleReloadConfigRequest,
            request,
        )
        request.config.Clear()
        self.assert_grpc_refuses(
            "INVALID_ARGUMENT",
            "model_config_list",
            self.models.HandleReloadConfigRequest,
            request,
        )


if __name__ == "__main__":
    tf.test.main()
