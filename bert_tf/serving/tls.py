"""Certificates and keys of both ports; no key is written anywhere."""

import dataclasses
import ssl
from typing import NoReturn

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message
from google.protobuf import message_factory
from google.protobuf import text_format

from bert_tf.errors import UserError
from bert_tf.flags.serve_access import ServeAccess


@dataclasses.dataclass(frozen=True)
class Tls:
    """TLS of each port; None for none."""

    rest: ssl.SSLContext | None
    grpc: grpc.ServerCredentials | None


def read(config: ServeAccess) -> Tls:
    """Reads the files of the TLS flags.

    Raises:
      UserError: If a file cannot be read, or key and certificate do not fit.
    """
    context = credentials = None
    if config.tls_cert:
        context = _context(config)
        ca = config.tls_client_ca
        credentials = _credentials(
            _bytes(config.tls_key),
            _bytes(config.tls_cert),
            _bytes(ca) if ca else None,
            require_client=ca is not None,
        )
    if config.ssl_config_file:
        credentials = _credentials_of(config.ssl_config_file)
    return Tls(context, credentials)


def _context(config: ServeAccess) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without the function OpenSSL asks for a password in the terminal.
        context.load_cert_chain(
            config.tls_cert, config.tls_key, password=_refuse_password
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"--tls_cert={config.tls_cert} and --tls_key={config.tls_key} are "
            f"not a PEM certificate and its key: {_reason(error)}."
        ) from error
    if config.tls_client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise UserError(
                f"--tls_client_ca={config.tls_client_ca} has no PEM "
                f"certificates: {_reason(error)}."
            ) from error
    return context


def _refuse_password() -> NoReturn:
    raise ValueError(
        "the key has a password, which a server cannot type; store it without"
    )


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).rstrip(".")


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _credentials(
    key: bytes, certificate: bytes, ca: bytes | None, *, require_client: bool
) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(key, certificate)], ca, require_client_auth=require_client
    )


def _credentials_of(path: str) -> grpc.ServerCredentials:
    """Returns the credentials in a text file of SSLConfig."""
    config = _ssl_config()
    try:
        text_format.Parse(_bytes(path), config)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise UserError(
            f"--ssl_config_file={path} is not a text file of SSLConfig: "
            f"{error}."
        ) from error
    for field in ("server_key", "server_cert"):
        if "-----BEGIN" not in getattr(config, field):
            raise UserError(
                f"--ssl_config_file={path}: {field} must be the contents of a "
                "PEM file, with \\n between its lines."
            )
    if config.client_verify and not config.custom_ca:
        raise UserError(
            f"--ssl_config_file={path}: client_verify needs custom_ca, the "
            "authorities of the clients' certificates."
        )
    return _credentials(
        config.server_key.encode(),
        config.server_cert.encode(),
        config.custom_ca.encode() or None,
        require_client=config.client_verify,
    )


def _ssl_config() -> message.Message:
    """Returns an empty SSLConfig.

    It is in ssl_config.proto of TensorFlow Serving, which its Python package
    lacks.
    """
    field = descriptor_pb2.FieldDescriptorProto
    fields = ("server_key", "server_cert", "custom_ca", "client_verify")
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_tf/ssl_config.proto",
        package="tensorflow.serving",
        syntax="proto3",
    )
    proto = file.message_type.add(name="SSLConfig")
    for number, name in enumerate(fields, 1):
        is_text = name != "client_verify"
        proto.field.add(
            name=name,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_STRING if is_text else field.TYPE_BOOL,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("tensorflow.serving.SSLConfig")
    return message_factory.GetMessageClass(descriptor)()
