"""Extraction of chunks into parts, for worker processes.

A part is a file with a chunk's documents, their fingerprints and a `Tally`.
"""

import dataclasses
import functools
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from bert_tf.corpus import filters
from bert_tf.corpus import fingerprints
from bert_tf.corpus import inputs
from bert_tf.corpus import readers
from bert_tf.corpus import wikipedia
from bert_tf.corpus.documents import Chunk
from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Dropped
from bert_tf.corpus.documents import Tally
from bert_tf.corpus.fingerprints import Fingerprints
from bert_tf.flags.options import Flags
from bert_tf.io import compression
from bert_tf.io import files

# Increase this if extraction changes, or else a run reuses outdated parts.
_VERSION = 4
# If one of these flags changes, all chunks are extracted again.
_FLAGS = (
    "text_column",
    "id_column",
    "replace_invalid_utf8",
    "fix_encoding",
    "min_paragraph_length",
    "min_letter_share",
    "min_document_length",
    "languages",
)


def part_path(folder: str, key: str) -> str:
    """Returns the file of a part; `key` is the result of `part_key`."""
    return os.path.join(folder, f"{key}.npz")


def _write_part(
    path: str,
    documents: Sequence[Document],
    prints: Fingerprints,
    tally: Tally,
) -> None:
    lines = (
        json.dumps([x.id, *x.paragraphs], ensure_ascii=False) for x in documents
    )
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    counts = json.dumps(tally.to_json()).encode()
    arrays = {
        **vars(prints),
        "text": np.frombuffer(gzip.compress(text, 1, mtime=0), np.uint8),
        "tally": np.frombuffer(counts, np.uint8),
    }
    with files.atomic_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def read_documents(path: str) -> list[Document]:
    """Returns the documents of a part."""
    with np.load(path, allow_pickle=False) as arrays:
        text = gzip.decompress(arrays["text"].tobytes())
    rows = map(json.loads, filter(None, text.split(b"\n")))
    return [Document(name, tuple(paragraphs)) for name, *paragraphs in rows]


def read_findings(path: str) -> tuple[Fingerprints, Tally]:
    """Returns the fingerprints of a part, and the tally of dropped texts."""
    with np.load(path, allow_pickle=False) as arrays:
        tally = Tally.from_json(json.loads(arrays["tally"].tobytes()))
        names = arrays.keys() - {"text", "tally"}
        return Fingerprints(**{name: arrays[name] for name in names}), tally


@dataclasses.dataclass(frozen=True)
class ExtractOptions:
    """The flags and the excluded text, on which the parts depend.

    Attributes:
      config: The flags; parts depend only on `_FLAGS`.
      excluded_file: An .npy file of hashes of 13-grams to exclude, or None.
      excluded_hash: A hash of the contents of this file, or None.
    """

    config: Flags
    excluded_file: str | None = None
    excluded_hash: str | None = None

    @property
    def with_signatures(self) -> bool:
        """True if near duplicates are dropped, which needs signatures."""
        return self.config.near_duplicate_threshold > 0


def part_key(chunk: Chunk, options: ExtractOptions) -> str:
    """Returns a hash of everything that a part depends on.

    Equal chunks of different files share a part. So if a complete file replaces
    a truncated file, the chunks that both contain are not extracted again.
    """
    digest = hashlib.blake2b(digest_size=16)
    settings = [getattr(options.config, name) for name in _FLAGS]
    settings += [options.with_signatures, options.excluded_hash]
    digest.update(json.dumps([_VERSION, chunk.format, settings]).encode())
    if chunk.format == "parquet":
        contents = f"{files.fingerprint(chunk.path)} {chunk.payload}".encode()
    else:
        contents = chunk.payload
    for data in (chunk.header, contents):
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()


def extract(chunk: Chunk, options: ExtractOptions, path: str) -> None:
    """Writes the part of a chunk; raises `UserError` if its format is wrong."""
    kept, tally = [], Tally()
    for document in _read(chunk, options):
        if isinstance(document, Dropped):
            tally.add(document)
            continue
        cleaned, dropped = filters.clean(document, options.config)
        if cleaned and options.excluded_file:
            hashes = _load(options.excluded_file)
            if filters.is_excluded(cleaned, hashes):
                text = "\n".join(cleaned.paragraphs)
                dropped.append(Dropped(cleaned.id, filters.EXCLUDED, text))
                cleaned = None
        for one in dropped:
            tally.add(one)
        if cleaned:
            kept.append(cleaned)
    computed = fingerprints.compute(kept, options.with_signatures)
    _write_part(path, kept, computed, tally)


def _read(
    chunk: Chunk, options: ExtractOptions
) -> Iterator[Document | Dropped]:
    config = options.config
    replace_invalid = config.replace_invalid_utf8
    columns = config.text_column, config.id_column
    if chunk.format == "wikipedia":
        return wikipedia.read(chunk, replace_invalid)
    if chunk.format == "jsonl":
        return readers.read_jsonl(chunk, *columns, replace_invalid)
    if chunk.format == "parquet":
        return readers.read_parquet(chunk, *columns)
    return readers.read_text(chunk, replace_invalid)


# === With Apache Beam ===


def extract_on_beam(
    found: Sequence[inputs.InputFile],
    options: ExtractOptions,
    folder: str,
    work_dir: str,
) -> list[tuple[str, str]]:
    """Extracts the chunks that have no part yet; returns (part, language).

    Workers and launcher share the work folder, in which the workers list the
    parts of each file. Raises `UserError` for unsuitable input, a full disk or
    a wrong option of Beam.
    """
    # Imported here because Apache Beam is optional.
    from bert_tf.distribute import beam_runner

    num_bytes = sum(compression.stored_size(file.path) for file in found)
    beam_runner.run(
        options.config,
        work_dir,
        f"Extracting text from {num_bytes / 1e6:.1f} MB of {len(found)} files",
        enumerate(found),
        functools.partial(_cut, options, folder, work_dir),
        functools.partial(_extract_missing, options),
    )
    return [
        (part_path(folder, key), file.language)
        for number, file in enumerate(found)
        for key in files.read_json(_list_path(work_dir, number))
    ]


def _list_path(work_dir: str, file: int) -> str:
    return os.path.join(work_dir, "lists", f"file-{file:06d}.json")


def _cut(
    options: ExtractOptions,
    folder: str,
    work_dir: str,
    element: tuple[int, inputs.InputFile],
) -> Iterator[tuple[Chunk, str]]:
    """Yields a file's chunks without a part; stores the keys of all chunks."""
    number, file = element
    keys = []
    for chunk in inputs.split(file):
        keys.append(part_key(chunk, options))
        path = part_path(folder, keys[-1])
        if not os.path.exists(path):
            yield chunk, path
    files.write_json(_list_path(work_dir, number), keys)


def _extract_missing(
    options: ExtractOptions, element: tuple[Chunk, str]
) -> None:
    chunk, path = element  # An earlier attempt may have written the part.
    if not os.path.exists(path):
        extract(chunk, options, path)


@functools.cache
def _load(path: str) -> np.ndarray:
    return np.load(os.path.abspath(path))
