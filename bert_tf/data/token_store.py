"""The token store: a tokenized corpus on disk, as memory-mapped flat arrays.

The store is four files in one folder, little endian:

    tokens.bin            <uint16 or int32>[tokens]
    sentence_offsets.bin  <int64>[sentences + 1], first token of a sentence
    document_offsets.bin  <int64>[documents + 1], first sentence of a document
    long_documents.npy    <int64>[n, 3], see `TokenStore.span`

Sentences and documents without a token are left out. `progress.json` stores how
much of each file is valid. A killed writer may have appended more, which the
next writer cuts off. TensorFlow is not imported, so workers start at once.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterator

import numpy as np

from bert_tf.io import files

# Longer documents are processed in spans of about this many tokens, so that
# text without blank lines fits in memory. A long novel has 200,000 tokens.
MAX_TOKENS_PER_PASS = 1 << 18
_FILES = ("tokens.bin", "sentence_offsets.bin", "document_offsets.bin")
_LONG_DOCUMENTS = "long_documents.npy"
PROGRESS_FILE = "progress.json"
# Process this number of documents at once, to bound memory.
_DOCUMENTS_PER_BLOCK = 1 << 18


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds the ids of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


@dataclasses.dataclass
class Progress:
    """Counts of the lines read and of the contents of the store.

    `last_document` is the number in the corpus of the document that has the
    last sentence; -1 for an empty store.
    """

    lines: int = 0
    last_document: int = -1
    tokens: int = 0
    sentences: int = 0
    documents: int = 0
    complete: bool = False


def read_progress(folder: str) -> Progress:
    """Returns the stored progress of an earlier run, or all zeros."""
    path = os.path.join(folder, PROGRESS_FILE)
    return Progress(**files.read_json(path) if files.exists(path) else {})


class TokenStoreWriter:
    """Appends sentences; resumes where an earlier writer last saved.

    Attributes:
      progress: Counts of the contents; `save` and `finish` store them on disk.
    """

    def __init__(self, folder: str, vocab_size: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._dtype = token_dtype(vocab_size)
        self.progress = read_progress(folder)
        sizes = (
            self.progress.tokens * self._dtype.itemsize,
            self.progress.sentences * 8,
            self.progress.documents * 8,
        )
        self._files = []
        for name, size in zip(_FILES, sizes, strict=True):
            file = open(os.path.join(folder, name), "ab")  # noqa: SIM115
            file.truncate(size)
            self._files.append(file)

    def append(
        self, tokens: np.ndarray, lengths: np.ndarray, documents: np.ndarray
    ) -> None:
        """Appends sentences.

        Args:
          tokens: <int>[sum(lengths)], all tokens concatenated.
          lengths: <int64>[sentences]; sentences without tokens are skipped.
          documents: <int64>[sentences]: the document number of each sentence
            in the corpus, ascending.
        """
        kept = lengths > 0
        lengths, documents = lengths[kept], documents[kept]
        if not len(lengths):
            return
        progress = self.progress
        before = np.concatenate(([progress.last_document], documents[:-1]))
        begins = np.flatnonzero(documents != before)
        offsets = progress.tokens + np.cumsum(lengths) - lengths
        self._write(0, tokens.astype(self._dtype))
        self._write(1, offsets)
        self._write(2, progress.sentences + begins)
        progress.tokens += len(tokens)
        progress.sentences += len(lengths)
        progress.documents += len(begins)
        progress.last_document = int(documents[-1])

    def _write(self, file: int, values: np.ndarray) -> None:
        dtype = "<i8" if file else self._dtype
        self._files[file].write(np.ascontiguousarray(values, dtype).data)

    def save(self) -> None:
        """Makes the appended sentences permanent."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        path = os.path.join(self._folder, PROGRESS_FILE)
        files.write_json(path, dataclasses.asdict(self.progress))

    def finish(self) -> None:
        """Marks the store as complete and closes it."""
        progress = self.progress
        self._write(1, np.array([progress.tokens]))
        self._write(2, np.array([progress.sentences]))
        for file in self._files:
            file.flush()
        store = TokenStore(self._folder, self._dtype, np.zeros((0, 3), "<i8"))
        long_documents = list(_long_documents(store))
        np.save(
            os.path.join(self._folder, _LONG_DOCUMENTS),
            np.array(long_documents, "<i8").reshape(-1, 3),
        )
        progress.complete = True
        self.save()
        self.close()

    def close(self) -> None:
        """Closes the files and discards sentences that were not saved."""
        for file in self._files:
            file.close()


class TokenStore:
    """A finished, memory-mapped store.

    Attributes:
      tokens: <uint16 or int32>[tokens].
      sentence_offsets: <int64>[sentences + 1].
      document_offsets: <int64>[documents + 1].
      num_passes: Number of spans in the corpus.
    """

    def __init__(
        self, folder: str, dtype: np.dtype, long_documents: np.ndarray
    ) -> None:
        # View the maps as plain arrays, because slicing an np.memmap is slow.
        self.tokens, self.sentence_offsets, self.document_offsets = (
            np.memmap(os.path.join(folder, name), kind, "r").view(np.ndarray)
            for name, kind in zip(_FILES, (dtype, "<i8", "<i8"), strict=True)
        )
        self._long_documents = long_documents
        self._first_cuts = {
            document: first
            for document, first, _ in reversed(long_documents.tolist())
        }
        self.num_passes = self.num_documents + len(long_documents)

    @classmethod
    def open(cls, folder: str, vocab_size: int) -> "TokenStore":
        long_documents = np.load(os.path.join(folder, _LONG_DOCUMENTS))
        return cls(folder, token_dtype(vocab_size), long_documents)

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    def span(self, number: int) -> tuple[int, int, int]:
        """Returns a span's document, first sentence, and end (exclusive).

        Span i < num_documents is document i, or the start of long document i.
        The remaining spans of long documents follow. If document 0 of 2 is cut
        into three spans, spans 0, 1, 2 and 3 are in documents 0, 1, 0 and 0.
        """
        extra = number - self.num_documents
        if extra >= 0:
            document, first, stop = self._long_documents[extra].tolist()
            return document, first, stop
        first, stop = self.document_offsets[number : number + 2].tolist()
        return number, first, self._first_cuts.get(number, stop)


def _long_documents(store: TokenStore) -> Iterator[tuple[int, int, int]]:
    """Yields (document, first, stop) of the later spans of long documents."""
    offsets = store.sentence_offsets
    for block in range(0, store.num_documents, _DOCUMENTS_PER_BLOCK):
        firsts = store.document_offsets[
            block : block + _DOCUMENTS_PER_BLOCK + 1
        ]
        tokens = np.diff(offsets[firsts])
        for index in np.flatnonzero(tokens > MAX_TOKENS_PER_PASS).tolist():
            first, stop = firsts[index : index + 2].tolist()
            goals = np.arange(
                offsets[first] + MAX_TOKENS_PER_PASS,
                offsets[stop],
                MAX_TOKENS_PER_PASS,
            )
            cuts = first + np.searchsorted(offsets[first:stop], goals)
            cuts = np.unique(np.append(cuts, stop)).tolist()
            for start, end in itertools.pairwise(cuts):
                yield block + index, start, end
