"""Tests of who may use a server: hosts, web pages, API keys, and TLS."""

import base64
import contextlib
import http.client
import os
import pathlib
import socket
import ssl
import subprocess

import grpc
import tensorflow as tf
from absl.testing import parameterized
from google.protobuf import text_format
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_service_pb2_grpc

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import access
from bert_tf.serving.access import ApiKeys
from bert_tf.serving.server import ModelServer
from tests.support import toy_models

_BODY = {"signature_name": "echo", "instances": ["a"]}
_ANSWER = (200, {"predictions": ["a"]})
_KEYS = ("0123456789abcdef", "second-key+of/=20")
_STATUS = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "toy"})


def _status_of(port, *headers):
    """Returns the status of /readyz for headers that may repeat."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        names = {name for name, _ in headers}
        connection.putrequest("GET", "/readyz", skip_host="host" in names)
        for header in headers:
            connection.putheader(*header)
        connection.endheaders()
        return connection.getresponse().status


class HostsTest(toy_models.ServedCase):
    FLAGS = {"allowed_hosts": "bert.example,[::2]"}

    @parameterized.parameters(
        *("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:8501", "[::2]"),
        "bert.example:8501",
    )
    def test_answers_its_own_names(self, host):
        self.assertEqual(self.post(_BODY, {"host": host}), _ANSWER)

    @parameterized.parameters(
        *("evil.example", "evil.example:8501", "localhost.evil.example"),
        *("evil.example@", "[::1", ""),
    )
    def test_refuses_hosts_that_are_not_allowed(self, host):
        for method, path in (("POST", toy_models.PREDICT), ("GET", "/readyz")):
            body = _BODY if method == "POST" else None
            status, answer = self.ask(method, path, body, {"host": host})
            self.assertEqual(status, 403)
            self.assertIn("--allowed_hosts", answer["error"])

    def test_refuses_a_second_name(self):
        headers = ("host", "localhost"), ("host", "evil.example")
        self.assertIn(_status_of(self.port, *headers), (400, 403))

    @parameterized.parameters(
        ("localhost:8501", 200), ("evil.example", 403), ("", 400)
    )
    def test_the_host_of_a_url_counts_too(self, host, status):
        answer, _ = toy_models.ask_raw(
            *(self.port, "GET", f"http://{host}/readyz"),
            headers={"host": "localhost"},
        )
        self.assertEqual(answer, status)

    def test_refuses_calls_of_foreign_pages(self):
        own = {"host": "localhost:8501", "origin": "http://localhost:8501"}
        self.assertEqual(self.post(_BODY, own), _ANSWER)
        same = own | {"sec-fetch-site": "same-origin"}
        self.assertEqual(self.post(_BODY, same), _ANSWER)
        foreign = ("evil.example", "localhost:9000", "[::1")
        origins = ["null", *(f"http://{host}" for host in foreign)]
        for headers in (
            own | {"sec-fetch-site": "cross-site"},
            *(own | {"origin": origin} for origin in origins),
        ):
            status, answer = self.post(_BODY, headers)
            self.assertEqual(status, 403, headers)
            self.assertIn("web page", answer["error"])

    def test_limits_names_only_on_loopback_or_by_the_flag(self):
        self.assertIsNone(access.allowed_hosts("0.0.0.0", None))
        self.assertEqual(access.allowed_hosts("0.0.0.0", "a, B"), {"a", "b"})
        loopback = {"localhost", "127.0.0.1", "::1"}
        for host in loopback:
            self.assertEqual(access.allowed_hosts(host, None), loopback)
        self.assertIn("127.0.0.2", access.allowed_hosts("127.0.0.2", None))


def _basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


class KeysTest(toy_models.ToyCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = pathlib.Path(cls.folder, "keys")
        path.write_bytes(f"# team\n{_KEYS[0]}\n\n{_KEYS[1]}\r\n".encode())
        cls.configs = {}
        for exempt in (False, True):
            flags = {"api_key_file": str(path), "health_without_key": exempt}
            serving = toy_models.serving(f"{cls.folder}/toy", **flags)
            _, cls.configs[exempt] = cls.enterClassContext(serving)
        cls.port = cls.configs[False].rest_api_port

    def post(self, authorization):
        headers = {"authorization": authorization} if authorization else {}
        path = toy_models.PREDICT
        return toy_models.ask(self.port, "POST", path, _BODY, headers)

    @parameterized.parameters(
        f"Bearer {_KEYS[0]}",
        f"bearer  {_KEYS[1]} ",
        _basic(f"anyone:{_KEYS[0]}"),
        _basic(f":{_KEYS[1]}"),
    )
    def test_answers_with_a_key(self, authorization):
        self.assertEqual(self.post(authorization), _ANSWER)

    @parameterized.parameters(
        *("", _KEYS[0], "Bearer", "Bearer ", f"Bearer {_KEYS[0][:-1]}"),
        *(f"Bearer {''.join(_KEYS)}", f"Bearer {_KEYS[0].upper()}"),
        *("Bearer # team", "Bearer caf\u00e9", f"Digest {_KEYS[0]}"),
        *("Basic ====", _basic(_KEYS[0]), _basic("a:")),
    )
    def test_refuses_without_a_key(self, authorization):
        status, answer = self.post(authorization)
        self.assertEqual(status, 401)
        self.assertIn("--api_key_file", answer["error"])

    def test_refuses_a_second_authorization(self):
        headers = [("authorization", f"Bearer {x}") for x in (_KEYS[0], "x")]
        self.assertEqual(_status_of(self.port, *headers), 401)

    @parameterized.parameters(
        *("/", "/page/models.json", "/v1/models/toy", "/readyz", "/metrics"),
        *("/v1/models/toy/metadata", "/v1/models/none", "/none"),
    )
    def test_nothing_is_answered_without_a_key(self, path):
        self.assertEqual(toy_models.ask_raw(self.port, "GET", path)[0], 401)

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
        ("POST", toy_models.PREDICT, 401),
    )
    def test_health_and_metrics_need_no_key(self, method, path, expected):
        port = self.configs[True].rest_api_port
        body = _BODY if method == "POST" else None
        status, _ = toy_models.ask_raw(port, method, path, body)
        self.assertEqual(status, expected)

    @parameterized.parameters(False, True)
    def test_grpc_needs_exactly_one_right_key(self, exempt):
        channel = self.enterContext(toy_models.connect(self.configs[exempt]))
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        predict = toy_models.prediction_stub(channel).Predict
        request = toy_models.predict_request(text=["a"])
        key = ("authorization", f"Bearer {_KEYS[1]}")
        answer = predict(request, timeout=10, metadata=[key])
        self.assertEqual(answer.outputs["text"].string_val, [b"a"])
        models.GetModelStatus(_STATUS, timeout=10, metadata=[key])
        other = ("authorization", "Bearer x")
        for metadata in ((), (other,), (other, key), (key, other)):
            self.assert_refused(predict, request, metadata)
        unknown = channel.unary_unary("/tensorflow.serving.None/None")
        self.assert_refused(unknown, b"")
        if exempt:
            models.GetModelStatus(_STATUS, timeout=10)
        else:
            self.assert_refused(models.GetModelStatus, _STATUS)

    def assert_refused(self, method, request, metadata=()):
        toy_models.ServedCase.assert_grpc_refuses(
            *(self, "UNAUTHENTICATED", "--api_key_file", method, request),
            metadata=metadata,
        )


class KeyFileTest(tf.test.TestCase, parameterized.TestCase):
    def write(self, text):
        # A mounted secret changes in this way: another file takes the name.
        pathlib.Path(f"{self.path}.new").write_text(text, "utf-8")
        os.replace(f"{self.path}.new", self.path)

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "keys")
        self.write(_KEYS[0])

    def test_is_read_again_when_it_changes(self):
        keys = ApiKeys(self.path)
        for valid, other in (_KEYS, _KEYS[::-1]):
            self.write(valid)
            self.assertTrue(keys.allows(f"Bearer {valid}"))
            self.assertFalse(keys.allows(f"Bearer {other}"))

    def test_file_that_becomes_bad_changes_nothing(self):
        keys = ApiKeys(self.path)
        for change in (lambda: self.write(""), lambda: os.remove(self.path)):
            change()
            with self.assertLogs(level="ERROR") as logs:
                self.assertTrue(keys.allows(f"Bearer {_KEYS[0]}"))
                self.assertFalse(keys.allows("Bearer "))
            # The error is logged once, not for each request.
            self.assertLen(logs.output, 1)

    def test_refuses_pipes_and_folders_at_once(self):
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
        (f"{_KEYS[0]}\nshort\n", "line 2: .*: 5 char"),
        ("two words of a key", "line 1"),
        ("caf\u00e9" * 10, "not a text file of keys"),
    )
    def test_bad_file_is_refused_without_printing_keys(self, text, message):
        self.write(text)
        with self.assertRaisesRegex(
            UserError, f"--api_key_file=.*{message}"
        ) as raised:
            ApiKeys(self.path)
        self.assertNotIn("short", str(raised.exception))


def _make_certificate(folder, name, issuer=None):
    """Writes <name>.pem and <name>.key of a host "localhost" to a folder.

    The certificate called `issuer` signs them, or they sign themselves.
    """
    signer = []
    if issuer:
        signer = ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *(
                "-addext",
                "subjectAltName=DNS:localhost",
                "-subj",
                f"/CN={name}",
            ),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", *signer),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )


class CertificatesCase(toy_models.ToyCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        _make_certificate(cls.folder, "own")
        _make_certificate(cls.folder, "clients")
        _make_certificate(cls.folder, "client", issuer="clients")

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        return pathlib.Path(self.path(name)).read_bytes()

    def own(self, **flags):
        """Returns the flags of the server's certificate, and further flags."""
        files = {"cert": self.path("own.pem"), "key": self.path("own.key")}
        return {f"tls_{name}": path for name, path in files.items()} | flags

    def serving(self, **flags):
        return self.enterContext(super().serving(**flags))[1]

    def config(self, **flags):
        return ServeConfig(model_base_path=self.path("toy"), **flags)

    def get(self, port, path="/readyz", certificate=None):
        context = ssl.create_default_context(cafile=self.path("own.pem"))
        if certificate:
            files = (self.path(f"{certificate}.{x}") for x in ("pem", "key"))
            context.load_cert_chain(*files)
        connection = http.client.HTTPSConnection(
            "localhost", port, timeout=60, context=context
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def ask_grpc(self, port, certificate=None):
        pair = None, None
        if certificate:
            pair = (self.read(f"{certificate}.{x}") for x in ("key", "pem"))
        credentials = grpc.ssl_channel_credentials(self.read("own.pem"), *pair)
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            models = model_service_pb2_grpc.ModelServiceStub(channel)
            answer = models.GetModelStatus(_STATUS, timeout=10)
            return answer.model_version_status[0].version


class TlsTest(CertificatesCase):
    def test_both_ports_answer_with_tls_only(self):
        config = self.serving(**self.own())
        port = config.rest_api_port
        self.assertEqual(self.get(port), (200, b'{"ready":true}'))
        status, answer = self.get(port, "/" + "x" * 9000)
        self.assertEqual(status, 414)
        self.assertIn(b"--max_url_bytes", answer)
        self.assertEqual(self.ask_grpc(config.port), 1)
        # Neither port may answer without TLS.
        with self.assertRaises((http.client.HTTPException, OSError)):
            toy_models.ask_raw(port, "GET", "/readyz")
        with grpc.insecure_channel(f"localhost:{config.port}") as channel:
            with self.assertRaises(grpc.FutureTimeoutError):
                grpc.channel_ready_future(channel).result(timeout=0.3)

    def test_clients_need_a_certificate_of_the_authority(self):
        ca = self.path("clients.pem")
        config = self.serving(**self.own(tls_client_ca=ca))
        for certificate in (None, "own"):
            with self.assertRaises(OSError):
                self.get(config.rest_api_port, certificate=certificate)
            with self.assertRaises(grpc.RpcError):
                self.ask_grpc(config.port, certificate)
        status, _ = self.get(config.rest_api_port, certificate="client")
        self.assertEqual(status, 200)
        self.assertEqual(self.ask_grpc(config.port, "client"), 1)

    def test_ssl_config_file_is_for_grpc_alone(self):
        values = {
            "server_key": self.read("own.key"),
            "server_cert": self.read("own.pem"),
            "custom_ca": self.read("clients.pem"),
        }
        lines = [
            f'{name}: "{text_format.text_encoding.CEscape(value, False)}"\n'
            for name, value in values.items()
        ]
        content = "".join(lines) + "client_verify: true\n"
        path = self.create_tempfile(content=content).full_path
        config = self.serving(ssl_config_file=path)
        status, _ = toy_models.ask(config.rest_api_port, "GET", "/readyz")
        self.assertEqual(status, 200)
        with self.assertRaises(grpc.RpcError):
            self.ask_grpc(config.port)
        self.assertEqual(self.ask_grpc(config.port, "client"), 1)

    # After 1 s all three time out; in 600 s two end to make room.
    @parameterized.parameters((1, 3), (600, 2))
    def test_slow_handshakes_end_and_make_room(self, seconds, num_ended):
        config = self.serving(
            **self.own(),
            port=0,
            max_connections=2,
            rest_api_header_timeout_in_ms=1000 * seconds,
        )
        address = "127.0.0.1", config.rest_api_port
        with contextlib.ExitStack() as stack:
            waiting = [socket.create_connection(address, 60) for _ in range(3)]
            for connection in waiting:
                stack.enter_context(connection)
            self.assertEqual(self.get(config.rest_api_port)[0], 200)
            for connection in waiting[:num_ended]:
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(connection.recv(1), b"")
        self.assertEqual(self.get(config.rest_api_port)[0], 200)


class BadFilesTest(CertificatesCase):
    def assert_refused(self, message, **flags):
        with self.assertRaisesRegex(UserError, message):
            access.read_tls(self.config(**flags))

    def test_refuses_a_key_of_another_certificate(self):
        config = self.config(**self.own(tls_key=self.path("clients.key")))
        with self.assertRaisesRegex(
            UserError, r"^--tls_cert=.*own.pem and --tls_key=.*MISMATCH.$"
        ):
            ModelServer(config)

    def test_refuses_a_key_with_a_password(self):
        locked = self.path("locked.key")
        files = "-in", self.path("own.key"), "-out", locked
        password = "-aes128", "-passout", "pass:secret"
        subprocess.run(
            ["openssl", "ec", *password, *files],
            check=True,
            capture_output=True,
        )
        self.assert_refused("has a password", **self.own(tls_key=locked))

    @parameterized.parameters("tls_cert", "tls_key", "tls_client_ca")
    def test_pipes_are_refused_as_files(self, flag):
        path = os.path.join(self.create_tempdir(), "pipe")
        os.mkfifo(path)
        flags = self.own(**{flag: path})
        self.assert_refused(f"--{flag}=.* not a regular file", **flags)

    def test_refuses_authorities_without_certificates(self):
        flags = self.own(tls_client_ca=self.path("own.key"))
        self.assert_refused("--tls_client_ca=.*own.key has", **flags)

    @parameterized.parameters(
        (b'server_kye: "x"', "must be a text file of SSLConfig"),
        (b"\xff\xfe", "must be a text file of SSLConfig"),
        (b'server_key: "own.key"', "must be the contents of PEM files"),
        (
            b'server_key: "-----BEGIN" server_cert: "-----BEGIN" '
            b"client_verify: true",
            "client_verify needs custom_ca",
        ),
    )
    def test_refuses_a_wrong_ssl_config_file(self, contents, message):
        path = self.create_tempfile(content=contents, mode="wb").full_path
        self.assert_refused(message, ssl_config_file=path)

    @parameterized.parameters(
        ({"tls_cert": "a"}, "--tls_cert needs --tls_key"),
        ({"tls_client_ca": "a"}, "--tls_client_ca needs --tls_cert"),
        ({"health_without_key": True}, "needs --api_key_file"),
    )
    def test_refuses_flags_that_need_others(self, flags, message):
        with self.assertRaisesRegex(ValueError, message):
            ServeConfig(model_base_path="toy", **flags)


if __name__ == "__main__":
    tf.test.main()
