"""Tests of what a gRPC call may cost, and hold."""

import functools
import pathlib
import re
import resource
import socket
import struct
import tempfile
import threading
from concurrent import futures
from unittest import mock

import grpc
import psutil
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

from bert_tf.serving import errors
from bert_tf.serving import grpc_services
from tests.support import live_server
from tests.support import toy_models

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_MULTI_INFERENCE = "/tensorflow.serving.PredictionService/MultiInference"
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_EMPTY = b"\x12\x00"  # Of PredictRequest.inputs.
_MESSAGE_BYTES = 4_000_000


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


class FieldsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (b"", 0),
        (_EMPTY * 3, 3),
        # inputs, key, value, and in it three fields, one with a dimension.
        (_field(2, b"\x0a\x00" + _field(2, b"\x08\x01\x12\x02\x12\x00")), 6),
        # Integers of one and two bytes in packed lists, and floats.
        (_field(2, _field(2, _field(10, b"\x01\x80\x01" * 20))), 2 + 1 + 5),
        (_field(2, _field(2, _field(5, b"\x01" * 160))), 3),
        # Strings and unknown fields have no fields of their own.
        (_field(2, _field(1, _EMPTY * 50)), 2),
        (_field(9, _EMPTY * 50) + b"\x4d1234\x4912345678\x50\xff\x01", 4),
    )
    def test_counts_nested_ones(self, content, count):
        kind = predict_pb2.PredictRequest.DESCRIPTOR
        self.assertEqual(
            grpc_services.count_fields(content, kind, count), count
        )
        if count:
            with self.assertRaisesRegex(
                errors.TooLargeError, "--max_message_fields"
            ):
                grpc_services.count_fields(content, kind, count - 1)

    @parameterized.parameters(
        b"\x12", b"\x12\x05a", b"\x12\x02\x0a\x05", b"\x13\x14", b"\xff" * 20
    )
    def test_refuses_what_is_no_message(self, content):
        kind = predict_pb2.PredictRequest.DESCRIPTOR
        with self.assertRaisesRegex(errors.RequestError, "not a valid proto"):
            grpc_services.count_fields(content, kind, 100)

    def test_a_large_message_within_the_limit_is_the_same(self):
        proto = tensor_pb2.TensorProto(dtype=7, string_val=[b"a" * 20] * 9000)
        proto.tensor_shape.dim.add(size=9000)
        request = toy_models.predict_request(text=proto)
        count = grpc_services.count_fields(
            request.SerializeToString(), request.DESCRIPTOR, 10_000
        )
        self.assertBetween(count, 9000, 9020)


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


class HeldTest(toy_models.ToyCase, tf.test.TestCase):
    """Calls without a whole message, and answers that are not read."""

    def connect(self, config):
        return self.enterContext(
            grpc.insecure_channel(
                f"localhost:{config.port}",
                [
                    ("grpc.max_receive_message_length", -1),
                    # A fast connection would make room for the whole answer.
                    ("grpc.http2.bdp_probe", 0),
                ],
            )
        )

    def half_call(self, channel, path=_PREDICT):
        """Returns a call whose message does not come until the test ends."""
        ended = threading.Event()
        self.addCleanup(ended.set)

        def messages():
            ended.wait(toy_models.TIMEOUT_SECONDS)
            yield from ()

        return channel.stream_unary(path).future(messages())

    def limit_time(self, seconds):
        """Sets the time of a message and of reading an answer."""
        self.enterContext(
            mock.patch("bert_tf.serving.server._GRACE_SECONDS", seconds)
        )
        return self.serving(rest_api_timeout_in_ms=1)

    def test_ends_a_call_whose_message_does_not_come(self):
        _, config = self.enterContext(self.limit_time(0.5))
        call = self.half_call(self.connect(config))
        self.assertEqual(call.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_other_calls_do_not_wait_for_messages_that_do_not_come(self):
        self.enterContext(mock.patch.object(grpc_services, "_MAX_ARRIVING", 2))
        _, config = self.enterContext(self.limit_time(600))
        channel = self.connect(config)
        calls = [self.half_call(channel) for _ in range(5)]
        request = toy_models.predict_request(text=["a"]).SerializeToString()
        for _ in range(3):
            channel.unary_unary(_PREDICT)(
                request, timeout=toy_models.TIMEOUT_SECONDS
            )
        toy_models.wait_until(lambda: sum(x.done() for x in calls) > 2)
        codes = {x.code() for x in calls if x.done()}
        self.assertEqual(codes, {grpc.StatusCode.DEADLINE_EXCEEDED})

    def test_refuses_a_call_before_its_message_comes(self):
        keys = self.create_tempfile(content="k" * 20).full_path
        for flags, path, code in (
            ({"api_key_file": keys}, _PREDICT, "UNAUTHENTICATED"),
            ({}, _RELOAD, "PERMISSION_DENIED"),
        ):
            with self.serving(**flags) as (_, config):
                call = self.half_call(self.connect(config), path)
                self.assertEqual(call.code(), grpc.StatusCode[code])

    def test_limits_metadata_before_a_client_confirms_settings(self):
        def frame(kind, flags, content, stream=1):
            head = struct.pack(">IBI", len(content) << 8 | kind, flags, stream)
            return head + content

        def entry(name, value):  # Without an index, and of 127 bytes at most.
            return b"".join(
                bytes([len(x)]) + x.encode() for x in ("", name, value)
            )

        header = {
            ":method": "POST",
            ":scheme": "http",
            ":path": _PREDICT,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        _, config = self.enterContext(self.serving())
        with socket.create_connection(("localhost", config.port)) as client:
            client.settimeout(toy_models.TIMEOUT_SECONDS)
            client.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                + frame(4, 0, b"", 0)
                + frame(1, 0, b"".join(entry(*x) for x in header.items()))
                + frame(9, 0, entry("x", "a" * 100) * 150) * 5
                + frame(9, 4, b"")
            )
            answer = b""
            while b"--max_header_bytes" not in answer:
                answer += client.recv(1 << 16) or self.fail(answer)

    def test_limits_values_that_a_message_repeats(self):
        server, config = self.enterContext(self.serving())
        server._service.bodies._room = 1 << 20
        ids = tensor_pb2.TensorProto(dtype=3, int_val=[1])
        ids.tensor_shape.dim.add(size=10_000)
        ids.tensor_shape.dim.add(size=100)
        inputs = {"ids": ids, "negate": [True] * 10_000}
        unknown = tensor_pb2.TensorProto(dtype=999)
        for request, sentence in (
            (toy_models.predict_request("total", **inputs), "Too many large"),
            # Names are checked before any array is made.
            (
                toy_models.predict_request("total", other=unknown, **inputs),
                "does not match signature",
            ),
        ):
            with self.assertRaises(grpc.RpcError) as raised:
                self.connect(config).unary_unary(_PREDICT)(
                    request.SerializeToString(),
                    timeout=toy_models.TIMEOUT_SECONDS,
                )
            self.assertIn(sentence, raised.exception.details())

    def test_limits_calls_in_progress(self):
        self.enterContext(mock.patch.object(grpc_services, "_MAX_CALLS", 2))
        _, config = self.enterContext(self.serving())
        channel = self.connect(config)
        calls = [self.half_call(channel) for _ in range(3)]
        toy_models.wait_until(lambda: any(x.done() for x in calls))
        [code] = [x.code() for x in calls if x.done()]
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_cancels_a_call_whose_answer_is_not_read(self):
        server, config = self.enterContext(self.limit_time(1))
        channel = self.connect(config)
        small = toy_models.predict_request(text=["a"]).SerializeToString()
        ask = functools.partial(
            channel.unary_unary(_PREDICT), timeout=toy_models.TIMEOUT_SECONDS
        )
        ask(small)
        request = toy_models.predict_request(text=["a" * 2_000_000])
        call = channel.unary_stream(_PREDICT)(request.SerializeToString())
        memory = server._service.bodies
        # Three copies of the answer, nothing else.
        toy_models.wait_until(lambda: 6e6 < memory._num_bytes < 7e6)
        toy_models.wait_until(lambda: not memory._num_bytes)
        # grpc keeps the last call until the next one, and resets it then.
        for _ in range(3):
            ask(small)
        with self.assertRaises(grpc.RpcError) as raised:
            next(call)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.CANCELLED)


if __name__ == "__main__":
    tf.test.main()
