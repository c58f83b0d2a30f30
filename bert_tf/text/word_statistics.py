"""What learning a vocabulary needs to know of the words of a text."""

import collections
import dataclasses
import heapq
import math
from collections.abc import Iterable
from collections.abc import Iterator

from bert_tf.text import vocabulary

# Longer words are unknown, whatever the vocabulary (tokenization.py:303 of
# the original).
_MAX_CHARS_PER_WORD = 200
# The learner takes about 5 KB and 0.1 ms a word and round. Rarer words decide
# little, so at most this many take part, or this many for each line.
_MAX_WORDS = 120_000
_MAX_WORDS_PER_LINE = 4


@dataclasses.dataclass(frozen=True)
class WordStatistics:
    """What learning needs to know of the words of a text.

    Attributes:
      words: The most frequent words and their counts, most frequent first.
      starts: How often each character begins a word.
      insides: How often each character stands further inside a word.
      num_words: Words in all.
      num_distinct_words: Different words.
      num_too_long: Words of more than 200 characters, which are always [UNK].
    """

    words: list[tuple[str, int]]
    starts: dict[str, int]
    insides: dict[str, int]
    num_words: int
    num_distinct_words: int
    num_too_long: int

    def coverage(self, pieces: Iterable[str]) -> float:
        """Returns the share of characters that single-character pieces cover.

        A character at the start of a word needs another piece than one
        further inside.
        """
        known = set(pieces)
        covered = sum(n for char, n in self.starts.items() if char in known)
        covered += sum(
            n for char, n in self.insides.items() if continuation(char) in known
        )
        total = sum(self.starts.values()) + sum(self.insides.values())
        return covered / total if total else 1.0


def gather_statistics(
    counts: Iterable[tuple[str, int]], vocab_size: int, min_frequency: int
) -> WordStatistics:
    """Reads word counts once, keeping what learning needs.

    Args:
      counts: Each word and how often it occurs, in any order.
      vocab_size: Lines that the vocabulary will have.
      min_frequency: Rarer words count for characters only.
    """
    starts: dict[str, int] = collections.defaultdict(int)
    insides: dict[str, int] = collections.defaultdict(int)
    totals = collections.Counter()

    def kept() -> Iterator[tuple[int, str]]:
        for word, count in counts:
            totals.update(words=count, distinct=1)
            if len(word) > _MAX_CHARS_PER_WORD:
                totals["too_long"] += count
                continue
            starts[word[0]] += count
            for char in word[1:]:
                insides[char] += count
            if count >= min_frequency:
                yield -count, word

    most = max(_MAX_WORDS, _MAX_WORDS_PER_LINE * vocab_size)
    frequent = heapq.nsmallest(most, kept())
    return WordStatistics(
        words=[(word, -count) for count, word in frequent],
        starts=dict(starts),
        insides=dict(insides),
        num_words=totals["words"],
        num_distinct_words=totals["distinct"],
        num_too_long=totals["too_long"],
    )


def choose_alphabet(
    statistics: WordStatistics, character_coverage: float, room: int
) -> tuple[list[str], list[str]]:
    """Returns the pieces of one character that cover the text.

    The most frequent characters that together make up `character_coverage` of
    the text, as a start or as a continuation of a word, or both, just as they
    occur: Chinese characters, always words of their own, need no second piece.
    Then those that are more frequent than words that will get a line, as long
    as they take less than half of the room.

    Args:
      statistics: The words.
      character_coverage: Share of the characters that must be covered.
      room: Lines to share out.

    Returns:
      The pieces that begin words and those that continue them, both sorted.
    """
    totals = collections.Counter(statistics.starts)
    totals.update(statistics.insides)
    needed = character_coverage * sum(totals.values())
    words = statistics.words[: max(room, 1)]
    frequent = words[-1][1] if words else math.inf
    covered = 0
    starts, insides = [], []
    for char, count in sorted(
        totals.items(), key=lambda item: (-item[1], item)
    ):
        is_worthwhile = (
            count >= frequent and len(starts) + len(insides) < room // 2
        )
        if covered >= needed and not is_worthwhile:
            break
        if char.isspace():  # U+2028: a line that the original reads as empty.
            continue
        covered += count
        if char in statistics.starts:
            starts.append(char)
        if char in statistics.insides:
            insides.append(continuation(char))
    return sorted(starts), sorted(insides)


def continuation(piece: str) -> str:
    """Returns the piece that continues a word with `piece`."""
    return vocabulary.CONTINUATION + piece
