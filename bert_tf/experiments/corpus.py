"""Divides --corpus into text to pretrain on and text for perplexities.

Each document goes to one of them by a hash of its text, so that a document that
occurs twice is never in both.
"""

import bisect
import glob
import gzip
import hashlib
import itertools
import os
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.experiments import data
from bert_tf.io import files
from bert_tf.io import paths

TRAIN_FILE, HELD_OUT_FILE = "train.txt", "heldout.txt"
_HELD_OUT_SHARE = 0.02
_MEGABYTE = 1e6


def find_files(patterns: str) -> dict[str, str]:
    """Returns the files that comma-separated globs match, with their SHA-256.

    They are sorted by name, so that the same files in another order are the
    same corpus.

    Raises:
      UserError: If a glob matches no file.
    """
    found: dict[str, str] = {}
    for pattern in patterns.split(","):
        matches = sorted(filter(os.path.isfile, glob.glob(pattern.strip())))
        if not matches:
            raise paths.no_match(pattern, "--corpus")
        found |= {name: files.sha256(name) for name in matches}
    order = sorted(found, key=lambda x: (os.path.basename(x), found[x]))
    return {name: found[name] for name in order}


def folder_name(sums: Mapping[str, str], scale: Mapping[str, Any]) -> str:
    """Returns the name of the folder with the two files."""
    sizes = [scale["corpus_megabytes"], scale["held_out_megabytes"]]
    content = [list(sums.values()), *sizes, _HELD_OUT_SHARE]
    return f"corpus-{data.digest(content)}"


def split(names: Sequence[str], folder: str, scale: Mapping[str, Any]) -> None:
    """Writes the two files, if they do not exist.

    Raises:
      UserError: If there are fewer than two documents.
    """
    train_file = os.path.join(folder, TRAIN_FILE)
    if os.path.exists(train_file):
        return
    # By place, so that a copy of a document is not counted.
    sizes = {_place(x): len(x) for x in _documents(names)}
    if len(sizes) < 2:
        raise UserError(
            "--corpus must hold at least two documents, with a blank line "
            "between them, as one is held out for perplexities. Received: "
            f"{len(sizes)} in {', '.join(names)}."
        )
    places = sorted(sizes)
    # A document is taken if those before it have not filled the size.
    before = [0, *itertools.accumulate(sizes[x] for x in places)]
    held_out = scale["held_out_megabytes"] * _MEGABYTE
    held_out = min(held_out, _HELD_OUT_SHARE * before[-1])
    first = min(bisect.bisect_left(before, held_out), len(places) - 1)
    most = (scale["corpus_megabytes"] or before[-1]) * _MEGABYTE
    end = bisect.bisect_left(before, before[first] + most)
    border, last = places[first], places[:end][-1]
    # The file to train on appears last: with it, both are complete.
    with (
        files.local_file(train_file) as train_path,
        files.local_file(os.path.join(folder, HELD_OUT_FILE)) as held_out_path,
        open(held_out_path, "wb") as held_out_to,
        open(train_path, "wb") as train_to,
    ):
        for text in _documents(names):
            place = _place(text)
            if place <= last:
                to = held_out_to if place < border else train_to
                to.write(text + b"\n")


def _documents(names: Sequence[str]) -> Iterator[bytes]:
    """Yields documents: lines up to a blank one, or the end of a file."""
    for name in names:
        with (gzip.open if name.endswith(".gz") else open)(name, "rb") as file:
            for is_text, lines in itertools.groupby(
                file, lambda x: x.strip() != b""
            ):
                if is_text:
                    yield b"".join(x.rstrip(b"\r\n") + b"\n" for x in lines)


def _place(text: bytes) -> float:
    """Returns a number from 0 to 1 that depends on a document's text alone."""
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48
