"""Tests of starting and stopping a server, and of its signals."""

import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
from concurrent import futures

import pytest
import tensorflow as tf
from absl.testing import parameterized
from grpc._cython import cygrpc

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving.server import ModelServer
from tests.support import ports
from tests.support import toy_models


class ServerTest(toy_models.ToyCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("port", "rest_api_port")
    def test_refuses_a_port_that_is_taken(self, flag):
        flags = dict(zip(("port", "rest_api_port"), ports.free(2), strict=True))
        with socket.create_server(("127.0.0.1", flags[flag])):
            server = ModelServer(
                ServeConfig(model_base_path=f"{self.folder}/toy", **flags)
            )
            with self.assertRaisesRegex(
                UserError, f":{flags[flag]}; choose another --{flag}"
            ):
                server.start()

    def test_refuses_an_address_of_another_host(self):
        with self.assertRaisesRegex(UserError, "--host=203.0.113.1"):
            self.enterContext(self.serving(host="203.0.113.1"))

    @parameterized.parameters(
        "saved_model.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    )
    @pytest.mark.slow
    def test_skips_a_version_until_it_is_complete(self, name):
        base_path = self.create_tempdir().full_path
        toy_models.copy(self.version, base_path, 1)
        version = toy_models.copy(self.version, base_path, "new")
        path = pathlib.Path(base_path, "2", name)
        whole = pathlib.Path(version, name).read_bytes()
        pathlib.Path(version, name).write_bytes(whole[: len(whole) // 2])
        os.rename(version, path.parents[name.count("/")])
        with toy_models.serving(base_path, model_name="m") as (server, config):
            port = config.rest_api_port
            for states in (
                {"2": "END", "1": "AVAILABLE"},
                {"2": "AVAILABLE", "1": "END"},
            ):
                self.assertEqual(toy_models.states(port, "m"), states)
                answer = toy_models.ask(
                    *(port, "POST", "/v1/models/m:regress"),
                    {"signature_name": "regress", "examples": [{"x": 4.0}]},
                )
                self.assertEqual(answer, (200, {"results": [8.0]}))
                path.write_bytes(whole)
                server._service.manager.refresh()

    def test_listens_to_either_port_alone(self):
        for off in ("port", "rest_api_port"):
            with self.serving(**{off: 0}) as (_, config):
                port = config.port or config.rest_api_port
                with socket.create_connection(("127.0.0.1", port)):
                    pass
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))

    def test_answers_accepted_requests_before_it_stops(self):
        body = {"signature_name": "echo", "instances": ["x" * 100] * 20}
        # The requests wait until the server stops.
        flags = {"batch_timeout_micros": 10**9, "max_batch_size": 1000}
        with futures.ThreadPoolExecutor(5) as threads:
            with self.serving(**flags) as (_, config):
                port = config.rest_api_port
                answers = [
                    threads.submit(toy_models.predict, port, body)
                    for _ in range(5)
                ]
                toy_models.wait_until(
                    lambda: (
                        toy_models.metrics(port)["serving_queued_rows"] >= 100
                    )
                )
        self.assertEqual([x.result()[0] for x in answers], [200] * 5)

    def test_grpc_clients_that_are_gone_are_not_logged(self):
        logger = logging.getLogger("grpc._cython.cygrpc")
        with self.serving(), self.assertLogs(logger) as logs:
            for error in (cygrpc.ExecuteBatchError("gone"), ValueError("bug")):
                logger.error("In a call.", exc_info=error)
        self.assertLen(logs.output, 1)
        self.assertIn("bug", logs.output[0])

    def test_refuses_requests_when_the_queue_is_full(self):
        flags = ("max_batch_size", "max_enqueued_batches", "num_batch_threads")
        _, config = self.enterContext(self.serving(**dict.fromkeys(flags, 1)))
        channel = self.enterContext(toy_models.connect(config))
        predict = toy_models.prediction_stub(channel).Predict
        request = toy_models.predict_request("slow", steps=[2000])
        body = {"signature_name": "slow", "inputs": [2000]}
        calls = [predict.future(request) for _ in range(10)]
        with futures.ThreadPoolExecutor(10) as threads:
            answers = threads.map(
                toy_models.predict, [config.rest_api_port] * 10, [body] * 10
            )
            statuses = {status for status, _ in answers}
        statuses |= {call.code().name for call in calls}
        refused = {503, "RESOURCE_EXHAUSTED"}
        self.assertEqual(statuses - {200, "OK"}, refused)


_PROGRAM = """
import os, sys, threading
from bert_tf.serving import server

stopped = threading.Event()
server.watch_signals(stopped, float(sys.argv[1]))
print("ready", flush=True)
if sys.argv[2] == "stuck":
    os.read(os.pipe()[0], 1)  # In C: Python's own handlers do not run.
stopped.wait()
print("stopped", flush=True)
"""
_LOADING_PROGRAM = """
import sys
from concurrent import futures
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import saved_model
from bert_tf.serving import server

class Engine(saved_model.SavedModelEngine):
    def load(self, name, version, directory):
        print(version, flush=True)
        if version == 2:  # Python's own end would wait for this thread.
            futures.ThreadPoolExecutor().submit(futures.Future().result).result()
        return super().load(name, version, directory)

server._ENGINES["savedmodel"] = Engine
server.run(ServeConfig(
    model_base_path=sys.argv[1], rest_api_port=int(sys.argv[2]), port=0,
    file_system_poll_wait_seconds=1))
"""
_TIMEOUT_SECONDS = 60


class SignalsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (100, "waiting", [signal.SIGTERM], 0, "stopped"),
        (100, "waiting", [signal.SIGINT], 0, "stopped"),
        (100, "waiting", [signal.SIGHUP, signal.SIGTERM], 0, "stopped"),
        (0.1, "stuck", [signal.SIGTERM], 143, "took more than 0 seconds"),
        (
            *(100, "stuck", [signal.SIGINT, signal.SIGTERM]),
            *(143, "a second signal came"),
        ),
    )
    @pytest.mark.slow
    def test_signals(self, grace, state, numbers, status, message):
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(grace), state],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Another line of TensorFlow would come before the first.
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        ) as process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "ready\n")
            for number in numbers:
                process.send_signal(number)
                if number == signal.SIGHUP:
                    self.assertIn("ignored", process.stdout.readline())
            log, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, status, log)
        self.assertIn(message, log)

    @pytest.mark.slow
    def test_ends_with_status_0_while_a_version_loads(self):
        folder = self.create_tempdir().full_path
        new = toy_models.write(folder, "new")
        toy_models.write(folder, 1)
        (port,) = ports.free(1)
        with subprocess.Popen(
            [sys.executable, "-c", _LOADING_PROGRAM, folder, str(port)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "1\n")
            os.rename(new, f"{folder}/2")
            self.assertEqual(process.stdout.readline(), "2\n")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(_TIMEOUT_SECONDS), 0)


if __name__ == "__main__":
    tf.test.main()
