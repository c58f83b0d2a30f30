"""Tests of the limits of connections, on a server in this process."""

import contextlib
import resource
import socket
from unittest import mock

import grpc
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_service_pb2_grpc

from bert_tf.serving import connections
from tests.support import toy_models

_STATUS = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CHUNKS = (
    b"POST /v1/models/nix:predict HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
)
_HALF_BODY = (
    b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n{"
)


class ConnectionsTest(toy_models.ToyCase, tf.test.TestCase):
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
        # Longer, as it must not end before the client has sent all.
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
                # Both were accepted: `busy` has gone, `late` is the one.
                self.assertEqual(_read_to_end(busy), b"")
                late.sendall(_HALF_BODY)
                self.assertIn(b"100 Continue", late.recv(1000))
                with _connected(config) as refused:
                    answer = _read_to_end(refused)
                self.assertStartsWith(answer, b"HTTP/1.1 503")
                self.assertIn(b"--max_connections", answer)


class RequestsTest(
    toy_models.ServedCase, tf.test.TestCase, parameterized.TestCase
):
    FLAGS = {"max_header_bytes": 1000, "max_url_bytes": 500}

    @parameterized.parameters(
        (b"431 ", b"max_header_bytes", b"", b"X: " + b"a" * 1000),
        (b"431 ", b"max_header_bytes", b"", b"X: a\r\n" * 170),
        # Much more than the system's buffers hold, in one line without end.
        (b"431 ", b"max_header_bytes", b"", b"X: " + b"a" * (10 << 20)),
        (b"414 ", b"max_url_bytes", b"?" + b"a" * 500, b""),
        (b"414 ", b"max_url_bytes", b"?" + b"a" * (10 << 20), b""),
    )
    def test_refuses_large_headers(self, status, flag, query, header):
        with _connected(self.config) as connection:
            # The limits are of each request.
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

    def test_ignores_trailers(self):
        with _connected(self.config) as connection:
            connection.sendall(_CHUNKS + b"Host: evil.example\r\n\r\n")
            self.assertIn(b"HTTP/1.1 404", _read_answer(connection))
            # The connection can be used on.
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.assertIn(b"HTTP/1.1 403", _read_answer(connection))

    def test_refuses_a_trailer_without_end(self):
        with _connected(self.config) as connection:
            connection.sendall(_CHUNKS)
            # The server closes the connection while it is being written.
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


class ServerLimitsTest(toy_models.ToyCase, tf.test.TestCase):
    def test_refuses_large_metadata(self):
        _, config = self.enterContext(self.serving(max_header_bytes=20_000))
        channel = self.enterContext(toy_models.connect(config))
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "toy"
        # Larger than gRPC's own default.
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
            # Numbers below 3 are taken.
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
        # The soft limit was raised; both ports have as many.
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
