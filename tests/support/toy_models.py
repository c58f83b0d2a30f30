"""Toy SavedModels with easy arithmetic, and servers in this process."""

import contextlib
import http.client
import json
import os
import shutil
import tempfile
import time

import grpc
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.flags.serve import ServeConfig
from bert_tf.serving.server import ModelServer
from tests.support import made_once
from tests.support import ports

TIMEOUT_SECONDS = 60
PREDICT = "/v1/models/toy:predict"
_SIGNATURES = ("echo", "log", "total", "share", "slow", "classify", "regress")


class _Toy(tf.Module):
    """Signatures of all kinds; `factor` distinguishes versions."""

    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(factor, dtype=tf.float32)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None, 2], tf.float32, name="weights"),
        ]
    )
    def mixed(self, text, weights):
        length = tf.strings.length(text)
        return {
            "length": length,
            "label": tf.where(length > 3, "long", "café"),
            "raw_bytes": tf.strings.join([text, "\xff"]),
            "scaled": weights * self.factor,
        }

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="text")]
    )
    def echo(self, text):
        with tf.control_dependencies(
            [tf.debugging.assert_none_equal(text, "bad", message="bad text")]
        ):
            return {"text": tf.identity(text)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def log(self, x):
        return {"y": tf.math.log(x) * self.factor}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, name="ids"),
            tf.TensorSpec([None], tf.bool, name="negate"),
        ]
    )
    def total(self, ids, negate):
        total = tf.reduce_sum(ids, -1)
        return {"total": tf.where(negate, -total, total)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def share(self, x):
        # The sum is one value for all rows, so batching must not merge calls.
        return {"sum": tf.reduce_sum(x)}

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int32, name="steps")]
    )
    def slow(self, steps):
        x = tf.ones([1 << 16])
        for _ in tf.range(tf.reduce_max(steps)):
            x = tf.sin(x)
        return {"steps": steps + tf.cast(x[0], tf.int32)}

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="inputs")]
    )
    def classify(self, inputs):
        x = self._parse(inputs)
        return {
            "classes": tf.tile([["low", "high"]], [tf.shape(x)[0], 1]),
            "scores": tf.stack([-x, x], -1) * self.factor,
        }

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="inputs")]
    )
    def regress(self, inputs):
        return {"outputs": self._parse(inputs)[:, tf.newaxis] * self.factor}

    def _parse(self, examples):
        feature = tf.io.FixedLenFeature([], tf.float32)
        return tf.io.parse_example(examples, {"x": feature})["x"]


def write(base_path, version=1, factor=2.0):
    """Writes a version of the toy model; returns its directory."""
    made = made_once.folder(
        f"toy_model_{factor}", lambda path: _save(_Toy(factor), path)
    )
    directory = os.path.join(base_path, str(version))
    return shutil.copytree(made, directory, dirs_exist_ok=True)


def _save(toy, path):
    tf.saved_model.save(
        toy,
        path,
        signatures={"serving_default": toy.mixed}
        | {name: getattr(toy, name) for name in _SIGNATURES},
    )


def copy(directory, base_path, version):
    """Copies a version atomically; returns its directory."""
    temporary = os.path.join(base_path, "copy")
    shutil.copytree(directory, temporary)
    return shutil.move(temporary, os.path.join(base_path, str(version)))


@contextlib.contextmanager
def serving(base_path=None, **flags):
    """Yields a server in this process and its configuration."""
    port, rest_api_port = ports.free(2)
    flags = {"port": port, "rest_api_port": rest_api_port} | flags
    config = ServeConfig(
        model_base_path=base_path, file_system_poll_wait_seconds=0, **flags
    )
    server = ModelServer(config)
    server.start()
    try:
        yield server, config
    finally:
        server.stop()


def refresh(manager):
    """Makes a `ModelManager` check for new versions once."""
    for model in manager._models.values():
        manager._check(model)


def tensor_proto(dtype, *sizes, **values):
    """Returns a tensor of these sizes, whose values may be too few."""
    proto = tensor_pb2.TensorProto(dtype=dtype, **values)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    return proto


def predict_request(signature="echo", **inputs):
    """Returns a request to the toy; inputs are values or protos."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "toy"
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        if not isinstance(value, tensor_pb2.TensorProto):
            value = tf.make_tensor_proto(value)
        request.inputs[name].CopyFrom(value)
    return request


class ToyCase(tf.test.TestCase, parameterized.TestCase):
    """A base of test cases that serve the toy."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.version = write(f"{cls.folder}/toy")

    def serving(self, **flags):
        return serving(f"{self.folder}/toy", **flags)


class ServedCase(ToyCase):
    """A base of test cases with a server of the toy, started with `flags`."""

    FLAGS = {}

    @classmethod
    def flags(cls):
        return {"base_path": f"{cls.folder}/toy"} | cls.FLAGS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server, cls.config = cls.enterClassContext(serving(**cls.flags()))
        cls.port = cls.config.rest_api_port
        cls.channel = cls.enterClassContext(connect(cls.config))
        cls.stub = prediction_stub(cls.channel)
        cls.models = model_service_pb2_grpc.ModelServiceStub(cls.channel)

    def ask(self, method, path, body=None, headers=()):
        return ask(self.port, method, path, body, headers)

    def post(self, body, headers=(), path=PREDICT):
        return ask(self.port, "POST", path, body, headers)

    def assert_grpc_refuses(self, code, text, method, request, **kwargs):
        """Asserts the code of a call's error, and a part of its message."""
        with self.assertRaises(grpc.RpcError) as raised:
            method(request, **{"timeout": TIMEOUT_SECONDS} | kwargs)
        details = raised.exception.details()
        self.assertEqual(raised.exception.code().name, code, details)
        self.assertIn(text, details)


def connect(config):
    """Returns a channel for large responses that buffers no more than read."""
    return grpc.insecure_channel(
        f"localhost:{config.port}",
        [
            ("grpc.max_receive_message_length", -1),
            # Otherwise a fast connection would buffer the whole response.
            ("grpc.http2.bdp_probe", 0),
        ],
    )


def prediction_stub(channel):
    """Returns the stub for predictions."""
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def states(port, name="toy"):
    """Returns the states of a model's versions, by their numbers."""
    _, answer = ask(port, "GET", f"/v1/models/{name}")
    entries = answer["model_version_status"]
    return {entry["version"]: entry["state"] for entry in entries}


def metrics(port):
    """Returns the values of a server's metrics, by their names and labels."""
    _, page = ask_raw(port, "GET", "/metrics")
    lines = (x.rsplit(" ", 1) for x in page.decode().splitlines())
    return {key: float(x) for key, x in lines if not key.startswith("#")}


def wait_until(condition):
    """Waits until a function returns true."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("It did not become true in time.")
        time.sleep(0.01)


def ask(port, method, path, body=None, headers=()):
    """Returns the status and the parsed JSON body of a response."""
    status, contents = ask_raw(port, method, path, body, headers)
    return status, json.loads(contents)


def predict(port, body):
    """Returns the status and the response of the toy to a request."""
    return ask(port, "POST", PREDICT, body)


def ask_raw(port, method, path, body=None, headers=()):
    """Returns the status and the bytes of a response.

    `body` is bytes, or a value to send as JSON.
    """
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=TIMEOUT_SECONDS
    )
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read()
