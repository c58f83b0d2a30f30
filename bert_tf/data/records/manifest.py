"""The manifest of a data set: its files, counts, and recipe (flags and input).

A manifest is at `<output_file>.manifest.json`. The shards of `wiki.tfrecord`,
named `wiki-00000-of-00010.tfrecord` and so on, share the manifest of
`wiki.tfrecord`. A copy of the vocabulary is at `<output_file>.vocab.txt`.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.config import fields_affecting
from bert_tf.data import corpus
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import files as bert_files
from bert_tf.io import progress

# Increase this if records change; else a resume would mix old and new records.
_VERSION = 1
# Paths and parallelism do not change the records, so the hash leaves them out.
_PLACES = ("input_file", "num_processes", "output_file", "vocab_file")
# Flags of later versions, with their defaults. Manifests omit a flag with its
# default, as older manifests do. The hash includes it in both cases.
_ADDED = {"sample": 1.0}
FORMAT = "bert_tf pretraining data"
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.[^/.]+)?\Z")
# Data sets that differ in one of these attributes cannot be combined.
_MUST_AGREE = (
    "vocabulary_hash",
    "do_lower_case",
    "strip_accents",
    "max_seq_length",
    "max_predictions_per_seq",
)


def manifest_path(output_file: str) -> str:
    """Returns the path of the manifest of an output file."""
    return f"{output_file}.manifest.json"


def record_files(output_file: str, num_shards: int) -> list[str]:
    """Returns the record files of an output file; 0 means no shards.

    Shards keep the ending, so that a glob such as `*.tfrecord` matches them.
    """
    if not num_shards:
        return [output_file]
    stem, ending = os.path.splitext(output_file)
    return [
        f"{stem}-{shard:05d}-of-{num_shards:05d}{ending}"
        for shard in range(num_shards)
    ]


def vocabulary_path(output_file: str) -> str:
    """Returns the path of an output file's copy of the vocabulary."""
    return f"{output_file}.vocab.txt"


def _with_effect(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {x: y for x, y in (_ADDED | flags).items() if x not in _PLACES}


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's values by the names that `run_folder.changes` uses."""
    text = json.dumps(values["inputs"], sort_keys=True).encode()
    flags = _with_effect(values["flags"])
    return {f"--{name}": value for name, value in flags.items()} | {
        "the vocabulary": values["vocabulary_hash"],
        "the text": hashlib.sha256(text).hexdigest(),
        "the number of files": values["num_output_files"],
        "the version of the records": values["version"],
    }


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of a data set: its recipe, and the files made from it.

    Attributes:
      version: Version of the algorithms that made the records.
      flags: Final values of all flags that can change the records.
      num_output_files: Number of files in `--output_file`.
      vocabulary_hash: `Vocabulary.hash`.
      inputs: "name", "bytes" and "sha256" of each text file, in order.
      fingerprint: A hash of the above, equal for equal records.
      vocab_size: Lines of the vocabulary.
      files: Counts of "records" and "bytes" by record file. `write` takes and
        `find` returns paths; a stored manifest has paths relative to itself.
      counts: `RecordCounts.to_dict` over all records.
      random_next_share: Share of records with a random second segment.
      source: Path of the manifest; not stored.
    """

    version: int
    flags: dict[str, Any]
    num_output_files: int
    vocabulary_hash: str
    inputs: list[dict[str, Any]]
    fingerprint: str
    generator: str
    seed: int
    vocab_size: int
    do_lower_case: bool
    strip_accents: bool
    max_seq_length: int
    max_predictions_per_seq: int
    files: dict[str, dict[str, int]]
    num_documents: int
    num_sentences: int
    counts: dict[str, Any]
    random_next_share: float
    source: str = ""

    @property
    def vocab_file(self) -> str:
        """Path of the vocabulary copy next to the manifest."""
        return vocabulary_path(self.source.removesuffix(".manifest.json"))

    def write(self, output_file: str) -> None:
        """Writes the manifest of `output_file`, atomically.

        The stored names of files are relative, so a folder can be moved.
        """
        path = manifest_path(output_file)
        values = dataclasses.asdict(self)
        del values["source"]
        values["files"] = {
            relative_name(record_file, path): entry
            for record_file, entry in self.files.items()
        }
        bert_files.write_json(path, {"format": FORMAT, **values})

    def check_vocabulary(self, vocabulary_hash: str, vocab_file: str) -> None:
        """Raises `UserError`, with both hashes, for another vocabulary."""
        if vocabulary_hash != self.vocabulary_hash:
            raise UserError(
                "The records were made with another vocabulary: "
                f"{self.source} has vocabulary hash {self.vocabulary_hash}, "
                f"{vocab_file} has {vocabulary_hash}; train with "
                f"{self.vocab_file} or create the records again."
            )


def build_recipe(
    config: Flags,
    input_files: Sequence[str],
    num_output_files: int,
    vocabulary_hash: str,
) -> dict[str, Any]:
    """Returns the attributes of a `Manifest` from `version` to `fingerprint`.

    Reads the text once to hash it.
    """
    # Leave out flags that do not change the records, such as Beam's flags.
    without_effect = fields_affecting(type(config), "nothing")
    recipe = {
        "version": _VERSION,
        "flags": {
            flag: value
            for flag, value in dataclasses.asdict(config).items()
            if flag not in without_effect and value != _ADDED.get(flag)
        },
        "num_output_files": num_output_files,
        "vocabulary_hash": vocabulary_hash,
        "inputs": _hash_files(input_files),
    }
    hashed = recipe | {"flags": _with_effect(recipe["flags"])}
    text = json.dumps(hashed, sort_keys=True)
    return recipe | {"fingerprint": hashlib.sha256(text.encode()).hexdigest()}


def _hash_files(paths: Sequence[str]) -> list[dict[str, Any]]:
    total = corpus.count_bytes(paths)
    with progress.bar(total, "checking the input", "B") as bar:
        return [
            {
                "name": os.path.basename(path),
                "bytes": bert_files.size(path),
                "sha256": bert_files.sha256(path, bar.update),
            }
            for path in paths
        ]


def read(output_file: str) -> Manifest | None:
    """Returns the manifest of an output file, or None if it has none.

    Raises `UserError` if the file is not a manifest of this version.
    """
    path = manifest_path(output_file)
    if not bert_files.exists(path):
        return None
    values = bert_files.read_json(path)
    expected = {field.name for field in dataclasses.fields(Manifest)}
    expected -= {"source"}
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise UserError(
            f"{path} is not a manifest of pretraining records; move it, or "
            "create the records again."
        )
    if set(values) != expected:
        wrong = ", ".join(sorted(set(values) ^ expected))
        raise UserError(
            f"{path} was written by another version of bert_tf: these keys are "
            f"missing or unknown: {wrong}; create the records again."
        )
    return Manifest(**values, source=path)


def find(record_files: Sequence[str]) -> Manifest | None:
    """Returns the combined manifest of record files; None if no file has one.

    Ignores files without a manifest, such as google-research/bert's records. In
    the result, `files` has only `record_files`, counts are added up over data
    sets, and `flags` has only the flags that are equal in all data sets.

    Raises:
      UserError: If the data sets differ in vocabulary, handling of case and
        accents, or lengths, or if a manifest is damaged.
    """
    read_once = functools.cache(read)
    # Several files may share a manifest. Add its counts only once.
    distinct, entries, without = {}, {}, []
    for path in record_files:
        # Shards have one manifest; its name is theirs without the numbers.
        manifest = read_once(_SHARD.sub(r"\1\2", path)) or read_once(path)
        if manifest:
            name = relative_name(path, manifest.source)
            if name not in manifest.files:
                raise UserError(
                    f"{path} is not one of the files that {manifest.source} "
                    "describes; restore its old name, or move it to another "
                    "folder."
                )
            entries[path] = manifest.files[name]
            distinct[manifest.fingerprint] = manifest
        else:
            without.append(path)
    if not distinct:
        return None
    if without:
        logging.warning(
            "%d of %d record files have no manifest and cannot be checked; the "
            "first one is %s.",
            len(without),
            len(record_files),
            without[0],
        )
    return dataclasses.replace(_combine(list(distinct.values())), files=entries)


def relative_name(path: str, manifest_file: str) -> str:
    """Returns a record file's path relative to its manifest."""
    return os.path.relpath(path, os.path.dirname(manifest_file) or ".")


def _combine(manifests: Sequence[Manifest]) -> Manifest:
    first, *others = manifests
    for other in others:
        for field in _MUST_AGREE:
            value, another = getattr(first, field), getattr(other, field)
            if value != another:
                raise UserError(
                    "The record files were made in different ways and cannot "
                    f"be used together: {field} is {value} in {first.source} "
                    f"but {another} in {other.source}; create them again with "
                    "the same flags."
                )
    counts = RecordCounts()
    for manifest in manifests:
        counts.add(RecordCounts.from_dict(manifest.counts))
    return dataclasses.replace(
        first,
        fingerprint="+".join(manifest.fingerprint for manifest in manifests),
        flags={
            flag: value
            for flag, value in first.flags.items()
            if all(other.flags.get(flag) == value for other in others)
        },
        inputs=[file for manifest in manifests for file in manifest.inputs],
        num_documents=sum(manifest.num_documents for manifest in manifests),
        num_sentences=sum(manifest.num_sentences for manifest in manifests),
        counts=counts.to_dict(),
        random_next_share=counts.random_next_share,
    )
