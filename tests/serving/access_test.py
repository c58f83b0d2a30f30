"""Tests of foreign hosts and web pages, and of API keys, on a server."""

import base64
import http.client
import os
import tempfile

import grpc
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.errors import UserError
from bert_tf.serving import access
from bert_tf.serving.access import ApiKeys
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

    @parameterized.parameters(
        ("localhost:8501", 200), ("evil.example", 403), ("", 400)
    )
    def test_the_host_of_a_url_counts_too(self, host, status):
        answer, _ = toy_models.ask_raw(
            *(self.config.rest_api_port, "GET", f"http://{host}/readyz"),
            headers={"host": "localhost"},
        )
        self.assertEqual(answer, status)

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


_KEYS = ("0123456789abcdef", "second-key+of/=20")


def _basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


class ServerTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        toy_models.write(f"{folder}/toy")
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"# of the team\n{_KEYS[0]}\n\n{_KEYS[1]}\r\n")
        cls.ports = {}
        for exempt in (False, True):
            _, config = cls.enterClassContext(
                toy_models.serving(
                    f"{folder}/toy",
                    api_key_file=path,
                    health_without_key=exempt,
                )
            )
            cls.ports[exempt] = config

    def post(self, authorization):
        headers = {"authorization": authorization} if authorization else {}
        return toy_models.ask(
            self.ports[False].rest_api_port, "POST", _PREDICT, _BODY, headers
        )

    @parameterized.parameters(
        f"Bearer {_KEYS[0]}",
        f"bearer  {_KEYS[1]} ",
        _basic(f"anyone:{_KEYS[0]}"),
        _basic(f":{_KEYS[1]}"),
    )
    def test_answers_with_a_key(self, authorization):
        self.assertEqual(
            self.post(authorization), (200, {"predictions": ["a"]})
        )

    @parameterized.parameters(
        "",
        _KEYS[0],
        "Bearer",
        "Bearer ",
        f"Bearer {_KEYS[0][:-1]}",
        f"Bearer {_KEYS[0]}{_KEYS[1]}",
        f"Bearer {_KEYS[0].upper()}",
        "Bearer # of the team",
        "Bearer caf\u00e9",
        f"Digest {_KEYS[0]}",
        "Basic ====",
        _basic(_KEYS[0]),
        _basic("a:"),
    )
    def test_refuses_without_a_key(self, authorization):
        status, answer = self.post(authorization)
        self.assertEqual(status, 401)
        self.assertIn("--api_key_file", answer["error"])

    def test_refuses_a_second_authorization(self):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.ports[False].rest_api_port
        )
        self.addCleanup(connection.close)
        connection.putrequest("GET", "/readyz")
        for key in (_KEYS[0], "x"):
            connection.putheader("authorization", f"Bearer {key}")
        connection.endheaders()
        self.assertEqual(connection.getresponse().status, 401)

    @parameterized.parameters(
        "/",
        "/page/models.json",
        "/v1/models/toy",
        "/v1/models/toy/metadata",
        "/v1/models/none",
        "/readyz",
        "/metrics",
        "/none",
    )
    def test_nothing_is_answered_without_a_key(self, path):
        status, _ = toy_models.ask_raw(
            self.ports[False].rest_api_port, "GET", path
        )
        self.assertEqual(status, 401)

    @parameterized.parameters(
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models/toy", 200),
        ("GET", "/v1/models/toy/versions/1", 200),
        ("GET", "/v1/models/toy/metadata", 401),
        ("GET", "/v1/models/toy%2Fmetadata", 401),
        ("GET", "/", 401),
        ("GET", "/page/models.json", 401),
        ("GET", "/readyz/", 401),
        ("POST", "/v1/models/toy", 401),
        ("POST", _PREDICT, 401),
    )
    def test_health_without_key(self, method, path, status):
        port = self.ports[True].rest_api_port
        body = _BODY if method == "POST" else None
        self.assertEqual(
            toy_models.ask_raw(port, method, path, body)[0], status
        )

    def test_grpc(self):
        request = toy_models.predict_request(text=["a"])
        health = get_model_status_pb2.GetModelStatusRequest()
        health.model_spec.name = "toy"
        key = (("authorization", f"Bearer {_KEYS[1]}"),)
        for exempt, config in self.ports.items():
            channel = self.enterContext(
                grpc.insecure_channel(f"localhost:{config.port}")
            )
            predict = prediction_service_pb2_grpc.PredictionServiceStub(
                channel
            ).Predict
            status = model_service_pb2_grpc.ModelServiceStub(
                channel
            ).GetModelStatus
            answer = predict(request, timeout=10, metadata=key)
            self.assertEqual(
                tf.make_ndarray(answer.outputs["text"]).tolist(), [b"a"]
            )
            status(health, timeout=10, metadata=key)
            other = ("authorization", "Bearer x")
            for metadata in ((), (other,), (other, *key), (*key, other)):
                self.assert_refused(predict, request, metadata)
            unknown = channel.unary_unary(
                "/tensorflow.serving.None/None",
                request_serializer=lambda x: x,
            )
            self.assert_refused(unknown, b"", ())
            if exempt:
                status(health, timeout=10)
            else:
                self.assert_refused(status, health, ())

    def assert_refused(self, method, request, metadata):
        with self.assertRaises(grpc.RpcError) as raised:
            method(request, timeout=10, metadata=metadata)
        self.assertEqual(
            raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED
        )
        self.assertIn("--api_key_file", raised.exception.details())


class FileTest(tf.test.TestCase, parameterized.TestCase):
    def write(self, text):
        # As a mounted secret changes: another file takes the name.
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{self.path}.new", self.path)

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "keys")

    def test_is_read_again_when_it_changes(self):
        self.write(_KEYS[0])
        keys = ApiKeys(self.path)
        self.assertTrue(keys.allows(f"Bearer {_KEYS[0]}"))
        self.assertFalse(keys.allows(f"Bearer {_KEYS[1]}"))
        self.write(_KEYS[1])
        self.assertFalse(keys.allows(f"Bearer {_KEYS[0]}"))
        self.assertTrue(keys.allows(f"Bearer {_KEYS[1]}"))

    def test_file_that_becomes_bad_changes_nothing(self):
        self.write(_KEYS[0])
        keys = ApiKeys(self.path)
        for change in (lambda: self.write(""), lambda: os.remove(self.path)):
            change()
            with self.assertLogs(level="ERROR") as logs:
                self.assertTrue(keys.allows(f"Bearer {_KEYS[0]}"))
                self.assertFalse(keys.allows("Bearer "))
            # Once, not for each request.
            self.assertLen(logs.output, 1)

    def test_refuses_pipes_and_folders_at_once(self):
        self.write(_KEYS[0])
        keys = ApiKeys(self.path)
        for make, remove in ((os.mkfifo, os.remove), (os.mkdir, os.rmdir)):
            os.remove(self.path)
            make(self.path)
            with self.assertRaisesRegex(UserError, "not a regular file"):
                ApiKeys(self.path)
            with self.assertLogs(level="ERROR"):
                self.assertTrue(keys.allows(f"Bearer {_KEYS[0]}"))
            remove(self.path)
            self.write(_KEYS[0])

    @parameterized.parameters(
        ("", "has no key"),
        ("# only\n\n", "has no key"),
        (f"{_KEYS[0]}\nshort\n", "line 2: a key has 16 to 512 .*: 5 char"),
        ("two words of a key", "line 1"),
        ("caf\u00e9" * 10, "not a text file of keys"),
    )
    def test_bad_file(self, text, message):
        self.write(text)
        with self.assertRaisesRegex(UserError, message) as raised:
            ApiKeys(self.path)
        self.assertNotIn("short", str(raised.exception))


if __name__ == "__main__":
    tf.test.main()
