"""Parameters of the batch scheduler, also those of a text file."""

import dataclasses
import os

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import wrappers_pb2

from bert_tf.errors import UserError
from bert_tf.serving import model_config
from bert_tf.serving.servable import Signature


@dataclasses.dataclass(frozen=True)
class BatchingOptions:
    """Batching parameters, with TensorFlow Serving's names.

    Attributes:
      max_batch_size: Maximum number of rows in a batch. A request with more
        rows is split (bert_tf.serving.pieces).
      batch_timeout_micros: Time that a request may wait for others while a
        thread is free, in microseconds.
      max_enqueued_batches: Number of full batches that may wait for each
        signature; 0 means any number.
      num_batch_threads: Batches computed at once; 0 means one per core.
      allowed_batch_sizes: Numbers of rows that batches are padded to,
        increasing up to `max_batch_size`; empty means any number.
      has_independent_rows: False if no request is split.
    """

    max_batch_size: int = 64
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = 0
    allowed_batch_sizes: tuple[int, ...] = ()
    has_independent_rows: bool = True

    def num_threads(self) -> int:
        return self.num_batch_threads or len(os.sched_getaffinity(0))

    def most_rows(self, signature: Signature, outputs: tuple[str, ...]) -> int:
        """Returns the maximum number of rows of a call."""
        return min(self.max_batch_size, signature.most_rows(outputs))

    def max_queued_rows(self) -> int | None:
        if not self.max_enqueued_batches:
            return None
        return self.max_enqueued_batches * self.max_batch_size


def without_merging() -> BatchingOptions:
    """Returns options that run every request alone.

    As many requests run at once as in TensorFlow Serving.
    """
    return BatchingOptions(
        max_batch_size=1,
        max_enqueued_batches=0,
        num_batch_threads=4 * len(os.sched_getaffinity(0)),
        has_independent_rows=False,
    )


# TensorFlow Serving's defaults for parameters that are not in the file.
_DEFAULTS = BatchingOptions(
    max_batch_size=1000, batch_timeout_micros=0, max_enqueued_batches=10
)
_NUMBERS = {
    "max_batch_size": 1,
    "batch_timeout_micros": 2,
    "max_enqueued_batches": 3,
    "num_batch_threads": 4,
}
# Parameters without any effect that a client could see.
_IGNORED_FIELDS = frozenset({"thread_pool_name"})
_FLAG = "--batching_parameters_file"
_FIELD = descriptor_pb2.FieldDescriptorProto


def read(path: str) -> BatchingOptions:
    """Reads a text file of `BatchingParameters`.

    Raises:
      UserError: If the file is invalid, or sets an unsupported parameter.
    """
    parameters = _message_class()()
    model_config.read_into(parameters, path, _FLAG)
    values = {}
    for field, value in parameters.ListFields():
        if field.name in _NUMBERS:
            values[field.name] = value.value
        elif field.name == "allowed_batch_sizes":
            values[field.name] = tuple(value)
        elif field.name not in _IGNORED_FIELDS:
            raise UserError(
                f"{path} sets {field.name}, which this server does not "
                "support; remove that line."
            )
    options = BatchingOptions(**(vars(_DEFAULTS) | values))
    _check(options, path)
    return options


def _check(options: BatchingOptions, path: str) -> None:
    sizes = options.allowed_batch_sizes
    if options.max_batch_size < 1 or options.max_enqueued_batches < 1:
        raise UserError(
            f"max_batch_size and max_enqueued_batches of {path} must be at "
            f"least 1. Received: {options.max_batch_size} and "
            f"{options.max_enqueued_batches}."
        )
    if options.batch_timeout_micros < 0 or options.num_batch_threads < 0:
        raise UserError(
            f"batch_timeout_micros and num_batch_threads of {path} must not "
            f"be negative. Received: {options.batch_timeout_micros} and "
            f"{options.num_batch_threads}."
        )
    if sizes and (
        list(sizes) != sorted(set(sizes)) or sizes[-1] != options.max_batch_size
    ):
        raise UserError(
            f"allowed_batch_sizes of {path} must rise and end with "
            f"max_batch_size={options.max_batch_size}. Received: "
            f"{', '.join(map(str, sizes))}."
        )


def _message_class() -> type:
    """Returns the class of the message `BatchingParameters`.

    tensorflow-serving-api has no module for it. Source:
    session_bundle_config.proto of TensorFlow Serving 2.20.
    """
    proto = descriptor_pb2.FileDescriptorProto(
        name="batching_parameters.proto",
        package="bert_tf.serving",
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    parameters = proto.message_type.add(name="BatchingParameters")
    optional = _FIELD.LABEL_OPTIONAL

    def add(name, number, kind, label=optional, type_name=None):
        parameters.field.add(
            name=name,
            number=number,
            type=kind,
            label=label,
            type_name=type_name,
        )

    for name, number in _NUMBERS.items():
        type_name = ".google.protobuf.Int64Value"
        add(name, number, _FIELD.TYPE_MESSAGE, type_name=type_name)
    type_name = ".google.protobuf.StringValue"
    add("thread_pool_name", 5, _FIELD.TYPE_MESSAGE, type_name=type_name)
    add("allowed_batch_sizes", 6, _FIELD.TYPE_INT64, _FIELD.LABEL_REPEATED)
    add("pad_variable_length_inputs", 7, _FIELD.TYPE_BOOL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(proto)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("bert_tf.serving.BatchingParameters")
    )
