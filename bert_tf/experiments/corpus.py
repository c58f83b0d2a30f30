"""Divides --corpus into text to pretrain on and text for perplexities.

Each document goes to one of them by a hash of its text, so that a document that
occurs twice is never in both.
"""

import dataclasses
import glob
import gzip
import hashlib
import os
from collections.abc import Iterator
from collections.abc import Sequence
from typing import IO

from bert_tf.errors import UserError
from bert_tf.experiments import jobs
from bert_tf.io import files
from bert_tf.io import paths

HELD_OUT_SHARE = 0.02
_MEGABYTE = 1e6
TRAIN_FILE, HELD_OUT_FILE = "train.txt", "heldout.txt"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The two files of a corpus.

    Attributes:
      folder: Their folder, with `jobs.OUT` and a hash of what they hold.
      sizes: Bytes of each file by its name.
    """

    folder: str
    sizes: dict[str, int]

    def path(self, name: str) -> str:
        """Returns the path of a file, with `jobs.OUT`."""
        return f"{self.folder}/{name}"


def find_files(patterns: str) -> list[str]:
    """Returns the files that comma-separated globs match, in sorted order.

    Raises:
      UserError: If a glob matches no file.
    """
    found: dict[str, None] = {}
    for pattern in patterns.split(","):
        matches = sorted(filter(os.path.isfile, glob.glob(pattern.strip())))
        if not matches:
            raise paths.no_match(pattern, "--corpus")
        found.update(dict.fromkeys(matches))
    return list(found)


def prepare(
    names: Sequence[str],
    sums: Sequence[str],
    output_dir: str,
    megabytes: float | None,
    held_out_megabytes: float,
) -> Corpus:
    """Returns the two files, which are written if they do not exist.

    They do not depend on the order of the files.

    Args:
      names: The files of the corpus.
      sums: Their SHA-256.
      output_dir: The folder of the experiments.
      megabytes: The most text to pretrain on; None uses all.
      held_out_megabytes: The most text to hold out, besides its share.

    Raises:
      UserError: If there are fewer than two documents.
    """
    files_sums = sorted(
        zip(names, sums, strict=True),
        key=lambda x: (os.path.basename(x[0]), x[1]),
    )
    names, sums = zip(*files_sums, strict=True)
    content = [list(sums), megabytes, held_out_megabytes, HELD_OUT_SHARE]
    name = f"corpus-{jobs.digest(content)}"
    folder = os.path.join(output_dir, "data", name)
    targets = [os.path.join(folder, x) for x in (HELD_OUT_FILE, TRAIN_FILE)]
    if not all(map(os.path.exists, targets)):
        limits = _choose(names, megabytes, held_out_megabytes)
        _write(names, limits, targets)
    sizes = {os.path.basename(x): os.path.getsize(x) for x in targets}
    return Corpus(f"{jobs.OUT}/data/{name}", sizes)


def _choose(
    names: Sequence[str], megabytes: float | None, held_out_megabytes: float
) -> tuple[float, float]:
    """Returns the places below which a document is held out, or trained on."""
    documents = sorted(
        {_place(text): len(text) for text in _documents(names)}.items()
    )
    if len(documents) < 2:
        raise UserError(
            "--corpus must hold at least two documents, with a blank line "
            "between them, as one is held out for perplexities. Received: "
            f"{len(documents)} in {', '.join(names)}."
        )
    total = sum(size for _, size in documents)
    held_out = min(held_out_megabytes * _MEGABYTE, HELD_OUT_SHARE * total)
    first = _border(documents, 0, held_out)
    most = total if megabytes is None else megabytes * _MEGABYTE
    last = _border(documents, first, most)
    return documents[first][0], documents[last - 1][0]


def _border(
    documents: Sequence[tuple[float, int]], first: int, size: float
) -> int:
    """Returns the index after the documents with this many bytes, at least 1.

    One document is left over, too.
    """
    used, index = 0, first
    while index < len(documents) and (index == first or used < size):
        used += documents[index][1]
        index += 1
    return min(index, len(documents) - 1) if first == 0 else index


def _write(
    names: Sequence[str], limits: tuple[float, float], targets: Sequence[str]
) -> None:
    border, last = limits
    with (
        files.local_file(targets[0]) as held_out_path,
        files.local_file(targets[1]) as train_path,
        open(held_out_path, "wb") as held_out,
        open(train_path, "wb") as train,
    ):
        for text in _documents(names):
            place = _place(text)
            if place <= last:
                file = held_out if place < border else train
                file.write(text + b"\n")


def _documents(names: Sequence[str]) -> Iterator[bytes]:
    """Yields documents: lines up to a blank one, or the end of a file."""
    for name in names:
        lines: list[bytes] = []
        with _open(name) as file:
            for line in file:
                if line.strip():
                    lines.append(line.rstrip(b"\r\n") + b"\n")
                elif lines:
                    yield b"".join(lines)
                    lines = []
        if lines:
            yield b"".join(lines)


def _open(name: str) -> IO[bytes]:
    return gzip.open(name) if name.endswith(".gz") else open(name, "rb")


def _place(text: bytes) -> float:
    """Returns a number from 0 to 1 that depends on a document's text alone."""
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48
