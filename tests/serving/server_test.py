"""Tests of starting and stopping a server, its signals and precision."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from concurrent import futures
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import preflight
from bert_tf.serving.server import ModelServer
from tests.support import files_case
from tests.support import ports
from tests.support import scripts
from tests.support import toy_models


class ServerTest(toy_models.ToyCase):
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
                toy_models.refresh(server._service.manager)

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
        # The timeout is long, so the requests wait until the server stops.
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

    def test_ends_a_request_that_takes_too_long(self):
        flags = {"batch_timeout_micros": 10**9, "rest_api_timeout_in_ms": 100}
        body = {"signature_name": "echo", "instances": ["a"]}
        with self.serving(**flags) as (_, config):
            answer = toy_models.predict(config.rest_api_port, body)
        self.assertEqual(answer, (504, {"error": "The request timed out."}))

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


class RemoteTest(toy_models.ToyCase):
    """Versions on a file system that TensorFlow reads, such as gs://."""

    def _copy(self, folder, number):
        for path in filter(
            os.path.isfile, pathlib.Path(self.version).rglob("*")
        ):
            target = f"{folder}/{number}/{path.relative_to(self.version)}"
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(path, target)

    def test_takes_over_new_versions(self):
        folder = "ram://bucket/models/toy"
        self._copy(folder, 1)
        with toy_models.serving(folder) as (server, config):
            body = {"signature_name": "regress", "examples": [{"x": 4.0}]}
            path = "/v1/models/toy:regress"
            answer = toy_models.ask(config.rest_api_port, "POST", path, body)
            self.assertEqual(answer, (200, {"results": [8.0]}))
            self._copy(folder, 2)
            tf.io.gfile.remove(f"{folder}/2/saved_model.pb")
            toy_models.refresh(server._service.manager)
            states = toy_models.states(config.rest_api_port)
            self.assertEqual(states, {"1": "AVAILABLE", "2": "START"})
            self._copy(folder, 3)
            toy_models.refresh(server._service.manager)
            states = toy_models.states(config.rest_api_port)
            self.assertEqual(states["3"], "AVAILABLE")

    def test_refuses_a_folder_that_is_missing(self):
        with self.assertRaisesRegex(UserError, "ram://bucket/no"):
            self.enterContext(toy_models.serving("ram://bucket/no"))

    def test_refuses_a_version_in_place_of_its_folder(self):
        self._copy("ram://bucket/own", 1)
        with self.assertRaisesRegex(UserError, "is a version itself"):
            self.enterContext(toy_models.serving("ram://bucket/own/1"))


class VertexTest(toy_models.ToyCase):
    """Environment variables of Vertex AI's containers."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ))

    def test_routes_of_vertex_are_answered(self):
        os.environ |= {
            "AIP_STORAGE_URI": f"{self.folder}/toy",
            "AIP_HEALTH_ROUTE": "/v1/endpoints/7/deployedModels/8",
            "AIP_PREDICT_ROUTE": "/v1/endpoints/7/deployedModels/8:predict",
        }
        with toy_models.serving(model_name="a toy") as (_, config):
            route = os.environ["AIP_HEALTH_ROUTE"]
            answer = toy_models.ask(config.rest_api_port, "GET", route)
            self.assertEqual(answer, (200, {"ready": True}))
            body = {"signature_name": "echo", "instances": ["a"]}
            answers = [
                toy_models.ask(
                    *(config.rest_api_port, "POST", path),
                    body | {"parameters": {}},
                )
                for path in (
                    os.environ["AIP_PREDICT_ROUTE"],
                    "/v1/models/a%20toy:predict",
                )
            ]
            self.assertEqual(answers[0][0], 200)
            self.assertEqual(answers[0], answers[1])

    def test_flags_override_vertex_variables(self):
        os.environ |= {"AIP_HTTP_PORT": "8080", "AIP_STORAGE_URI": "gs://a/b"}
        config = ServeConfig(model_name="films")
        self.assertEqual(config.model_base_path, "gs://a/b")
        self.assertEqual((config.host, config.rest_api_port), ("0.0.0.0", 8080))
        config = ServeConfig(
            model_base_path="served/films", rest_api_port=80, host="::1"
        )
        self.assertEqual(config.model_base_path, "served/films")
        self.assertEqual((config.host, config.rest_api_port), ("::1", 80))
        config = ServeConfig(model_config_file="models.config")
        self.assertIsNone(config.model_base_path)
        os.environ["AIP_STORAGE_URI"] = ""  # A model without files.
        with self.assertRaisesRegex(UserError, "either --model_base_path"):
            ServeConfig()

    @parameterized.parameters("http", "0", "65536", "-1", "8080 ", "9" * 5000)
    def test_refuses_a_port_that_is_none(self, port):
        os.environ["AIP_HTTP_PORT"] = port
        with self.assertRaisesRegex(UserError, "AIP_HTTP_PORT must be a port"):
            ServeConfig(model_base_path="served/films")


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
        (100, "waiting", [signal.SIGHUP, signal.SIGTERM], 0, "stopped"),
        (0.1, "stuck", [signal.SIGTERM], 143, "took more than 0 seconds"),
        (
            *(100, "stuck", [signal.SIGINT, signal.SIGTERM]),
            *(143, "a second signal came"),
        ),
    )
    @pytest.mark.slow
    def test_signals_end_a_server(self, grace, state, numbers, status, message):
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(grace), state],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Otherwise a log line of TensorFlow would come before "ready".
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


# Prints whether weights are packed, for each set of flags, and whether
# TensorFlow was imported.
_PACK = """
import json, os, sys
from bert_tf.distribute import packed_weights
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import preflight
packed = []
for flags in json.load(sys.stdin):
    os.environ.pop(packed_weights.VARIABLE, None)
    preflight.pack_weights(ServeConfig(**flags))
    packed.append(packed_weights.are_assumed())
print(json.dumps([packed, "tensorflow" in sys.modules]))
"""


class PrecisionTest(files_case.FolderCase):
    def write(self, name, version, card):
        """Writes the model card of a version; returns the model's folder."""
        extras = self.path(name, str(version), "assets.extra")
        os.makedirs(extras)
        if card is not None:
            path = os.path.join(extras, "model_card.json")
            pathlib.Path(path).write_text(card, encoding="utf-8")
        return self.path(name)

    def mark(self, name, version, marked):
        card = {"export": {"precision": marked}}
        return self.write(name, version, json.dumps(card))

    @parameterized.parameters(
        ('{"export": {"precision": "bfloat16"}}', "bfloat16"),
        ('{"export": {"precision": "float32"}}', "float32"),
        ('{"export": {}}', None),
        ('{"export": "bfloat16"}', None),
        ("[1]", None),
        ('{"export"', None),
        (None, None),
    )
    def test_reads_the_model_card(self, card, expected):
        folder = self.write("model", 1, card)
        self.assertEqual(
            preflight.read_precision(os.path.join(folder, "1")), expected
        )

    def test_packs_if_the_newest_version_of_each_model_is_bfloat16(self):
        newest = self.mark("newest", 1, "float32")
        self.mark("newest", 2, "bfloat16")
        # As strings "9" > "10", so versions must be compared as numbers.
        older = self.mark("older", 9, "bfloat16")
        self.mark("older", 10, "float32")
        unmarked = self.write("unmarked", 1, None)
        empty = self.path("empty")
        os.makedirs(empty)

        def models(*paths, policy=""):
            path = self.create_tempfile(
                content="model_config_list {"
                + "".join(
                    f"config {{ name: '{os.path.basename(x)}' "
                    f"base_path: '{x}' {policy} }}"
                    for x in paths
                )
                + "}"
            )
            return {"model_config_file": path.full_path}

        older_only = "model_version_policy { specific { versions: 9 } }"
        cases = [
            ({"model_base_path": newest}, True),
            ({"model_base_path": older}, False),
            ({"model_base_path": unmarked}, False),
            ({"model_base_path": empty}, False),
            ({"model_base_path": f"{self.folder}/nowhere"}, False),
            ({"model_base_path": newest, "engine": "litert"}, False),
            (models(newest), True),
            (models(newest, older), False),
            (models(older, policy=older_only), True),
            (models(), False),
        ]
        flags = json.dumps([flags for flags, _ in cases])
        result = scripts.python("-c", _PACK, input=flags, check=True)
        self.assertEqual(
            json.loads(result.stdout), [[packs for _, packs in cases], False]
        )


if __name__ == "__main__":
    tf.test.main()
