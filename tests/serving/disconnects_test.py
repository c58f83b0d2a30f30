"""Tests that a request ends with its client, on a server in this process."""

import json
import socket
import tempfile

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.support import toy_models

_NUM_ROWS = 10_000
# Each row takes milliseconds.
_STEPS = 100


class DisconnectsTest(tf.test.TestCase):
    def serve(self, **flags):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        toy_models.write(f"{folder}/toy")
        _, self.config = self.enterContext(
            toy_models.serving(f"{folder}/toy", max_batch_size=8, **flags)
        )
        channel = self.enterContext(
            grpc.insecure_channel(f"localhost:{self.config.port}")
        )
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def request(self, num_rows):
        steps = np.full(num_rows, _STEPS, np.int32)
        return toy_models.predict_request("slow", steps=steps)

    def metrics(self):
        _, page = toy_models.ask_raw(
            self.config.rest_api_port, "GET", "/metrics"
        )
        lines = (x.rsplit(" ", 1) for x in page.decode().splitlines())
        return {key: float(x) for key, x in lines if not key.startswith("#")}

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
        # After this one no piece of the request is in progress.
        self.stub.Predict(self.request(1))
        num_calls = self.num_calls()
        self.assertLess(num_calls, 1000)
        self.stub.Predict(self.request(1))
        self.assertEqual(self.num_calls(), num_calls + 1)

    def send_by_rest(self):
        body = json.dumps(
            {"signature_name": "slow", "instances": [_STEPS] * _NUM_ROWS}
        )
        connection = self.enterContext(
            socket.create_connection(
                ("127.0.0.1", self.config.rest_api_port),
                toy_models.TIMEOUT_SECONDS,
            )
        )
        connection.sendall(
            b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body.encode())
        )
        return connection

    def test_rest_client_that_disconnects(self):
        self.serve()
        connection = self.send_by_rest()
        self.wait_for_calls()
        connection.close()
        self.assert_ends("CANCELLED")

    def test_rest_timeout(self):
        self.serve(rest_api_timeout_in_ms=1000)
        connection = self.send_by_rest()
        self.assertIn(b" 504 ", connection.recv(1000))
        self.assert_ends("DEADLINE_EXCEEDED")

    def test_grpc_client_that_cancels(self):
        self.serve()
        future = self.stub.Predict.future(self.request(_NUM_ROWS))
        self.wait_for_calls()
        future.cancel()
        self.assert_ends("CANCELLED")

    def test_grpc_client_that_disconnects(self):
        self.serve()
        channel = grpc.insecure_channel(f"localhost:{self.config.port}")
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        future = stub.Predict.future(self.request(_NUM_ROWS))
        self.wait_for_calls()
        channel.close()
        self.assertIsNotNone(future.exception(toy_models.TIMEOUT_SECONDS))
        self.assert_ends("CANCELLED")

    def test_grpc_deadline(self):
        self.serve()
        self.stub.Predict(self.request(1))  # Connects, which takes time.
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Predict(self.request(_NUM_ROWS), timeout=0.5)
        self.assertEqual(
            raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED
        )
        self.assert_ends("CANCELLED")


if __name__ == "__main__":
    tf.test.main()
