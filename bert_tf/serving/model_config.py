"""Configuration of the served models, and their version folders on disk.

The file of --model_config_file is TensorFlow Serving's `ModelServerConfig`
(model_server_config.proto). A local file is read without TensorFlow.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message
from google.protobuf import message_factory
from google.protobuf import text_format
from google.protobuf import wrappers_pb2
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files
from bert_tf.io import paths

_FLAG = "--model_config_file"
# Versions are int64, as in TensorFlow Serving, so larger numbers are skipped.
_MAX_VERSION = 2**63 - 1
# This project writes version 7 to a directory named 7. Servers also load 007 as
# version 7, so `choose_version` counts both names as version 7.
_WRITTEN = re.compile(r"[1-9]\d*")
_SERVED = re.compile(r"[0-9]+")
# Maximum number of folders in a version, including nested folders.
_MAX_FOLDERS = 100


@dataclasses.dataclass(frozen=True)
class VersionPolicy:
    """The rule that selects the served versions of a model.

    Attributes:
      latest: How many of the newest versions to serve.
      specific: The version numbers to serve, in place of `latest`. If `latest`
        and `specific` are None, all versions are served.
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
      base_path: The folder of the model's versions.
      labels: Version numbers by label; requests may name a version by label.
    """

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)


def of_flags(config: ServeConfig) -> list[ModelConfig]:
    """Returns the models of --model_config_file or --model_base_path."""
    if config.model_config_file:
        return read(config.model_config_file)
    folder = os.path.basename(os.path.abspath(config.model_base_path))
    return [ModelConfig(config.model_name or folder, config.model_base_path)]


def read(path: str) -> list[ModelConfig]:
    """Reads a text file of `ModelServerConfig`."""
    config = model_server_config_pb2.ModelServerConfig()
    read_into(config, path, _FLAG)
    try:
        return from_proto(config)
    except ValueError as error:
        raise UserError(f"{_FLAG}={path}: {error}") from error


def read_into(proto: message.Message, path: str, flag: str) -> None:
    """Reads a text file into a message."""
    contents = files.read_bytes(files.require_file(path, flag))
    try:
        text_format.Parse(contents, proto)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UserError(
            f"{flag} must be a text file of {proto.DESCRIPTOR.name}. "
            f"Received: {path}: {error}."
        ) from error


def new_message(name: str, **fields: str) -> message.Message:
    """Returns an empty message of a type that no installed package has.

    Args:
      name: The name of the message.
      **fields: The type of each field, such as "int64", "repeated int64" or
        "Int64Value". The fields are numbered from 1.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"bert_tf/{name}.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    proto = file.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (key, kind) in enumerate(fields.items(), 1):
        field = proto.field.add(name=key, number=number)
        _, repeated, kind = kind.rpartition("repeated ")
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        field.label = label
        if kind[0].isupper():
            field.type = kinds.TYPE_MESSAGE
            field.type_name = f".google.protobuf.{kind}"
        else:
            field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"tensorflow.serving.{name}")
    return message_factory.GetMessageClass(descriptor)()


def from_proto(
    config: model_server_config_pb2.ModelServerConfig,
) -> list[ModelConfig]:
    """Returns the models of a `ModelServerConfig`."""
    if config.WhichOneof("config") != "model_config_list":
        raise ValueError("A model_config_list is required, and nothing else.")
    models = [_model(model) for model in config.model_config_list.config]
    names = set()
    for model in models:
        if model.name in names:
            raise ValueError(f"The model name {model.name!r} stands twice.")
        names.add(model.name)
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
      OSError: If a local path cannot be read; see also `files.remote_errors`.
    """
    versions = {}
    for name in files.names_in(base_path):
        path = os.path.join(base_path, name)
        is_number = name.isascii() and name.isdigit()
        # A link that points to itself is skipped, because it is not a folder.
        if is_number and files.is_folder(path) and int(name) <= _MAX_VERSION:
            versions[int(name)] = path
    return versions


def find_version(export_dir: str) -> str:
    """Returns `export_dir` if it is a version, else its newest version."""
    if files.exists(os.path.join(export_dir, "saved_model.pb")):
        return export_dir
    versions = _versions(export_dir, _WRITTEN)
    if not versions:
        raise UserError(
            "--export_dir must be a version directory that "
            "export/savedmodel.py wrote, or the directory above it. Received: "
            f"{export_dir!r}, which has no saved_model.pb and no version."
        )
    return os.path.join(export_dir, str(max(versions)))


def choose_version(version: int | None, output_dirs: Sequence[str]) -> int:
    """Returns --version, or the highest existing version plus one."""
    taken = {
        number for path in output_dirs for number in _versions(path, _SERVED)
    }
    following = max(taken, default=0) + 1
    if version is None:
        return following
    if version in taken:
        raise UserError(
            f"--version={version} exists in {' or '.join(output_dirs)}, and "
            "versions are never overwritten; drop the flag to write version "
            f"{following}."
        )
    return version


def _versions(output_dir: str, pattern: re.Pattern[str]) -> list[int]:
    if not files.is_folder(output_dir):
        return []
    names = filter(pattern.fullmatch, files.names_in(output_dir))
    return list(map(int, names))


def check_base_path(
    config: ModelConfig, missing: Callable[[str], str | None]
) -> None:
    """Checks that a model's base path is a folder of versions.

    `missing` is `Engine.missing`, which returns None for a complete version.

    Raises:
      UserError: If the path is no folder, or is a version itself.
    """
    try:
        find_versions(config.base_path)
        is_version = missing(config.base_path) is None
    except (
        OSError,
        ValueError,
        *files.remote_errors(config.base_path),
    ) as error:
        # A path with a null byte raises a ValueError without `strerror`.
        reason = getattr(error, "strerror", error)
        raise UserError(
            f"The base path of model {config.name} must be a folder of "
            f"versions. Received: {config.base_path!r} ({reason})."
        ) from error
    if is_version:
        raise UserError(
            f"The base path of model {config.name} must be a folder of "
            "versions, each named by a number. Received: "
            f"{config.base_path!r}, which is a version itself; give the "
            "folder that holds it."
        )


def fingerprint(directory: str) -> frozenset[tuple[str, int, int]]:
    """Returns path, size and change time of each file in a directory."""
    if paths.is_remote(directory):
        return frozenset(files.remote_files(directory))
    return frozenset(
        (path, status.st_size, status.st_ctime_ns)  # A chmod changes the ctime.
        for path, status in walk(directory)
    )


def walk(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files of a directory with their sizes, times and kinds.

    Follows links, but enters each folder only once. A link may point to /, so
    the walk stops after `_MAX_FOLDERS` folders and yields the next folder last.
    """
    seen = set()
    for folder, folders, names in os.walk(directory, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        is_too_many = len(seen) > _MAX_FOLDERS
        for name in [""] if is_too_many else names:
            path = os.path.join(folder, name)
            # Skip a file that was just deleted, or that is a loop of links.
            with contextlib.suppress(OSError):
                yield path, os.stat(path)
        if is_too_many:
            return
