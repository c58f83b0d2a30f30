"""Tests of who may ask, on a server in this process."""

import http.client
import tempfile

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.serving import access
from tests.support import toy_models

_PREDICT = "/v1/models/toy:predict"
_BODY = {"signature_name": "echo", "instances": ["a"]}


class HostsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        toy_models.write(f"{folder}/toy")
        _, cls.config = cls.enterClassContext(
            toy_models.serving(
                f"{folder}/toy", port=0, allowed_hosts="bert.example,[::2]"
            )
        )

    def post(self, **headers):
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        return toy_models.ask(
            self.config.rest_api_port, "POST", _PREDICT, _BODY, headers
        )

    @parameterized.parameters(
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:80",
        "[::1]:8501",
        "[::2]",
        "bert.example:8501",
    )
    def test_answers_its_own_names(self, host):
        self.assertEqual(self.post(host=host), (200, {"predictions": ["a"]}))

    @parameterized.parameters(
        "evil.example",
        "evil.example:8501",
        "localhost.evil.example",
        "evil.example@",
        "[::1",
        "",
    )
    def test_refuses_other_names(self, host):
        status, answer = self.post(host=host)
        self.assertEqual(status, 403)
        self.assertIn("--allowed_hosts", answer["error"])
        status, _ = toy_models.ask(
            self.config.rest_api_port, "GET", "/readyz", headers={"host": host}
        )
        self.assertEqual(status, 403)

    def test_refuses_a_second_name(self):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.config.rest_api_port
        )
        self.addCleanup(connection.close)
        connection.putrequest("GET", "/readyz", skip_host=True)
        connection.putheader("host", "localhost")
        connection.putheader("host", "evil.example")
        connection.endheaders()
        self.assertIn(connection.getresponse().status, (400, 403))

    def test_refuses_calls_of_foreign_pages(self):
        own = {"host": "localhost:8501", "origin": "http://localhost:8501"}
        self.assertEqual(self.post(**own)[0], 200)
        self.assertEqual(self.post(Sec_Fetch_Site="same-origin", **own)[0], 200)
        for headers in (
            own | {"Sec_Fetch_Site": "cross-site"},
            own | {"origin": "http://evil.example"},
            own | {"origin": "http://localhost:9000"},
            own | {"origin": "null"},
            own | {"origin": "http://[::1"},
        ):
            status, answer = self.post(**headers)
            self.assertEqual(status, 403, headers)
            self.assertIn("web page", answer["error"])

    def test_limits_names_only_on_loopback_or_by_the_flag(self):
        self.assertIsNone(access.allowed_hosts("0.0.0.0", None))
        self.assertEqual(access.allowed_hosts("0.0.0.0", "a, B"), {"a", "b"})
        for host in ("::1", "127.0.0.1", "localhost"):
            self.assertEqual(
                access.allowed_hosts(host, None),
                {"localhost", "127.0.0.1", "::1"},
            )
        self.assertIn("127.0.0.2", access.allowed_hosts("127.0.0.2", None))


if __name__ == "__main__":
    tf.test.main()
