"""Exact word counts of a text in bounded memory."""

import heapq
import itertools
import os
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from types import TracebackType

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.text.normalizer import Normalizer

# About 150 MB in a dict. Beyond that, sorted counts are written to disk.
_MAX_WORDS_IN_MEMORY = 1_000_000


def build_word_counter(
    lower_case: bool, strip_accents: bool
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function that counts the words of a batch of texts.

    Words are those of `BertTokenizer.split_words`. The function is thread-safe
    and runs outside of Python's lock.

    Args:
      lower_case: Whether to lower-case the text.
      strip_accents: Whether to strip accents.

    Returns:
      A function from <string>[n] to the distinct words <string>[k] and their
      counts <int64>[k].
    """
    normalizer = Normalizer(lower_case, strip_accents)

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


class WordCounts:
    """Word counts that spill to disk when they do not fit in memory.

    The result does not depend on the order or the batches in which words are
    added. Use it as a context manager, which removes the temporary files.

    Args:
      max_words_in_memory: Number of distinct words above which they spill.
    """

    def __init__(self, max_words_in_memory: int = _MAX_WORDS_IN_MEMORY) -> None:
        self._max_words_in_memory = max_words_in_memory
        self._counts: dict[bytes, int] = {}
        self._folder: tempfile.TemporaryDirectory | None = None
        self._runs: list[str] = []

    def __enter__(self) -> "WordCounts":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._folder:
            self._folder.cleanup()

    def add(self, words: Sequence[bytes], counts: Sequence[int]) -> None:
        """Adds counts; words are UTF-8 without spaces and line ends.

        Raises:
          UserError: If the disk for temporary files is full.
        """
        total = self._counts
        for word, count in zip(words, counts, strict=True):
            total[word] = total.get(word, 0) + count
        if len(total) > self._max_words_in_memory:
            self._spill()

    def items(self) -> Iterator[tuple[str, int]]:
        """Yields each word and its count, ordered by the bytes of the words."""
        runs = [self._read_run(path) for path in self._runs]
        merged = heapq.merge(sorted(self._counts.items()), *runs)
        for word, group in itertools.groupby(merged, key=lambda item: item[0]):
            yield word.decode("utf-8"), sum(count for _, count in group)

    def _spill(self) -> None:
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="words-")
            path = os.path.join(self._folder.name, str(len(self._runs)))
            with open(path, "wb") as file:
                for item in sorted(self._counts.items()):
                    file.write(b"%s %d\n" % item)
        except OSError as error:
            raise UserError(
                f"Word counts cannot be written to {tempfile.gettempdir()} "
                f"({error}); set TMPDIR to a folder with more room."
            ) from error
        self._runs.append(path)
        self._counts = {}

    def _read_run(self, path: str) -> Iterator[tuple[bytes, int]]:
        with open(path, "rb") as file:
            for line in file:
                word, count = line.split(b" ")
                yield word, int(count)
