r"""Measures run/extract_text.py: its speed against gensim, and its memory.

  python benchmarks/text_extraction.py --experiment=speed
  python benchmarks/text_extraction.py --experiment=memory
  python benchmarks/text_extraction.py --experiment=documents

`speed` reads the shortened English dump in gensim's tests, repeated with
changes. It takes turns with gensim's WikiCorpus, which runs in its own
environment. Each side is a whole program with one worker process, so the rates
are MB of .bz2 per second of processor time of all its processes. The last line
is the ratio of the medians.

`memory` reads the same pages, repeated with changes to 10, 100 and 1,000 MB of
XML, and searches for near duplicates. It prints the peak memory of all
processes together; shared pages count once.

`documents` reads 100,000 real texts of 1,000 characters as .jsonl, searches for
near duplicates, and prints documents a minute.
"""

import bz2
import gzip
import json
import os
import statistics
import subprocess
import tempfile
import time

import runs
from absl import flags

_CORPUS = runs.DATA / "corpus"

_EXPERIMENT = flags.DEFINE_enum(
    "experiment", "speed", ["speed", "memory", "documents"], "What to measure."
)
_COPIES = flags.DEFINE_integer("copies", 3, "speed: copies of the dump.")
_TURNS = flags.DEFINE_integer("turns", 3, "speed: turns of each side.")
_MEGABYTES = flags.DEFINE_list(
    "megabytes", ["10", "100", "1000"], "memory: sizes of the XML."
)
_DOCUMENTS = flags.DEFINE_integer(
    "documents", 100000, "documents: number of texts."
)
_TEXT = flags.DEFINE_list(
    "text",
    [str(_CORPUS / name) for name in ("wiki.txt.gz", "books.txt.gz")],
    "documents: .gz files of text, one paragraph a line.",
)

_DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_CHARACTERS = 1000
_PATH_PROGRAM = "from gensim.test import utils; print(utils.datapath(''))"
_PEER_PROGRAM = """
import sys
from gensim.corpora import wikicorpus

corpus = wikicorpus.WikiCorpus(
    sys.argv[1], processes=1, dictionary={}, article_min_tokens=0
)
print(sum(1 for _ in corpus.get_texts()))
"""


def _gensim():
    """Returns gensim's Python and the path of its dump."""
    from tests.support import environments

    python = environments.make("gensim", "gensim==4.4.0")
    folder = environments.run(python, "-c", _PATH_PROGRAM).splitlines()[-1]
    return python, os.path.join(folder, _DUMP)


def _copies(dump):
    """Yields pieces of a dump whose pages repeat forever with changes."""
    with bz2.open(dump) as file:
        header, pages = file.read().split(b"<page>", 1)
    pages = b"<page>" + pages.rpartition(b"</mediawiki>")[0]
    yield header
    number = 0
    while True:
        change = b" %d" % number if number else b""
        # Change each id and sentence, or else all pages would be duplicates.
        yield pages.replace(b"<id>", b"<id>%d" % number).replace(
            b". ", b"%s. " % change
        )
        number += 1


def _run(command):
    """Runs a program; returns its wall seconds and processor seconds."""
    start = time.perf_counter()
    cpu = runs.run(command, os.devnull)
    return time.perf_counter() - start, cpu


def _extract(source, folder, **flag_values):
    """Returns the command that extracts text into a folder."""
    return runs.command(
        "run/extract_text.py",
        input_file=source,
        output_file=f"{folder}/out.txt.gz",
        overwrite_output_dir=True,
        **flag_values,
    )


def _measure_speed(folder):
    python, dump = _gensim()
    path = os.path.join(folder, "pages-articles.xml.bz2")
    pieces = _copies(dump)
    with bz2.open(path, "wb") as file:
        for _ in range(1 + _COPIES.value):
            file.write(next(pieces))
        file.write(b"</mediawiki>")
    size = os.path.getsize(path) / 1e6
    commands = {
        "bert_tf": _extract(path, folder, num_processes=1),
        "gensim": [python, "-c", _PEER_PROGRAM, path],
    }
    rates = {name: [] for name in commands}
    for _ in range(_TURNS.value):
        for name, command in commands.items():
            seconds, cpu = _run(command)
            rates[name].append(size / cpu)
            print(
                f"{name}: {size:.2f} MB of bz2 in {seconds:.1f} s, {cpu:.1f} s "
                f"of processors: {size / cpu:.3f} MB a second and core",
                flush=True,
            )
    ours, theirs = (statistics.median(x) for x in rates.values())
    print(f"bert_tf / gensim: {ours / theirs:.2f}")


def _measure_memory(folder):
    _, dump = _gensim()
    for megabytes in map(int, _MEGABYTES.value):
        path = os.path.join(folder, "pages-articles.xml.gz")
        size = 0
        # gzip, because bz2 would take much longer to write.
        with gzip.open(path, "wb", 1) as file:
            for piece in _copies(dump):
                file.write(piece)
                size += len(piece)
                if size >= megabytes * 1e6:
                    break
            file.write(b"</mediawiki>")
        with runs.watch(runs.total_memory, 0.5) as memory:
            status = subprocess.call(
                _extract(path, folder, near_duplicate_threshold=0.8)
            )
        print(
            f"{size / 1e6:.0f} MB of XML: {max(memory) / 2**20:.0f} MiB, "
            f"status {status}",
            flush=True,
        )


def _measure_documents(folder):
    path = os.path.join(folder, "documents.jsonl")
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for text in _texts():
            file.write(json.dumps({"text": text}) + "\n")
            count += 1
            if count == _DOCUMENTS.value:
                break
    command = _extract(path, folder, near_duplicate_threshold=0.8)
    seconds, cpu = _run(command)
    print(
        f"{count} documents of {_CHARACTERS} characters in {seconds:.1f} s, "
        f"{cpu:.1f} s of processors: {count / seconds * 60:.0f} a minute"
    )


def _texts():
    """Yields the corpus's texts, then texts of its words in other orders."""
    for is_turned in (False, True, None):
        for path in _TEXT.value:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                words = file.read().split()
            if is_turned:
                words.reverse()
            if is_turned is None:  # The even words, then the odd words.
                words = words[::2] + words[1::2]
            text = " ".join(words)
            for start in range(0, len(text) - _CHARACTERS, _CHARACTERS):
                yield text[start : start + _CHARACTERS]


def main():
    with tempfile.TemporaryDirectory() as folder:
        {
            "speed": _measure_speed,
            "memory": _measure_memory,
            "documents": _measure_documents,
        }[_EXPERIMENT.value](folder)


if __name__ == "__main__":
    runs.main(main)
