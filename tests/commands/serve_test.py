"""Tests for run/serve.py as a process."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import tensorflow as tf
from absl.testing import absltest

from tests.support import forked_process
from tests.support import ports
from tests.support import toy_models

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# A product of this width is large enough for oneDNN to pack its weights.
_WIDTH = 512
# A server imports TensorFlow first, which takes long on a busy machine.
_TIMEOUT_SECONDS = 300
_ECHO = {"signature_name": "echo", "instances": ["é"]}


class _Forked(forked_process.ForkedProcess):
    """A forked process that returns its output as `subprocess.Popen` does."""

    def communicate(self, timeout=None):
        self.wait(timeout)
        self.log.seek(0)
        return self.log.read().decode(), None


class ServeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    @contextlib.contextmanager
    def serve_forked(self, *flags):
        """Like `serve`, in a process that has already imported TensorFlow."""
        grpc_port, port = ports.free(2)
        with tempfile.TemporaryFile() as log:
            process = _Forked(
                [
                    "run/serve.py",
                    f"--port={grpc_port}",
                    f"--rest_api_port={port}",
                    *flags,
                ],
                os.environ | {"PYTHONPATH": str(_ROOT)},
                log,
            )
            process.log = log
            try:
                yield process, port
            finally:
                process.kill()
                process.wait()

    @contextlib.contextmanager
    def serve(self, *flags, **environment):
        """Yields the process and its REST port; ends it in any case."""
        grpc_port, port = ports.free(2)
        process = subprocess.Popen(
            [
                *(sys.executable, "run/serve.py"),
                *(f"--port={grpc_port}", f"--rest_api_port={port}"),
                *flags,
            ],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": str(_ROOT)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process, port
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def wait_until(self, condition, process):
        """Waits until a condition holds; fails if the process exits first."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self.fail(process.communicate()[0])
            with contextlib.suppress(OSError):
                if condition():
                    return
            time.sleep(0.02)
        self.fail("It did not become true in time.")

    def is_ready(self, port):
        return toy_models.ask(port, "GET", "/readyz")[0] == 200

    @pytest.mark.slow
    def test_reloads_under_load_and_stops_after_the_last_request(self):
        base_path = f"{self.folder}/toy"
        first = toy_models.write(base_path, 1, factor=1.0)
        toy_models.write(self.folder, 2, factor=2.0)
        flags = ("--file_system_poll_wait_seconds=0.05",)
        path = "/v1/models/toy:predict"
        ask = {"signature_name": "regress", "examples": [{"x": 1.5}]}
        answers = []
        stopping = threading.Event()
        with self.serve_forked(f"--model_base_path={base_path}", *flags) as (
            process,
            port,
        ):
            self.wait_until(lambda: self.is_ready(port), process)

            def client():
                while not stopping.is_set():
                    answers.append(
                        toy_models.ask(
                            port, "POST", "/v1/models/toy:regress", ask
                        )
                    )

            clients = [threading.Thread(target=client) for _ in range(8)]
            for thread in clients:
                thread.start()
            self.wait_until(lambda: answers, process)
            # Version 3 is incomplete, so the server must load version 2.
            os.mkdir(f"{base_path}/3")
            os.rename(f"{self.folder}/2", f"{base_path}/2")
            self.wait_until(
                lambda: answers[-1:] == [(200, {"results": [3.0]})], process
            )
            stopping.set()
            for thread in clients:
                thread.join()
            self.assertEqual({status for status, _ in answers}, {200})
            values = [answer["results"][0] for _, answer in answers]
            self.assertEqual(set(values), {1.5, 3.0})
            self.assertTrue(os.path.isdir(first))
            status, answer = toy_models.ask(port, "POST", path, _ECHO)
            self.assertEqual((status, answer), (200, {"predictions": ["é"]}))
            process.send_signal(signal.SIGTERM)
            log, _ = process.communicate(timeout=toy_models.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)
        self.assertIn("3 has no saved_model.pb", log)
        self.assertNotIn("Traceback", log)

    def write_product(self, base_path, version, factor, precision):
        """Writes a model whose weights oneDNN packs, and its model card."""
        model = tf.Module()
        model.kernel = tf.Variable(tf.fill([_WIDTH, _WIDTH], factor / _WIDTH))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def product(x):
            rows = tf.tile(x[:, tf.newaxis], [1, _WIDTH])
            total = tf.matmul(rows, model.kernel)
            return {"y": tf.nn.relu(total + tf.zeros([_WIDTH]))[:, 0]}

        model.product = product
        temporary = f"{self.folder}/new"
        tf.saved_model.save(model, temporary, {"serving_default": product})
        os.makedirs(f"{temporary}/assets.extra")
        with open(f"{temporary}/assets.extra/model_card.json", "w") as file:
            json.dump({"export": {"precision": precision}}, file)
        os.makedirs(base_path, exist_ok=True)
        os.rename(temporary, f"{base_path}/{version}")

    @pytest.mark.slow
    def test_serves_the_weights_of_a_new_version_with_packed_weights(self):
        base_path = f"{self.folder}/product"
        self.write_product(base_path, 1, 1.0, "bfloat16")
        flags = ("--file_system_poll_wait_seconds=0.05",)
        ask = {"inputs": {"x": [1.5] * 64}}

        def first_output(port):
            _, answer = toy_models.ask(
                port, "POST", "/v1/models/product:predict", ask
            )
            return answer["outputs"][0]

        # oneDNN packs float32 weights, too, so any CPU can run this test.
        with self.serve(
            f"--model_base_path={base_path}", *flags, TF_ENABLE_ONEDNN_OPTS="1"
        ) as (process, port):
            self.wait_until(lambda: self.is_ready(port), process)
            self.assertEqual(first_output(port), 1.5)
            self.write_product(base_path, 2, 2.0, "bfloat16")
            self.wait_until(lambda: first_output(port) == 3.0, process)
            self.write_product(base_path, 3, 4.0, "float32")
            self.wait_until(lambda: first_output(port) == 6.0, process)
            process.send_signal(signal.SIGTERM)
            log, _ = process.communicate(timeout=toy_models.TIMEOUT_SECONDS)
        slower = [x for x in log.splitlines() if "packs weights for" in x]
        self.assertLen(slower, 1, log)
        self.assertIn("Version 3 of model product is not marked", slower[0])


if __name__ == "__main__":
    absltest.main()
