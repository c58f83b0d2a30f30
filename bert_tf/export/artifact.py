"""The description of an export that its model card stores."""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import files

EXTRAS = "assets.extra"
CARD_FILE = os.path.join(EXTRAS, "model_card.json")
VOCAB_FILE = os.path.join(EXTRAS, "vocab.txt")
LABELS_FILE = os.path.join(EXTRAS, "labels.txt")
WARMUP_FILE = os.path.join(EXTRAS, "tf_serving_warmup_requests")

_VERSION = re.compile(r"[1-9]\d*")


@dataclasses.dataclass(frozen=True)
class Artifact:
    """The settings that an export was made with.

    Attributes:
      model_name: The name under which servers load the model.
      version: The number of the version directory.
      head: The name of the head, a key of `heads.registry.ENTRIES`.
      precision: "float32" or "bfloat16".
      ids_only: Whether the signatures take token ids instead of strings.
      max_seq_length: The maximum number of tokens in a row.
      buckets: The allowed row lengths in ascending order; the last one is
        `max_seq_length`.
      settings: The other settings of the head, JSON values by name: `top_k`,
        `pooling`, `layer`, `doc_stride`, ...
      command: The command line that reproduces the export.
      litert: How the weights in litert/ are quantized, one of
        `flags.export.LITERT_QUANTIZATIONS`; None without litert/.
    """

    model_name: str
    version: int
    head: str
    precision: str
    ids_only: bool
    max_seq_length: int
    buckets: tuple[int, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    command: str = ""
    litert: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON values that `from_json` reads."""
        values = dataclasses.asdict(self)
        return values | {"buckets": list(self.buckets)}

    @classmethod
    def from_json(cls, values: Any, source: str) -> "Artifact":
        """Returns the artifact that a model card describes.

        Args:
          values: The value under "export" in the card.
          source: The path of the card, for the error message.

        Raises:
          UserError: If the names in `values` are not those of an artifact.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if isinstance(values, dict):
            # Older cards lack this field.
            values = {"litert": None} | values
        if not isinstance(values, dict) or set(values) != names:
            raise UserError(
                f'{source} must hold under "export" {", ".join(sorted(names))}.'
                f" Received: {values!r:.80}."
            )
        return cls(**values | {"buckets": tuple(values["buckets"])})


def read(version_directory: str) -> Artifact:
    """Reads the artifact from the model card of a version directory.

    Raises:
      UserError: If there is no valid model card.
    """
    path = os.path.join(version_directory, CARD_FILE)
    files.require_file(path, "--export_dir")
    card = files.read_json_object(path)
    return Artifact.from_json(card.get("export"), path)


def find_version(export_dir: str) -> str:
    """Returns the version directory that --export_dir refers to.

    Args:
      export_dir: A version directory, or the directory above several, from
        which the newest is taken.

    Raises:
      UserError: If the path is neither.
    """
    if tf.io.gfile.exists(os.path.join(export_dir, "saved_model.pb")):
        return export_dir
    versions = []
    if tf.io.gfile.isdir(export_dir):
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(export_dir)]
        versions = [int(name) for name in names if _VERSION.fullmatch(name)]
    if not versions:
        raise UserError(
            "--export_dir must be a version directory that "
            "export/savedmodel.py wrote, or the directory above it. Received: "
            f"{export_dir!r}, which has no saved_model.pb and no version."
        )
    return os.path.join(export_dir, str(max(versions)))
