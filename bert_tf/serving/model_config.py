"""Which models to serve, and which of their versions.

The names and files are TensorFlow Serving's (model_server_config.proto).
"""

import dataclasses
import os
from collections.abc import Iterable
from collections.abc import Mapping

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import UserError
from bert_tf.io import files

_FLAG = "--model_config_file"


@dataclasses.dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a model are served.

    Attributes:
      latest: The number of newest ones, or None.
      specific: These, or None. With neither, all of them.
    """

    latest: int | None = 1
    specific: frozenset[int] | None = None

    def choose(self, versions: Iterable[int]) -> set[int]:
        """Returns those of the versions that are to be served."""
        if self.specific is not None:
            return set(versions) & self.specific
        if self.latest is not None:
            return set(sorted(versions)[-self.latest :])
        return set(versions)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One model.

    Attributes:
      name: What requests call it.
      base_path: The folder of its versions.
      policy: Which of them are served.
      labels: Names that requests may use for versions.
    """

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)


def of_one_model(base_path: str, name: str | None) -> list[ModelConfig]:
    """Returns the configuration that --model_base_path makes.

    Args:
      base_path: The folder of the model's versions.
      name: The model's name; by default the folder's.
    """
    name = name or os.path.basename(os.path.abspath(base_path))
    return [ModelConfig(name, base_path)]


def read(path: str) -> list[ModelConfig]:
    """Returns the models of a text file of `ModelServerConfig`.

    Raises:
      UserError: If it is none, or not one that can be served.
    """
    contents = files.read_bytes(files.require_file(path, _FLAG))
    config = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(contents, config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UserError(
            f"{_FLAG} must be a text file of ModelServerConfig. Received: "
            f"{path}: {error}."
        ) from error
    try:
        return from_proto(config)
    except ValueError as error:
        raise UserError(f"{_FLAG}={path}: {error}") from error


def from_proto(
    config: model_server_config_pb2.ModelServerConfig,
) -> list[ModelConfig]:
    """Returns the models of a `ModelServerConfig`.

    Raises:
      ValueError: If it is not one that can be served.
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
