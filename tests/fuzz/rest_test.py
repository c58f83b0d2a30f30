"""Fuzz tests: the REST interface answers any input and keeps running."""

import http.client
import json
import socket
import urllib.parse

import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tests.support import fuzzed_servers
from tests.support import fuzzing
from tests.support import toy_models

# With surrogates: UTF-8 cannot encode them, but JSON escapes can.
_TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)
_SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | _TEXT
    | st.sampled_from([{"b64": "YQ=="}, {"b64": "?"}, {"b64": 1}, {}])
)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*fuzzed_servers.INPUTS, "b64"]) | _TEXT,
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
_LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "signature_name": st.sampled_from(fuzzed_servers.SIGNATURES),
        "instances": _VALUE,
        "inputs": _VALUE,
        "examples": st.lists(
            st.dictionaries(
                st.sampled_from(["x", "y", "text"]), _VALUE, max_size=2
            ),
            max_size=3,
        )
        | _VALUE,
        "context": _VALUE,
    },
)
_METHOD = st.sampled_from(["predict", "classify", "regress"])
# TensorFlow Serving refuses a wrong request with one of these statuses.
_REFUSALS = (400, 404, 501)


class RestFuzzTest(fuzzed_servers.FuzzCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = cls.config.rest_api_port

    def ask(self):
        body = {"signature_name": "echo", "instances": ["é"]}
        if self.engine:
            body = {"instances": ["the cat"]}
        status, answer = toy_models.ask(
            self.port, "POST", "/v1/models/toy:predict", body
        )
        self.assertEqual(status, 200, answer)
        return answer

    def check(self, method, path, body):
        status, contents = toy_models.ask_raw(self.port, method, path, body)
        answer = json.loads(contents.decode("utf-8", "surrogateescape"))
        if status == 200:
            self.assertNotIn("error", answer)
        else:
            self.assertIn(status, _REFUSALS, answer)
            self.assertEqual(list(answer), ["error"])
            self.assertTrue(answer["error"])
            self.assertNotIn("Traceback", answer["error"])

    def test_objects_are_answered_or_refused(self):
        @fuzzing.run(self.examples, _METHOD, _LIKELY)
        def run(method, document):
            body = json.dumps(document).encode()
            self.check("POST", f"/v1/models/toy:{method}", body)

    def test_changed_bytes_are_answered_or_refused(self):
        whole = json.dumps(
            {"signature_name": "echo", "instances": ["日本", {"b64": "AA=="}]},
            ensure_ascii=False,
        ).encode()

        @fuzzing.run(
            self.examples,
            st.binary(max_size=40)
            | st.builds(
                lambda place, new: whole[:place] + new + whole[place + 1 :],
                st.integers(0, len(whole)),
                st.binary(max_size=2),
            ),
        )
        def run(body):
            self.check("POST", "/v1/models/toy:predict", body)

    def test_paths_and_methods_are_answered_or_refused(self):
        part = _TEXT.filter(lambda text: text.isprintable())

        @fuzzing.run(
            self.examples,
            st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]),
            st.lists(
                part
                | st.sampled_from(
                    ["toy", "toy:predict", "versions", "1", "labels", ":x"]
                ),
                max_size=4,
            ),
        )
        def run(method, parts):
            path = "/v1/models/" + "/".join(
                urllib.parse.quote(text, safe=":", errors="replace")
                for text in parts
            )
            self.check(method, path, b"{}")

    def test_bytes_that_are_not_http_cause_no_server_error(self):
        for request in (
            b"\0\1\2\3\r\n\r\n",
            b"POST /v1/models/toy:predict HTTP/1.1\r\n"
            b"Host: localhost\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/models/toy:predict HTTP/1.1\r\n"
            b"Host: localhost\r\nContent-Length: 100\r\n\r\ntoo short",
            b"GET /v1/models/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", self.port)) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                client.settimeout(toy_models.TIMEOUT_SECONDS)
                self.assertNotIn(b" 500 ", client.recv(1000))

    def test_clients_may_hang_up(self):
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            connection.request(
                "POST",
                "/v1/models/toy:predict",
                b'{"signature_name": "log", "instances": [1]}',
            )
            connection.close()


@pytest.mark.thorough
class SavedModelRestFuzzTest(RestFuzzTest):
    engine = "savedmodel"
    examples = 500


@pytest.mark.thorough
class LitertRestFuzzTest(RestFuzzTest):
    engine = "litert"
    examples = 500


if __name__ == "__main__":
    tf.test.main()
