"""Tests of slow and absent clients, and of the limits of connections."""

import contextlib
import functools
import json
import resource
import socket
import struct
import threading
from unittest import mock

import grpc
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_service_pb2_grpc

from bert_tf.serving import connections
from bert_tf.serving import grpc_services
from tests.support import toy_models

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_NUM_ROWS = 10_000
# With this many steps, each row takes milliseconds.
_STEPS = 100
_TEXT = "a" * 4_000_000


def _post(config, body, receive_bytes=None, headers=""):
    """Returns a connection on which a request for the toy has been sent."""
    connection = socket.socket()
    connection.settimeout(toy_models.TIMEOUT_SECONDS)
    if receive_bytes:
        # Otherwise the system would buffer most of the response.
        option = socket.SOL_SOCKET, socket.SO_RCVBUF
        connection.setsockopt(*option, receive_bytes)
    connection.connect(("127.0.0.1", config.rest_api_port))
    body = json.dumps(body)
    connection.sendall(
        f"POST {toy_models.PREDICT} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def _request(num_rows):
    steps = np.full(num_rows, _STEPS, np.int32)
    return toy_models.predict_request("slow", steps=steps)


class GoneTest(toy_models.ToyCase):
    """A request ends when its client leaves."""

    def serve(self, **flags):
        _, self.config = self.enterContext(
            self.serving(max_batch_size=8, **flags)
        )
        self.channel = self.enterContext(toy_models.connect(self.config))
        self.predict = toy_models.prediction_stub(self.channel).Predict

    def metrics(self):
        return toy_models.metrics(self.config.rest_api_port)

    def num_calls(self):
        labels = '{model="toy",signature="slow",version="1"}'
        return self.metrics().get(f"serving_batch_rows_count{labels}", 0)

    def wait_for_calls(self):
        toy_models.wait_until(lambda: self.num_calls() >= 2)

    def assert_ends(self, status):
        """Asserts that a request ended, and nothing else is computed."""
        labels = f'method="Predict",model="toy",status="{status}",version="1"'
        name = f"serving_requests_total{{{labels}}}"
        toy_models.wait_until(lambda: self.metrics().get(name))
        self.assertEqual(self.metrics()["serving_queued_rows"], 0)
        # Once this call returns, no piece of the request is in progress.
        self.predict(_request(1))
        num_calls = self.num_calls()
        self.assertLess(num_calls, 1000)
        self.predict(_request(1))
        self.assertEqual(self.num_calls(), num_calls + 1)

    def send_by_rest(self):
        rows = [_STEPS] * _NUM_ROWS
        body = {"signature_name": "slow", "instances": rows}
        return self.enterContext(_post(self.config, body))

    def test_rest_client_that_disconnects_ends_its_call(self):
        self.serve()
        connection = self.send_by_rest()
        self.wait_for_calls()
        connection.close()
        self.assert_ends("CANCELLED")

    def test_rest_timeout_ends_the_call(self):
        self.serve(rest_api_timeout_in_ms=1000)
        connection = self.send_by_rest()
        self.assertIn(b" 504 ", connection.recv(1000))
        self.assert_ends("DEADLINE_EXCEEDED")

    def test_grpc_client_that_cancels_ends_its_call(self):
        self.serve()
        future = self.predict.future(_request(_NUM_ROWS))
        self.wait_for_calls()
        future.cancel()
        self.assert_ends("CANCELLED")

    def test_grpc_deadline_ends_the_call(self):
        self.serve()
        self.predict(_request(1))  # Connects, which takes time.
        with self.assertRaises(grpc.RpcError) as raised:
            self.predict(_request(_NUM_ROWS), timeout=0.5)
        code = raised.exception.code()
        self.assertEqual(code, grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assert_ends("CANCELLED")


class HeldTest(toy_models.ToyCase):
    """Calls with incomplete messages, and responses that are not read."""

    def connect(self, config):
        return self.enterContext(toy_models.connect(config))

    def half_call(self, channel, path=_PREDICT):
        """Returns a call whose message is not sent until the test ends."""
        ended = threading.Event()
        self.addCleanup(ended.set)

        def messages():
            ended.wait(toy_models.TIMEOUT_SECONDS)
            yield from ()

        return channel.stream_unary(path).future(messages())

    def limit_time(self, seconds, request_ms=1):
        """Sets the time limits for a message and for reading a response."""
        self.enterContext(
            mock.patch("bert_tf.serving.server._GRACE_SECONDS", seconds)
        )
        return self.serving(rest_api_timeout_in_ms=request_ms)

    def ask(self, channel, request):
        """Calls with a message, without the stub, which would parse it."""
        return channel.unary_unary(_PREDICT)(
            request.SerializeToString(), timeout=toy_models.TIMEOUT_SECONDS
        )

    def test_ends_a_call_whose_message_does_not_come(self):
        _, config = self.enterContext(self.limit_time(0.5))
        call = self.half_call(self.connect(config))
        self.assertEqual(call.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_other_calls_do_not_wait_for_messages_that_do_not_come(self):
        self.enterContext(mock.patch.object(grpc_services, "_MAX_ARRIVING", 2))
        _, config = self.enterContext(self.limit_time(600))
        channel = self.connect(config)
        calls = [self.half_call(channel) for _ in range(5)]
        for _ in range(3):
            self.ask(channel, toy_models.predict_request(text=["a"]))
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
        for size in (10_000, 100):
            ids.tensor_shape.dim.add(size=size)
        inputs = {"ids": ids, "negate": [True] * 10_000}
        unknown = tensor_pb2.TensorProto(dtype=999)
        for more, text in (
            ({}, "Too many large"),
            # Names are checked before any array is made.
            ({"other": unknown}, "does not match signature"),
        ):
            request = toy_models.predict_request("total", **inputs, **more)
            with self.assertRaises(grpc.RpcError) as raised:
                self.ask(self.connect(config), request)
            self.assertIn(text, raised.exception.details())

    def test_limits_calls_in_progress(self):
        self.enterContext(mock.patch.object(grpc_services, "_MAX_CALLS", 2))
        _, config = self.enterContext(self.serving())
        channel = self.connect(config)
        calls = [self.half_call(channel) for _ in range(3)]
        toy_models.wait_until(lambda: any(x.done() for x in calls))
        [code] = [x.code() for x in calls if x.done()]
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)

    @parameterized.parameters(False, True)
    def test_frees_a_grpc_answer_that_is_not_read(self, is_left):
        """The call ends after a time, or when its client cancels it."""
        server, config = self.enterContext(self.limit_time(600 * is_left + 1))
        channel = self.connect(config)
        ask = functools.partial(
            self.ask, channel, toy_models.predict_request(text=["a"])
        )
        ask()
        request = toy_models.predict_request(text=[_TEXT])
        # A stream is not read before `next` asks for its first message.
        call = channel.unary_stream(_PREDICT)(request.SerializeToString())
        memory = server._service.bodies
        # The server holds three copies of the response, and nothing else.
        num_bytes = len(_TEXT)
        toy_models.wait_until(
            lambda: 3 * num_bytes < memory._num_bytes < 3.5 * num_bytes
        )
        if is_left:
            call.cancel()
        toy_models.wait_until(lambda: not memory._num_bytes)
        # grpc keeps the last call until the next one, and resets it then.
        for _ in range(3):
            ask()
        with self.assertRaises(grpc.RpcError) as raised:
            next(call)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.CANCELLED)

    @parameterized.parameters("keep-alive", "close")
    @pytest.mark.slow
    def test_frees_a_rest_answer_that_is_not_read(self, header):
        server, config = self.enterContext(self.limit_time(0.1, 5000))
        memory = server._service.bodies
        body = {"signature_name": "echo", "inputs": [_TEXT]}
        header = f"Connection: {header}\r\n"
        with _post(config, body, 4096, header) as connection:
            received = connection.recv(4096)
            self.assertStartsWith(received, b"HTTP/1.1 200")
            self.assertGreaterEqual(memory._num_bytes, len(_TEXT))
            toy_models.wait_until(lambda: not memory._num_bytes)
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 16):
                    received += part
            self.assertLess(len(received), len(_TEXT))


_STATUS = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CHUNKS = (
    b"POST /v1/models/nix:predict HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
)
_HALF_BODY = (
    b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n{"
)


class ConnectionsTest(toy_models.ToyCase):
    def _answered(self, stack, config):
        """Returns a connection that the server has accepted and answered."""
        connection = stack.enter_context(_connected(config))
        connection.sendall(_STATUS)
        self.assertIn(b"200 OK", _read_answer(connection))
        return connection

    def test_closes_a_connection_whose_header_does_not_come(self):
        with self.serving(rest_api_header_timeout_in_ms=100) as (_, config):
            for sent in (b"", _STATUS[:-2]):
                with _connected(config) as connection:
                    connection.sendall(sent)
                    self.assertEqual(_read_to_end(connection), b"")
        # A longer timeout, or it might end before the client has sent all.
        with self.serving(rest_api_header_timeout_in_ms=1000) as (_, config):
            with _connected(config) as connection:
                connection.sendall(_STATUS + _STATUS[:-2])
                answer = _read_to_end(connection)
                self.assertEqual(answer.count(b"HTTP/1.1 200"), 1)
            with _connected(config) as connection:
                connection.sendall(_STATUS)
                self.assertIn(b"200 OK", _read_answer(connection))
                connection.sendall(b"\r\n")  # Not the start of a request.
                _read_to_end(connection)

    def test_closes_an_idle_connection(self):
        with self.serving(idle_timeout_in_ms=100) as (_, config):
            with _connected(config) as connection:
                connection.sendall(_STATUS)
                self.assertIn(b"200 OK", _read_to_end(connection))

    def test_closes_a_connection_whose_body_does_not_come(self):
        self.enterContext(
            mock.patch("bert_tf.serving.server._GRACE_SECONDS", 1)
        )
        with self.serving(rest_api_timeout_in_ms=100) as (_, config):
            with _connected(config) as connection:
                connection.sendall(_HALF_BODY)
                self.assertIn(b" 504 ", _read_to_end(connection))

    def test_closes_the_longest_waiting_connection_for_a_new_one(self):
        with self.serving(max_connections=3) as (_, config):
            with contextlib.ExitStack() as stack:
                first, second, third = [
                    self._answered(stack, config) for _ in range(3)
                ]
                first.sendall(_STATUS)
                self.assertIn(b"200 OK", _read_answer(first))
                fourth = stack.enter_context(_connected(config))
                self.assertEqual(_read_to_end(second), b"")
                for connection in (first, third, fourth):
                    connection.sendall(_STATUS)
                    self.assertIn(b"200 OK", _read_answer(connection))

    def test_refuses_a_connection_while_all_others_work(self):
        with self.serving(max_connections=1) as (_, config):
            with _connected(config) as busy, _connected(config) as late:
                # `busy` was closed to make room, so only `late` is left.
                self.assertEqual(_read_to_end(busy), b"")
                late.sendall(_HALF_BODY)
                self.assertIn(b"100 Continue", late.recv(1000))
                with _connected(config) as refused:
                    answer = _read_to_end(refused)
                self.assertStartsWith(answer, b"HTTP/1.1 503")
                self.assertIn(b"--max_connections", answer)


class RequestsTest(toy_models.ServedCase):
    FLAGS = {"max_header_bytes": 1000, "max_url_bytes": 500}

    @parameterized.parameters(
        (b"431 ", b"max_header_bytes", b"", b"X: " + b"a" * 1000),
        (b"431 ", b"max_header_bytes", b"", b"X: a\r\n" * 170),
        # One endless line is much larger than the system's buffers.
        (b"431 ", b"max_header_bytes", b"", b"X: " + b"a" * (10 << 20)),
        (b"414 ", b"max_url_bytes", b"?" + b"a" * 500, b""),
        (b"414 ", b"max_url_bytes", b"?" + b"a" * (10 << 20), b""),
    )
    def test_refuses_large_headers(self, status, flag, query, header):
        with _connected(self.config) as connection:
            # The limits hold for each request, not for the connection.
            request = _STATUS.replace(b" HTTP", b"?" + b"a" * 490 + b" HTTP")
            request = request[:-2] + b"X: " + b"a" * 950 + b"\r\n\r\n"
            for _ in range(2):
                connection.sendall(request)
                self.assertIn(b"200 OK", _read_answer(connection))
            large = _STATUS[:-2].replace(b" HTTP", query + b" HTTP") + header
            connection.sendall(large)
            if not header.endswith(b"a" * 2000):
                connection.sendall(b"\r\n\r\n")
            answer = _read_to_end(connection)
            self.assertStartsWith(answer, b"HTTP/1.1 " + status)
            self.assertIn(b"--" + flag, answer)

    def test_trailers_of_chunks_are_ignored(self):
        with _connected(self.config) as connection:
            connection.sendall(_CHUNKS + b"Host: evil.example\r\n\r\n")
            self.assertIn(b"HTTP/1.1 404", _read_answer(connection))
            # The connection must stay usable after a complete answer.
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.assertIn(b"HTTP/1.1 403", _read_answer(connection))

    def test_refuses_a_trailer_without_end(self):
        with _connected(self.config) as connection:
            connection.sendall(_CHUNKS)
            # The server closes the connection while the trailer is sent.
            with self.assertRaises(ConnectionError):
                while True:
                    connection.sendall(b"a" * (1 << 20))

    def test_refuses_thousands_of_requests_at_once(self):
        with _connected(self.config) as connection:
            last = b"Connection: close\r\n\r\n"
            connection.sendall(_STATUS * 29 + _STATUS[:-2] + last)
            answers = _read_to_end(connection)
            self.assertEqual(answers.count(b"200 OK"), 30)
        with _connected(self.config) as connection:
            connection.sendall(_STATUS * 40)
            self.assertIn(b"HTTP/1.1 429", _read_to_end(connection))


class ServerLimitsTest(toy_models.ToyCase):
    def test_refuses_large_metadata(self):
        _, config = self.enterContext(self.serving(max_header_bytes=20_000))
        channel = self.enterContext(toy_models.connect(config))
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "toy"
        # gRPC's own limit is lower, so the flag must raise it.
        stub.GetModelStatus(request, metadata=[("x", "a" * 19_000)])
        with self.assertRaises(grpc.RpcError) as raised:
            stub.GetModelStatus(request, metadata=[("x", "a" * 20_000)])
        code = raised.exception.code()
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_logs_once_when_there_are_no_files(self):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with (
            self.serving() as (_, config),
            self.assertLogs("absl", "ERROR") as logs,
            contextlib.ExitStack() as stack,
        ):
            clients = [stack.enter_context(socket.socket()) for _ in range(5)]
            # Files 0 to 2 are open, so no connection can open another.
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            for client in clients:
                client.settimeout(toy_models.TIMEOUT_SECONDS)
                client.connect(("127.0.0.1", config.rest_api_port))
                client.sendall(_STATUS)
            toy_models.wait_until(lambda: logs.output)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for client in clients:
                self.assertIn(b"200 OK", _read_answer(client))
        self.assertLen(logs.output, 1)
        self.assertIn("--max_connections", logs.output[0])

    def test_the_default_stays_below_the_limit_of_files(self):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        count = connections.max_connections(10**9)
        # The soft limit was raised, and each port gets half of it.
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.assertEqual(soft, limits[1])
        self.assertBetween(count, 513 // 2, soft // 2)


def _connected(config):
    return socket.create_connection(
        ("127.0.0.1", config.rest_api_port), toy_models.TIMEOUT_SECONDS
    )


def _read_answer(connection):
    """Returns an answer that ends with a brace."""
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(1000)
        if not part:
            raise ConnectionError(f"It ended after {answer!r}.")
        answer += part
    return answer


def _read_to_end(connection):
    """Returns all bytes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1000):
            parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    tf.test.main()
