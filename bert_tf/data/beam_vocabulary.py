"""Word counts with Apache Beam, equal to those of `vocabulary_building`.

The documents of each file are counted first, because the number of earlier
documents determines which ones are held out. Workers write word counts to a
folder next to the output file, which is removed at the end.
"""

import dataclasses
import os
import zlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.data import vocabulary_building
from bert_tf.data.vocabulary_building import CountedText
from bert_tf.distribute import beam_runner
from bert_tf.flags.options import Flags
from bert_tf.io import files

# Number of files that the words are spread over.
_NUM_FILES = 64
_HELDOUT = {b"h": True, b"l": False}
_PREFIXES = {is_heldout: prefix for prefix, is_heldout in _HELDOUT.items()}


def count_text(config: Flags, paths: list[str], text: CountedText) -> None:
    """Reads the documents and adds their words to `text`.

    Raises:
      UserError: If there is no text, if it cannot be read, or if an option for
        Beam is unknown.
    """
    work_dir = f"{config.output_file}.work"
    tf.io.gfile.makedirs(work_dir)
    try:
        num_bytes = corpus.count_bytes(paths)
        what = f"Counting words of {num_bytes / 1e6:.1f} MB in {len(paths)}"
        beam_runner.run(
            config,
            work_dir,
            f"{what} files",
            lambda pipeline: _build(pipeline, config, paths, work_dir),
        )
        _collect(work_dir, paths, text)
    finally:
        tf.io.gfile.rmtree(work_dir)


def _build(
    pipeline: beam.Pipeline,
    config: Flags,
    paths: list[str],
    work_dir: str,
) -> None:
    numbered = (
        pipeline
        | "files" >> beam.Create(list(enumerate(paths)))
        | "spread the files" >> beam.Reshuffle()
    )
    num_documents = numbered | "count documents" >> beam.ParDo(
        _CountDocuments(work_dir, config)
    )
    lines = numbered | "read" >> beam.ParDo(
        _ReadLines(work_dir, config), beam.pvalue.AsDict(num_documents)
    )
    _ = (
        lines
        | "spread the lines" >> beam.Reshuffle()
        | "count words" >> beam.ParDo(_CountWords(work_dir, config))
        | "add up" >> beam.CombinePerKey(sum)
        | "choose a file" >> beam.Map(_with_file)
        | "by file" >> beam.GroupByKey()
        | "write" >> beam.ParDo(_WriteWords(work_dir))
    )


def _documents(config: Flags, path: str) -> Iterator[list[str]]:
    return corpus.read_documents(
        [path],
        replace_invalid_utf8=config.replace_invalid_utf8,
        may_be_empty=True,
        sample=config.sample,
    )


def _documents_path(work_dir: str, file: int) -> str:
    return os.path.join(work_dir, f"documents-{file:06d}.json")


@dataclasses.dataclass(eq=False, repr=False)
class _CountDocuments(beam_runner.Step):
    """Counts the documents of each numbered file."""

    config: Flags

    def work(self, element: tuple[int, str]) -> Iterator[tuple[int, int]]:
        file, path = element
        yield file, sum(1 for _ in _documents(self.config, path))


@dataclasses.dataclass(eq=False, repr=False)
class _ReadLines(beam_runner.Step):
    """Reads files into batches of held-out and other lines."""

    config: Flags

    def work(
        self, element: tuple[int, str], num_documents: Mapping[int, int]
    ) -> Iterator[tuple[bool, list[str]]]:
        file, path = element
        # A file that cannot be read is missing here; it fails the run anyway.
        earlier = sum(num_documents.get(number, 0) for number in range(file))
        counted = CountedText()
        yield from vocabulary_building.batch_lines(
            _documents(self.config, path), self.config, counted, earlier
        )
        files.write_json(
            _documents_path(self.work_dir, file),
            [counted.num_documents, counted.num_heldout_documents],
        )


@dataclasses.dataclass(eq=False, repr=False)
class _CountWords(beam_runner.Step):
    """Counts words; a prefix letter marks those of held-out lines."""

    config: Flags

    def setup(self) -> None:
        self._count = vocabulary_building.build_counter(self.config)

    def work(
        self, element: tuple[bool, list[str]]
    ) -> Iterator[tuple[bytes, int]]:
        is_heldout, lines = element
        words, counts = self._count(tf.constant(lines))
        prefix = _PREFIXES[is_heldout]
        for word, count in zip(
            words.numpy().tolist(), counts.numpy().tolist(), strict=True
        ):
            yield prefix + word, count


def _with_file(counted: tuple[bytes, int]) -> tuple[int, tuple[bytes, int]]:
    return zlib.crc32(counted[0]) % _NUM_FILES, counted


class _WriteWords(beam_runner.Step):
    """Writes the counts of the words of one file."""

    def work(
        self, element: tuple[int, Iterable[tuple[bytes, int]]]
    ) -> Iterator[Any]:
        file, counted = element
        path = os.path.join(self.work_dir, f"words-{file:03d}.txt")
        lines = [b"%s %d\n" % item for item in counted]
        files.write_bytes(path, b"".join(lines))
        yield from ()


def _collect(work_dir: str, paths: list[str], text: CountedText) -> None:
    for file in range(len(paths)):
        learned, heldout = files.read_json(_documents_path(work_dir, file))
        text.num_documents += learned
        text.num_heldout_documents += heldout
    if not text.num_documents + text.num_heldout_documents:
        raise corpus.empty_corpus_error(paths)
    for path in tf.io.gfile.glob(os.path.join(work_dir, "words-*.txt")):
        words: dict[bool, list[bytes]] = {True: [], False: []}
        counts: dict[bool, list[int]] = {True: [], False: []}
        for line in files.read_bytes(path).splitlines():
            word, count = line.split(b" ")
            is_heldout = _HELDOUT[word[:1]]
            words[is_heldout].append(word[1:])
            counts[is_heldout].append(int(count))
        text.learned.add(words[False], counts[False])
        text.heldout.add(words[True], counts[True])
