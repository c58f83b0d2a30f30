"""Learning a WordPiece vocabulary from word counts.

tensorflow_text's learner finds the wordpieces that occur at least N times. This
module searches for the N that gives the requested size. The alphabet has only
characters of the text, and may exceed the learner's limit of 1,000 characters.
Rarer wordpieces or unused tokens fill the vocabulary to the requested size.
"""

import collections
import dataclasses
import heapq
import math
from collections.abc import Iterable
from collections.abc import Iterator

from absl import logging
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
)

from bert_tf.errors import UserError
from bert_tf.io import progress
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import MAX_CHARS_PER_WORD

_MAX_CHARS_PER_TOKEN = 50
# The learner of tensorflow_text runs 4 iterations by default.
_NUM_ITERATIONS = 4
# Search until the wordpieces fill this share of the vocabulary's free lines.
_FULL_ENOUGH = 0.95
# Results of `_guess` may not converge. After this many, the search bisects.
_MAX_GUESSES = 6
# As in bert-base-uncased, 99 unused tokens lie between [PAD] and [UNK].
_UNUSED_IN_FRONT = 99
# Each word takes about 5 KB, and 0.1 ms per iteration. Rare words have little
# influence, so learn only from the most frequent: the number of words is at
# most max(_MAX_WORDS, _MAX_WORDS_PER_LINE * vocab_size).
_MAX_WORDS = 120_000
_MAX_WORDS_PER_LINE = 4


@dataclasses.dataclass(frozen=True)
class WordStatistics:
    """Word and character counts to learn a vocabulary from.

    Attributes:
      words: The most frequent words and their counts, most frequent first.
      starts: Count of each character at the start of a word.
      insides: Count of each character at all positions of words but the first.
      num_words: Number of words; a repeated word counts each time.
      num_distinct_words: Number of different words.
      num_too_long: Number of words of more than 200 characters (always [UNK]).
    """

    words: list[tuple[str, int]]
    starts: dict[str, int]
    insides: dict[str, int]
    num_words: int
    num_distinct_words: int
    num_too_long: int

    def coverage(self, tokens: Iterable[str]) -> float:
        """Returns the share of characters that single-character tokens cover.

        A character at the start of words and inside words needs two tokens.
        """
        present = set(tokens)
        covered = sum(n for char, n in self.starts.items() if char in present)
        covered += sum(
            n
            for char, n in self.insides.items()
            if _continuation(char) in present
        )
        total = sum(self.starts.values()) + sum(self.insides.values())
        return covered / total if total else 1.0


def gather_statistics(
    counts: Iterable[tuple[str, int]], vocab_size: int, min_frequency: int
) -> WordStatistics:
    """Computes the statistics in one pass over word counts, in any order.

    Words rarer than `min_frequency` are counted, but left out of `words`.
    """
    starts: dict[str, int] = collections.defaultdict(int)
    insides: dict[str, int] = collections.defaultdict(int)
    totals = collections.Counter()

    def kept() -> Iterator[tuple[int, str]]:
        for word, count in counts:
            totals.update(words=count, distinct=1)
            if len(word) > MAX_CHARS_PER_WORD:  # Such a word becomes [UNK].
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


@dataclasses.dataclass(frozen=True)
class LearnedVocabulary:
    """A learned vocabulary and the origin of its lines.

    Attributes:
      tokens: All lines.
      threshold: The minimum count of a learned wordpiece.
      counts: Number of lines by kind, such as "learned" or "unused".
    """

    tokens: list[str]
    threshold: int
    counts: dict[str, int]


def learn(
    statistics: WordStatistics,
    vocab_size: int,
    num_unused: int,
    character_coverage: float,
) -> LearnedVocabulary:
    """Learns a vocabulary of exactly `vocab_size` lines.

    As in bert-base-uncased, special and unused tokens come first, with [UNK] on
    line 100 (counted from 0). Single characters follow, then wordpieces by
    descending frequency. If the text gives too few wordpieces, the last lines
    are unused tokens, too. `num_unused` is at least 99.

    Raises:
      UserError: If `vocab_size` is too small for the single characters.
    """
    reserved = reserved_tokens(num_unused)
    room = vocab_size - len(reserved)
    starts, insides = choose_alphabet(statistics, character_coverage, room)
    room -= len(starts) + len(insides)
    if room < 0:
        raise UserError(
            f"--vocab_size={vocab_size} is too small: the {len(reserved)} "
            f"special and unused tokens and {len(starts) + len(insides)} "
            "single characters need at least "
            f"--vocab_size={vocab_size - room}; raise it, or lower "
            "--num_unused or --character_coverage."
        )
    words = _spellable(statistics.words, starts, insides)
    threshold, learned, spare = _search(words, room)
    filling = _fill(learned, spare, words, room - len(learned))
    unused = [
        f"[unused{num_unused + i}]"
        for i in range(room - len(learned) - len(filling))
    ]
    return LearnedVocabulary(
        tokens=[*reserved, *starts, *insides, *learned, *filling, *unused],
        threshold=threshold,
        counts={
            "special": len(vocabulary_lib.SPECIAL_TOKENS),
            "unused": num_unused + len(unused),
            "characters": len(starts),
            "continuation_characters": len(insides),
            "learned": len(learned),
            "filled": len(filling),
        },
    )


def reserved_tokens(num_unused: int) -> list[str]:
    """Returns the first lines of a vocabulary: special and unused tokens."""
    unused = [f"[unused{i}]" for i in range(num_unused)]
    return [
        vocabulary_lib.PAD,
        *unused[:_UNUSED_IN_FRONT],
        vocabulary_lib.UNK,
        vocabulary_lib.CLS,
        vocabulary_lib.SEP,
        vocabulary_lib.MASK,
        *unused[_UNUSED_IN_FRONT:],
    ]


def choose_alphabet(
    statistics: WordStatistics, character_coverage: float, room: int
) -> tuple[list[str], list[str]]:
    """Returns the single-character tokens that start and continue words.

    The most frequent characters, which make up `character_coverage` of the
    text, get tokens. A character gets one token if it starts words, and another
    if it occurs inside words. A rarer character gets tokens if it is at least
    as frequent as the rarest word that could get a line, and if the alphabet
    fills less than half of the `room` lines.
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
        if char.isspace():  # The original reads U+2028 as an empty line.
            continue
        covered += count
        if char in statistics.starts:
            starts.append(char)
        if char in statistics.insides:
            insides.append(_continuation(char))
    return sorted(starts), sorted(insides)


def _continuation(token: str) -> str:
    return vocabulary_lib.CONTINUATION + token


def _spellable(
    words: list[tuple[str, int]], starts: list[str], insides: list[str]
) -> list[tuple[str, int]]:
    first, further = set(starts), {token[-1] for token in insides}
    return [
        (word, count)
        for word, count in words
        if len(word) <= _MAX_CHARS_PER_TOKEN
        and word[0] in first
        and further.issuperset(word[1:])
    ]


def _learn_tokens(words: list[tuple[str, int]], threshold: int) -> list[str]:
    """Returns wordpieces of at least two characters, most frequent first."""
    params = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=_NUM_ITERATIONS,
        max_input_tokens=-1,
        max_token_length=_MAX_CHARS_PER_TOKEN,
        max_unique_chars=None,
        vocab_size=None,
        slack_ratio=None,
        include_joiner_token=True,
        joiner=vocabulary_lib.CONTINUATION,
        reserved_tokens=[],
    )
    tokens = learner.learn_with_thresh(words, threshold, params)
    return [
        token
        for token in tokens
        if len(token.removeprefix(vocabulary_lib.CONTINUATION)) > 1
    ]


def _search(
    words: list[tuple[str, int]], room: int
) -> tuple[int, list[str], list[str]]:
    """Finds the minimum count (threshold) that gives about `room` wordpieces.

    The number of wordpieces is about inversely proportional to the threshold,
    so each round computes a new threshold from earlier ones. Returns the
    threshold, its wordpieces (at most `room`), and the wordpieces of the next
    lower threshold that was tried (more than `room`; empty if all fit).
    """
    if not words or not room:
        return 0, [], []
    frequencies = [count for _, count in words]  # Largest first.
    # The threshold `above` gives no wordpieces: none is so frequent.
    above = sum(len(word) * count for word, count in words) + 1
    below = 0  # Gives too many wordpieces.
    fitting: list[str] = []
    spare: list[str] = []
    guess = frequencies[min(len(words) - 1, 3 * room // 4)]
    with progress.bar(None, "learning wordpieces", "round") as rounds:
        while above - below > 1:
            guess = min(max(guess, below + 1), above - 1)
            tokens = _learn_tokens(words, guess)
            logging.info(
                "%d wordpieces occur at least %d times; there is room for %d.",
                len(tokens),
                guess,
                room,
            )
            rounds.update(1)
            if len(tokens) <= room:
                above, fitting = guess, tokens
            else:
                below, spare = guess, tokens
            if spare and len(fitting) >= _FULL_ENOUGH * room:
                break
            guess = _guess(below, len(spare), above, len(fitting), room)
            if rounds.n > _MAX_GUESSES:
                guess = math.isqrt((below + 1) * above)
    return above, fitting, spare


def _guess(
    below: int, num_below: int, above: int, num_above: int, room: int
) -> int:
    """Returns the next threshold to try, from one or two earlier ones."""
    # The search ends when the number of wordpieces is between
    # `_FULL_ENOUGH * room` and `room`, so aim at the middle of this range.
    target = (1 + _FULL_ENOUGH) / 2 * room
    if num_below and num_above:
        share = math.log(num_below / target) / math.log(num_below / num_above)
        return round(below * (above / below) ** share)
    if num_below:
        return math.ceil(below * num_below / target)
    if num_above:
        # Lower the threshold by a tenth or more, or the search would be slow.
        return math.floor(above * min(num_above / target, 0.9))
    return (below + above) // 2


def _fill(
    learned: list[str],
    spare: list[str],
    words: list[tuple[str, int]],
    number: int,
) -> list[str]:
    """Returns up to `number` more wordpieces, most frequent first.

    `spare` has wordpieces learned with a lower threshold. If `spare` is empty,
    all substrings of the words are candidates.
    """
    present = set(learned)
    filling = [token for token in spare if token not in present][:number]
    if spare or not number:
        return filling
    counts: dict[str, int] = collections.defaultdict(int)
    for word, count in words:
        for start in range(len(word)):
            for end in range(start + 2, len(word) + 1):
                part = word[start:end]
                counts[_continuation(part) if start else part] += count
    candidates = (
        (-count, token)
        for token, count in counts.items()
        if token not in present
    )
    return [token for _, token in heapq.nsmallest(number, candidates)]
