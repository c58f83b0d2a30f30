"""An export: its version directory, and the description in its model card.

Servers load directories whose names are numbers. A version has a temporary name
until it is complete and verified.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.flags.export import HEADS
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import stored_files

EXTRAS = "assets.extra"
CARD_FILE = os.path.join(EXTRAS, "model_card.json")
VOCAB_FILE = os.path.join(EXTRAS, "vocab.txt")
LABELS_FILE = os.path.join(EXTRAS, "labels.txt")
WARMUP_FILE = os.path.join(EXTRAS, "tf_serving_warmup_requests")

# Directories that this project names, and those that servers load, to which
# 007 is version 7.
_WRITTEN = re.compile(r"[1-9]\d*")
_SERVED = re.compile(r"[0-9]+")
# The kinds of the fields of an `Artifact` in a card.
_ARTIFACT = {
    "model_name": stored_files.TEXT,
    "version": stored_files.integer(most=(1 << 63) - 1),
    "head": stored_files.choice(*HEADS),
    "precision": stored_files.choice("float32", "bfloat16"),
    "ids_only": stored_files.FLAG,
    "max_seq_length": stored_files.integer(),
    "buckets": stored_files.list_of(stored_files.integer()),
    "settings": stored_files.OBJECT,
    "command": stored_files.TEXT,
    "litert": stored_files.optional(stored_files.TEXT),
}


@dataclasses.dataclass(frozen=True)
class Artifact:
    """The settings that an export was made with.

    Attributes:
      model_name: The name under which servers load the model.
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
        """Returns the artifact that a model card has under "export".

        Raises:
          UserError: If the names in `values` are not those of an artifact;
            it names the source, the path of the card.
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
        stored_files.check(values, _ARTIFACT, source)
        return cls(**values | {"buckets": tuple(values["buckets"])})


def read(version_directory: str) -> Artifact:
    """Reads the artifact from the model card of a version directory.

    Raises:
      UserError: If there is no valid model card.
    """
    path = os.path.join(version_directory, CARD_FILE)
    if not stored_files.exists(path):
        raise paths.no_file(path, "--export_dir")
    card = stored_files.read_object(path)
    return Artifact.from_json(card.get("export"), path)


def find_version(export_dir: str) -> str:
    """Returns a version directory, or the newest one in a directory of them.

    Raises:
      UserError: If the path is neither.
    """
    if tf.io.gfile.exists(os.path.join(export_dir, "saved_model.pb")):
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
    """Returns --version, or the highest existing version plus one.

    Raises:
      UserError: If one of the directories has the version.
    """
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
    if not tf.io.gfile.isdir(output_dir):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(output_dir)]
    return [int(name) for name in names if pattern.fullmatch(name)]


@contextlib.contextmanager
def write_version(output_dir: str, version: int) -> Iterator[str]:
    """Yields a temporary directory that becomes the version on success.

    A killed process leaves a directory whose name is not a number, which no
    server loads and the next export removes.

    Raises:
      UserError: If another process created the version meanwhile.
    """
    final = os.path.join(output_dir, str(version))
    if not paths.is_remote(output_dir):
        files.clear_temporaries(output_dir, _WRITTEN.pattern)
    with files.atomic_directory(final, replace=False) as temporary:
        yield temporary
