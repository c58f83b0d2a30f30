"""Flags of run/serve.py that bound the work and memory of a request."""

import dataclasses

from bert_tf.flags import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """Limits of a request; larger ones are refused with the flag's name."""

    max_request_rows: int = options.limits(
        10_000,
        "Maximum number of rows of a request; each choice counts as one, also "
        "inside of a tf.Example.",
    )
    max_row_tokens: int = options.limits(
        1 << 16, "Maximum number of tokens in all texts of a row."
    )
    max_row_choices: int = options.limits(
        256, "Maximum number of choices of a row, also inside of a tf.Example."
    )
    max_request_bytes: int = options.limits(
        16 << 20, "Maximum size of a body or gRPC message, in bytes."
    )
    max_grpc_message_bytes: int = options.limits(
        4 << 20, "Maximum size of a gRPC message without compression, in bytes."
    )
    max_message_fields: int = options.limits(
        100_000,
        "Maximum number of fields of a gRPC message, nested ones and each "
        "repetition, too; 8 integers in a packed list count as one.",
    )
    max_unpacked_bytes: int = options.limits(
        64 << 20,
        "Maximum size of a body without its gzip compression, in bytes; each "
        "JSON string, list or object counts as at least 64, another value as "
        "at least 16.",
    )
    max_json_depth: int = options.limits(
        64, "Maximum number of JSON lists and objects inside each other."
    )
    max_tensor_bytes: int = options.limits(
        64 << 20,
        "Maximum size of a TensorProto after its last value is repeated, in "
        "bytes; a string counts as its length and 24.",
    )
    max_response_bytes: int = options.limits(
        64 << 20,
        "Maximum size of the outputs of a request, in bytes before they are "
        "written as JSON; a string counts as its length and 64.",
    )
    max_header_bytes: int = options.limits(
        64 << 10,
        "Maximum size of a request's header, over gRPC of its metadata, in "
        "bytes.",
    )
    max_url_bytes: int = options.limits(
        8 << 10, "Maximum size of the URL of a REST request, in bytes."
    )

    def __post_init__(self) -> None:
        options.require_at_least(
            self, 1, *(x.name for x in dataclasses.fields(ServeLimits))
        )
