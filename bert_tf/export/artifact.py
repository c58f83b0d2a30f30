"""What an export is: the choices that made it, as its model card keeps them."""

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
    """The choices of an export.

    Attributes:
      model_name: What servers call the model.
      version: The number of the version directory.
      head: The name of the head, as in export/registry.py.
      precision: "float32" or "bfloat16".
      ids_only: Whether it reads ids and knows nothing of strings.
      max_seq_length: The most pieces of a row.
      buckets: The lengths of rows, rising; the last is `max_seq_length`.
      settings: What else the head was built with, JSON values by name:
        `top_k`, `pooling`, `layer`, `doc_stride`, ...
      command: The command line that makes it again.
      litert: How the weights in litert/ are kept, one of
        `run_config.export.LITERT_QUANTIZATIONS`; None if there are none.
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
        """Returns what `from_json` reads."""
        values = dataclasses.asdict(self)
        return values | {"buckets": list(self.buckets)}

    @classmethod
    def from_json(cls, values: Any, source: str) -> "Artifact":
        """Returns the artifact that a model card describes.

        Args:
          values: What stands under "export" in the card.
          source: The card, for the error.

        Raises:
          UserError: If they are not those of an artifact.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if isinstance(values, dict):
            # Cards of before there was such a thing.
            values = {"litert": None} | values
        if not isinstance(values, dict) or set(values) != names:
            raise UserError(
                f'{source} must hold under "export" {", ".join(sorted(names))}.'
                f" Received: {values!r:.80}."
            )
        return cls(**values | {"buckets": tuple(values["buckets"])})


def read(version_directory: str) -> Artifact:
    """Returns what the model card of a version directory says it is.

    Raises:
      UserError: If there is none.
    """
    path = os.path.join(version_directory, CARD_FILE)
    files.require_file(path, "--export_dir")
    card = files.read_json_object(path)
    return Artifact.from_json(card.get("export"), path)


def find_version(export_dir: str) -> str:
    """Returns the version directory that a path means.

    Args:
      export_dir: A version directory, or the folder of some, of which the
        newest is meant.

    Raises:
      UserError: If it is neither.
    """
    if tf.io.gfile.exists(os.path.join(export_dir, "saved_model.pb")):
        return export_dir
    versions = []
    if tf.io.gfile.isdir(export_dir):
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(export_dir)]
        versions = [int(name) for name in names if _VERSION.fullmatch(name)]
    if not versions:
        raise UserError(
            "--export_dir must be a directory that export/savedmodel.py made, "
            f"or the one above it. Received: {export_dir!r}, in which there is "
            "no saved_model.pb and no version."
        )
    return os.path.join(export_dir, str(max(versions)))
