"""What decides the contents of a data set, so that two can be told apart."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.io import progress

# Raise it when the same flags begin to make other records.
_VERSION = 1
# Where things lie and how many work on them: no record depends on these.
_FLAGS_WITHOUT_EFFECT = frozenset(
    {"input_file", "output_file", "vocab_file", "num_processes"}
)
# What did the work is not even kept: Beam's result is this machine's, byte for
# byte.
_FLAGS_NOT_KEPT = frozenset({"runner", "beam_options"})
_BYTES_AT_ONCE = 1 << 22


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The flags and files that a data set is made from.

    Attributes:
      version: Of the algorithms.
      flags: All flags but those of Beam, resolved; paths among them do not
        count.
      num_output_files: How many files `--output_file` names.
      vocabulary_hash: `Vocabulary.hash`.
      inputs: Per text file its "name", "bytes" and "sha256", in order.
    """

    version: int
    flags: dict[str, Any]
    num_output_files: int
    vocabulary_hash: str
    inputs: list[dict[str, Any]]

    @property
    def fingerprint(self) -> str:
        """A hash that is equal where the records are."""
        values = dataclasses.asdict(self)
        values["flags"] = self._flags_with_effect()
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _flags_with_effect(self) -> dict[str, Any]:
        return {
            flag: value
            for flag, value in self.flags.items()
            if flag not in _FLAGS_WITHOUT_EFFECT
        }

    def difference(self, present: "Recipe") -> str:
        """Says how a recipe that is `present` differs from this one."""
        theirs = present._flags_with_effect()
        differences = [
            f"--{flag}={theirs.get(flag)} instead of {value}"
            for flag, value in self._flags_with_effect().items()
            if theirs.get(flag) != value
        ]
        for field, description in (
            ("vocabulary_hash", "another vocabulary"),
            ("inputs", "other text"),
            ("num_output_files", "another number of files"),
            ("version", "another version of bert_tf"),
        ):
            if getattr(self, field) != getattr(present, field):
                differences.append(description)
        return ", ".join(differences)


def build(
    config: CreatePretrainingDataConfig,
    input_files: Sequence[str],
    num_output_files: int,
    vocabulary_hash: str,
) -> Recipe:
    """Returns the recipe of a run; reads the text once to hash it."""
    return Recipe(
        version=_VERSION,
        flags={
            flag: value
            for flag, value in dataclasses.asdict(config).items()
            if flag not in _FLAGS_NOT_KEPT
        },
        num_output_files=num_output_files,
        vocabulary_hash=vocabulary_hash,
        inputs=_hash_files(input_files),
    )


def _hash_files(paths: Sequence[str]) -> list[dict[str, Any]]:
    hashed = []
    total = corpus.count_bytes(paths)
    with progress.bar(total, "checking the input", "B") as bar:
        for path in paths:
            digest, num_bytes = hashlib.sha256(), 0
            with tf.io.gfile.GFile(path, "rb") as file:
                while chunk := file.read(_BYTES_AT_ONCE):
                    digest.update(chunk)
                    num_bytes += len(chunk)
                    bar.update(len(chunk))
            hashed.append(
                {
                    "name": os.path.basename(path),
                    "bytes": num_bytes,
                    "sha256": digest.hexdigest(),
                }
            )
    return hashed
