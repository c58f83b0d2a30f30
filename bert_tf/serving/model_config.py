"""Configuration files of the server, and the version folders on disk.

Names and files are TensorFlow Serving's: `ModelServerConfig`
(model_server_config.proto) and `BatchingParameters`.
"""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message
from google.protobuf import message_factory
from google.protobuf import text_format
from google.protobuf import wrappers_pb2
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.serving import errors
from bert_tf.serving.batching_options import BatchingOptions

_FLAG = "--model_config_file"
# A version's number is an int64, as in TensorFlow Serving.
_MAX_VERSION = 2**63 - 1
# TensorFlow Serving's defaults for parameters that are not in the file.
_BATCHING_DEFAULTS = BatchingOptions(
    max_batch_size=1000, batch_timeout_micros=0, max_enqueued_batches=10
)
_BATCHING_NUMBERS = {
    "max_batch_size": 1,
    "batch_timeout_micros": 2,
    "max_enqueued_batches": 3,
    "num_batch_threads": 4,
}
# Parameters without any effect that a client could see.
_IGNORED_FIELDS = frozenset({"thread_pool_name"})
_BATCHING_FLAG = "--batching_parameters_file"
_FIELD = descriptor_pb2.FieldDescriptorProto


@dataclasses.dataclass(frozen=True)
class VersionPolicy:
    """The rule that selects the served versions of a model.

    Attributes:
      latest: Serve this number of newest versions.
      specific: Serve these versions. If both are None, serve all versions.
    """

    latest: int | None = 1
    specific: frozenset[int] | None = None

    def choose(self, versions: Iterable[int]) -> set[int]:
        """Returns the versions to serve."""
        if self.specific is not None:
            return set(versions) & self.specific
        if self.latest is not None:
            return set(sorted(versions)[-self.latest :])
        return set(versions)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Configuration of one served model.

    Attributes:
      base_path: The folder of its versions.
      labels: Names that requests may use for versions.
    """

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)


def of_one_model(base_path: str, name: str | None) -> list[ModelConfig]:
    """Returns the configuration for --model_base_path, named as its folder."""
    name = name or os.path.basename(os.path.abspath(base_path))
    return [ModelConfig(name, base_path)]


def read(path: str) -> list[ModelConfig]:
    """Reads a text file of `ModelServerConfig`.

    Raises:
      UserError: If the file is invalid, or its models cannot be served.
    """
    config = model_server_config_pb2.ModelServerConfig()
    _read_into(config, path, _FLAG)
    try:
        return from_proto(config)
    except ValueError as error:
        raise UserError(f"{_FLAG}={path}: {error}") from error


def _read_into(proto: message.Message, path: str, flag: str) -> None:
    contents = files.read_bytes(files.require_file(path, flag))
    try:
        text_format.Parse(contents, proto)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UserError(
            f"{flag} must be a text file of {proto.DESCRIPTOR.name}. "
            f"Received: {path}: {error}."
        ) from error


def from_proto(
    config: model_server_config_pb2.ModelServerConfig,
) -> list[ModelConfig]:
    """Returns the models of a `ModelServerConfig`.

    Raises:
      ValueError: If its models cannot be served.
    """
    if config.WhichOneof("config") != "model_config_list":
        raise ValueError("A model_config_list is required, and nothing else.")
    models = [_model(model) for model in config.model_config_list.config]
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"The model name {name!r} stands twice.")
    return models


def _model(proto: model_server_config_pb2.ModelConfig) -> ModelConfig:
    if not proto.name or not proto.base_path:
        raise ValueError(
            "Each model needs a name and a base_path. Received: "
            f"{text_format.MessageToString(proto, as_one_line=True)!r}."
        )
    if proto.model_platform not in ("", "tensorflow"):
        raise ValueError(
            f"The model_platform of {proto.name} must be 'tensorflow'. "
            f"Received: {proto.model_platform!r}."
        )
    if proto.HasField("logging_config"):
        raise ValueError(
            f"The logging_config of {proto.name} has no meaning here; remove "
            "it."
        )
    return ModelConfig(
        proto.name, proto.base_path, _policy(proto), dict(proto.version_labels)
    )


def _policy(proto: model_server_config_pb2.ModelConfig) -> VersionPolicy:
    policy = proto.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(latest=None)
    if choice == "specific":
        if not policy.specific.versions:
            raise ValueError(
                f"The specific model_version_policy of {proto.name} names no "
                "version."
            )
        return VersionPolicy(None, frozenset(policy.specific.versions))
    return VersionPolicy(max(1, policy.latest.num_versions))


def find_versions(base_path: str) -> dict[int, str]:
    """Returns the directories of a model's versions by version number.

    Raises:
      OSError: If it cannot be read.
    """
    versions = {}
    with os.scandir(base_path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = entry.name
            is_number = name.isascii() and name.isdigit()
            # A loop of links is no directory.
            if is_number and os.path.isdir(entry.path):
                if int(name) <= _MAX_VERSION:
                    versions[int(name)] = entry.path
    return versions


def check_base_path(
    config: ModelConfig, missing: Callable[[str], str | None]
) -> None:
    """Checks that a model's base path is a folder of versions.

    Args:
      config: The model.
      missing: `Engine.missing`, which is None for a version's directory.

    Raises:
      UserError: If it is not.
    """
    try:
        find_versions(config.base_path)
    except (OSError, ValueError) as error:
        # ValueError: a path with a null byte.
        reason = getattr(error, "strerror", error)
        raise UserError(
            f"The base path of model {config.name} must be a folder of "
            f"versions. Received: {config.base_path!r} ({reason})."
        ) from error
    if missing(config.base_path) is None:
        raise UserError(
            f"The base path of model {config.name} must be a folder of "
            "versions, each named by a number. Received: "
            f"{config.base_path!r}, which is a version itself; give the "
            "folder that holds it."
        )


def fingerprint(directory: str) -> frozenset[tuple[str, int, int]]:
    """Returns paths, sizes and times of the files in a directory.

    Files that are deleted meanwhile are skipped; the next check differs.
    """
    return frozenset(
        (path, status.st_size, status.st_mtime_ns)
        for path, status in _walk(directory)
    )


def check_regular(directory: str) -> None:
    """Checks that a version holds no pipe, device or socket.

    Loading it could wait forever.

    Raises:
      RequestError: If it does.
    """
    for path, status in _walk(directory):
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise errors.failed_precondition(f"{path} is not a regular file")


def _walk(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            # Deleted, or a loop of links.
            with contextlib.suppress(OSError):
                yield path, os.stat(path)


def read_batching(path: str) -> BatchingOptions:
    """Reads a text file of `BatchingParameters`.

    Raises:
      UserError: If the file is invalid, or sets an unsupported parameter.
    """
    parameters = _batching_message_class()()
    _read_into(parameters, path, _BATCHING_FLAG)
    values = {}
    for field, value in parameters.ListFields():
        if field.name in _BATCHING_NUMBERS:
            values[field.name] = value.value
        elif field.name == "allowed_batch_sizes":
            values[field.name] = tuple(value)
        elif field.name not in _IGNORED_FIELDS:
            raise UserError(
                f"{path} sets {field.name}, which this server does not "
                "support; remove that line."
            )
    options = BatchingOptions(**(vars(_BATCHING_DEFAULTS) | values))
    _check_batching(options, path)
    return options


def _check_batching(options: BatchingOptions, path: str) -> None:
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


def _batching_message_class() -> type:
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

    for name, number in _BATCHING_NUMBERS.items():
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
