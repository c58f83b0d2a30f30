"""Tests of TLS on both ports, on a server in this process."""

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
from bert_tf.serving.server import ModelServer
from tests.support import certificates
from tests.support import toy_models


class TlsTestCase(toy_models.ToyCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        certificates.make(cls.folder, "own")
        certificates.make(cls.folder, "clients")
        certificates.make(cls.folder, "client", issuer="clients")

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        return pathlib.Path(self.path(name)).read_bytes()

    def own(self, **flags):
        """Returns flags of the certificate of the server, and others."""
        files = {"cert": self.path("own.pem"), "key": self.path("own.key")}
        return {f"tls_{name}": path for name, path in files.items()} | flags

    def serving(self, **flags):
        return self.enterContext(super().serving(**flags))[1]

    def config(self, **flags):
        return ServeConfig(model_base_path=self.path("toy"), **flags)

    def ask(self, port, path="/readyz", certificate=None):
        context = ssl.create_default_context(cafile=self.path("own.pem"))
        if certificate:
            context.load_cert_chain(
                self.path(f"{certificate}.pem"), self.path(f"{certificate}.key")
            )
        connection = http.client.HTTPSConnection(
            "localhost",
            port,
            timeout=toy_models.TIMEOUT_SECONDS,
            context=context,
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def ask_grpc(self, port, certificate=None):
        pair = None, None
        if certificate:
            pair = (
                self.read(f"{certificate}.key"),
                self.read(f"{certificate}.pem"),
            )
        credentials = grpc.ssl_channel_credentials(self.read("own.pem"), *pair)
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            request = get_model_status_pb2.GetModelStatusRequest()
            request.model_spec.name = "toy"
            answer = model_service_pb2_grpc.ModelServiceStub(
                channel
            ).GetModelStatus(request, timeout=10)
            return answer.model_version_status[0].version


class TlsTest(TlsTestCase, parameterized.TestCase):
    def test_both_ports(self):
        config = self.serving(**self.own())
        self.assertEqual(
            self.ask(config.rest_api_port), (200, b'{"ready":true}')
        )
        status, answer = self.ask(config.rest_api_port, "/" + "x" * 9000)
        self.assertEqual(status, 414)
        self.assertIn(b"--max_url_bytes", answer)
        self.assertEqual(self.ask_grpc(config.port), 1)
        # Neither port answers without TLS.
        with self.assertRaises((http.client.HTTPException, OSError)):
            toy_models.ask_raw(config.rest_api_port, "GET", "/readyz")
        with grpc.insecure_channel(f"localhost:{config.port}") as channel:
            with self.assertRaises(grpc.FutureTimeoutError):
                grpc.channel_ready_future(channel).result(timeout=0.3)

    def test_clients_need_a_certificate_of_the_authority(self):
        config = self.serving(
            **self.own(tls_client_ca=self.path("clients.pem"))
        )
        for certificate in (None, "own"):
            with self.assertRaises(OSError):
                self.ask(config.rest_api_port, certificate=certificate)
            with self.assertRaises(grpc.RpcError):
                self.ask_grpc(config.port, certificate)
        self.assertEqual(
            self.ask(config.rest_api_port, certificate="client")[0], 200
        )
        self.assertEqual(self.ask_grpc(config.port, "client"), 1)

    def test_ssl_config_file_is_for_grpc_alone(self):
        values = {
            "server_key": self.read("own.key").decode(),
            "server_cert": self.read("own.pem").decode(),
            "custom_ca": self.read("clients.pem").decode(),
        }
        lines = [
            f'{name}: "{text_format.text_encoding.CEscape(value, False)}"\n'
            for name, value in values.items()
        ]
        path = self.create_tempfile(
            content="".join(lines) + "client_verify: true\n"
        ).full_path
        config = self.serving(ssl_config_file=path)
        status, _ = toy_models.ask(config.rest_api_port, "GET", "/readyz")
        self.assertEqual(status, 200)
        with self.assertRaises(grpc.RpcError):
            self.ask_grpc(config.port)
        self.assertEqual(self.ask_grpc(config.port, "client"), 1)

    # In 600 s only those end whose place others need.
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
            waiting = [
                stack.enter_context(
                    socket.create_connection(
                        address, toy_models.TIMEOUT_SECONDS
                    )
                )
                for _ in range(3)
            ]
            self.assertEqual(self.ask(config.rest_api_port)[0], 200)
            for connection in waiting[:num_ended]:
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(connection.recv(1), b"")
        self.assertEqual(self.ask(config.rest_api_port)[0], 200)


class BadFilesTest(TlsTestCase, parameterized.TestCase):
    def test_key_of_another_certificate(self):
        config = self.config(**self.own(tls_key=self.path("clients.key")))
        with self.assertRaisesRegex(
            UserError, r"^--tls_cert=.*own.pem and --tls_key=.*MISMATCH.$"
        ):
            ModelServer(config)

    def test_key_with_a_password(self):
        locked = self.path("locked.key")
        subprocess.run(
            [
                *("openssl", "ec", "-aes128", "-passout", "pass:secret"),
                *("-in", self.path("own.key"), "-out", locked),
            ],
            check=True,
            capture_output=True,
        )
        config = self.config(**self.own(tls_key=locked))
        with self.assertRaisesRegex(UserError, "has a password"):
            access.read_tls(config)

    @parameterized.parameters("tls_cert", "tls_key", "tls_client_ca")
    def test_pipes(self, flag):
        path = os.path.join(self.create_tempdir(), "pipe")
        os.mkfifo(path)
        config = self.config(**self.own(**{flag: path}))
        with self.assertRaisesRegex(UserError, "not a regular file"):
            access.read_tls(config)

    def test_authorities_without_certificates(self):
        config = self.config(**self.own(tls_client_ca=self.path("own.key")))
        with self.assertRaisesRegex(UserError, "--tls_client_ca=.*own.key has"):
            access.read_tls(config)

    @parameterized.parameters(
        ('server_kye: "x"', "not a text file of SSLConfig"),
        (b"\xff\xfe", "not a text file of SSLConfig"),
        ('server_key: "own.key"', "must be the contents of PEM files"),
        (
            'server_key: "-----BEGIN" server_cert: "-----BEGIN" '
            "client_verify: true",
            "client_verify needs custom_ca",
        ),
    )
    def test_ssl_config_file(self, contents, message):
        mode = "wb" if isinstance(contents, bytes) else "w"
        path = self.create_tempfile(content=contents, mode=mode).full_path
        config = self.config(ssl_config_file=path)
        with self.assertRaisesRegex(UserError, message):
            access.read_tls(config)

    @parameterized.parameters(
        ({"tls_cert": "a"}, "--tls_cert and --tls_key together"),
        ({"tls_client_ca": "a"}, "--tls_client_ca needs --tls_cert"),
        ({"health_without_key": True}, "for --api_key_file only"),
    )
    def test_flags_that_need_others(self, flags, message):
        with self.assertRaisesRegex(ValueError, message):
            ServeConfig(model_base_path="toy", **flags)


if __name__ == "__main__":
    tf.test.main()
