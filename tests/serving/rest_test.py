"""Tests of the REST interface against TensorFlow Serving's documentation."""

import base64
import contextlib
import gzip
import http.client
import json
import math
import pathlib
import re

import tensorflow as tf
from absl.testing import parameterized

from tests.support import toy_models

_MODEL = "/v1/models/toy"
_PREDICT = toy_models.PREDICT


class RestTest(toy_models.ServedCase):
    @classmethod
    def flags(cls):
        folder = f"{cls.folder}/models"
        first = toy_models.write(folder, 3, factor=10.0)
        toy_models.copy(first, folder, 5)
        path = pathlib.Path(cls.folder, "models.config")
        path.write_text(
            f"model_config_list {{ config {{ name: 'toy' base_path: '{folder}' "
            "model_version_policy { all {} } "
            "version_labels { key: 'stable' value: 3 } } }",
            "utf-8",
        )
        return {"model_config_file": str(path)}

    def predict(self, signature, **body):
        return self.post({"signature_name": signature} | body)

    def ask_raw(self, body, method="predict"):
        """Returns the status and the bytes of an answer, without spaces."""
        path = f"{_MODEL}:{method}"
        status, answer = toy_models.ask_raw(self.port, "POST", path, body)
        return status, re.sub(rb"\s", b"", answer)

    def assert_refused(self, body, message, path=_PREDICT):
        status, answer = self.post(body, (), path)
        self.assertEqual(status, 400, answer)
        self.assertIn(message, answer["error"])
        self.assertLess(len(answer["error"]), 1000)

    def test_answers_rows_of_several_inputs(self):
        rows = [
            {"text": "ab", "weights": [1, 2.5]},
            {"weights": [-1, 0], "text": "日本語!"},
        ]
        status, answer = self.post({"instances": rows})
        self.assertEqual(status, 200)
        for row, expected in zip(
            answer["predictions"],
            ((2, "café", [10.0, 25.0]), (10, "long", [-10.0, 0.0])),
            strict=True,
        ):
            values = row["length"], row["label"], row["scaled"]
            self.assertEqual(values, expected)
        encoded = [x["raw_bytes"]["b64"] for x in answer["predictions"]]
        self.assertEqual(
            [base64.b64decode(x) for x in encoded],
            [x["text"].encode() + b"\xc3\xbf" for x in rows],
        )

    def test_answers_columns_of_several_inputs(self):
        columns = {"text": ["ab", "abcd"], "weights": [[1, 2], [3, 4]]}
        status, answer = self.post({"inputs": columns})
        self.assertEqual(status, 200)
        self.assertEqual(answer["outputs"]["length"], [2, 4])
        scaled = [[10.0, 20.0], [30.0, 40.0]]
        self.assertEqual(answer["outputs"]["scaled"], scaled)

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
    def test_answers_one_input_with_one_output(self, body, expected):
        self.assertEqual(self.predict("echo", **body), (200, expected))

    def test_reads_gzip_and_ignores_content_types(self):
        body = b'{"signature_name": "echo", "instances": ["z"]}'
        whole = gzip.compress(body)
        gzipped = {"Content-Encoding": "gzip"}
        for contents, headers in (
            (body, {"Content-Type": "text/html"}),
            (whole, gzipped),
        ):
            answer = self.post(contents, headers)
            self.assertEqual(answer, (200, {"predictions": ["z"]}))
        # Only the first of several members would be read, so refuse more.
        several = (whole + whole, whole + b"x", whole + whole[:-8])
        for contents in (whole[:-8], b"{}", b"", *several):
            status, answer = self.post(contents, gzipped)
            self.assertEqual(status, 400)
            self.assertIn("gzip", answer["error"])

    def test_refuses_other_transfer_codings(self):
        body = (
            b'2d\r\n{"signature_name": "echo", "instances": [""]}\r\n0\r\n\r\n'
        )
        for coding, expected in (("chunked", 200), ("gzip, chunked", 501)):
            status, _ = self.post(body, {"Transfer-Encoding": coding})
            self.assertEqual(status, expected)

    def test_refuses_bytes_that_are_no_example(self):
        for content in ("////", base64.b64encode(b"abc").decode()):
            with self.assertNoLogs(level="ERROR"):
                body = {"instances": [{"inputs": {"b64": content}}]}
                self.assert_refused(body | {"signature_name": "classify"}, "")

    def test_refuses_integers_from_2_to_the_24(self):
        for number, expected in ((2**24 - 1, 200), (2**24, 400)):
            status, answer = self.predict("log", instances=[-number, number])
            self.assertEqual(status, expected, answer)

    @parameterized.parameters(
        (
            *("predict", b'"log", "instances": [0, -1.0, Infinity, NaN, 1e0]'),
            b'{"predictions":[-Infinity,NaN,Infinity,NaN,0.0]}',
        ),
        # Bytes that are not UTF-8 must pass through unchanged.
        (
            *("predict", b'"echo", "instances": ["a\xff\xfe\xc3"]'),
            b'{"predictions":["a\xff\xfe\xc3"]}',
        ),
        (
            *(
                "classify",
                b'"classify", "examples": [{"x": 0.013}, {"x": NaN}]',
            ),
            b'{"results":[[["low",-0.13],["high",0.13]],'
            b'[["low",NaN],["high",NaN]]]}',
        ),
    )
    def test_answers_have_exact_bytes(self, method, body, expected):
        body = b'{"signature_name": %s}' % body
        self.assertEqual(self.ask_raw(body, method), (200, expected))

    def test_numbers_have_the_digits_of_a_float(self):
        body = {"signature_name": "log", "inputs": [1.3]}
        _, contents = self.ask_raw(body)
        self.assertRegex(contents, rb"\[\d\.\d{6,9}\]")
        (value,) = json.loads(contents)["outputs"]
        self.assertAlmostEqual(value, 10 * math.log(1.3), places=5)

    def test_takes_integers_and_booleans(self):
        inputs = {"ids": [[1, 2], [3, 4]], "negate": [True, False]}
        answer = self.predict("total", inputs=inputs)
        self.assertEqual(answer, (200, {"outputs": [-3, 7]}))

    @parameterized.parameters(
        ("/versions/3", 200),
        ("/versions/5", 200),
        ("/labels/stable", 200),
        ("/labels/%73table", 200),
        ("/versions/4", 404),
        ("/versions/99999999999999999999", 400),
        ("/labels/unstable", 400),
    )
    def test_finds_versions_and_labels(self, which, expected):
        body = {"signature_name": "echo", "instances": ["v"]}
        status, answer = self.post(body, (), f"{_MODEL}{which}:predict")
        self.assertEqual(status, expected)
        self.assertEqual(
            list(answer), ["predictions" if status == 200 else "error"]
        )

    @parameterized.parameters(
        (
            *("classify", {"examples": [{"x": 0.5}, {"x": [-2.0]}]}),
            [[["low", -5.0], ["high", 5.0]], [["low", 20.0], ["high", -20.0]]],
        ),
        (
            *("regress", {"context": {"x": 1.5}, "examples": [{}, {"y": "z"}]}),
            [15.0, 15.0],
        ),
    )
    def test_examples_are_classified_or_regressed(self, method, body, expected):
        body = body | {"signature_name": method}
        answer = self.post(body, (), f"{_MODEL}:{method}")
        self.assertEqual(answer, (200, {"results": expected}))

    def test_status_lists_the_asked_versions(self):
        whole = {"error_code": "OK", "error_message": ""}
        versions = [
            {"version": number, "state": "AVAILABLE", "status": whole}
            for number in ("5", "3")
        ]
        for which, expected in (
            ("", versions),
            ("/versions/3", versions[1:]),
            ("/labels/stable", versions[1:]),
        ):
            answer = (200, {"model_version_status": expected})
            self.assertEqual(self.ask("GET", _MODEL + which), answer)

    def test_metadata_holds_the_signatures(self):
        status, answer = self.ask("GET", f"{_MODEL}/versions/3/metadata")
        self.assertEqual(status, 200)
        spec = {"name": "toy", "signature_name": "", "version": "3"}
        self.assertEqual(answer["model_spec"], spec)
        signature = answer["metadata"]["signature_def"]["signature_def"]["log"]
        self.assertEqual(signature["method_name"], "tensorflow/serving/predict")
        shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
        expected = {"name": "log_x:0", "dtype": "DT_FLOAT"}
        expected["tensor_shape"] = shape
        self.assertEqual(signature["inputs"]["x"], expected)

    @parameterized.parameters(
        ("GET", "/v1/models/nobody", 404, "any versions of model nobody"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", f"{_MODEL}/versions/7", 404, "version 7 of model toy"),
        ("GET", _PREDICT, 400, f"Malformed request: GET {_PREDICT}"),
        ("PUT", _PREDICT, 400, f"Malformed request: PUT {_PREDICT}"),
        ("POST", _MODEL, 400, f"Malformed request: POST {_MODEL}"),
        ("POST", "/v1/models/half:predict", 404, "request: Latest(half)"),
        (
            *("GET", f"{_MODEL}/versions/{'9' * 5000}", 400),
            f"Failed to convert version: {'9' * 200}... to numeric.",
        ),
        ("GET", f"{_MODEL}/versions/{'0' * 5000}7", 404, "version 7 of"),
        (
            *("GET", f"/v1/models/{'n' * 5000}", 404),
            f"any versions of model {'n' * 200}...",
        ),
        ("POST", f"{_MODEL}/versions/4:predict", 404, ": Specific(toy, 4)"),
    )
    def test_wrong_paths_are_refused(self, method, path, expected, message):
        body = None if method == "GET" else {"instances": [1.0, 5.0]}
        status, answer = self.ask(method, path, body)
        self.assertEqual(status, expected)
        self.assertIn(message, answer["error"])

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
        (b'{"signature_name": "nix", "instances": ["a"]}', '"nix" not found'),
        (b'{"instances": ["a"]}', "expecting list of objects"),
        (b'{"instances": [{"text": "a"}]}', "keys must be equal to"),
        (b'{"instances": [{"text": "", "word": ""}]}', "named input: word"),
        (b'{"inputs": {"text": ["a"]}}', "Missing named input: weights"),
        (b'{"inputs": ["a"]}', "expecting an object"),
        (b'{"signature_name": "\\ud800"}', "UTF-8. Received: \\ud800."),
        (b'{"signature_name": "%s"}' % (b"s" * 5000), f'"{"s" * 200}..." not'),
        (b'{"signature_name": "echo", "instances": ["bad"]}', "bad text"),
        (b'{"signature_name": "share", "instances": [1]}', "no shape"),
    )
    def test_wrong_bodies_are_refused(self, body, message):
        self.assert_refused(body, message)

    @parameterized.parameters(
        (["a"], [[1, 2, 3]], "must have the shape"),
        (["a"], [["1", 2]], '"1" Type: String is not of expected type: float'),
        ([1], [[1, 2]], "1 Type: Number is not of expected type: string"),
        (["a"], [[1, 2], [3]], "list at unexpected size: 1 at level: 1"),
        (["a"], [[1, [2]]], "Encountered list at unexpected level: 2"),
        (["a"], [[1, 1e39]], "to float without loss of precision"),
        (["a"], [[1, 16777217]], "to float without loss of precision"),
        ([{"b64": "!"}], [[1, 2]], "Unable to base64 decode"),
        ([{"b": "!"}], [[1, 2]], "not formatted correctly for base64 data"),
        (["\ud800"], [[1, 2]], "The surrogate pair in string is invalid"),
    )
    def test_wrong_values_are_refused(self, text, weights, message):
        body = {"inputs": {"text": text, "weights": weights}}
        self.assert_refused(body, message)
        self.assert_refused(body, "Input '")

    @parameterized.parameters((2147483648, True), (1.0, 1))
    def test_wrong_integers_are_refused(self, number, negate):
        inputs = {"ids": [[number]], "negate": [negate]}
        body = {"signature_name": "total", "inputs": inputs}
        self.assert_refused(body, "is not of expected type: int32")

    @parameterized.parameters(
        ("", [{"x": 1.0}], "Expected one input Tensor."),
        ("nix", None, "'examples' is expected"),
        ("nix", [{"x": 1.0}], "No signature was found with the name: nix"),
        ("regress", [{"x": 1.0}], "outputs to contain at least one of"),
        ("classify", [], "is an empty array"),
        (
            "classify",
            [{"x": None}],
            "x has element with unexpected JSON type: N",
        ),
        ("classify", [{"x": [1, "a"]}], "in feature: x expecting type: int64"),
        ("classify", [[1.0]], "Example must be JSON object but got JSON Array"),
        ("classify", [{"y": 1.0}], "is required but could not be found"),
        (
            "classify",
            [{"x": True}],
            "Data type: int64 but expected type: float",
        ),
    )
    def test_wrong_examples_are_refused(self, signature, examples, message):
        body = {"signature_name": signature}
        if examples is not None:
            body["examples"] = examples
        self.assert_refused(body, message, f"{_MODEL}:classify")

    def test_reports_metrics_and_readiness(self):
        self.predict("echo", instances=["a", "b"])
        values = toy_models.metrics(self.port)
        version = 'model="toy",version="5"'
        loaded = f"serving_model_version_loaded{{{version}}}"
        self.assertEqual(values[loaded], 1)
        self.assertEqual(values["serving_queued_rows"], 0)
        labels = 'method="Predict",model="toy",status="OK",version="5"'
        self.assertGreaterEqual(
            values[f"serving_requests_total{{{labels}}}"], 1
        )
        self.assertTrue(
            any(
                name.startswith("serving_batch_rows_bucket{")
                and 'signature="echo"' in name
                for name in values
            )
        )
        same = toy_models.ask_raw(
            self.port, "GET", "/monitoring/prometheus/metrics"
        )
        self.assertIn(b"serving_queued_rows", same[1])
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
        own = ("script", "style", "img", "connect")
        none = ("form-action", "frame-ancestors")
        policy = [
            "default-src 'none'",
            *(f"{name}-src 'self'" for name in own),
            *(f"{name} 'none'" for name in ("base-uri", *none)),
        ]
        for name, value in (
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Content-Security-Policy", "; ".join(policy)),
        ):
            self.assertEqual(response.headers.get_all(name), [value])


if __name__ == "__main__":
    tf.test.main()
