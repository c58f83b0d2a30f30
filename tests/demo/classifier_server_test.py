"""Tests for serving in bert_tf.demo.classifier; the demo runs all of it."""

import json
import os
import pathlib
from unittest import mock

import tensorflow as tf

from bert_tf.demo import classifier as demo_classifier
from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files

_SERVED = demo_classifier.Served(
    "http://localhost:1/v1/models/library",
    (
        {"label": "numpy", "probabilities": [0.25, 0.625, 0.125]},
        {"label": "keras", "probabilities": [0.9, 0.1, 0.0]},
    ),
)
_FAKE_SERVER = """
import http.server, json, signal, sys
port = int(next(x for x in sys.argv if "rest_api_port" in x).split("=")[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
    def do_GET(self):
        state = "AVAILABLE" if self.path == "/v1/models/library" else "END"
        self.answer({"model_version_status": [{"state": state}]})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [x["text"] for x in body["instances"]]
        answers = [{"label": x[::-1], "probabilities": [1.0]} for x in texts]
        self.answer({"predictions": answers})
signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT))
http.server.HTTPServer(("localhost", port), Handler).serve_forever()
"""


class DemoServingTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.log = os.path.join(self.folder, "server.log")

    def _put_script(self, program):
        """Puts a program in the place of `python -m bert_tf`."""
        path = pathlib.Path(self.folder) / "program.py"
        path.write_text(program)
        self.enter_context(
            mock.patch.object(demo_classifier, "_PROGRAM", (str(path),))
        )

    def _ask(self, program):
        self._put_script(program)
        export = demo_classifier.configure_export("model", self.folder)
        server = demo_classifier.configure_server(export)
        return demo_classifier.ask(server, ["ab", "cde"], self.log)

    def test_server_answers_and_is_stopped(self):
        served = self._ask(_FAKE_SERVER.replace("EXIT", "0"))
        labels = [answer["label"] for answer in served.predictions]
        self.assertEqual(labels, ["ba", "edc"])
        with self.assertRaises(OSError):
            demo_classifier._request(served.url)

    def test_a_server_that_stops_badly(self):
        with self.assertRaisesRegex(UserError, "Received: 3; see .*server.log"):
            self._ask(_FAKE_SERVER.replace("EXIT", "3"))

    def test_a_server_that_does_not_start(self):
        with self.assertRaisesRegex(UserError, "must serve .*server.log"):
            self._ask("raise SystemExit('No.')")
        self.assertEqual(files.read_bytes(self.log), b"No.\n")

    def test_a_script_that_fails(self):
        self._put_script("import sys; sys.exit('--port=7' not in sys.argv)")
        config = ServeConfig(model_base_path="models", port=7)
        demo_classifier.run_script(demo_classifier.SERVE_SCRIPT, config)
        config = ServeConfig(model_base_path="models", port=8)
        with self.assertRaisesRegex(UserError, "with 0. Received: 1;"):
            demo_classifier.run_script(demo_classifier.SERVE_SCRIPT, config)

    def test_exported_when_there_is_a_version(self):
        export = demo_classifier.configure_export("model", self.folder)
        self.assertEqual(export.served_name, "library")
        os.makedirs(os.path.join(export.output_dir, "1.tmp-3"))
        self.assertFalse(demo_classifier.is_exported(export))
        os.makedirs(os.path.join(export.output_dir, "1"))
        self.assertTrue(demo_classifier.is_exported(export))

    def test_rejects_other_labels(self):
        path = os.path.join(self.folder, "predictions.jsonl")
        for last, is_right in (("keras", True), ("numpy", False)):
            rows = [{"label": label} for label in ("numpy", last)]
            files.write_text(path, "".join(f"{json.dumps(x)}\n" for x in rows))
            if is_right:
                demo_classifier.judge_served(_SERVED, path)
                continue
            with self.assertRaisesRegex(UserError, "answer numpy, numpy, as"):
                demo_classifier.judge_served(_SERVED, path)

    def test_screen_shows_requests_answers_and_commands(self):
        export = demo_classifier.configure_export("model", "a folder")
        text = demo_classifier.describe_served(
            _SERVED, export, ["It's one.", "Two."]
        )
        self.assertIn("POST http://localhost:1/v1/models/library:predict", text)
        self.assertIn("  It's one.\n      numpy 62%\n  Two.\n", text)
        self.assertIn(
            "run/serve.py --model_base_path='a folder/served/library'\n", text
        )
        self.assertIn("http://localhost:8501/v1/models/library:predict", text)


if __name__ == "__main__":
    tf.test.main()
