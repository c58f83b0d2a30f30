"""Tests of clients that do not read their answers: their memory is freed."""

import json
import socket
from unittest import mock

import grpc
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.support import toy_models

_TEXT = "a" * 4_000_000
_PREDICT = "/tensorflow.serving.PredictionService/Predict"


@pytest.mark.slow
class UnreadAnswersTest(
    toy_models.ToyCase, tf.test.TestCase, parameterized.TestCase
):
    @parameterized.parameters("keep-alive", "close")
    def test_rest(self, connection_header):
        self.enterContext(
            mock.patch("bert_tf.serving.server._GRACE_SECONDS", 0.1)
        )
        body = json.dumps({"signature_name": "echo", "inputs": [_TEXT]})
        with (
            self.serving(port=0, rest_api_timeout_in_ms=5000) as (
                server,
                config,
            ),
            socket.socket() as connection,
        ):
            memory = server._service.bodies
            # The system would otherwise keep most of the answer.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(toy_models.TIMEOUT_SECONDS)
            connection.connect(("127.0.0.1", config.rest_api_port))
            connection.sendall(
                b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\n"
                + f"Connection: {connection_header}\r\n".encode()
                + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            received = connection.recv(4096)
            self.assertStartsWith(received, b"HTTP/1.1 200")
            self.assertGreaterEqual(memory._num_bytes, len(_TEXT))
            toy_models.wait_until(lambda: not memory._num_bytes)
            try:
                while part := connection.recv(1 << 16):
                    received += part
            except ConnectionResetError:
                pass
            self.assertLess(len(received), len(_TEXT))

    def test_grpc(self):
        request = toy_models.predict_request(text=[_TEXT])
        content = request.SerializeToString()
        with (
            self.serving(rest_api_port=0) as (server, config),
            grpc.insecure_channel(
                f"localhost:{config.port}",
                [
                    ("grpc.max_receive_message_length", -1),
                    # A fast connection would make room for the whole answer.
                    ("grpc.http2.bdp_probe", 0),
                ],
            ) as channel,
        ):
            memory = server._service.bodies
            answer = channel.unary_unary(_PREDICT)(
                content, timeout=toy_models.TIMEOUT_SECONDS
            )
            self.assertGreater(len(answer), len(_TEXT))
            toy_models.wait_until(lambda: not memory._num_bytes)
            # A stream is not read before it is asked for its first message.
            calls = [channel.unary_stream(_PREDICT)(content) for _ in range(2)]
            metrics = server._service.metrics
            answered = (
                b'method="Predict",model="toy",status="OK",version="1"} 3.0'
            )
            toy_models.wait_until(
                lambda: (
                    answered in metrics.page()
                    and 6 * len(_TEXT) <= memory._num_bytes < 7 * len(_TEXT)
                )
            )
            for call in calls:
                call.cancel()
            toy_models.wait_until(lambda: not memory._num_bytes)


if __name__ == "__main__":
    tf.test.main()
