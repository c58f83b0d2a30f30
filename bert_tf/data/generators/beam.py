"""Pretraining records by Apache Beam: the streaming generator's, byte for byte.

What a step computes is a function of `corpus_tokenization`, `record_parts` or
`streaming_generator`, the same that the local generator calls:

1. Each file's lines are read in batches, which are tokenized wherever there is
   a worker, into files of the work folder.
2. The launcher joins them into the token store.
3. Workers write the parts, each from its own copy of the store, and those that
   have all parts of a file make the file of them.

Workers and launcher share the work folder, `<output_file>.work`. A run that was
killed goes on there, with or without Beam.
"""

import contextlib
import dataclasses
import io
import os
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence

import apache_beam as beam
import numpy as np
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.data import token_store
from bert_tf.data import tokenize_corpus
from bert_tf.data.generators import beam_runner
from bert_tf.data.generators import parts as record_parts
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.local_copy import LocalCopy
from bert_tf.data.generators.parts import PartsPlan
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter
from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.io import files
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

# A batch of lines: the file, which batch of it this is, the lines, and the
# document of each in the file <int64>[lines].
_NumberedBatch = tuple[int, int, list[str], np.ndarray]
# No part: a file that has them all, but is not put together.
_NO_PART = -1


def generate(
    config: CreatePretrainingDataConfig,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    output_files: Sequence[str],
    work_dir: str,
) -> GenerationResult:
    """Writes the records; see `streaming_generator.generate`.

    Args:
      config: Flags of the run.
      input_files: Text, where the workers can read it.
      tokenizer: Makes pieces of the sentences.
      output_files: The files to write, where the workers can write them.
      work_dir: A folder that the workers can read and write.

    Raises:
      UserError: If the text cannot be read or is too little for so many files,
        or if an option for Beam is unknown.
    """
    tf.io.gfile.makedirs(work_dir)
    # Elsewhere a second run writes the same bytes, and each file at once.
    is_local = "://" not in work_dir
    lock = streaming_generator.locked if is_local else contextlib.nullcontext
    with lock(work_dir), tempfile.TemporaryDirectory() as scratch:
        shared = os.path.join(work_dir, "tokens")
        local = shared if is_local else os.path.join(scratch, "tokens")
        if not _is_complete(shared):
            _tokenize(config, input_files, tokenizer, work_dir)
            if tf.io.gfile.exists(shared):
                tf.io.gfile.rmtree(shared)  # Of a run without Beam.
            _join(input_files, tokenizer, work_dir, local)
            if not is_local:
                _copy_folder(local, shared)
            tf.io.gfile.rmtree(_batches_folder(work_dir))
        elif not is_local:
            _copy_folder(shared, local)
        store = TokenStore.open(local, len(tokenizer.vocabulary))
        plan = streaming_generator.plan_parts(
            config, tokenizer, work_dir, store, output_files
        )
        _write_files(config, plan, output_files)
        return streaming_generator.result(work_dir, store, output_files)


def _is_complete(store_folder: str) -> bool:
    path = os.path.join(store_folder, token_store.PROGRESS_FILE)
    return tf.io.gfile.exists(path) and files.read_json(path)["complete"]


def _copy_folder(source: str, target: str) -> None:
    """Copies files, the one that makes a token store complete last."""
    tf.io.gfile.makedirs(target)
    names = tf.io.gfile.listdir(source)
    for name in sorted(names, key=lambda x: x == token_store.PROGRESS_FILE):
        _copy_file(os.path.join(source, name), os.path.join(target, name))


def _copy_file(source: str, target: str) -> None:
    with files.atomic_file(target) as temporary:
        tf.io.gfile.copy(source, temporary, overwrite=True)


def _batches_folder(work_dir: str) -> str:
    return os.path.join(work_dir, "batches")


def _batch_path(work_dir: str, file: int, batch: int) -> str:
    """Returns where the tokens of a batch go."""
    name = f"file-{file:06d}-{batch:08d}.npz"
    return os.path.join(_batches_folder(work_dir), name)


def _totals_path(work_dir: str, file: int) -> str:
    """Returns where it is said how much a file holds."""
    return os.path.join(_batches_folder(work_dir), f"file-{file:06d}.json")


class _ReadBatches(beam_runner.Step):
    """From a file's number and path to its lines, in batches."""

    def __init__(
        self, work_dir: str, config: CreatePretrainingDataConfig
    ) -> None:
        super().__init__(work_dir)
        self._work_dir = work_dir
        self._config = config

    def work(self, element: tuple[int, str]) -> Iterator[_NumberedBatch]:
        file, path = element
        totals = {"batches": 0, "lines": 0, "documents": 0}
        batches = tokenize_corpus.read_batches(
            self._config, [path], may_be_empty=True
        )
        for lines, documents in batches:
            yield file, totals["batches"], lines, documents
            totals["batches"] += 1
            totals["lines"] += len(lines)
            totals["documents"] = int(documents[-1]) + 1
        files.write_json(_totals_path(self._work_dir, file), totals)


class _Tokenize(beam_runner.Step):
    """From lines to a file with their tokens."""

    def __init__(
        self,
        work_dir: str,
        config: CreatePretrainingDataConfig,
        tokens: Sequence[str],
    ) -> None:
        super().__init__(work_dir)
        self._work_dir = work_dir
        self._config = config
        self._tokens = tokens

    def setup(self) -> None:
        self._tokenizer = BertTokenizer(
            Vocabulary(self._tokens),
            self._config.do_lower_case,
            self._config.strip_accents,
        )

    def work(self, element: _NumberedBatch) -> Iterator[None]:
        file, batch, lines, documents = element
        path = _batch_path(self._work_dir, file, batch)
        if not tf.io.gfile.exists(path):  # Else it is of a run that was killed.
            sentences, counts = lines, np.ones(len(lines), np.int64)
            if self._config.split_sentences is not False:
                sentences, counts = record_parts.split_lines(lines)
            tokens, lengths = tokenize_corpus.tokenize(
                self._tokenizer, sentences
            )
            contents = io.BytesIO()
            np.savez(
                contents,
                tokens=tokens,
                lengths=lengths,
                documents=np.repeat(documents, counts),
            )
            files.write_bytes(path, contents.getvalue())
        yield from ()


def _tokenize(
    config: CreatePretrainingDataConfig,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    work_dir: str,
) -> None:
    """Has all text tokenized into files of `work_dir`."""
    tokens = tokenizer.vocabulary.tokens

    def build(pipeline: beam.Pipeline) -> None:
        _ = (
            pipeline
            | "files" >> beam.Create(list(enumerate(input_files)))
            | "spread the files" >> beam.Reshuffle()
            | "read" >> beam.ParDo(_ReadBatches(work_dir, config))
            | "spread the lines" >> beam.Reshuffle()
            | "tokenize" >> beam.ParDo(_Tokenize(work_dir, config, tokens))
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
    """Makes the token store of what `_tokenize` has left.

    Raises:
      UserError: If there is no text.
    """
    writer = TokenStoreWriter(folder, len(tokenizer.vocabulary))
    num_documents = 0
    try:
        for file in range(len(input_files)):
            totals = files.read_json(_totals_path(work_dir, file))
            for batch in range(totals["batches"]):
                contents = files.read_bytes(_batch_path(work_dir, file, batch))
                with np.load(io.BytesIO(contents)) as arrays:
                    writer.append(
                        arrays["tokens"],
                        arrays["lengths"],
                        num_documents + arrays["documents"],
                    )
            num_documents += totals["documents"]
            writer.progress.lines += totals["lines"]
        if not num_documents:
            raise corpus.emptiness(input_files)
        tokenize_corpus.finish(writer, input_files)
    finally:
        writer.close()


class _WritePart(beam_runner.Step):
    """Writes the part of each pair of a file's and a part's number.

    Args:
      work_dir: The shared folder.
      plan: What is in the parts, and where they go.
      store: The token store, or None if it lies on this machine anyway.
    """

    def __init__(
        self, work_dir: str, plan: PartsPlan, store: LocalCopy | None
    ) -> None:
        super().__init__(work_dir)
        self._plan = plan
        self._store = store

    def setup(self) -> None:
        if self._store:
            self._scratch = tempfile.TemporaryDirectory()
            self._local_plan = dataclasses.replace(
                self._plan,
                store_folder=self._store.open(),
                parts_folder=self._scratch.name,
            )

    def teardown(self) -> None:
        if self._store:
            self._store.close()
            self._scratch.cleanup()

    def work(self, element: tuple[int, int]) -> Iterator[tuple[int, int]]:
        _, part = element
        if part != _NO_PART:
            self._write(part)
        yield element

    def _write(self, part: int) -> None:
        if self._store:
            plan = self._local_plan
            record_parts.write_part(plan, part)
            # The records last: where they are, all is.
            for source, target in (
                (plan.counts_path(part), self._plan.counts_path(part)),
                (plan.records_path(part), self._plan.records_path(part)),
            ):
                _copy_file(source, target)
                os.remove(source)
        else:
            record_parts.write_part(self._plan, part)


class _PutTogether(beam_runner.Step):
    """Makes the file of each number, once its parts are there."""

    def __init__(
        self, work_dir: str, plan: PartsPlan, output_files: Sequence[str]
    ) -> None:
        super().__init__(work_dir)
        self._plan = plan
        self._output_files = output_files

    def work(self, element: tuple[int, Iterator[int]]) -> Iterator[None]:
        number, _ = element
        path = self._output_files[number]
        per_file = self._plan.num_parts // len(self._output_files)
        # A runner may give the same element again.
        if not streaming_generator.is_finished(
            self._plan.parts_folder, number, path
        ):
            streaming_generator.put_together(self._plan, number, per_file, path)
        yield from ()


def _write_files(
    config: CreatePretrainingDataConfig,
    plan: PartsPlan,
    output_files: Sequence[str],
) -> None:
    """Has the missing parts written and the files put together."""
    work_dir = plan.parts_folder
    missing = streaming_generator.missing_parts(plan, output_files)
    parts = [
        (number, part)
        for number in missing
        for part in [*sorted(missing[number]), _NO_PART]
    ]
    if not parts:
        return
    store = None
    if not beam_runner.on_one_machine(config, work_dir):
        store = LocalCopy(plan.store_folder)

    def build(pipeline: beam.Pipeline) -> None:
        _ = (
            pipeline
            | "parts" >> beam.Create(parts)
            | "spread the parts" >> beam.Reshuffle()
            | "write" >> beam.ParDo(_WritePart(work_dir, plan, store))
            | "by file" >> beam.GroupByKey()
            | "put together"
            >> beam.ParDo(_PutTogether(work_dir, plan, output_files))
        )

    what = f"Writing {len(parts) - len(missing)} of {plan.num_parts} parts"
    beam_runner.run(config, work_dir, what, build)
