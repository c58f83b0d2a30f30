"""Apache Beam pipelines that write pretraining records and count words.

The records are equal byte for byte to the streaming generator's: each step
calls the same function of `streaming` or `streaming_worker`.

1. Workers read each file in batches of lines and tokenize them into files of
   the work folder.
2. The launcher joins these files into the token store.
3. Workers write the parts, each from its own copy of the store. When all parts
   of a file exist, a worker concatenates them.

Workers and launcher share the work folder, `<output_file>.work`. A killed run
resumes from it, with or without Beam.

The word counts equal those of `vocabulary_building`. The documents of each file
are counted first, because the number of earlier documents determines which ones
are held out.
"""

import dataclasses
import io
import os
import tempfile
import zlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.data import token_store
from bert_tf.data import vocabulary_building
from bert_tf.data.generators import streaming
from bert_tf.data.generators import streaming_worker
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.streaming_worker import PartsPlan
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter
from bert_tf.data.vocabulary_building import CountedText
from bert_tf.distribute import beam_runner
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

# A batch of lines: file number, batch number in the file, the lines, and the
# document number of each line in the file <int64>[lines].
_NumberedBatch = tuple[int, int, list[str], np.ndarray]
# Stands for no part: a file with all its parts that is not concatenated yet.
_NO_PART = -1
# Number of files that the words are spread over.
_NUM_FILES = 64
_HELDOUT = {b"h": True, b"l": False}
_PREFIXES = {is_heldout: prefix for prefix, is_heldout in _HELDOUT.items()}


def generate(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    output_files: Sequence[str],
    work_dir: str,
) -> GenerationResult:
    """Writes the records; see `streaming.generate`.

    The workers need access to the input and output files and to `work_dir`.

    Raises:
      UserError: If the text cannot be read or is too short for this number of
        files, or if an option for Beam is unknown.
    """
    tf.io.gfile.makedirs(work_dir)
    is_local = "://" not in work_dir
    with tempfile.TemporaryDirectory() as scratch:
        shared = os.path.join(work_dir, "tokens")
        local = shared if is_local else os.path.join(scratch, "tokens")
        if not _is_complete(shared):
            _tokenize(config, input_files, tokenizer, work_dir)
            if tf.io.gfile.exists(shared):
                tf.io.gfile.rmtree(shared)  # From a run without Beam.
            _join(input_files, tokenizer, work_dir, local)
            if not is_local:
                _copy_folder(local, shared)
            tf.io.gfile.rmtree(_batches_folder(work_dir))
        elif not is_local:
            _copy_folder(shared, local)
        store = TokenStore.open(local, len(tokenizer.vocabulary))
        plan = streaming.plan_parts(
            config, tokenizer, work_dir, store, output_files
        )
        _write_files(config, plan, output_files)
        return streaming.result(work_dir, store, output_files)


def _is_complete(store_folder: str) -> bool:
    path = os.path.join(store_folder, token_store.PROGRESS_FILE)
    return tf.io.gfile.exists(path) and files.read_json(path)["complete"]


def _copy_folder(source: str, target: str) -> None:
    """Copies a token store; the file that marks it complete comes last."""
    names = tf.io.gfile.listdir(source)
    for name in sorted(names, key=lambda x: x == token_store.PROGRESS_FILE):
        _copy_file(os.path.join(source, name), os.path.join(target, name))


def _copy_file(source: str, target: str) -> None:
    with files.atomic_file(target) as temporary:
        tf.io.gfile.copy(source, temporary, overwrite=True)


def _batches_folder(work_dir: str) -> str:
    return os.path.join(work_dir, "batches")


def _batch_path(work_dir: str, file: int, batch: int) -> str:
    name = f"file-{file:06d}-{batch:08d}.npz"
    return os.path.join(_batches_folder(work_dir), name)


def _totals_path(work_dir: str, file: int) -> str:
    """Returns the path of the number of batches, lines and documents."""
    return os.path.join(_batches_folder(work_dir), f"file-{file:06d}.json")


@dataclasses.dataclass(eq=False, repr=False)
class _ReadBatches(beam_runner.Step):
    """Reads numbered files into batches of lines."""

    config: Flags

    def work(self, element: tuple[int, str]) -> Iterator[_NumberedBatch]:
        file, path = element
        totals = {"batches": 0, "lines": 0, "documents": 0}
        batches = streaming.read_batches(self.config, [path], may_be_empty=True)
        for lines, documents in batches:
            yield file, totals["batches"], lines, documents
            totals["batches"] += 1
            totals["lines"] += len(lines)
            totals["documents"] = int(documents[-1]) + 1
        files.write_json(_totals_path(self.work_dir, file), totals)


@dataclasses.dataclass(eq=False, repr=False)
class _Tokenize(beam_runner.Step):
    """Tokenizes a batch of lines into a file."""

    config: Flags
    vocabulary: Vocabulary

    def setup(self) -> None:
        self._tokenizer = BertTokenizer(
            self.vocabulary,
            self.config.do_lower_case,
            self.config.strip_accents,
        )

    def work(self, element: _NumberedBatch) -> Iterator[None]:
        file, batch, lines, documents = element
        path = _batch_path(self.work_dir, file, batch)
        if not tf.io.gfile.exists(path):  # Else a killed run left it.
            split = None
            if self.config.split_sentences is not False:
                split = streaming_worker.split_lines(lines)
            tokenized = streaming.tokenize(
                self._tokenizer, lines, documents, split
            )
            contents = io.BytesIO()
            np.savez(contents, *tokenized)
            files.write_bytes(path, contents.getvalue())
        yield from ()


def _tokenize(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    work_dir: str,
) -> None:
    """Runs the pipeline that tokenizes all text into files of `work_dir`."""
    vocabulary = tokenizer.vocabulary

    def build(pipeline: beam.Pipeline) -> None:
        _ = (
            pipeline
            | "files" >> beam.Create(list(enumerate(input_files)))
            | "spread the files" >> beam.Reshuffle()
            | "read" >> beam.ParDo(_ReadBatches(work_dir, config))
            | "spread the lines" >> beam.Reshuffle()
            | "tokenize" >> beam.ParDo(_Tokenize(work_dir, config, vocabulary))
        )

    num_bytes = corpus.count_bytes(input_files)
    what = f"Tokenizing {num_bytes / 1e6:.1f} MB of {len(input_files)} files"
    beam_runner.run(config, work_dir, what, build)


def _join(
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    work_dir: str,
    folder: str,
) -> None:
    """Joins the files of `_tokenize` into the token store."""
    writer = TokenStoreWriter(folder, len(tokenizer.vocabulary))
    num_documents = 0
    try:
        for file in range(len(input_files)):
            totals = files.read_json(_totals_path(work_dir, file))
            for batch in range(totals["batches"]):
                contents = files.read_bytes(_batch_path(work_dir, file, batch))
                with np.load(io.BytesIO(contents)) as arrays:
                    tokens, lengths, documents = arrays.values()
                    writer.append(tokens, lengths, num_documents + documents)
            num_documents += totals["documents"]
            writer.progress.lines += totals["lines"]
        if not num_documents:
            raise corpus.empty_corpus_error(input_files)
        streaming.finish(writer, input_files)
    finally:
        writer.close()


@dataclasses.dataclass(eq=False, repr=False)
class _WritePart(beam_runner.Step):
    """Writes the part of each pair of file number and part number.

    `store` is the token store, or None if it is on this machine anyway.
    """

    plan: PartsPlan
    store: locks.LocalCopy | None

    def setup(self) -> None:
        if self.store:
            self._scratch = tempfile.TemporaryDirectory()
            self._local_plan = dataclasses.replace(
                self.plan,
                store_folder=self.store.open(),
                parts_folder=self._scratch.name,
            )

    def teardown(self) -> None:
        if self.store:
            self.store.close()
            self._scratch.cleanup()

    def work(self, element: tuple[int, int]) -> Iterator[tuple[int, int]]:
        _, part = element
        if part == _NO_PART:
            pass
        elif self.store:
            plan = self._local_plan
            streaming_worker.write_part(plan, part)
            # The records come last: they mark a part as complete.
            for source, target in (
                (plan.counts_path(part), self.plan.counts_path(part)),
                (plan.records_path(part), self.plan.records_path(part)),
            ):
                _copy_file(source, target)
                os.remove(source)
        else:
            streaming_worker.write_part(self.plan, part)
        yield element


@dataclasses.dataclass(eq=False, repr=False)
class _Concatenate(beam_runner.Step):
    """Concatenates the parts of each file once all of them exist."""

    plan: PartsPlan
    output_files: Sequence[str]

    def work(self, element: tuple[int, Iterator[int]]) -> Iterator[None]:
        number, _ = element
        path = self.output_files[number]
        per_file = self.plan.num_parts // len(self.output_files)
        # A runner may process the same element again.
        if not streaming.is_finished(self.plan.parts_folder, number, path):
            # Yields nothing, as no part is unfinished.
            yield from streaming.concatenate_parts(
                self.plan, number, per_file, path
            )


def _write_files(
    config: Flags,
    plan: PartsPlan,
    output_files: Sequence[str],
) -> None:
    """Runs the pipeline that writes missing parts and concatenates them."""
    work_dir = plan.parts_folder
    missing = streaming.missing_parts(plan, output_files)
    parts = [
        (number, part)
        for number in missing
        for part in [*sorted(missing[number]), _NO_PART]
    ]
    if not parts:
        return
    store = None
    if not beam_runner.on_one_machine(config, work_dir):
        store = locks.LocalCopy(plan.store_folder)

    def build(pipeline: beam.Pipeline) -> None:
        _ = (
            pipeline
            | "parts" >> beam.Create(parts)
            | "spread the parts" >> beam.Reshuffle()
            | "write" >> beam.ParDo(_WritePart(work_dir, plan, store))
            | "by file" >> beam.GroupByKey()
            | "concatenate"
            >> beam.ParDo(_Concatenate(work_dir, plan, output_files))
        )

    what = f"Writing {len(parts) - len(missing)} of {plan.num_parts} parts"
    beam_runner.run(config, work_dir, what, build)


# === Words, for a vocabulary ===


def count_text(config: Flags, paths: list[str], text: CountedText) -> None:
    """Reads the documents and adds their words to `text`.

    Raises:
      UserError: If there is no text, if it cannot be read, or if an option for
        Beam is unknown.
    """
    work_dir = f"{config.output_file}.work"

    def build(pipeline: beam.Pipeline) -> None:
        numbered = (
            pipeline
            | "files" >> beam.Create(list(enumerate(paths)))
            | "spread the files" >> beam.Reshuffle()
        )
        num_documents = numbered | "count documents" >> beam.ParDo(
            _CountDocuments(work_dir, config)
        )
        _ = (
            numbered
            | "read"
            >> beam.ParDo(
                _ReadLines(work_dir, config), beam.pvalue.AsDict(num_documents)
            )
            | "spread the lines" >> beam.Reshuffle()
            | "count words" >> beam.ParDo(_CountWords(work_dir, config))
            | "add up" >> beam.CombinePerKey(sum)
            | "choose a file" >> beam.Map(_with_file)
            | "by file" >> beam.GroupByKey()
            | "write" >> beam.ParDo(_WriteWords(work_dir))
        )

    tf.io.gfile.makedirs(work_dir)
    try:
        num_bytes = corpus.count_bytes(paths)
        what = f"Counting words of {num_bytes / 1e6:.1f} MB in {len(paths)}"
        beam_runner.run(config, work_dir, f"{what} files", build)
        _collect(work_dir, paths, text)
    finally:
        tf.io.gfile.rmtree(work_dir)


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
