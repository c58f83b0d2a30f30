"""Builds a vocabulary and a report from text files (learn_vocabulary)."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sqlite3
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf.config import fields_affecting
from bert_tf.data import corpus
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import worker_processes
from bert_tf.io.run_folder import RunFolder
from bert_tf.text import learn_vocabulary as vocabulary_learning
from bert_tf.text.normalizer import Normalizer
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

# Characters in a batch: enough to make the overhead of a call negligible, few
# enough that several batches fit in memory.
_BATCH_CHARS = 1 << 22
# The report tokenizes this number of words at once, which bounds memory.
_WORDS_PER_CALL = 1 << 16
# Warn if unused and rare entries together exceed this share of the vocabulary.
_MAX_SPARE = 0.1
# Attributes of `CountedText`; Beam workers write a file for each attribute.
_SIDES = ("learned", "heldout")
# With more distinct words than this (about 150 MB), counts move to disk.
_MAX_WORDS_IN_MEMORY = 1_000_000


class WordCounts:
    """Exact word counts, which move to disk when they do not fit in memory.

    The order in which words are added does not matter. The methods raise
    `UserError` if the disk for temporary files is full.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._table = sqlite3.connect("")  # SQLite stores large tables on disk.
        self._table.execute("CREATE TABLE words (word BLOB, count INTEGER)")

    def close(self) -> None:
        """Removes the temporary file."""
        self._table.close()

    def add(self, words: Sequence[bytes], counts: Sequence[int]) -> None:
        """Adds counts; words are UTF-8 without spaces or line ends."""
        total = self._counts
        for word, count in zip(words, counts, strict=True):
            total[word] = total.get(word, 0) + count
        if len(total) > _MAX_WORDS_IN_MEMORY:
            self._spill()

    def items(self) -> Iterator[tuple[str, int]]:
        """Yields each word and its count, ordered by the bytes of the words."""
        self._spill()
        with _on_disk():
            for word, count in self._table.execute(
                "SELECT word, SUM(count) FROM words GROUP BY word ORDER BY word"
            ):
                yield word.decode("utf-8"), count

    def _spill(self) -> None:
        with _on_disk():
            self._table.executemany(
                "INSERT INTO words VALUES (?, ?)", self._counts.items()
            )
        self._counts = {}


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UserError(
            f"Word counts cannot be written to a temporary file ({error}); set "
            "TMPDIR to a folder with more room."
        ) from error


@dataclasses.dataclass
class CountedText:
    """Word counts of the documents to learn from and of held-out documents."""

    learned: WordCounts = dataclasses.field(default_factory=WordCounts)
    heldout: WordCounts = dataclasses.field(default_factory=WordCounts)
    num_documents: int = 0
    num_heldout_documents: int = 0

    def close(self) -> None:
        self.learned.close()
        self.heldout.close()


def report_path(output_file: str) -> str:
    """Returns the path of the report on a vocabulary."""
    return f"{output_file}.report.json"


@errors.full_disks()
def run(config: Flags) -> None:
    """Learns a vocabulary and writes it with a report.

    The result does not depend on the number of workers. Raises `UserError` if
    no text can be read, or the vocabulary is too small for its characters.
    """
    config.require_beam()
    files.require_writable(config.output_file, "--output_file")
    paths = files.expand_globs(config.input_file)
    if tf.io.gfile.exists(config.output_file):
        logging.info(
            "%s exists and is replaced once the new vocabulary is complete.",
            config.output_file,
        )
    with (
        RunFolder(config.output_file, {}) as run,
        contextlib.closing(CountedText()) as text,
    ):
        run.discard()  # A killed run may have counted other text.
        (_count_on_beam if config.runner else count_text)(config, paths, text)
        statistics = vocabulary_learning.gather_statistics(
            text.learned.items(), config.vocab_size, config.min_frequency
        )
        if not statistics.num_words:
            raise UserError(
                "There is nothing to learn from: the documents that are not "
                "held out contain no word; use more text or a smaller "
                f"--heldout_fraction than {config.heldout_fraction}."
            )
        learned = vocabulary_learning.learn(
            statistics,
            config.vocab_size,
            config.num_unused,
            config.character_coverage,
        )
        vocabulary = Vocabulary(learned.tokens)
        report = build_report(config, text, statistics, learned, vocabulary)
        files.write_json(report_path(config.output_file), report)
        vocabulary.write(config.output_file)  # Marks completion.
    _warn_of_size(config, learned)
    logging.info(
        "%s: %d tokens from %d words of %d documents; %.4f tokens per word, "
        "%.4f%% [UNK] on %s.",
        config.output_file,
        len(vocabulary),
        statistics.num_words,
        text.num_documents,
        report["tokens_per_word"],
        report["unknown_percent"],
        report["measured_on"],
    )


def _warn_of_size(
    config: Flags, learned: vocabulary_learning.LearnedVocabulary
) -> None:
    """Warns if the text has too few wordpieces to fill --vocab_size."""
    counts = learned.counts
    num_unused = counts["unused"] - config.num_unused
    num_spare = counts["filled"] + num_unused
    if num_spare <= _MAX_SPARE * config.vocab_size:
        return
    logging.warning(
        "--vocab_size=%d is more than this text can fill: %d lines are rare "
        "fragments of words and %d are unused, which only enlarge the model. "
        "Use more text, or about --vocab_size=%d.",
        config.vocab_size,
        counts["filled"],
        num_unused,
        config.vocab_size - num_spare,
    )


def build_counter(
    config: Flags,
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function that counts the words of a batch of texts.

    The function maps <string>[n] to the distinct words <string>[k] and their
    counts <int64>[k]. It splits words like `BertTokenizer.split_words`. Several
    threads can call it in parallel, because it does not hold Python's lock.
    """
    normalizer = Normalizer(config.do_lower_case, config.strip_accents)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def count(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Splitting off punctuation is slow, so it is done once for each
        # distinct run of characters between spaces.
        runs = tf.strings.split(normalizer.normalize(text)).flat_values
        runs, _, run_counts = tf.unique_with_counts(runs, tf.int64)
        words = normalizer.split_words(runs)
        word_counts = tf.gather(run_counts, words.value_rowids())
        distinct, index = tf.unique(words.flat_values, tf.int64)
        counts = tf.math.unsorted_segment_sum(
            word_counts, index, tf.size(distinct, tf.int64)
        )
        return distinct, counts

    return count


def count_text(
    config: Flags,
    paths: list[str],
    text: CountedText,
    num_earlier: int = 0,
    in_worker: bool = False,
) -> None:
    """Reads the documents and adds their words to `text`, on all cores.

    Earlier files have `num_earlier` documents. `in_worker` hides the progress
    bar and accepts files without text.
    """
    workers = config.num_processes or os.cpu_count() or 1
    count = build_counter(config)
    total = corpus.count_bytes(paths)
    with (
        progress.bar(total, "counting words", "B", hidden=in_worker) as bar,
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
    ):
        # Read line by line, because a document may be larger than memory.
        documents = corpus.group_lines(
            corpus.read_numbered_lines(
                paths,
                replace_invalid_utf8=config.replace_invalid_utf8,
                sample=config.sample,
                on_bytes=bar.update,
                may_be_empty=in_worker,
            )
        )
        batches = (
            (is_heldout, tf.constant(lines))
            for is_heldout, lines in _batch_lines(
                documents, config, text, num_earlier
            )
        )
        for (is_heldout, _), counted in worker_processes.finished(
            pool, workers, lambda _, lines: count(lines), batches
        ):
            target = text.heldout if is_heldout else text.learned
            target.add(*(x.numpy().tolist() for x in counted))


def _batch_lines(
    documents: Iterable[Iterable[str]],
    config: Flags,
    text: CountedText,
    num_earlier: int,
) -> Iterator[tuple[bool, list[str]]]:
    """Yields (is held out, lines) in batches; counts documents in `text`.

    Held-out documents are spread evenly. With --heldout_fraction=0.02, every
    fiftieth document is held out, so none is held out if there are only 49.
    """
    batches: dict[bool, list[str]] = {False: [], True: []}
    sizes = {False: 0, True: 0}
    for index, document in enumerate(documents, num_earlier):
        is_heldout = _quota(index + 1, config) > _quota(index, config)
        text.num_heldout_documents += is_heldout
        text.num_documents += not is_heldout
        for line in document:
            batches[is_heldout].append(line)
            sizes[is_heldout] += len(line)
            if sizes[is_heldout] >= _BATCH_CHARS:
                yield is_heldout, batches[is_heldout]
                batches[is_heldout], sizes[is_heldout] = [], 0
    for is_heldout, lines in batches.items():
        if lines:
            yield is_heldout, lines


def _quota(num_documents: int, config: Flags) -> int:
    """Returns how many of the first `num_documents` are held out."""
    # Without 1e-9, 100 * 0.29 = 28.999999999999996 would be rounded down to 28.
    return math.floor(num_documents * config.heldout_fraction + 1e-9)


# === With Apache Beam ===


def _count_on_beam(config: Flags, paths: list[str], text: CountedText) -> None:
    """Adds the words to `text`, like `count_text`; workers count the files.

    Documents are counted first, because a document's number in the whole corpus
    decides whether it is held out.
    """
    # Imported here because Apache Beam is optional.
    from bert_tf.distribute import beam_runner

    # A machine runs several workers, so each worker uses a single thread.
    local = dataclasses.replace(
        config, runner=None, beam_options="", num_processes=1
    )
    work_dir = f"{config.output_file}.work"
    tf.io.gfile.makedirs(work_dir)
    try:
        size = f"{corpus.count_bytes(paths) / 1e6:.1f} MB of {len(paths)} files"
        step = functools.partial(_count_documents, local, work_dir)
        what = f"Counting the documents in {size}"
        beam_runner.run(config, work_dir, what, enumerate(paths), step)
        counts = [
            files.read_json(_counted_path(work_dir, file, "documents"))
            for file in range(len(paths))
        ]
        if not (total := sum(counts)):
            raise corpus.empty_corpus_error(paths, config.sample)
        earlier = itertools.accumulate(counts, initial=0)
        elements = zip(range(len(paths)), paths, earlier, strict=False)
        step = functools.partial(_count_words, local, work_dir)
        what = f"Counting the words in {size}"
        beam_runner.run(config, work_dir, what, elements, step)
        text.num_heldout_documents = _quota(total, config)
        text.num_documents = total - text.num_heldout_documents
        for file, name in itertools.product(range(len(paths)), _SIDES):
            stored = files.read_bytes(_counted_path(work_dir, file, name))
            pairs = [line.split(b" ") for line in stored.splitlines()]
            words, numbers = zip(*pairs, strict=True) if pairs else ((), ())
            getattr(text, name).add(words, [*map(int, numbers)])
    finally:
        tf.io.gfile.rmtree(work_dir)


def _counted_path(work_dir: str, file: int, name: str) -> str:
    return os.path.join(work_dir, f"{name}-{file:06d}")


def _count_documents(
    config: Flags, work_dir: str, element: tuple[int, str]
) -> None:
    file, path = element
    documents = corpus.read_documents(
        [path],
        replace_invalid_utf8=config.replace_invalid_utf8,
        may_be_empty=True,
        sample=config.sample,
    )
    path = _counted_path(work_dir, file, "documents")
    files.write_json(path, sum(1 for _ in documents))


def _count_words(
    config: Flags, work_dir: str, element: tuple[int, str, int]
) -> None:
    """Counts the words of `element`: file number, path, `num_earlier`."""
    file, path, num_earlier = element
    with contextlib.closing(CountedText()) as text:
        count_text(config, [path], text, num_earlier, in_worker=True)
        for name in _SIDES:
            words = getattr(text, name).items()
            files.write_text(
                _counted_path(work_dir, file, name),
                "".join(f"{word} {count}\n" for word, count in words),
            )


def build_report(
    config: Flags,
    text: CountedText,
    statistics: vocabulary_learning.WordStatistics,
    learned: vocabulary_learning.LearnedVocabulary,
    vocabulary: Vocabulary,
) -> dict[str, Any]:
    """Returns the report on a vocabulary as JSON values.

    The vocabulary is measured on the held-out documents; if there are none, on
    the documents that it was learned from.
    """
    tokenizer = BertTokenizer(
        vocabulary, config.do_lower_case, config.strip_accents
    )
    is_heldout = text.num_heldout_documents > 0
    measured = text.heldout if is_heldout else text.learned
    return {
        "vocab_size": len(vocabulary),
        "vocabulary_hash": vocabulary.hash,
        **measure(tokenizer, measured.items()),
        "measured_on": (
            f"{text.num_heldout_documents} held-out documents"
            if is_heldout
            else "the documents it was learned from, as none is held out"
        ),
        "character_coverage": statistics.coverage(vocabulary.tokens),
        "lines": learned.counts,
        "least_count_of_learned_pieces": learned.threshold,
        "documents": text.num_documents,
        "heldout_documents": text.num_heldout_documents,
        "words": statistics.num_words,
        "distinct_words": statistics.num_distinct_words,
        "words_too_long": statistics.num_too_long,
        "words_that_took_part": len(statistics.words),
        "distinct_characters": len(
            set(statistics.starts) | set(statistics.insides)
        ),
        "flags": {
            name: value
            for name, value in dataclasses.asdict(config).items()
            if name not in fields_affecting(type(config), "nothing")
        },
    }


def measure(
    tokenizer: BertTokenizer, counts: Iterable[tuple[str, int]]
) -> dict[str, float]:
    """Measures a tokenizer on words and their counts.

    Returns:
      `tokens_per_word`; `unknown_percent`, the share of tokens that are
      [UNK]; `unknown_word_percent`, the share of words that become [UNK].
    """
    num_words = num_tokens = num_unknown = 0
    items = iter(counts)
    while batch := list(itertools.islice(items, _WORDS_PER_CALL)):
        words, frequencies = zip(*batch, strict=True)
        ids = tokenizer.tokenize(tf.constant(words))
        frequency = tf.constant(frequencies, tf.int64)
        of_token = tf.gather(frequency, ids.value_rowids())
        is_unknown = ids.flat_values == tokenizer.vocabulary.unk_id
        num_words += int(tf.reduce_sum(frequency))
        num_tokens += int(tf.reduce_sum(of_token))
        num_unknown += int(tf.reduce_sum(of_token[is_unknown]))
    # An unknown word becomes one [UNK], so `num_unknown` also counts words.
    return {
        "tokens_per_word": num_tokens / max(num_words, 1),
        "unknown_percent": 100 * num_unknown / max(num_tokens, 1),
        "unknown_word_percent": 100 * num_unknown / max(num_words, 1),
    }
