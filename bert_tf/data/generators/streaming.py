"""The streaming generator: records of large corpora, on all cores.

The records have the original's distribution (create_pretraining_data.py of
google-research/bert at eedf571), but are made in two steps. Each step resumes
where a killed run stopped:

1. The corpus is tokenized once, into flat files (`token_store`).
2. Worker processes write parts of the records (`streaming_worker`). Neither the
   number of processes nor a kill changes a part's bytes. When all parts of a
   file exist, they are concatenated, and the file appears when it is complete.

Two differences from the original do not affect training. A document of more
than `token_store.MAX_TOKENS_PER_PASS` tokens is processed in several passes,
each with its own target length. Records are shuffled only within a part of
`TOKENS_PER_PART` tokens, but a part has documents from the whole corpus.
"""

import collections
import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.data.generators import streaming_worker
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.generators.streaming_worker import PartsPlan
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter
from bert_tf.data.token_store import read_progress
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import worker_processes
from bert_tf.text.tokenizer import BertTokenizer

# A worker writes a part of this size in under a second, with little memory.
TOKENS_PER_PART = 4_000_000
# Short texts get smaller parts, so all processes finish at about the same time.
_LEAST_TOKENS_PER_PART = 200_000
_LEAST_PARTS = 32
_COPY_BYTES = 1 << 20
_CHARACTERS_PER_BATCH = 1 << 20
# Saving waits for the disk, so save only once in this many batches.
_BATCHES_PER_SAVE = 16

# Lines, and the document number of each line <int64>[lines].
Batch = tuple[list[str], np.ndarray]
# Tokens <int32>[sum(lengths)], and the length and document number of each
# sentence, <int64>[sentences] each.
Tokenized = tuple[np.ndarray, np.ndarray, np.ndarray]


def generate(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    output_files: Sequence[str],
    work_dir: str,
) -> GenerationResult:
    """Writes the records; each file appears once it is complete.

    A line of text is a paragraph, or a sentence if `config.split_sentences` is
    False. The local folder `work_dir` has the state of a killed run. The caller
    checks that the killed run had the same flags and input, and removes the
    folder at the end.

    Raises:
      UserError: If the text is unreadable or too short for so many files.
    """
    num_processes = config.num_processes or len(os.sched_getaffinity(0))
    os.makedirs(work_dir, exist_ok=True)
    with worker_processes.pool(num_processes) as pool:
        store_folder = os.path.join(work_dir, "tokens")
        tokenize_corpus(
            config, input_files, tokenizer, store_folder, pool, num_processes
        )
        store = TokenStore.open(store_folder, len(tokenizer.vocabulary))
        plan = plan_parts(config, tokenizer, work_dir, store, output_files)
        _write_files(plan, store, output_files, pool, num_processes)
    return result(work_dir, store, output_files)


def tokenize_corpus(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    folder: str,
    pool: futures.Executor,
    num_processes: int,
) -> None:
    """Tokenizes the corpus into a store, unless the store is complete."""
    if read_progress(folder).complete:
        return
    writer = TokenStoreWriter(folder, len(tokenizer.vocabulary))
    waiting: collections.deque = collections.deque()

    def process(batch: Batch, split: futures.Future | None) -> Tokenized:
        return tokenize(tokenizer, *batch, split and split.result())

    def append() -> None:
        num_lines, tokenized = waiting.popleft()
        writer.append(*tokenized.result())
        writer.progress.lines += num_lines

    total = corpus.count_bytes(input_files)
    with contextlib.closing(writer):
        # Threads run in parallel, because TensorFlow releases Python's lock.
        with (
            progress.bar(total, "tokenizing", "byte") as bar,
            futures.ThreadPoolExecutor(num_processes) as threads,
        ):
            batches = read_batches(
                config, input_files, writer.progress.lines, on_bytes=bar.update
            )
            for number, batch in enumerate(batches):
                lines, split = batch[0], None
                if config.split_sentences is not False:
                    split = pool.submit(streaming_worker.split_lines, lines)
                tokenized = threads.submit(process, batch, split)
                waiting.append((len(lines), tokenized))
                if len(waiting) > 2 * num_processes:
                    append()
                    if number % _BATCHES_PER_SAVE == 0:
                        writer.save()
            while waiting:
                append()
        finish(writer, input_files)


def finish(writer: TokenStoreWriter, input_files: Sequence[str]) -> None:
    """Marks a store as complete; raises `UserError` if it is empty."""
    if not writer.progress.tokens:
        raise corpus.empty_corpus_error(input_files, unit="token")
    writer.finish()


def read_batches(
    config: Flags,
    input_files: Sequence[str],
    num_done: int = 0,
    **options: Any,
) -> Iterator[Batch]:
    """Yields batches of numbered lines, without the first `num_done` lines."""
    numbered = corpus.read_numbered_lines(
        input_files,
        config.one_document_per_file,
        config.replace_invalid_utf8,
        sample=config.sample,
        **options,
    )
    lines: list[str] = []
    numbers: list[int] = []
    characters = 0
    for number, line in itertools.islice(numbered, num_done, None):
        lines.append(line)
        numbers.append(number)
        characters += len(line)
        if characters >= _CHARACTERS_PER_BATCH:
            yield lines, np.array(numbers)
            lines, numbers, characters = [], [], 0
    if lines:
        yield lines, np.array(numbers)


def tokenize(
    tokenizer: BertTokenizer,
    lines: list[str],
    documents: np.ndarray,
    split: tuple[list[str], np.ndarray] | None,
) -> Tokenized:
    """Tokenizes lines, or their sentences from `split_lines` if given."""
    sentences, counts = split or (lines, np.ones(len(lines), np.int64))
    # Run eagerly: for batches of this size a graph is no faster, and tracing a
    # graph takes most of a second.
    with tf.device("CPU:0"):
        ids = tokenizer.tokenize(tf.constant(sentences, tf.string))
        lengths = ids.row_lengths().numpy().astype(np.int64)
        tokens = ids.flat_values.numpy()
    return tokens, lengths, np.repeat(documents, counts)


def plan_parts(
    config: Flags,
    tokenizer: BertTokenizer,
    work_dir: str,
    store: TokenStore,
    output_files: Sequence[str],
) -> PartsPlan:
    """Plans the parts; all files have the same number of parts.

    Raises `UserError` if the text is too short for this number of files.
    """
    vocabulary = tokenizer.vocabulary
    num_files = len(output_files)
    num_passes = store.num_passes * config.dupe_factor
    if num_passes < num_files:
        raise UserError(
            f"The corpus has too little text for {num_files} files: "
            f"{store.num_documents} documents times --dupe_factor="
            f"{config.dupe_factor}; write at most {num_passes} files."
        )
    num_tokens = len(store.tokens) * config.dupe_factor
    per_part = max(_LEAST_TOKENS_PER_PART, num_tokens // _LEAST_PARTS)
    per_part = min(TOKENS_PER_PART, per_part)
    per_file = -(-num_tokens // (per_part * num_files))
    per_file = min(per_file, num_passes // num_files)
    return PartsPlan(
        config=config,
        store_folder=os.path.join(work_dir, "tokens"),
        parts_folder=work_dir,
        num_parts=per_file * num_files,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        mask_id=vocabulary.mask_id,
        starts_word=np.array(
            [not token.startswith("##") for token in vocabulary.tokens]
        ),
        token_ids=np.array(vocabulary.token_ids),
    )


def _counts_path(work_dir: str, number: int) -> str:
    return os.path.join(work_dir, f"file-{number:05d}.json")


def is_finished(work_dir: str, number: int, output_file: str) -> bool:
    """Returns whether a file and its counts are written."""
    path = _counts_path(work_dir, number)
    if not (files.exists(path) and files.exists(output_file)):
        return False
    return files.size(output_file) == files.read_json(path)["bytes"]


def missing_parts(
    plan: PartsPlan, output_files: Sequence[str]
) -> dict[int, set[int]]:
    """Returns the parts still to write, by the number of their file."""
    per_file = plan.num_parts // len(output_files)
    return {
        number: {
            part
            for part in range(number * per_file, (number + 1) * per_file)
            if not tf.io.gfile.exists(plan.records_path(part))
        }
        for number, path in enumerate(output_files)
        if not is_finished(plan.parts_folder, number, path)
    }


def _write_files(
    plan: PartsPlan,
    store: TokenStore,
    output_files: Sequence[str],
    pool: futures.Executor,
    num_processes: int,
) -> None:
    """Runs the workers and concatenates the parts of each complete file."""
    missing = missing_parts(plan, output_files)
    todo = [part for parts in missing.values() for part in sorted(parts)]
    num_tokens = len(store.tokens) * plan.config.dupe_factor
    done = num_tokens * (plan.num_parts - len(todo)) // plan.num_parts
    with progress.bar(num_tokens, "writing records", "token", done) as bar:
        for number, parts in missing.items():
            if not parts:
                concatenate_parts(plan, output_files, number)
        tasks = ((plan, part) for part in todo)
        for (_, part), _ in worker_processes.finished(
            pool, num_processes, streaming_worker.write_part, tasks
        ):
            number = part * len(output_files) // plan.num_parts
            missing[number].remove(part)
            if not missing[number]:
                concatenate_parts(plan, output_files, number)
            bar.update(num_tokens // plan.num_parts)


def concatenate_parts(
    plan: PartsPlan, output_files: Sequence[str], number: int
) -> None:
    """Concatenates the parts of a record file, then removes them."""
    path = output_files[number]
    # If Beam repeats this step, the file may be finished and its parts gone.
    if is_finished(plan.parts_folder, number, path):
        return
    per_file = plan.num_parts // len(output_files)
    parts = range(number * per_file, (number + 1) * per_file)
    counts = RecordCounts()
    with files.atomic_file(path) as temporary:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            for part in parts:
                values = files.read_json(plan.counts_path(part))
                counts.add(RecordCounts.from_dict(values))
                with tf.io.gfile.GFile(plan.records_path(part), "rb") as source:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
        files.write_json(
            _counts_path(plan.parts_folder, number),
            {
                "records": counts.num_instances,
                "bytes": tf.io.gfile.stat(temporary).length,
                "counts": counts.to_dict(),
            },
        )
    for part in parts:
        tf.io.gfile.remove(plan.records_path(part))
        tf.io.gfile.remove(plan.counts_path(part))


def result(
    work_dir: str, store: TokenStore, output_files: Sequence[str]
) -> GenerationResult:
    """Returns the sum of the stored counts of all files."""
    total = GenerationResult(
        files={},
        num_documents=store.num_documents,
        num_sentences=len(store.sentence_offsets) - 1,
        counts=RecordCounts(),
    )
    for number, path in enumerate(output_files):
        stored = files.read_json(_counts_path(work_dir, number))
        total.counts.add(RecordCounts.from_dict(stored.pop("counts")))
        total.files[path] = stored
    return total
