"""Flags of run/serve.py."""

import dataclasses
import functools
import os
import urllib.parse

from bert_tf.flags import options

ENGINES = ("savedmodel", "litert")
_batching = functools.partial(
    options.batching,
    needs="enable_batching",
    not_with="batching_parameters_file",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeLimits(options.Flags):
    """Limits of a request; the error for a larger request names the flag."""

    max_request_rows: int = options.limits(
        "Maximum number of rows of a request; each choice counts as one, also "
        "inside of a tf.Example.",
        10_000,
    )
    max_row_tokens: int = options.limits(
        "Maximum number of tokens in all texts of a row.", 1 << 16
    )
    max_row_choices: int = options.limits(
        "Maximum number of choices of a row, also inside of a tf.Example.", 256
    )
    max_request_bytes: int = options.limits(
        "Maximum size of a body or gRPC message, in bytes.", 16 << 20
    )
    max_grpc_message_bytes: int = options.limits(
        "Maximum size of a gRPC message without compression, in bytes.", 4 << 20
    )
    max_message_fields: int = options.limits(
        "Maximum number of fields of a gRPC message, including nested and "
        "repeated fields; 8 integers in a packed list count as one.",
        100_000,
    )
    max_unpacked_bytes: int = options.limits(
        "Maximum size of a body without its gzip compression, in bytes; each "
        "JSON string, list or object counts as at least 64, another value as "
        "at least 16.",
        64 << 20,
    )
    max_json_depth: int = options.limits(
        "Maximum number of JSON lists and objects inside each other.", 64
    )
    max_tensor_bytes: int = options.limits(
        "Maximum size of a TensorProto after its last value is repeated, in "
        "bytes; a string counts as its length and 24.",
        16 << 20,
    )
    max_response_bytes: int = options.limits(
        "Maximum size of the outputs of a request, in bytes before they are "
        "written as JSON; a string counts as its length and 64.",
        64 << 20,
    )
    max_header_bytes: int = options.limits(
        "Maximum size of a REST request's header, or of a gRPC request's "
        "metadata, in bytes.",
        64 << 10,
    )
    max_url_bytes: int = options.limits(
        "Maximum size of the URL of a REST request, in bytes.", 8 << 10
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeAccess(options.Flags):
    """Host names, API keys, TLS and reloading."""

    allowed_hosts: str | None = options.server(
        "Comma-separated host names that REST requests may use; localhost, "
        "127.0.0.1 and [::1] are added if --host is one of them (default: "
        "these three, or any name for another --host)."
    )
    allow_reload: bool = options.server(
        "Let clients replace the served models by gRPC's "
        "HandleReloadConfigRequest; a SavedModel can read and write files.",
        False,
    )
    api_key_file: str | None = options.server(
        "File of API keys, one a line; requests need one of them. It is read "
        "again when it changes.",
        reads="file",
    )
    health_without_key: bool = options.server(
        "Answer /readyz, /metrics and the states of models without an API key.",
        False,
        needs="api_key_file",
    )
    tls_cert: str | None = options.server(
        "PEM file of the server's certificate, followed by those of its "
        "issuers; turns on TLS for both ports.",
        reads="file",
        needs="tls_key",
    )
    tls_key: str | None = options.server(
        "PEM file of the private key of --tls_cert, without a password.",
        reads="file",
        needs="tls_cert",
    )
    tls_client_ca: str | None = options.server(
        "PEM file of the authorities whose certificates clients must have.",
        reads="file",
        needs="tls_cert",
    )
    ssl_config_file: str | None = options.server(
        "Text file of TensorFlow Serving's SSLConfig, for gRPC instead of "
        "--tls_cert, --tls_key and --tls_client_ca.",
        reads="file",
    )


@dataclasses.dataclass(frozen=True)
class ServeConfig(ServeLimits, ServeAccess):
    """Flags of run/serve.py; flags of TensorFlow Serving keep their names.

    If a batching flag is None, the default in its help applies. Vertex AI's
    environment variables set flags that are at their default.
    """

    model_base_path: str | None = options.model(
        "Directory that holds the model's versions: 1, 2, ..., also on gs://; "
        "or a model of any format, or its name on a hub, which is exported to "
        "BERT_TF_CACHE (default: ~/.cache/bert_tf) first."
    )
    model_name: str | None = options.model(
        "Name of the model in requests (default: the directory's name; for "
        "<name>/model its parent's).",
        needs="model_base_path",
    )
    model_config_file: str | None = options.model(
        "Text file of ModelServerConfig, for several models, version labels "
        "or versions other than the newest.",
        reads="file",
    )
    engine: str = options.model(
        "Engine: savedmodel runs any model, as TensorFlow Serving does; "
        "litert, the fastest on an x86 CPU, runs models that were exported "
        "with --litert.",
        "savedmodel",
        choices=ENGINES,
    )
    search_file: str | None = options.model(
        "Texts to search by meaning, at /search: comma-separated globs of "
        "tables with a column text, and of .txt files. Each line of a .txt "
        "file is a text; if all lines are short and blank lines separate 20 "
        "or fewer, each paragraph is. Newer versions of the model are not "
        "loaded.",
        reads="files",
        needs="model_base_path",
        not_with="allow_reload",
    )
    host: str = options.server(
        "Address to listen on; 0.0.0.0 means all.", "127.0.0.1"
    )
    port: int = options.server(
        "Port for gRPC; 0 disables it.", 8500, below=1 << 16
    )
    rest_api_port: int = options.server(
        "Port for REST, the page and /metrics; 0 disables them.",
        8501,
        below=1 << 16,
    )
    rest_api_timeout_in_ms: int = options.server(
        "Timeout of REST requests, in milliseconds.", 30000, at_least=1
    )
    max_connections: int | None = options.server(
        "Maximum number of open connections of each port (default: 4096, or "
        "what the limit of open files allows).",
        at_least=1,
    )
    rest_api_header_timeout_in_ms: int = options.server(
        "Time for the header of a REST request or gRPC's handshake, in "
        "milliseconds. The body has --rest_api_timeout_in_ms plus 5 seconds.",
        10000,
        at_least=1,
    )
    idle_timeout_in_ms: int = options.server(
        "Time until an idle connection is closed, in milliseconds; until then, "
        "its client can reuse it.",
        120000,
        at_least=1,
    )
    file_system_poll_wait_seconds: float = options.model(
        "Seconds between checks for new versions; 0 checks only once.", 1.0
    )
    enable_model_warmup: bool = options.model(
        "Run the requests in a new version's "
        "assets.extra/tf_serving_warmup_requests before it serves.",
        True,
    )
    enable_batching: bool = options.batching(
        "Merge rows of different requests into one call of the model.", True
    )
    batching_parameters_file: str | None = options.batching(
        "Text file of BatchingParameters; replaces the other flags of this "
        "group.",
        reads="file",
        needs="enable_batching",
    )
    max_batch_size: int | None = _batching(
        "Maximum number of rows in a batch (default: 64).", at_least=1
    )
    batch_timeout_micros: int | None = _batching(
        "Time that a request waits for others while a thread is free, in "
        "microseconds (default: 0)."
    )
    max_enqueued_batches: int | None = _batching(
        "Maximum number of full batches that wait for a signature; further "
        "requests are refused (default: 10).",
        at_least=1,
    )
    num_batch_threads: int | None = _batching(
        "Batches computed at once (default: one per core).", at_least=1
    )
    tensorflow_intra_op_parallelism: int = options.hardware(
        "Threads inside one operator, or LiteRT's; 0 means one per core.", 0
    )
    tensorflow_inter_op_parallelism: int = options.hardware(
        "Operators computed at once; 0 means one per core.", 0
    )

    def __post_init__(self) -> None:
        port = os.environ.get("AIP_HTTP_PORT", "")
        options.require(
            not port or (port.isdecimal() and 0 < int(port[:9]) < 1 << 16),
            "AIP_HTTP_PORT must be a port from 1 to 65535. Received: "
            f"{port!r:.40}; set it to one, or unset it.",
        )
        values = {"rest_api_port": int(port), "host": "0.0.0.0"} if port else {}
        if not self.model_config_file:
            values["model_base_path"] = os.environ.get("AIP_STORAGE_URI")
        for name, value in values.items():
            if value and getattr(self, name) == getattr(ServeConfig, name):
                object.__setattr__(self, name, value)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        options.require(
            bool(self.model_base_path) != bool(self.model_config_file),
            "Give either --model_base_path or --model_config_file.",
        )
        options.require(
            self.port != self.rest_api_port,
            "--port and --rest_api_port must differ. Received: both "
            f"{self.port}.",
        )
        options.require(
            self.rest_api_port or not self.search_file,
            "--search_file needs a --rest_api_port for its page. Received: 0.",
        )

    def routes(self, model: str) -> dict[str, str]:
        """Returns the server's path for each route of Vertex AI."""
        call = f"/v1/models/{urllib.parse.quote(model, safe='')}:predict"
        paths = {"AIP_HEALTH_ROUTE": "/readyz", "AIP_PREDICT_ROUTE": call}
        return {os.environ[x]: y for x, y in paths.items() if os.environ.get(x)}

    def batching(self) -> dict[str, int]:
        """Returns the batching flags that are set."""
        return options.set_values(
            self,
            "max_batch_size",
            "batch_timeout_micros",
            "max_enqueued_batches",
            "num_batch_threads",
        )
