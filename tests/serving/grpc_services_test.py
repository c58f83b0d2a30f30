"""Tests of the gRPC interface with tensorflow-serving-api's stubs."""

import shutil
import tempfile

import grpc
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
from tensorflow_serving.apis import prediction_service_pb2_grpc
from tensorflow_serving.apis import regression_pb2

from tests.support import toy_models

_CLASSIFY = "tensorflow/serving/classify"
_REGRESS = "tensorflow/serving/regress"


class GrpcTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.version = toy_models.write(f"{cls.folder}/toy", 3, factor=10.0)
        cls.server, config = cls.enterClassContext(
            toy_models.serving(
                f"{cls.folder}/toy",
                allow_reload=True,
                max_grpc_message_bytes=16 << 20,
            )
        )
        cls.channel = cls.enterClassContext(
            grpc.insecure_channel(
                f"localhost:{config.port}",
                [("grpc.max_receive_message_length", -1)],
            )
        )
        cls.stub = prediction_service_pb2_grpc.PredictionServiceStub(
            cls.channel
        )
        cls.models = model_service_pb2_grpc.ModelServiceStub(cls.channel)

    def call(self, method, request):
        return method(request, timeout=toy_models.TIMEOUT_SECONDS)

    def predict(self, signature, output_filter=(), version=None, **inputs):
        request = toy_models.predict_request(signature, **inputs)
        request.output_filter.extend(output_filter)
        if version is not None:
            request.model_spec.version.value = version
        return self.call(self.stub.Predict, request)

    def assert_fails(self, code, message, function, *args, **kwargs):
        with self.assertRaises(grpc.RpcError) as raised:
            function(*args, **kwargs)
        self.assertEqual(raised.exception.code(), grpc.StatusCode[code])
        self.assertIn(message, raised.exception.details())

    def assert_refused(self, code, message, method, request):
        self.assert_fails(code, message, self.call, method, request)

    def examples(self, *values):
        examples = [tf.train.Example() for _ in values]
        for example, value in zip(examples, values, strict=True):
            example.features.feature["x"].float_list.value.append(value)
        return {"example_list": {"examples": examples}}

    def test_predict(self):
        response = self.predict(
            "",
            text=["ab", "日本語!"],
            weights=np.array([[1, 2.5], [-1, 0]], np.float32),
        )
        self.assertEqual(response.model_spec.name, "toy")
        self.assertEqual(response.model_spec.version.value, 3)
        self.assertEqual(response.model_spec.signature_name, "serving_default")
        outputs = response.outputs
        # The fields that clients read by name.
        self.assertEqual(outputs["scaled"].float_val, [10, 25, -10, 0])
        self.assertEqual(outputs["length"].int_val, [2, 10])
        self.assertEqual(
            outputs["label"].string_val, ["café".encode(), b"long"]
        )
        self.assertAllEqual(
            tf.make_ndarray(outputs["scaled"]), [[10, 25], [-10, 0]]
        )

    def test_predict_some_outputs_of_a_version(self):
        response = self.predict(
            "serving_default",
            ["length"],
            3,
            text=["abc"],
            weights=np.ones([1, 2], np.float32),
        )
        self.assertEqual(list(response.outputs), ["length"])

    def test_tensors_in_all_their_forms(self):
        content = tf.make_tensor_proto(np.array([1.0, 4.0], np.float32))
        self.assertTrue(content.tensor_content)
        typed = tensor_pb2.TensorProto(dtype=1, float_val=[1, 4])
        typed.tensor_shape.dim.add(size=2)
        for proto in (content, typed):
            values = self.predict("log", x=proto).outputs["y"].float_val
            self.assertAllClose(values, [0, 10 * np.log(4)])
        # The last value is repeated for missing ones.
        repeated = tensor_pb2.TensorProto(dtype=7, string_val=[b"\xff"])
        repeated.tensor_shape.dim.add(size=3)
        values = self.predict("echo", text=repeated).outputs["text"].string_val
        self.assertEqual(values, [b"\xff"] * 3)

    def test_no_rows(self):
        response = self.predict("log", x=np.zeros([0], np.float32))
        self.assertEqual(tf.make_ndarray(response.outputs["y"]).shape, (0,))

    def test_ten_megabytes(self):
        text = "long text " * (1 << 20)
        response = self.predict("echo", text=[text, "b"])
        self.assertEqual(
            response.outputs["text"].string_val, [text.encode(), b"b"]
        )

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
        self.assert_fails(code, message, self.predict, signature, **inputs)

    def test_refuses_invalid_tensors(self):
        unknown = tensor_pb2.TensorProto(dtype=1)
        unknown.tensor_shape.unknown_rank = True
        negative = tensor_pb2.TensorProto(dtype=1)
        negative.tensor_shape.dim.add(size=-1)
        short = tensor_pb2.TensorProto(dtype=1, tensor_content=b"123")
        short.tensor_shape.dim.add(size=1)
        strings = tensor_pb2.TensorProto(dtype=7, string_val=[b"a", b"b"])
        strings.tensor_shape.dim.add(size=1)
        for proto in (
            unknown,
            negative,
            short,
            strings,
            tensor_pb2.TensorProto(dtype=0),
            tensor_pb2.TensorProto(dtype=999),
        ):
            self.assert_fails(
                "INVALID_ARGUMENT",
                "tensor parsing error: x",
                self.predict,
                "log",
                x=proto,
            )
        huge = tensor_pb2.TensorProto(dtype=1, float_val=[0])
        huge.tensor_shape.dim.add(size=1 << 40)
        self.assert_fails(
            "RESOURCE_EXHAUSTED",
            "--max_request_rows",
            self.predict,
            "log",
            x=huge,
        )

    def test_refuses_wrong_names(self):
        self.assert_fails(
            "INVALID_ARGUMENT",
            "output tensor alias not found in signature: z",
            self.predict,
            "log",
            ["z"],
            x=[1.0],
        )
        self.assert_fails(
            "NOT_FOUND",
            "Servable not found for request: Specific(toy, 8)",
            self.predict,
            "log",
            version=8,
            x=[1.0],
        )
        for request, code, message in (
            ({}, "INVALID_ARGUMENT", "Missing ModelSpec"),
            ({"model_spec": {}}, "INVALID_ARGUMENT", "no name"),
            ({"model_spec": {"name": "n"}}, "NOT_FOUND", "Latest(n)"),
        ):
            self.assert_refused(
                code,
                message,
                self.stub.Predict,
                predict_pb2.PredictRequest(**request),
            )

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
        self.assert_refused(
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
            self.assert_refused(
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
            self.assert_refused(
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
        self.assert_refused(
            "NOT_FOUND",
            "Could not find any versions of model nix",
            self.models.GetModelStatus,
            request,
        )

    def test_reloads_only_if_that_is_allowed(self):
        request = model_management_pb2.ReloadConfigRequest()
        with (
            toy_models.serving(
                f"{self.folder}/toy", rest_api_port=0, enable_model_warmup=False
            ) as (_, config),
            grpc.insecure_channel(f"localhost:{config.port}") as channel,
        ):
            stub = model_service_pb2_grpc.ModelServiceStub(channel)
            self.assert_refused(
                "PERMISSION_DENIED",
                "--allow_reload",
                stub.HandleReloadConfigRequest,
                request,
            )

    def test_reload_config(self):
        shutil.copytree(self.version, f"{self.folder}/second/8")
        request = model_management_pb2.ReloadConfigRequest()
        models = request.config.model_config_list.config
        models.add(name="toy", base_path=f"{self.folder}/toy")
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
        self.assert_refused(
            "FAILED_PRECONDITION",
            "must be a folder of versions",
            self.models.HandleReloadConfigRequest,
            request,
        )
        # A bad configuration changes nothing, not even its good models.
        second.base_path = f"{self.folder}/toy\0"
        del models[0]
        self.assert_refused(
            "FAILED_PRECONDITION",
            "null byte",
            self.models.HandleReloadConfigRequest,
            request,
        )
        for name in ("toy", "second"):
            status = get_model_status_pb2.GetModelStatusRequest(
                model_spec={"name": name}
            )
            self.call(self.models.GetModelStatus, status)
        request.config.Clear()
        self.assert_refused(
            "INVALID_ARGUMENT",
            "model_config_list",
            self.models.HandleReloadConfigRequest,
            request,
        )


if __name__ == "__main__":
    tf.test.main()
