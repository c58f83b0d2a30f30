"""Writes the documents that remain, for worker processes."""

import contextlib
import dataclasses
import gzip
import itertools
import os
from collections.abc import Iterator
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from bert_tf.corpus import extraction
from bert_tf.corpus.documents import Document
from bert_tf.corpus.documents import Dropped
from bert_tf.corpus.judging import REASONS
from bert_tf.corpus.judging import Decisions
from bert_tf.io import files


@dataclasses.dataclass(frozen=True)
class Judged:
    """A corpus and the decisions on it, in files that all processes read.

    `folder` has the arrays; `parts` are the paths of the parts, in order.
    """

    folder: str
    parts: Sequence[str]

    def store(self, name: str, array: np.ndarray) -> None:
        with files.atomic_file(self._path(name)) as temporary:
            with open(temporary, "wb") as file:
                np.save(file, array)

    def load(self, name: str) -> np.ndarray:
        return np.load(self._path(name), mmap_mode="r")

    def store_decisions(
        self,
        decisions: Decisions,
        num_paragraphs: np.ndarray,
        part_sizes: Sequence[int],
    ) -> None:
        self.store("documents", decisions.documents)
        self.store("paragraphs", decisions.paragraphs)
        for name, counts in (
            ("first_paragraph", num_paragraphs),
            ("first_document", part_sizes),
        ):
            self.store(name, np.append(0, np.cumsum(counts, dtype=np.int64)))

    def read(
        self, order: np.ndarray
    ) -> Iterator[tuple[int, Document, np.ndarray]]:
        """Yields (position, document, decision on each paragraph, uint8).

        The positions `order` in the corpus should ascend, so that each part's
        file is read only once.
        """
        first_document = self.load("first_document")
        first_paragraph = self.load("first_paragraph")
        paragraphs = self.load("paragraphs")
        numbers = np.searchsorted(first_document, order, side="right") - 1
        pairs = zip(numbers.tolist(), order.tolist(), strict=True)
        for number, group in itertools.groupby(pairs, lambda pair: pair[0]):
            documents = extraction.read_documents(self.parts[number])
            for _, position in group:
                start, stop = first_paragraph[position : position + 2]
                document = documents[position - int(first_document[number])]
                yield position, document, paragraphs[start:stop]

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.npy")


@dataclasses.dataclass
class Written:
    """Counts of an output file."""

    documents: int = 0
    paragraphs: int = 0
    characters: int = 0


def write(
    judged: Judged, order: str, start: int, stop: int, path: str
) -> Written:
    """Writes the documents at `order[start:stop]`, one paragraph a line.

    `order` names a stored array of positions. The file appears when it is
    complete; for .gz it is compressed.
    """
    written = Written()
    with files.atomic_file(path) as temporary, _open(temporary, path) as file:
        positions = judged.load(order)[start:stop]
        for _, document, decisions in judged.read(positions):
            kept = [*itertools.compress(document.paragraphs, decisions == 0)]
            text = "\n".join(kept)
            separator = "\n" if written.documents else ""
            file.write(f"{separator}{text}\n".encode())
            written.documents += 1
            written.paragraphs += len(kept)
            written.characters += sum(map(len, kept))
    return written


@contextlib.contextmanager
def _open(temporary: str, path: str) -> Iterator[BinaryIO]:
    with open(temporary, "wb") as stored:
        if not path.endswith(".gz"):
            yield stored
            return
        # Write no name or time, so that equal text gives equal gzip bytes.
        with gzip.GzipFile("", "wb", 6, stored, mtime=0) as file:
            yield file


def dropped_at(
    judged: Judged,
    documents: Sequence[int],
    paragraphs: Sequence[int],
) -> Iterator[Dropped]:
    """Yields the dropped documents and paragraphs at the given positions."""
    first_paragraph = judged.load("first_paragraph")
    reasons = judged.load("documents")
    positions = np.array(documents, np.int64)
    for position, document, _ in judged.read(np.sort(positions)):
        reason = REASONS[reasons[position]]
        yield Dropped(document.id, reason, "\n".join(document.paragraphs))
    wanted = np.sort(np.array(paragraphs, np.int64))
    owners = np.searchsorted(first_paragraph, wanted, side="right") - 1
    found = zip(wanted.tolist(), judged.read(owners), strict=True)
    for paragraph, (position, document, decisions) in found:
        index = paragraph - int(first_paragraph[position])
        reason = REASONS[decisions[index]]
        yield Dropped(document.id, reason, document.paragraphs[index])
