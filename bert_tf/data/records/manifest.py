"""The manifest beside a data set: what it was made of, and with which flags.

It lies at `<output_file>.manifest.json`; the shards of `wiki.tfrecord`, named
`wiki-00000-of-00010.tfrecord` and so on, share that of `wiki.tfrecord`. A copy
of the vocabulary lies at `<output_file>.vocab.txt`.
"""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records.recipe import Recipe
from bert_tf.errors import UserError
from bert_tf.io import files as bert_files

_FORMAT = "bert_tf pretraining data"
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.[^/.]+)?")
# Records that differ in one of these cannot be trained on together.
_MUST_AGREE = (
    "vocabulary_hash",
    "do_lower_case",
    "strip_accents",
    "max_seq_length",
    "max_predictions_per_seq",
)


def manifest_path(output_file: str) -> str:
    """Returns where the manifest of an output file lies."""
    return f"{output_file}.manifest.json"


def shard_path(output_file: str, shard: int, num_shards: int) -> str:
    """Returns the name of one shard; it ends as the output file does.

    So a glob such as `*.tfrecord` finds shards and single files alike.
    """
    stem, ending = os.path.splitext(output_file)
    return f"{stem}-{shard:05d}-of-{num_shards:05d}{ending}"


def vocabulary_path(output_file: str) -> str:
    """Returns where the vocabulary copy of an output file lies."""
    return f"{output_file}.vocab.txt"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is known of a data set.

    Attributes:
      version: As in `Recipe`, and so are the next four.
      flags: All flags, resolved.
      num_output_files: How many files `--output_file` names.
      vocabulary_hash: `Vocabulary.hash` of the vocabulary.
      inputs: Per text file its name, size in bytes and SHA-256.
      fingerprint: `Recipe.fingerprint`: equal where the records are.
      generator: Which algorithm made it.
      seed: `--random_seed`.
      vocab_size: Lines of the vocabulary.
      do_lower_case: Whether the text was lower-cased.
      strip_accents: Whether accents were stripped.
      max_seq_length: Length of a sequence, in pieces.
      max_predictions_per_seq: Most predictions in a sequence.
      files: Record file to {"records": number, "bytes": number}. In the stored
        manifest the names are relative to it; `write` takes and `find` returns
        paths.
      num_documents: Documents of the corpus.
      num_sentences: Sentences in them.
      counts: `RecordCounts.to_dict` over all records.
      random_next_share: Share of records whose second segment is random.
      source: Path the manifest was read from; not stored.
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
        """Path of the vocabulary copy beside the manifest."""
        return vocabulary_path(self.source.removesuffix(".manifest.json"))

    @property
    def recipe(self) -> Recipe:
        """What the data set was made from."""
        fields = dataclasses.fields(Recipe)
        return Recipe(
            **{field.name: getattr(self, field.name) for field in fields}
        )

    def write(self, output_file: str) -> None:
        """Writes the manifest of `output_file`, atomically.

        `files` must be keyed by path; relative to the manifest they are stored,
        so that a folder of data can be moved.
        """
        path = manifest_path(output_file)
        values = dataclasses.asdict(self)
        del values["source"]
        values["files"] = {
            _relative_name(record_file, path): entry
            for record_file, entry in self.files.items()
        }
        bert_files.write_json(path, {"format": _FORMAT, **values})

    def check_vocabulary(self, vocabulary_hash: str, vocab_file: str) -> None:
        """Checks that a model's vocabulary is the one the data was made with.

        Raises:
          UserError: If it is not; it names both.
        """
        if vocabulary_hash != self.vocabulary_hash:
            raise UserError(
                "The records were made with another vocabulary than the one "
                f"given: {self.source} names vocabulary hash "
                f"{self.vocabulary_hash}, {vocab_file} has {vocabulary_hash}; "
                f"train with {self.vocab_file} or make the records again."
            )


def read(output_file: str) -> Manifest | None:
    """Returns the manifest of an output file, if it has one.

    Raises:
      UserError: If what lies there is no manifest.
    """
    path = manifest_path(output_file)
    if not tf.io.gfile.exists(path):
        return None
    values = bert_files.read_json(path)
    known = {field.name for field in dataclasses.fields(Manifest)} - {"source"}
    if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
        raise UserError(
            f"{path} is not the manifest of pretraining records; move it away, "
            "or make the records again."
        )
    if set(values) != known:
        wrong = ", ".join(sorted(set(values) ^ known))
        raise UserError(
            f"{path} was written by another version of bert_tf: these keys are "
            f"missing or unknown: {wrong}; make the records again."
        )
    return Manifest(**values, source=path)


def find(record_files: Sequence[str]) -> Manifest | None:
    """Returns what the manifests beside record files say of them together.

    Files without a manifest, for instance those of google-research/bert, are
    passed over.

    Args:
      record_files: Paths of record files, of one data set or of several.

    Returns:
      The manifest, or None if none of the files has one. `files` holds the
      given files alone, by the given path. Of several data sets the counts are
      added up, and `flags` keeps what they have in common.

    Raises:
      UserError: If the data sets differ in vocabulary, treatment of case and
        accents or lengths, or if a manifest is damaged.
    """
    manifests: dict[str, Manifest | None] = {}
    entries = {}
    without = []
    for path in record_files:
        manifest = _find_one(path, manifests)
        if manifest:
            entries[path] = _entry(manifest, path)
        else:
            without.append(path)
    # Files that one command made each have the same manifest.
    found = {
        manifest.fingerprint: manifest
        for manifest in manifests.values()
        if manifest
    }
    if not found:
        return None
    if without:
        logging.warning(
            "%d of %d record files have no manifest, so nothing about them can "
            "be checked; the first is %s.",
            len(without),
            len(record_files),
            without[0],
        )
    return dataclasses.replace(_combine(list(found.values())), files=entries)


def _find_one(
    path: str, manifests: dict[str, Manifest | None]
) -> Manifest | None:
    """Looks beside one record file; `manifests` keeps what was read."""
    shard = _SHARD.fullmatch(path)
    whole = [shard[1] + (shard[2] or "")] if shard else []
    for output_file in [*whole, path]:
        if output_file not in manifests:
            manifests[output_file] = read(output_file)
        if manifests[output_file]:
            return manifests[output_file]
    return None


def _entry(manifest: Manifest, path: str) -> dict[str, int]:
    name = _relative_name(path, manifest.source)
    if name not in manifest.files:
        raise UserError(
            f"{path} is not one of the files that {manifest.source} describes; "
            "give it its old name again, or move it elsewhere."
        )
    return manifest.files[name]


def _relative_name(path: str, manifest_file: str) -> str:
    return os.path.relpath(path, os.path.dirname(manifest_file) or ".")


def _combine(manifests: Sequence[Manifest]) -> Manifest:
    """Adds up manifests of several data sets that fit together."""
    first, *others = manifests
    for other in others:
        for field in _MUST_AGREE:
            mine, theirs = getattr(first, field), getattr(other, field)
            if mine != theirs:
                raise UserError(
                    "The record files were made in different ways and cannot "
                    f"be used together: {field} is {mine} in {first.source} "
                    f"but {theirs} in {other.source}; make them again alike."
                )
    if not others:
        return first
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
