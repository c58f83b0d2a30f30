"""Flags of run/serve.py about who may ask, and encryption."""

import dataclasses

from bert_tf.flags import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeAccess(options.Flags):
    """Host names, API keys, TLS and reloading."""

    allowed_hosts: str | None = options.server(
        None,
        "Comma-separated host names that REST requests may use, besides "
        "localhost, 127.0.0.1 and [::1] if --host is one of them (default: "
        "only these; any for another --host).",
    )
    allow_reload: bool = options.server(
        False,
        "Let clients replace the served models by gRPC's "
        "HandleReloadConfigRequest; a SavedModel can read and write files.",
    )
    api_key_file: str | None = options.server(
        None,
        "File of API keys, one a line; requests need one of them. It is read "
        "again when it changes.",
        reads="file",
    )
    health_without_key: bool = options.server(
        False,
        "Answer /readyz, /metrics and the states of models without an API key.",
        needs="api_key_file",
    )
    tls_cert: str | None = options.server(
        None,
        "PEM file of the server's certificate, followed by those of its "
        "issuers; turns on TLS for both ports.",
        reads="file",
        needs="tls_key",
    )
    tls_key: str | None = options.server(
        None,
        "PEM file of the private key of --tls_cert, without a password.",
        reads="file",
        needs="tls_cert",
    )
    tls_client_ca: str | None = options.server(
        None,
        "PEM file of the authorities whose certificates clients must have.",
        reads="file",
        needs="tls_cert",
    )
    ssl_config_file: str | None = options.server(
        None,
        "Text file of TensorFlow Serving's SSLConfig, for gRPC instead of "
        "--tls_cert, --tls_key and --tls_client_ca.",
        reads="file",
    )
