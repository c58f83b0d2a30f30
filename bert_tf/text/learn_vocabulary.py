"""Learning a WordPiece vocabulary from word counts.

tensorflow_text's learner finds the pieces for a given least frequency. What it
does not do stands here: it gives every character two pieces whether it needs
them or not and knows no rarer characters than the first 1,000, it is slow in
looking for the frequency that gives the asked size, and it stops below that
size.
"""

import collections
import dataclasses
import heapq
import math

from absl import logging
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
)

from bert_tf.errors import UserError
from bert_tf.io import progress
from bert_tf.text import vocabulary
from bert_tf.text import word_statistics
from bert_tf.text.word_statistics import WordStatistics

_MAX_CHARS_PER_PIECE = 50
# How often learning goes round; what the learner does by default.
_NUM_ITERATIONS = 4
# The search ends when the learner fills this much of the room.
_FULL_ENOUGH = 0.95
# After so many guesses the search halves, so that it ends.
_MAX_GUESSES = 6
# Lines 1 to 99 of bert-base-uncased are unused, [UNK] is on line 100.
_UNUSED_IN_FRONT = 99


@dataclasses.dataclass(frozen=True)
class LearnedVocabulary:
    """A vocabulary and where its lines come from.

    Attributes:
      tokens: All lines.
      threshold: The least count of a piece that the learner was given.
      counts: How many lines there are of each kind.
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

    The order is that of bert-base-uncased: special and unused tokens with
    [UNK] on line 100 (counted from 0), single characters, then pieces from
    the most frequent on. Where the text has too few pieces, more unused tokens
    end the list.

    Args:
      statistics: The words to learn from.
      vocab_size: Number of lines.
      num_unused: Number of [unusedN] lines in front, at least 99.
      character_coverage: Share of the text's characters to give pieces.

    Raises:
      UserError: If not even the characters fit in.
    """
    reserved = reserved_tokens(num_unused)
    room = vocab_size - len(reserved)
    starts, insides = word_statistics.choose_alphabet(
        statistics, character_coverage, room
    )
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
            "special": len(vocabulary.SPECIAL_TOKENS),
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
        vocabulary.PAD,
        *unused[:_UNUSED_IN_FRONT],
        vocabulary.UNK,
        vocabulary.CLS,
        vocabulary.SEP,
        vocabulary.MASK,
        *unused[_UNUSED_IN_FRONT:],
    ]


def _spellable(
    words: list[tuple[str, int]], starts: list[str], insides: list[str]
) -> list[tuple[str, int]]:
    """Returns the words of moderate length that the alphabet can spell."""
    first, further = set(starts), {piece[-1] for piece in insides}
    return [
        (word, count)
        for word, count in words
        if len(word) <= _MAX_CHARS_PER_PIECE
        and word[0] in first
        and further.issuperset(word[1:])
    ]


def _learn_pieces(words: list[tuple[str, int]], threshold: int) -> list[str]:
    """Returns pieces of at least two characters, most frequent first."""
    params = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=_NUM_ITERATIONS,
        max_input_tokens=-1,
        max_token_length=_MAX_CHARS_PER_PIECE,
        max_unique_chars=None,
        vocab_size=None,
        slack_ratio=None,
        include_joiner_token=True,
        joiner=vocabulary.CONTINUATION,
        reserved_tokens=[],
    )
    pieces = learner.learn_with_thresh(words, threshold, params)
    return [piece for piece in pieces if _length(piece) > 1]


def _length(piece: str) -> int:
    return len(piece.removeprefix(vocabulary.CONTINUATION))


def _search(
    words: list[tuple[str, int]], room: int
) -> tuple[int, list[str], list[str]]:
    """Finds the threshold whose pieces come closest to filling `room`.

    The number of pieces falls with the threshold, about as one over it, so
    each round guesses the next threshold from the last.

    Returns:
      The threshold, its pieces (at most `room`), and those of the nearest
      lower threshold that was tried (more than `room`; none if all fit).
    """
    if not words or not room:
        return 0, [], []
    frequencies = [count for _, count in words]  # Largest first.
    # No piece occurs so often, so its pieces fit.
    above = sum(len(word) * count for word, count in words) + 1
    below = 0  # Its pieces do not fit.
    fitting: list[str] = []
    spare: list[str] = []
    guess = frequencies[min(len(words) - 1, 3 * room // 4)]
    with progress.bar(None, "learning pieces", "round") as rounds:
        while above - below > 1:
            guess = min(max(guess, below + 1), above - 1)
            pieces = _learn_pieces(words, guess)
            logging.info(
                "%d pieces occur at least %d times; there is room for %d.",
                len(pieces),
                guess,
                room,
            )
            rounds.update(1)
            if len(pieces) <= room:
                above, fitting = guess, pieces
            else:
                below, spare = guess, pieces
            if spare and len(fitting) >= _FULL_ENOUGH * room:
                break
            guess = _guess(below, len(spare), above, len(fitting), room)
            if rounds.n > _MAX_GUESSES:
                guess = math.isqrt((below + 1) * above)
    return above, fitting, spare


def _guess(
    below: int, num_below: int, above: int, num_above: int, room: int
) -> int:
    """Returns a threshold between two, or a little beyond the only one."""
    # Just under the room, so that the next round is likely to be the last.
    target = (1 + _FULL_ENOUGH) / 2 * room
    if num_below and num_above:
        share = math.log(num_below / target) / math.log(num_below / num_above)
        return round(below * (above / below) ** share)
    if num_below:
        return math.ceil(below * num_below / target)
    if num_above:
        # A tenth lower, as the pieces of a lower threshold are asked for.
        return math.floor(above * min(num_above / target, 0.9))
    return (below + above) // 2


def _fill(
    learned: list[str],
    spare: list[str],
    words: list[tuple[str, int]],
    number: int,
) -> list[str]:
    """Returns up to `number` more pieces, the most frequent first.

    Those that the learner gives for a lower threshold, and where there is no
    such, what words begin with or hold.
    """
    known = set(learned)
    filling = [piece for piece in spare if piece not in known][:number]
    if spare or not number:
        return filling
    counts: dict[str, int] = collections.defaultdict(int)
    for word, count in words:
        for start in range(len(word)):
            for end in range(start + 2, len(word) + 1):
                piece = word[start:end]
                counts[
                    word_statistics.continuation(piece) if start else piece
                ] += count
    candidates = (
        (-count, piece) for piece, count in counts.items() if piece not in known
    )
    return [piece for _, piece in heapq.nsmallest(number, candidates)]
