"""The streaming generator on Apache Beam.

The records equal the streaming generator's byte for byte, because each step
calls the same function of `streaming` or `streaming_worker`.

1. Workers read each file in batches of lines and tokenize each batch into a
   file of the work folder.
2. The launcher joins the tokenized batches into the token store.
3. Workers write the parts of the records; each machine reads its own copy of
   the store. Then workers concatenate the parts of each file.

Workers and launcher share the work folder, `<output_file>.work`. A killed run
resumes from this folder, with or without Beam.
"""

import contextlib
import dataclasses
import functools
import io
import os
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.data import token_store
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators import streaming_worker
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.streaming_worker import PartsPlan
from bert_tf.distribute import beam_runner
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

# A batch of lines: file number, batch number in the file, the lines, and the
# document number of each line in the file <int64>[lines].
_NumberedBatch = tuple[int, int, list[str], np.ndarray]


def generate(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    output_files: Sequence[str],
    work_dir: str,
) -> GenerationResult:
    """Writes the records; see `streaming.generate`.

    All workers must be able to read the input files, and to write the output
    files and `work_dir`. An unknown option for Beam raises `UserError`, too.
    """
    tf.io.gfile.makedirs(work_dir)
    is_local = "://" not in work_dir
    with tempfile.TemporaryDirectory() as scratch:
        shared = os.path.join(work_dir, "tokens")
        local = shared if is_local else os.path.join(scratch, "tokens")
        if not token_store.read_progress(shared).complete:
            num_bytes = corpus.count_bytes(input_files)
            beam_runner.run(
                config,
                work_dir,
                f"Tokenizing {num_bytes / 1e6:.1f} MB of "
                f"{len(input_files)} files",
                enumerate(input_files),
                functools.partial(_read_batches, config, work_dir),
                functools.partial(
                    _tokenize_batch, config, work_dir, tokenizer.vocabulary
                ),
            )
            files.remove(shared)  # A run without Beam may have left it.
            _join(input_files, tokenizer, work_dir, local)
            if not is_local:
                _copy_folder(local, shared)
            files.remove(_batches_folder(work_dir))
        elif not is_local:
            _copy_folder(shared, local)
        store = token_store.TokenStore.open(local, len(tokenizer.vocabulary))
        plan = streaming_generator.plan_parts(
            config, tokenizer, work_dir, store, output_files
        )
        _write_files(config, plan, output_files)
        return streaming_generator.result(work_dir, store, output_files)


def _copy_folder(source: str, target: str) -> None:
    """Copies a token store, last the file that marks it complete."""
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
    """Returns the path of a file's counts of batches, lines and documents."""
    return os.path.join(_batches_folder(work_dir), f"file-{file:06d}.json")


def _read_batches(
    config: Flags, work_dir: str, element: tuple[int, str]
) -> Iterator[_NumberedBatch]:
    """Yields a file's batches of lines; writes their totals at the end."""
    file, path = element
    totals = {"batches": 0, "lines": 0, "documents": 0}
    batches = streaming_generator.read_batches(
        config, [path], may_be_empty=True
    )
    for lines, documents in batches:
        yield file, totals["batches"], lines, documents
        totals["batches"] += 1
        totals["lines"] += len(lines)
        totals["documents"] = int(documents[-1]) + 1
    files.write_json(_totals_path(work_dir, file), totals)


_build_tokenizer = functools.cache(BertTokenizer)  # Built once per worker.


def _tokenize_batch(
    config: Flags,
    work_dir: str,
    vocabulary: Vocabulary,
    element: _NumberedBatch,
) -> None:
    file, batch, lines, documents = element
    path = _batch_path(work_dir, file, batch)
    if tf.io.gfile.exists(path):
        return  # An earlier run wrote it.
    tokenizer = _build_tokenizer(
        vocabulary, config.do_lower_case, config.strip_accents
    )
    split = None
    if config.split_sentences is not False:
        split = streaming_worker.split_lines(lines)
    arrays = streaming_generator.tokenize(tokenizer, lines, documents, split)
    contents = io.BytesIO()
    np.savez(contents, *arrays)
    files.write_bytes(path, contents.getvalue())


def _join(
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    work_dir: str,
    folder: str,
) -> None:
    num_documents = 0
    with contextlib.closing(
        token_store.TokenStoreWriter(folder, len(tokenizer.vocabulary))
    ) as writer:
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
        streaming_generator.finish(writer, input_files)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class _WriteElsewhere(beam_runner.Step):
    """Writes parts on a machine that reads its own copy of the token store."""

    plan: PartsPlan
    store: locks.LocalCopy

    def setup(self) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._local_plan = dataclasses.replace(
            self.plan,
            store_folder=self.store.open(),
            parts_folder=self._scratch.name,
        )

    def teardown(self) -> None:
        self.store.close()
        self._scratch.cleanup()

    def work(self, element: int) -> Sequence[Any]:
        plan = self._local_plan
        streaming_worker.write_part(plan, element)
        # Copy the records last, because they mark the part as complete.
        for path_of in (PartsPlan.counts_path, PartsPlan.records_path):
            source = path_of(plan, element)
            _copy_file(source, path_of(self.plan, element))
            os.remove(source)
        return ()


def _write_files(
    config: Flags,
    plan: PartsPlan,
    output_files: Sequence[str],
) -> None:
    """Writes the missing parts, then concatenates the parts of each file."""
    work_dir = plan.parts_folder
    missing = streaming_generator.missing_parts(plan, output_files)
    if parts := sorted(set().union(*missing.values())):
        step = functools.partial(streaming_worker.write_part, plan)
        if not beam_runner.on_one_machine(config, work_dir):
            store = locks.LocalCopy(plan.store_folder)
            step = _WriteElsewhere(work_dir=work_dir, plan=plan, store=store)
        what = f"Writing {len(parts)} of {plan.num_parts} parts"
        beam_runner.run(config, work_dir, what, parts, step)
    if missing:
        step = functools.partial(
            streaming_generator.concatenate_parts, plan, output_files
        )
        what = f"Joining the parts of {len(missing)} files"
        beam_runner.run(config, work_dir, what, missing, step)
