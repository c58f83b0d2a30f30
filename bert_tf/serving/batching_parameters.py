"""Reads files of `BatchingParameters`, as TensorFlow Serving takes them.

tensorflow-serving-api has no module for that message, so it is described here:
session_bundle_config.proto of TensorFlow Serving 2.20.
"""

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import text_format
from google.protobuf import wrappers_pb2

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.serving.batching_options import BatchingOptions

# TensorFlow Serving's defaults for what a file leaves out.
_DEFAULTS = BatchingOptions(
    max_batch_size=1000, batch_timeout_micros=0, max_enqueued_batches=10
)
_NUMBERS = {
    "max_batch_size": 1,
    "batch_timeout_micros": 2,
    "max_enqueued_batches": 3,
    "num_batch_threads": 4,
}
# What changes nothing that a client could see.
_IGNORED = frozenset({"thread_pool_name"})
_FLAG = "--batching_parameters_file"
_FIELD = descriptor_pb2.FieldDescriptorProto


def read(path: str) -> BatchingOptions:
    """Returns the options in a text file of `BatchingParameters`.

    Raises:
      UserError: If it is none, or asks for what this server does not do.
    """
    parameters = _message_class()()
    contents = files.read_bytes(files.require_file(path, _FLAG))
    try:
        text_format.Parse(contents, parameters)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UserError(
            f"{_FLAG} must be a text file of "
            f"BatchingParameters. Received: {path}: {error}."
        ) from error
    values = {}
    for field, value in parameters.ListFields():
        if field.name in _NUMBERS:
            values[field.name] = value.value
        elif field.name == "allowed_batch_sizes":
            values[field.name] = tuple(value)
        elif field.name not in _IGNORED:
            raise UserError(
                f"{path} sets {field.name}, which this server does not have; "
                "remove that line."
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
    """Returns the class of the message `BatchingParameters`."""
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
