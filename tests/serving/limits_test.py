"""Tests of the limits of requests: the answers name the flag to change."""

import contextlib
import gc
import gzip
import http.client
import itertools
import json
import tempfile
import threading
from concurrent import futures
from unittest import mock

import grpc
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.serving import saved_model
from bert_tf.serving import service
from tests.support import toy_models

_PREDICT = "/v1/models/toy:predict"
_GZIP = (("Content-Encoding", "gzip"),)


def _echo(*texts, more=b""):
    document = {"signature_name": "echo", "instances": list(texts)}
    return json.dumps(document).encode()[:-1] + more + b"}"


class LimitsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        toy_models.write(f"{folder}/toy")
        _, config = cls.enterClassContext(
            toy_models.serving(
                f"{folder}/toy",
                max_request_rows=100,
                max_request_bytes=200_000,
                max_grpc_message_bytes=150_000,
                max_message_fields=5000,
                max_unpacked_bytes=1_000_000,
                max_json_depth=5,
                max_tensor_bytes=10_000,
            )
        )
        cls.port = config.rest_api_port
        cls.channel = cls.enterClassContext(
            grpc.insecure_channel(f"localhost:{config.port}")
        )
        cls.stub = prediction_service_pb2_grpc.PredictionServiceStub(
            cls.channel
        )

    def rest(self, body, headers=(), method="predict"):
        return toy_models.ask(
            self.port, "POST", f"/v1/models/toy:{method}", body, headers
        )

    def assert_refused(self, flag, body, headers=(), method="predict"):
        status, answer = self.rest(body, headers, method)
        self.assertEqual(status, 413, answer)
        self.assertIn(f"--{flag}", answer["error"])
        self.assertLess(len(answer["error"]), 300)

    def assert_refused_by_grpc(self, flag, method, request):
        with self.assertRaises(grpc.RpcError) as raised:
            method(request, timeout=toy_models.TIMEOUT_SECONDS)
        error = raised.exception
        self.assertEqual(
            error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, error.details()
        )
        self.assertIn(f"--{flag}", error.details())

    @parameterized.parameters(
        ("max_request_rows", _echo(*["a"] * 101), _echo(*["a"] * 100)),
        (
            "max_request_rows",
            {"signature_name": "echo", "inputs": ["a"] * 101},
            {"signature_name": "echo", "inputs": ["a"] * 100},
        ),
        ("max_request_bytes", _echo("a" * 200_000), _echo("a" * 199_900)),
        (
            "max_json_depth",
            _echo("a", more=b', "x": [[[{"a": [1]}]]]'),
            # Brackets in strings do not count.
            _echo('"[[[[\\', "]{{{{{{", more=b', "x": [[[{"a": 1}]]]'),
        ),
    )
    def test_rest(self, flag, too_large, largest):
        self.assert_refused(flag, too_large)
        status, answer = self.rest(largest)
        self.assertEqual(status, 200, answer)

    def test_bodies_of_unknown_length(self):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=toy_models.TIMEOUT_SECONDS
        )
        with contextlib.closing(connection):
            # An iterator is sent in chunks, without Content-Length.
            connection.request("POST", _PREDICT, iter([b" " * 150_000] * 2))
            response = connection.getresponse()
            self.assertEqual(response.status, 413)
            self.assertIn(b"--max_request_bytes", response.read())

    @parameterized.parameters(
        (_echo("a" * 1_000_000), _echo("a" * 990_000)),
        # Lists are larger in memory.
        (
            _echo("a", more=b', "x": [' + b"[]," * 16_000 + b"1]"),
            _echo("a", more=b', "x": [' + b"[]," * 12_000 + b"1]"),
        ),
    )
    def test_gzip(self, too_large, largest):
        self.assert_refused(
            "max_unpacked_bytes", gzip.compress(too_large), _GZIP
        )
        status, answer = self.rest(gzip.compress(largest), _GZIP)
        self.assertEqual(status, 200, answer)

    def test_examples(self):
        examples = [{"x": 1.0}] * 101
        body = {"signature_name": "classify", "examples": examples}
        self.assert_refused("max_request_rows", body, method="classify")
        # Shorter lists are padded to the longest one.
        lists = [{"x": 1.0, "y": ["a"] * 21}] + examples[:4]
        self.assert_refused(
            "max_request_rows", body | {"examples": lists}, method="classify"
        )
        # Each example gets a copy of the context.
        body = body | {"examples": examples[:20], "context": {"y": "a" * 1000}}
        self.assert_refused("max_tensor_bytes", body, method="classify")
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = "toy"
        request.model_spec.signature_name = "classify"
        request.input.example_list.examples.extend([tf.train.Example()] * 101)
        self.assert_refused_by_grpc(
            "max_request_rows", self.stub.Classify, request
        )

    def test_tensor_protos(self):
        repeated = tensor_pb2.TensorProto(dtype=7, string_val=[b"a" * 100])
        repeated.tensor_shape.dim.add(size=82)
        rows = tensor_pb2.TensorProto(dtype=7, string_val=[b"a"])
        rows.tensor_shape.dim.add(size=101)
        numbers = tensor_pb2.TensorProto(dtype=1, float_val=[0])
        numbers.tensor_shape.dim.add(size=50)
        numbers.tensor_shape.dim.add(size=51)
        # No values, but a model may use the other size.
        empty = tensor_pb2.TensorProto(dtype=7)
        empty.tensor_shape.dim.add(size=0)
        empty.tensor_shape.dim.add(size=1 << 62)
        large = np.zeros([50, 900], np.float32)
        for flag, request in (
            ("max_request_rows", toy_models.predict_request(text=rows)),
            ("max_tensor_bytes", toy_models.predict_request(text=repeated)),
            ("max_tensor_bytes", toy_models.predict_request("log", x=numbers)),
            ("max_tensor_bytes", toy_models.predict_request(text=empty)),
            (
                "max_grpc_message_bytes",
                toy_models.predict_request("log", x=large),
            ),
        ):
            self.assert_refused_by_grpc(flag, self.stub.Predict, request)
        del repeated.tensor_shape.dim[:]
        repeated.tensor_shape.dim.add(size=80)
        response = self.stub.Predict(toy_models.predict_request(text=repeated))
        self.assertEqual(response.outputs["text"].string_val, [b"a" * 100] * 80)

    def test_messages_that_are_not_protos(self):
        # The stub would not send them.
        method = self.channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict"
        )
        with self.assertRaises(grpc.RpcError) as raised:
            method(b"\xff\xff", timeout=toy_models.TIMEOUT_SECONDS)
        error = raised.exception
        self.assertEqual(
            (error.code(), error.details()),
            (
                grpc.StatusCode.INVALID_ARGUMENT,
                "The message is not a valid proto.",
            ),
        )


class RowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ((3,), object, 3),
        ((3, 4), object, 12),
        ((3, 128), np.int32, 3),
        ((3, 4, 128), np.int32, 12),
        ((0, 1000, 2), np.int32, 1000),
    )
    def test_each_choice_counts(self, shape, dtype, count):
        self.assertEqual(service.count_rows(np.empty(shape, dtype)), count)


class ExampleRowsTest(tf.test.TestCase):
    def test_shorter_lists_count_like_the_longest(self):
        def example(num_choices):
            values = {"text": [b"a"], "choices": [b""] * num_choices}
            feature = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=x))
                for name, x in values.items()
            }
            features = tf.train.Features(feature=feature)
            return tf.train.Example(features=features).SerializeToString()

        examples = np.array([example(2), example(500), b"\xff"], object)
        self.assertEqual(service.count_example_choices(examples), 500)
        self.assertEqual(service.count_example_choices(examples[:1]), 2)
        self.assertEqual(service.count_example_choices(examples[:0]), 1)


class _LockForTwo:
    """A lock that waits for a second thread before it lets one in."""

    def __init__(self):
        self._both = threading.Barrier(2, timeout=60)
        self._lock = threading.Lock()

    def __enter__(self):
        self._both.wait()
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()


class OutputsTest(tf.test.TestCase):
    def test_combinations_of_outputs_take_bounded_memory(self):
        self.enterContext(mock.patch.object(saved_model, "_MAX_CALLABLES", 3))
        folder = self.create_tempdir().full_path
        model = saved_model.SavedModelEngine().load(
            "toy", 1, toy_models.write(folder)
        )
        self.addCleanup(model.close)
        signature = model.signatures["serving_default"]
        inputs = {
            "text": np.array([b"ab", b"abcd"], object),
            "weights": np.ones([2, 2], np.float32),
        }
        for count in range(1, 5):
            for names in itertools.permutations(signature.outputs, count):
                outputs = model.run(signature, inputs, names)
                self.assertEqual(tuple(outputs), names)
                if "length" in names:
                    self.assertAllEqual(outputs["length"], [2, 4])
        self.assertLessEqual(len(model._callables), 4)

    def test_two_requests_at_once_build_one_callable(self):
        model = saved_model.SavedModelEngine().load(
            "toy", 1, toy_models.write(self.create_tempdir().full_path)
        )
        self.addCleanup(model.close)
        signature = model.signatures["echo"]
        # Both have found no callable when the first gets the lock.
        model._lock_of_callables = _LockForTwo()
        make = model._session._make_callable_from_options
        with (
            mock.patch.object(
                model._session, "_make_callable_from_options", wraps=make
            ) as made,
            futures.ThreadPoolExecutor(2) as threads,
        ):
            built = threads.map(
                lambda _: model._callable(signature, tuple(signature.outputs)),
                range(2),
            )
            self.assertLen(set(built), 1)
        made.assert_called_once()


class RefusedDataTest(tf.test.TestCase):
    def test_data_of_refused_requests_is_freed_at_once(self):
        folder = self.create_tempdir().full_path
        toy_models.write(f"{folder}/toy")
        _, config = self.enterContext(
            toy_models.serving(f"{folder}/toy", port=0, max_request_rows=10)
        )
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        texts = [f"refused {i}" for i in range(11)]
        for _ in range(5):
            status, _ = toy_models.predict(config.rest_api_port, _echo(*texts))
            self.assertEqual(status, 413)
        # Another request, so that the last one has ended.
        toy_models.ask(config.rest_api_port, "GET", "/readyz")
        kept = [
            x
            for x in gc.get_objects()
            if type(x) is list and x is not texts
            # Others may hold arrays, which have no truth value.
            if all(isinstance(y, str) for y in x) and x == texts
        ]
        self.assertEmpty(kept)


class ResponseTest(tf.test.TestCase):
    def test_large_answers_are_refused(self):
        folder = self.create_tempdir().full_path
        toy_models.write(f"{folder}/toy")
        _, config = self.enterContext(
            toy_models.serving(f"{folder}/toy", max_response_bytes=20_000)
        )
        stub = prediction_service_pb2_grpc.PredictionServiceStub(
            self.enterContext(grpc.insecure_channel(f"localhost:{config.port}"))
        )
        # In a batch, and in pieces.
        for length, fitting, too_many in ((1000, 18, 19), (200, 75, 76)):
            for count, is_refused in ((fitting, False), (too_many, True)):
                texts = ["a" * length] * count
                status, answer = toy_models.predict(
                    config.rest_api_port, _echo(*texts)
                )
                request = toy_models.predict_request(text=texts)
                if not is_refused:
                    self.assertEqual(answer, {"predictions": texts})
                    stub.Predict(request, timeout=toy_models.TIMEOUT_SECONDS)
                    continue
                self.assertEqual(status, 413)
                self.assertIn("--max_response_bytes", answer["error"])
                with self.assertRaises(grpc.RpcError) as raised:
                    stub.Predict(request, timeout=toy_models.TIMEOUT_SECONDS)
                self.assertEqual(
                    raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED
                )


if __name__ == "__main__":
    tf.test.main()
