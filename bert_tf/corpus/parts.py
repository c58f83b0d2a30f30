"""Parts: the documents of a chunk, with fingerprints and counts, in a file."""

import dataclasses
import gzip
import json
import os
from collections.abc import Sequence

import numpy as np

from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Tally
from bert_tf.corpus.fingerprints import Fingerprints
from bert_tf.io import files

_FINGERPRINTS = [field.name for field in dataclasses.fields(Fingerprints)]


@dataclasses.dataclass
class Part:
    """A chunk that was extracted.

    Attributes:
      key: Name of its file: a hash of the chunk and of the flags.
      language: As in --input_file=de=GLOB; else "".
      num_documents: Known when the part has been read.
    """

    key: str
    language: str
    num_documents: int = 0


def part_path(folder: str, key: str) -> str:
    """Returns the file of a part."""
    return os.path.join(folder, f"{key}.npz")


def write(
    path: str,
    documents: Sequence[Document],
    fingerprints: Fingerprints,
    tally: Tally,
) -> None:
    """Writes a part; the file appears whole."""
    lines = (
        json.dumps([x.id, *x.paragraphs], ensure_ascii=False) for x in documents
    )
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    counts = json.dumps(tally.to_json()).encode()
    arrays = {
        **fingerprints.arrays(),
        "text": np.frombuffer(gzip.compress(text, 1, mtime=0), np.uint8),
        "tally": np.frombuffer(counts, np.uint8),
    }
    with files.local_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def read_documents(path: str) -> list[Document]:
    """Returns the documents of a part."""
    with np.load(path, allow_pickle=False) as arrays:
        text = gzip.decompress(arrays["text"].tobytes())
    documents = []
    for line in text.split(b"\n"):
        if line:
            name, *paragraphs = json.loads(line)
            documents.append(Document(name, tuple(paragraphs)))
    return documents


def read_fingerprints(path: str) -> Fingerprints:
    """Returns the fingerprints of a part."""
    with np.load(path, allow_pickle=False) as arrays:
        return Fingerprints(**{name: arrays[name] for name in _FINGERPRINTS})


def read_tally(path: str) -> Tally:
    """Returns what was dropped from a chunk."""
    with np.load(path, allow_pickle=False) as arrays:
        return Tally.from_json(json.loads(arrays["tally"].tobytes()))
