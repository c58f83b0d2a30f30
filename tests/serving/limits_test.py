"""Tests of the limits of requests and rows: answers name the flag."""

import contextlib
import gc
import gzip
import http.client
import itertools
import json
import os
import pathlib
import re
import resource
import socket
import tempfile
import threading
from concurrent import futures
from unittest import mock

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import predict_pb2

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import bodies
from bert_tf.serving import errors
from bert_tf.serving import litert
from bert_tf.serving import saved_model
from bert_tf.serving import service as services
from tests.support import live_server
from tests.support import tiny_exports
from tests.support import toy_models

_GZIP = (("Content-Encoding", "gzip"),)
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_MULTI_INFERENCE = "/tensorflow.serving.PredictionService/MultiInference"
_EMPTY = b"\x12\x00"  # An entry of PredictRequest.inputs.
_MESSAGE_BYTES = 4_000_000


def _echo(*texts, more=b""):
    document = {"signature_name": "echo", "instances": list(texts)}
    return json.dumps(document).encode()[:-1] + more + b"}"


class LimitsTest(toy_models.ServedCase):
    FLAGS = {
        "max_request_rows": 100,
        "max_request_bytes": 200_000,
        "max_grpc_message_bytes": 150_000,
        "max_message_fields": 5000,
        "max_unpacked_bytes": 1_000_000,
        "max_json_depth": 5,
        "max_tensor_bytes": 10_000,
    }

    def assert_refused(self, flag, body, headers=(), method="predict"):
        path = f"/v1/models/toy:{method}"
        status, answer = self.post(body, headers, path)
        self.assertEqual(status, 413, answer)
        self.assertIn(f"--{flag}", answer["error"])
        self.assertLess(len(answer["error"]), 300)

    def assert_answered(self, body, headers=()):
        status, answer = self.post(body, headers)
        self.assertEqual(status, 200, answer)

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
            # Brackets in strings must not count.
            _echo('"[[[[\\', "]{{{{{{", more=b', "x": [[[{"a": 1}]]]'),
        ),
    )
    def test_rest_refuses_more_than_the_limit(self, flag, too_large, largest):
        self.assert_refused(flag, too_large)
        self.assert_answered(largest)

    def test_refuses_large_bodies_of_unknown_length(self):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=toy_models.TIMEOUT_SECONDS
        )
        with contextlib.closing(connection):
            # An iterator is sent in chunks, so there is no Content-Length.
            connection.request(
                "POST", toy_models.PREDICT, iter([b" " * 150_000] * 2)
            )
            response = connection.getresponse()
            self.assertEqual(response.status, 413)
            self.assertIn(b"--max_request_bytes", response.read())

    @parameterized.parameters(
        (_echo("a" * 1_000_000), _echo("a" * 990_000)),
        # Lists take more memory than their JSON, so fewer bytes fit.
        (
            _echo("a", more=b', "x": [' + b"[]," * 16_000 + b"1]"),
            _echo("a", more=b', "x": [' + b"[]," * 12_000 + b"1]"),
        ),
    )
    def test_gzip_is_limited_as_unpacked(self, too_large, largest):
        self.assert_refused(
            "max_unpacked_bytes", gzip.compress(too_large), _GZIP
        )
        self.assert_answered(gzip.compress(largest), _GZIP)

    def test_examples_above_limits_are_refused(self):
        examples = [{"x": 1.0}] * 101
        body = {"signature_name": "classify", "examples": examples}
        self.assert_refused("max_request_rows", body, method="classify")
        # Lists are padded to the longest one: 5 examples have 105 values.
        lists = [{"x": 1.0, "y": ["a"] * 21}] + examples[:4]
        self.assert_refused(
            "max_request_rows", body | {"examples": lists}, method="classify"
        )
        # Each example gets a copy of the context, so 20 copies count.
        body = body | {"examples": examples[:20], "context": {"y": "a" * 1000}}
        self.assert_refused("max_tensor_bytes", body, method="classify")
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = "toy"
        request.model_spec.signature_name = "classify"
        request.input.example_list.examples.extend([tf.train.Example()] * 101)
        self.assert_grpc_refuses(
            *("RESOURCE_EXHAUSTED", "--max_request_rows"),
            *(self.stub.Classify, request),
        )

    def test_tensor_protos_above_limits_are_refused(self):
        proto = toy_models.tensor_proto
        text = [b"a" * 100]
        for flag, signature, inputs in (
            ("max_request_rows", "echo", {"text": proto(7, 101)}),
            (
                "max_tensor_bytes",
                "echo",
                {"text": proto(7, 82, string_val=text)},
            ),
            ("max_tensor_bytes", "log", {"x": proto(1, 50, 51, float_val=[0])}),
            # It has no values, but a model may use the other size.
            ("max_request_rows", "echo", {"text": proto(7, 0, 1 << 62)}),
            (
                *("max_grpc_message_bytes", "log"),
                {"x": np.zeros([50, 900], np.float32)},
            ),
        ):
            request = toy_models.predict_request(signature, **inputs)
            self.assert_grpc_refuses(
                *("RESOURCE_EXHAUSTED", f"--{flag}"),
                *(self.stub.Predict, request),
            )
        request = toy_models.predict_request(text=proto(7, 80, string_val=text))
        response = self.stub.Predict(request)
        self.assertEqual(response.outputs["text"].string_val, text * 80)

    def test_refuses_messages_that_are_not_protos(self):
        # The stub sends only valid messages, so send raw bytes.
        method = self.channel.unary_unary(_PREDICT)
        text = "The message is not a valid proto."
        self.assert_grpc_refuses("INVALID_ARGUMENT", text, method, b"\xff\xff")


def _field(number, content):
    size = len(content)
    length = b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def _tensor(number, content):
    """Returns a request with fields of a tensor that fill a message."""
    fields = content * (_MESSAGE_BYTES // len(content) - 20)
    if number:
        fields = _field(number, fields)
    return _field(2, _field(1, b"text") + _field(2, fields))


def _count(content, limit):
    limits = ServeLimits(max_message_fields=max(limit, 1))
    kind = predict_pb2.PredictRequest.DESCRIPTOR
    return bodies.count_fields(content, kind, limits)


class FieldsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (b"", 0),
        (_EMPTY * 3, 3),
        # The entry, key, value, dtype, shape and dimension are 6 fields.
        (_field(2, b"\x0a\x00" + _field(2, b"\x08\x01\x12\x02\x12\x00")), 6),
        # Eight packed integers of any size count as a field; floats do not.
        (_field(2, _field(2, _field(10, b"\x01\x80\x01" * 20))), 2 + 1 + 5),
        (_field(2, _field(2, _field(5, b"\x01" * 160))), 3),
        # Strings and unknown fields have no fields of their own.
        (_field(2, _field(1, _EMPTY * 50)), 2),
        (_field(9, _EMPTY * 50) + b"\x4d1234\x4912345678\x50\xff\x01", 4),
    )
    def test_counts_fields_of_nested_messages(self, content, count):
        self.assertEqual(_count(content, count), count)
        if count:
            with self.assertRaisesRegex(
                errors.TooLargeError, "--max_message_fields"
            ):
                _count(content, count - 1)

    @parameterized.parameters(
        b"\x12", b"\x12\x05a", b"\x12\x02\x0a\x05", b"\x13\x14", b"\xff" * 20
    )
    def test_refuses_what_is_no_message(self, content):
        with self.assertRaisesRegex(errors.RequestError, "not a valid proto"):
            _count(content, 100)


@pytest.mark.slow
class MemoryTest(tf.test.TestCase):
    def test_small_fields_take_little_memory(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        toy_models.write(f"{folder}/toy")
        models = {"toy": f"{folder}/toy"}
        address, _ = self.enterContext(live_server.serve(folder, models))
        children = psutil.Process().children()
        [server] = [x for x in children if "run/serve.py" in x.cmdline()]
        limit = server.memory_info().vms + (2 << 30)
        resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, limit))
        proc = pathlib.Path(f"/proc/{server.pid}")
        proc.joinpath("clear_refs").write_text("5", encoding="ascii")
        before = server.memory_info().rss
        channel = self.enterContext(grpc.insecure_channel(address))

        def send(path, content, compression=None):
            with self.assertRaises(grpc.RpcError) as raised:
                channel.unary_unary(path)(
                    content,
                    timeout=toy_models.TIMEOUT_SECONDS,
                    compression=compression,
                )
            return raised.exception

        for call in (
            (_PREDICT, _EMPTY * (_MESSAGE_BYTES // 2), grpc.Compression.Gzip),
            (_PREDICT, _tensor(0, b"\x72\x00")),
            (_PREDICT, _tensor(10, b"\x01")),
            (_MULTI_INFERENCE, b"\x0a\x00" * (_MESSAGE_BYTES // 2)),
        ):
            with futures.ThreadPoolExecutor(8) as threads:
                for error in threads.map(lambda x: send(*x), [call] * 8):
                    self.assertIn("--max_message_fields", error.details())
        status = proc.joinpath("status").read_text(encoding="ascii")
        peak = int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) << 10
        self.assertLess(peak - before, 400_000_000)


class RowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ((3,), object, 3),
        ((3, 4), object, 12),
        ((3, 128), np.int32, 3),
        ((3, 4, 128), np.int32, 12),
        ((0, 1000, 2), np.int32, 1000),
    )
    def test_each_choice_counts_as_a_row(self, shape, dtype, count):
        self.assertEqual(services.count_rows(np.empty(shape, dtype)), count)


class ExampleRowsTest(tf.test.TestCase):
    def test_shorter_lists_count_like_the_longest(self):
        examples = [
            _example(text="a", choices=[""] * count) for count in (2, 500)
        ]
        examples = np.array([*examples, b"\xff"], object)
        for rows, expected in ((examples, 500), (examples[:1], 2), ([], 1)):
            longest, read = services.read_examples(
                np.array(rows, object), ServeLimits()
            )
            self.assertEqual(longest, expected)
            self.assertAllEqual(read, rows)

    def test_counts_what_tensorflow_will_read(self):
        # If a feature has two lists, the last one counts: here an empty one.
        texts = tf.train.BytesList(value=[b"a"] * 9).SerializeToString()
        feature = b"\x0a" + bytes([len(texts)]) + texts + b"\x1a\x00"
        entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        example = b"\x0a" + bytes([len(features)]) + features
        longest, read = services.read_examples(
            np.array([example], object), ServeLimits(), strict=True
        )
        spec = {"x": tf.io.VarLenFeature(tf.string)}
        with self.assertRaises(tf.errors.InvalidArgumentError):
            tf.io.parse_example(tf.constant(read), spec)
        found = tf.io.parse_example(tf.constant([example]), spec)["x"]
        self.assertEqual((longest, len(found.values)), (1, 9))

    def test_refuses_many_features(self):
        features = b"\x0a\x02\x0a\x00" * 5000
        example = b"\x0a" + bytes([0xA0, 0x9C, 0x01]) + features
        examples = np.array([example], object)
        few = ServeLimits(max_message_fields=9999)
        with self.assertRaisesRegex(
            errors.TooLargeError, "--max_message_fields"
        ):
            services.read_examples(examples, few, True)
        services.read_examples(examples, ServeLimits(), True)


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
        # Both threads find no callable before the first one gets the lock.
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


class RefusedDataTest(toy_models.ToyCase):
    def test_data_of_refused_requests_is_freed_at_once(self):
        _, config = self.enterContext(self.serving(port=0, max_request_rows=10))
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        texts = [f"refused {i}" for i in range(11)]
        for _ in range(5):
            status, _ = toy_models.predict(config.rest_api_port, _echo(*texts))
            self.assertEqual(status, 413)
        # Once another request is answered, the last one has ended.
        toy_models.ask(config.rest_api_port, "GET", "/readyz")
        kept = [
            x
            for x in gc.get_objects()
            # Other lists may be incomplete, or hold arrays of no truth value.
            if type(x) is list and x is not texts and len(x) == len(texts)
            if all(isinstance(y, str) for y in x) and x == texts
        ]
        self.assertEmpty(kept)


class ResponseTest(toy_models.ServedCase):
    FLAGS = {"max_response_bytes": 20_000}

    # The first case is one batch, the second one is split into pieces.
    @parameterized.parameters((1000, 18), (200, 75))
    def test_large_answers_are_refused(self, length, fitting):
        texts = ["a" * length] * fitting
        answer = (200, {"predictions": texts})
        self.assertEqual(self.post(_echo(*texts)), answer)
        self.stub.Predict(toy_models.predict_request(text=texts))
        texts.append(texts[0])
        status, answer = self.post(_echo(*texts))
        self.assertEqual(status, 413)
        self.assertIn("--max_response_bytes", answer["error"])
        self.assert_grpc_refuses(
            *("RESOURCE_EXHAUSTED", "--max_response_bytes", self.stub.Predict),
            toy_models.predict_request(text=texts),
        )


_SIGNATURES = ("serving_default", "from_examples", "from_ids", "tokenize")
_ENGINES = {"savedmodel": saved_model.SavedModel, "litert": litert.Litert}
# Computing this text would take minutes if nothing ended it.
_ENDLESS = "cat " * 1_000_000


def _example(**texts):
    example = tf.train.Example()
    for name, values in texts.items():
        values = [x.encode() for x in np.atleast_1d(values).tolist()]
        example.features.feature[name].bytes_list.value.extend(values)
    return example.SerializeToString()


class LongRowsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        for name, task, flags in (
            ("toy", tiny_exports.squad(), {"litert": True}),
            ("choice", tiny_exports.multiple_choice(), {}),
        ):
            folder = os.path.join(cls.folder, f"{name}_model")
            model_dir = tiny_exports.write(folder, task)
            output_dir = os.path.join(cls.folder, name)
            tiny_exports.export(model_dir, output_dir, _SIGNATURES, **flags)

    def serve(self, name, **flags):
        """Serves a model as "toy"."""
        server, config = self.enterContext(
            toy_models.serving(
                os.path.join(self.folder, name), model_name="toy", **flags
            )
        )
        self.port = config.rest_api_port
        self.channel = f"localhost:{config.port}"

    def stub(self):
        channel = self.enterContext(grpc.insecure_channel(self.channel))
        return toy_models.prediction_stub(channel)

    def assert_limit(self, flag, signature, largest, too_large):
        for inputs, is_refused in ((largest, False), (too_large, True)):
            request = toy_models.predict_request(signature, **inputs)
            call = self.stub().Predict.future(request)
            if not is_refused:
                call.result(toy_models.TIMEOUT_SECONDS)
                continue
            error = call.exception(toy_models.TIMEOUT_SECONDS)
            self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn(f"--{flag}", error.details())

    @parameterized.parameters(*_ENGINES)
    def test_tokens_of_a_row_are_limited(self, engine):
        self.serve("toy", engine=engine, max_row_tokens=1000)
        for text, count in (
            ("cat ", 999),
            ("東", 999),
            (".", 999),
            # White space counts, too: 64 bytes as a token.
            (" ", 63_996),
        ):
            rows = [
                {"question": ["", "cat"], "context": ["", text * number]}
                for number in (count, count + 2)
            ]
            self.assert_limit("max_row_tokens", "serving_default", *rows)
            examples = [
                {"examples": [_example(question="cat", context=text * number)]}
                for number in (count, count + 2)
            ]
            self.assert_limit("max_row_tokens", "from_examples", *examples)
        body = {"instances": [{"question": "cat", "context": "cat " * 1000}]}
        status, answer = toy_models.predict(self.port, body)
        self.assertEqual(status, 413, answer)

    def test_choices_of_a_row_are_limited(self):
        self.serve("choice", max_row_choices=3)
        texts, examples, ids = [], [], []
        for count in (3, 4):
            choices = ["cat"] * count
            texts.append({"text": ["dog"], "choices": [choices]})
            example = _example(text="dog", choices=choices)
            examples.append({"examples": [example]})
            names = ("input_ids", "input_mask", "segment_ids")
            row = np.ones([1, count, 5], np.int32)
            ids.append(dict.fromkeys(names, row))
        self.assert_limit("max_row_choices", "serving_default", *texts)
        self.assert_limit("max_row_choices", "from_examples", *examples)
        self.assert_limit("max_row_choices", "from_ids", *ids)

    @contextlib.contextmanager
    def leaving(self, how):
        """Sends an endless row; its client leaves after the block."""
        body = {"instances": [{"question": "", "context": _ENDLESS}]}
        if how == "rest":
            body = json.dumps(body).encode()
            address = ("127.0.0.1", self.port)
            with socket.create_connection(address) as connection:
                connection.sendall(
                    b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost"
                    b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                yield
            return
        request = toy_models.predict_request(
            "serving_default", question=[""], context=[_ENDLESS]
        )
        # A deadline ends the call without the client's help.
        timeout = 5 if how == "deadline" else None
        call = self.stub().Predict.future(request, timeout=timeout)
        yield
        if how == "cancel":
            call.cancel()

    @parameterized.parameters(
        ("savedmodel", "rest"), ("savedmodel", "deadline"), ("litert", "cancel")
    )
    def test_others_are_answered_until_the_row_ends(self, engine, how):
        begun, ended = [], []
        servable = _ENGINES[engine]
        run = servable.run

        def observed(self, signature, inputs, outputs, stop=None):
            is_endless = len(inputs["context"][0]) == len(_ENDLESS)
            begun.extend([1] * is_endless)
            try:
                return run(self, signature, inputs, outputs, stop)
            except Exception:
                ended.extend([1] * is_endless)
                raise

        self.serve("toy", engine=engine, max_row_tokens=10_000_000)
        self.enterContext(mock.patch.object(servable, "run", observed))
        row = {"question": "cat", "context": "the cat sat on the mat"}
        with self.leaving(how):
            toy_models.wait_until(lambda: begun)
            status, _ = toy_models.predict(
                self.port, {"instances": [row] * 100}
            )
            self.assertEqual(status, 200)
            if how != "deadline":
                self.assertEmpty(ended)
        toy_models.wait_until(lambda: ended)
        row["context"] = "the cat " * 3000
        status, answer = toy_models.predict(self.port, {"instances": [row]})
        self.assertEqual(status, 200, answer)


if __name__ == "__main__":
    tf.test.main()
