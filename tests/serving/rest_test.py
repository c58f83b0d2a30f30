"""Tests of the REST interface against TensorFlow Serving's documentation."""

import base64
import contextlib
import gzip
import http.client
import json
import math
import re
import socket
import tempfile
import time

import tensorflow as tf
from absl.testing import parameterized

from tests.support import toy_models

_MODEL = "/v1/models/toy"
_PREDICT = f"{_MODEL}:predict"


class RestTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        first = toy_models.write(f"{folder}/toy", 3, factor=10.0)
        toy_models.copy(first, f"{folder}/toy", 5)
        with open(f"{folder}/models.config", "w", encoding="utf-8") as file:
            file.write(
                "model_config_list { config { name: 'toy' base_path: "
                f"'{folder}/toy' model_version_policy {{ all {{}} }} "
                "version_labels { key: 'stable' value: 3 } } }"
            )
        _, config = cls.enterClassContext(
            toy_models.serving(model_config_file=f"{folder}/models.config")
        )
        cls.port = config.rest_api_port

    def ask(self, method, path, body=None, **kwargs):
        return toy_models.ask(self.port, method, path, body, **kwargs)

    def predict(self, body, path=_PREDICT):
        return self.ask("POST", path, body)

    def assert_refused(self, body, message, path=_PREDICT):
        status, answer = self.predict(body, path)
        self.assertEqual(status, 400, answer)
        self.assertIn(message, answer["error"])
        self.assertLess(len(answer["error"]), 1000)

    def test_rows_of_several_inputs(self):
        status, answer = self.predict(
            {
                "instances": [
                    {"text": "ab", "weights": [1, 2.5]},
                    {"weights": [-1, 0], "text": "日本語!"},
                ]
            }
        )
        self.assertEqual(status, 200)
        encoded = [
            base64.b64encode(text.encode() + b"\xc3\xbf").decode()
            for text in ("ab", "日本語!")
        ]
        self.assertEqual(
            answer,
            {
                "predictions": [
                    {
                        "length": 2,
                        "label": "café",
                        "raw_bytes": {"b64": encoded[0]},
                        "scaled": [10.0, 25.0],
                    },
                    {
                        "length": 10,
                        "label": "long",
                        "raw_bytes": {"b64": encoded[1]},
                        "scaled": [-10.0, 0.0],
                    },
                ]
            },
        )

    def test_columns_of_several_inputs(self):
        status, answer = self.predict(
            {"inputs": {"text": ["ab", "abcd"], "weights": [[1, 2], [3, 4]]}}
        )
        self.assertEqual(status, 200)
        self.assertEqual(answer["outputs"]["length"], [2, 4])
        self.assertEqual(
            answer["outputs"]["scaled"], [[10.0, 20.0], [30.0, 40.0]]
        )

    @parameterized.parameters(
        ({"instances": ["a", "é"]}, {"predictions": ["a", "é"]}),
        ({"instances": [{"text": "a"}]}, {"predictions": ["a"]}),
        ({"inputs": ["a", "é"]}, {"outputs": ["a", "é"]}),
        ({"inputs": {"text": ["a"]}}, {"outputs": ["a"]}),
        ({"inputs": []}, {"outputs": []}),
        ({"instances": [{"b64": "w6k="}, "x"]}, {"predictions": ["é", "x"]}),
        ({"instances": [{"b64": "w6k"}]}, {"predictions": ["é"]}),
        ({"instances": [{"b64": "w6\r\n k=\n"}]}, {"predictions": ["é"]}),
        ({"instances": [{"text": {"b64": "AA=="}}]}, {"predictions": ["\0"]}),
        ({"instances": ["\0", ""]}, {"predictions": ["\0", ""]}),
    )
    def test_one_input_and_one_output(self, body, expected):
        status, answer = self.predict({"signature_name": "echo"} | body)
        self.assertEqual((status, answer), (200, expected))

    def test_half_a_gzip_file(self):
        whole = gzip.compress(b'{"signature_name": "echo", "instances": ["z"]}')
        # Of several members only the first would be read.
        several = (whole + whole, whole + b"x", whole + whole[:-8])
        for body in (whole[:-8], b"{}", b"", *several):
            status, answer = self.ask(
                "POST", _PREDICT, body, headers=[("Content-Encoding", "gzip")]
            )
            self.assertEqual(status, 400)
            self.assertIn("gzip", answer["error"])

    def test_refuses_other_transfer_codings(self):
        body = (
            b'2d\r\n{"signature_name": "echo", "instances": [""]}\r\n0\r\n\r\n'
        )
        for coding, expected in (("chunked", 200), ("gzip, chunked", 501)):
            headers = [("Transfer-Encoding", coding)]
            status, _ = self.ask("POST", _PREDICT, body, headers=headers)
            self.assertEqual(status, expected)

    def test_bytes_that_are_no_example(self):
        for content in ("////", base64.b64encode(b"abc").decode()):
            with self.assertNoLogs(level="ERROR"):
                body = {"instances": [{"inputs": {"b64": content}}]}
                self.assert_refused(body | {"signature_name": "classify"}, "")

    def test_largest_exact_integer_of_a_float(self):
        for number, expected in ((2**24 - 1, 200), (2**24, 400)):
            status, answer = self.predict(
                {"signature_name": "log", "instances": [-number, number]}
            )
            self.assertEqual(status, expected, answer)

    def test_nan_and_infinity(self):
        body = (
            b'{"signature_name": "log", '
            b'"instances": [0, -1.0, Infinity, NaN, 1e0]}'
        )
        status, contents = toy_models.ask_raw(self.port, "POST", _PREDICT, body)
        self.assertEqual(status, 200)
        self.assertEqual(
            re.sub(rb"\s", b"", contents),
            b'{"predictions":[-Infinity,NaN,Infinity,NaN,0.0]}',
        )

    def test_numbers_have_the_digits_of_a_float(self):
        _, contents = toy_models.ask_raw(
            self.port,
            "POST",
            _PREDICT,
            {"signature_name": "log", "inputs": [1.3]},
        )
        self.assertRegex(contents, rb"\[\d\.\d{6,9}\]")
        (value,) = json.loads(contents)["outputs"]
        self.assertAlmostEqual(value, 10 * math.log(1.3), places=5)

    def test_integers_and_booleans(self):
        status, answer = self.predict(
            {
                "signature_name": "total",
                "inputs": {"ids": [[1, 2], [3, 4]], "negate": [True, False]},
            }
        )
        self.assertEqual((status, answer), (200, {"outputs": [-3, 7]}))

    def test_bytes_that_are_not_text_pass_through(self):
        body = b'{"signature_name": "echo", "instances": ["a\xff\xfe\xc3"]}'
        self.assertEqual(
            toy_models.ask_raw(self.port, "POST", _PREDICT, body),
            (200, b'{"predictions": ["a\xff\xfe\xc3"]}'),
        )

    def test_ten_megabytes(self):
        text = "long text " * (1 << 20)
        status, answer = self.predict(
            {"signature_name": "echo", "instances": [text]}
        )
        self.assertEqual(status, 200)
        self.assertEqual(answer["predictions"], [text])

    def test_ignores_content_type_and_reads_gzip(self):
        body = json.dumps({"signature_name": "echo", "instances": ["z"]})
        for headers, contents in (
            ({"Content-Type": "text/html"}, body.encode()),
            ({"Content-Encoding": "gzip"}, gzip.compress(body.encode())),
        ):
            status, answer = self.ask(
                "POST", _PREDICT, contents, headers=headers.items()
            )
            self.assertEqual((status, answer), (200, {"predictions": ["z"]}))

    @parameterized.parameters(
        ("/versions/3", 200),
        ("/versions/5", 200),
        ("/labels/stable", 200),
        ("/labels/%73table", 200),
        ("/versions/4", 404),
        ("/versions/99999999999999999999", 400),
        ("/labels/unstable", 400),
    )
    def test_versions_and_labels(self, which, expected):
        status, answer = self.predict(
            {"signature_name": "echo", "instances": ["v"]},
            f"{_MODEL}{which}:predict",
        )
        self.assertEqual(status, expected)
        self.assertEqual(
            list(answer), ["predictions" if status == 200 else "error"]
        )

    def test_classify(self):
        status, answer = self.ask(
            "POST",
            f"{_MODEL}:classify",
            {
                "signature_name": "classify",
                "examples": [{"x": 0.5}, {"x": [-2.0]}],
            },
        )
        self.assertEqual(status, 200)
        self.assertEqual(
            answer,
            {
                "results": [
                    [["low", -5.0], ["high", 5.0]],
                    [["low", 20.0], ["high", -20.0]],
                ]
            },
        )

    def test_scores_have_the_digits_of_a_float(self):
        _, contents = toy_models.ask_raw(
            self.port,
            "POST",
            f"{_MODEL}:classify",
            b'{"signature_name": "classify", "examples": [{"x": 0.013}, '
            b'{"x": NaN}]}',
        )
        self.assertEqual(
            re.sub(rb"\s", b"", contents),
            b'{"results":[[["low",-0.13],["high",0.13]],'
            b'[["low",NaN],["high",NaN]]]}',
        )

    def test_regress_with_a_context(self):
        status, answer = self.ask(
            "POST",
            f"{_MODEL}:regress",
            {
                "signature_name": "regress",
                "context": {"x": 1.5},
                "examples": [{}, {"y": "other"}],
            },
        )
        self.assertEqual((status, answer), (200, {"results": [15.0, 15.0]}))

    def test_status(self):
        whole = {"error_code": "OK", "error_message": ""}
        versions = [
            {"version": number, "state": "AVAILABLE", "status": whole}
            for number in ("5", "3")
        ]
        self.assertEqual(
            self.ask("GET", _MODEL), (200, {"model_version_status": versions})
        )
        for which in ("/versions/3", "/labels/stable"):
            self.assertEqual(
                self.ask("GET", _MODEL + which),
                (200, {"model_version_status": versions[1:]}),
            )

    def test_metadata(self):
        status, answer = self.ask("GET", f"{_MODEL}/versions/3/metadata")
        self.assertEqual(status, 200)
        self.assertEqual(
            answer["model_spec"],
            {"name": "toy", "signature_name": "", "version": "3"},
        )
        signature = answer["metadata"]["signature_def"]["signature_def"]["log"]
        self.assertEqual(signature["method_name"], "tensorflow/serving/predict")
        self.assertEqual(
            signature["inputs"]["x"],
            {
                "name": "log_x:0",
                "dtype": "DT_FLOAT",
                "tensor_shape": {
                    "dim": [{"size": "-1", "name": ""}],
                    "unknown_rank": False,
                },
            },
        )

    @parameterized.parameters(
        ("GET", "/v1/models/nobody", None, 404, "any versions of model nobody"),
        ("GET", "/v1/models", None, 400, "Missing model name in request."),
        ("GET", f"{_MODEL}/versions/7", None, 404, "version 7 of model toy"),
        ("GET", _PREDICT, None, 400, f"Malformed request: GET {_PREDICT}"),
        ("PUT", _PREDICT, b"{}", 400, f"Malformed request: PUT {_PREDICT}"),
        ("POST", _MODEL, b"{}", 400, f"Malformed request: POST {_MODEL}"),
        (
            "POST",
            "/v1/models/half:predict",
            {"instances": [1.0, 5.0]},
            404,
            "Servable not found for request: Latest(half)",
        ),
        (
            "GET",
            f"{_MODEL}/versions/{'9' * 5000}",
            None,
            400,
            f"Failed to convert version: {'9' * 200}... to numeric.",
        ),
        ("GET", f"{_MODEL}/versions/{'0' * 5000}7", None, 404, "version 7 of"),
        (
            "GET",
            f"/v1/models/{'n' * 5000}",
            None,
            404,
            f"any versions of model {'n' * 200}...",
        ),
        (
            "POST",
            f"{_MODEL}/versions/4:predict",
            {"instances": [1.0, 5.0]},
            404,
            "Servable not found for request: Specific(toy, 4)",
        ),
    )
    def test_wrong_paths(self, method, path, body, status, message):
        answer = self.ask(method, path, body)
        self.assertEqual(answer[0], status)
        self.assertIn(message, answer[1]["error"])

    @parameterized.parameters(
        (b"", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error"),
        (b"\xff", "JSON Parse error"),
        (b'{"a": "\0"}', "Invalid control character at offset: 7"),
        (b"[1]", "Is not object"),
        (b"{}", "Missing 'inputs' or 'instances' key"),
        (b'{"instances": [], "inputs": []}', "only one of"),
        (b'{"instances": []}', "No values in 'instances' array"),
        (b'{"instances": "a"}', "to be an list/array"),
        (b'{"signature_name": 1}', "must be a string value"),
        (
            b'{"signature_name": "nix", "instances": ["a"]}',
            'Serving signature name: "nix" not found in signature def',
        ),
        (b'{"instances": ["a"]}', "expecting list of objects"),
        (b'{"instances": [{"text": "a"}]}', "keys must be equal to"),
        (
            b'{"instances": [{"text": "a", "word": "b"}]}',
            "does not have named input: word",
        ),
        (b'{"inputs": {"text": ["a"]}}', "Missing named input: weights"),
        (b'{"inputs": ["a"]}', "expecting an object"),
        (
            b'{"signature_name": "total", "inputs": '
            b'{"ids": [[2147483648]], "negate": [true]}}',
            "is not of expected type: int32",
        ),
        (
            b'{"signature_name": "total", "inputs": '
            b'{"ids": [[1.0]], "negate": [1]}}',
            "is not of expected type: int32",
        ),
        (
            b'{"signature_name": "\\ud800", "instances": ["a"]}',
            "The signature name must be UTF-8. Received: \\ud800.",
        ),
        (
            b'{"signature_name": "%s", "instances": ["a"]}' % (b"s" * 5000),
            f'Serving signature name: "{"s" * 200}..." not found',
        ),
        (b'{"signature_name": "echo", "instances": ["bad"]}', "bad text"),
        (b'{"signature_name": "share", "instances": [1]}', "no shape"),
    )
    def test_wrong_bodies(self, body, message):
        self.assert_refused(body, message)

    @parameterized.parameters(
        (["a"], [[1, 2, 3]], "must have the shape"),
        (
            ["a"],
            [["1", 2]],
            'JSON Value: "1" Type: String is not of expected type: float',
        ),
        (
            [1],
            [[1, 2]],
            "JSON Value: 1 Type: Number is not of expected type: string",
        ),
        (
            ["a"],
            [[1, 2], [3]],
            "Encountered list at unexpected size: 1 at level: 1",
        ),
        (["a"], [[1, [2]]], "Encountered list at unexpected level: 2"),
        (["a"], [[1, 1e39]], "to float without loss of precision"),
        (["a"], [[1, 16777217]], "to float without loss of precision"),
        ([{"b64": "!"}], [[1, 2]], "Unable to base64 decode"),
        ([{"b": "!"}], [[1, 2]], "not formatted correctly for base64 data"),
        (["\ud800"], [[1, 2]], "The surrogate pair in string is invalid"),
    )
    def test_wrong_values(self, text, weights, message):
        body = {"inputs": {"text": text, "weights": weights}}
        self.assert_refused(body, message)

    @parameterized.parameters(
        ({"examples": [{"x": 1.0}]}, "Expected one input Tensor."),
        ({"signature_name": "nix"}, "'examples' is expected"),
        (
            {"signature_name": "nix", "examples": [{"x": 1.0}]},
            "No signature was found with the name: nix",
        ),
        (
            {"signature_name": "regress", "examples": [{"x": 1.0}]},
            "outputs to contain at least one of",
        ),
    )
    def test_wrong_examples(self, body, message):
        self.assert_refused(body, message, f"{_MODEL}:classify")

    @parameterized.parameters(
        ([], "is an empty array"),
        (
            [{"x": None}],
            "Feature: x has element with unexpected JSON type: Null",
        ),
        (
            [{"x": [1, "a"]}],
            "Unexpected element type in feature: x expecting type: int64",
        ),
        ([[1.0]], "Example must be JSON object but got JSON Array"),
        (
            [{"y": 1.0}],
            "Feature: x (data type: float) is required but could not be found",
        ),
        ([{"x": True}], "Data type: int64 but expected type: float"),
    )
    def test_wrong_features(self, examples, message):
        body = {"signature_name": "classify", "examples": examples}
        self.assert_refused(body, message, f"{_MODEL}:classify")

    def test_disconnected_client_is_not_a_server_error(self):
        def count():
            _, text = toy_models.ask_raw(self.port, "GET", "/metrics")
            return sum(
                float(line.split()[-1])
                for line in text.decode().splitlines()
                if line.startswith("serving_requests_total{")
                and 'status="CANCELLED"' in line
            )

        before = count()
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(
                f"POST {_PREDICT} HTTP/1.1\r\nHost: localhost\r\n"
                "Content-Length: 1000\r\n\r\n{".encode()
            )
        deadline = time.monotonic() + 60
        while count() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertGreater(count(), before)

    def test_metrics_and_readiness(self):
        self.predict({"signature_name": "echo", "instances": ["a", "b"]})
        for path in ("/metrics", "/monitoring/prometheus/metrics"):
            status, text = toy_models.ask_raw(self.port, "GET", path)
            self.assertEqual(status, 200)
            lines = text.decode().splitlines()
            self.assertIn(
                'serving_model_version_loaded{model="toy",version="5"} 1.0',
                lines,
            )
            self.assertIn("serving_queued_rows 0.0", lines)
            (counted,) = [
                line
                for line in lines
                if line.startswith("serving_requests_total{")
                and 'method="Predict"' in line
                and 'status="OK"' in line
                and 'version="5"' in line
            ]
            self.assertGreaterEqual(float(counted.split()[-1]), 1)
            self.assertTrue(
                any(
                    line.startswith("serving_batch_rows_bucket{")
                    and 'signature="echo"' in line
                    for line in lines
                )
            )
        self.assertEqual(self.ask("GET", "/readyz"), (200, {"ready": True}))

    def test_serves_the_page(self):
        self.assertEqual(
            self.ask("GET", "/page/models.json"), (200, {"models": ["toy"]})
        )
        status, page = toy_models.ask_raw(self.port, "GET", "/")
        self.assertEqual(status, 200)
        self.assertIn(b"<html", page)
        for path in ("/page/../server.py", "/page/%2e%2e/server.py"):
            status, _ = toy_models.ask_raw(self.port, "GET", path)
            self.assertEqual(status, 404)

    @parameterized.parameters(
        ("GET", "/", 200),
        ("GET", "/page/page.js", 200),
        ("GET", "/page/models.json", 200),
        ("GET", "/metrics", 200),
        ("GET", _MODEL, 200),
        ("POST", f"{_MODEL}/versions/4:predict", 404),
        ("GET", "/nothing", 404),
    )
    def test_security_headers_are_on_every_response(self, method, path, status):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            connection.request(method, path, b"{}")
            response = connection.getresponse()
            response.read()
        self.assertEqual(response.status, status)
        self.assertEqual(response.headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(response.headers["Referrer-Policy"], "no-referrer")
        self.assertEqual(
            response.headers["Cross-Origin-Resource-Policy"], "same-origin"
        )
        policy = response.headers.get_all("Content-Security-Policy")
        self.assertLen(policy, 1)
        allowed = dict(
            directive.strip().split(" ", 1)
            for directive in policy[0].split(";")
        )
        self.assertEqual(
            allowed,
            {
                "default-src": "'none'",
                "script-src": "'self'",
                "style-src": "'self'",
                "img-src": "'self'",
                "connect-src": "'self'",
                "base-uri": "'none'",
                "form-action": "'none'",
                "frame-ancestors": "'none'",
            },
        )


if __name__ == "__main__":
    tf.test.main()
