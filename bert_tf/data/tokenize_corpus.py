"""Tokenizes a corpus into a token store on all cores, in small batches."""

import collections
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.data.generators import streaming_worker
from bert_tf.data.token_store import TokenStoreWriter
from bert_tf.data.token_store import read_progress
from bert_tf.errors import UserError
from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.io import progress
from bert_tf.text.tokenizer import BertTokenizer

_CHARACTERS_PER_BATCH = 1 << 20
# Saving waits for the disk, so it is not done after every batch.
_BATCHES_PER_SAVE = 16

# Lines, and the document number of each line <int64>[lines].
Batch = tuple[list[str], np.ndarray]
# Tokens <int32>[sum(lengths)] and lengths <int64>[sentences] of sentences, and
# the number of sentences in each line <int64>[lines].
_Tokenized = tuple[np.ndarray, np.ndarray, np.ndarray]


def tokenize_corpus(
    config: CreatePretrainingDataConfig,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    folder: str,
    pool: futures.Executor,
    num_processes: int,
) -> None:
    """Writes or completes the token store in `folder`.

    Args:
      config: Flags of the run.
      input_files: Text.
      tokenizer: The tokenizer.
      folder: The folder of the store.
      pool: Processes that split sentences.
      num_processes: Number of these processes.

    Raises:
      UserError: If the text cannot be read or has no token.
    """
    if read_progress(folder).complete:
        return
    writer = TokenStoreWriter(folder, len(tokenizer.vocabulary))
    try:
        with progress.bar(
            corpus.count_bytes(input_files), "tokenizing", "byte"
        ) as bar:
            batches = read_batches(
                config,
                input_files,
                writer.progress.lines,
                on_bytes=bar.update,
            )
            split = pool if config.split_sentences is not False else None
            _append_all(writer, batches, tokenizer, split, num_processes)
        finish(writer, input_files)
    finally:
        writer.close()


def finish(writer: TokenStoreWriter, input_files: Sequence[str]) -> None:
    """Marks a store as complete.

    Raises:
      UserError: If it is empty.
    """
    if not writer.progress.tokens:
        raise UserError(
            "The corpus has no text that gives a token. "
            f"Received: {', '.join(input_files[:3])}."
        )
    writer.finish()


def read_batches(
    config: CreatePretrainingDataConfig,
    input_files: Sequence[str],
    num_done: int = 0,
    may_be_empty: bool = False,
    on_bytes: Callable[[int], object] | None = None,
) -> Iterator[Batch]:
    """Yields the lines after the first `num_done`, in batches."""
    numbered = corpus.read_numbered_lines(
        input_files,
        config.one_document_per_file,
        config.replace_invalid_utf8,
        may_be_empty=may_be_empty,
        on_bytes=on_bytes,
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


def _append_all(
    writer: TokenStoreWriter,
    batches: Iterator[Batch],
    tokenizer: BertTokenizer,
    split: futures.Executor | None,
    num_processes: int,
) -> None:
    """Tokenizes batches in parallel and appends them in order."""

    def process(sentences: list[str], counts: np.ndarray) -> _Tokenized:
        return *tokenize(tokenizer, sentences), counts

    def process_split(pending: futures.Future) -> _Tokenized:
        return process(*pending.result())

    # Threads suffice: TensorFlow works outside of Python's lock.
    with futures.ThreadPoolExecutor(num_processes) as threads:
        waiting: collections.deque = collections.deque()
        for number, (lines, documents) in enumerate(batches):
            if split:
                pending = split.submit(streaming_worker.split_lines, lines)
                tokenized = threads.submit(process_split, pending)
            else:
                ones = np.ones(len(lines), np.int64)
                tokenized = threads.submit(process, lines, ones)
            waiting.append((tokenized, documents))
            if len(waiting) > 2 * num_processes:
                _append(writer, *waiting.popleft())
                if number % _BATCHES_PER_SAVE == 0:
                    writer.save()
        while waiting:
            _append(writer, *waiting.popleft())


def _append(
    writer: TokenStoreWriter, tokenized: futures.Future, documents: np.ndarray
) -> None:
    tokens, lengths, counts = tokenized.result()
    writer.append(tokens, lengths, np.repeat(documents, counts))
    writer.progress.lines += len(documents)


def tokenize(
    tokenizer: BertTokenizer, sentences: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns flat ids, and the number of ids per sentence."""
    # Eagerly: with batches of this size a graph is no faster, and tracing takes
    # most of a second.
    with tf.device("CPU:0"):
        ids = tokenizer.tokenize(tf.constant(sentences, tf.string))
        lengths = ids.row_lengths().numpy().astype(np.int64)
        return ids.flat_values.numpy(), lengths
