"""Worker of the streaming generator: writes one part of the records.

A pass over a document follows the original's algorithm
(create_pretraining_data.py:223-337) draw by draw, but works on the boundaries
of sentences, not on tokens. A document's sentences are contiguous in the token
store, so A and B are spans of the store, and truncation narrows the spans. Only
the last step, which packs a batch with numpy, reads the tokens.

The passes over all documents are permuted by the seed and cut into parts. A
part depends only on the seed, its number, the token store and the flags, so any
worker may write it. The records of a part are shuffled and come from all over
the corpus, so there is no need to shuffle all records.

TensorFlow is not imported, so workers start at once and need little memory.
"""

import dataclasses
import hashlib
import os
import random
from array import array
from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from bert_tf.data import corpus
from bert_tf.data.generators import masks
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records import serializer
from bert_tf.data.token_store import TokenStore
from bert_tf.flags.options import Flags
from bert_tf.io import files

# A batch of this size fits into the processor's caches.
_RECORDS_PER_BATCH = 1024
_FEISTEL_ROUNDS = 6
# Maximum number of draws to find another document (original: lines 274-281).
_DRAWS_OF_ANOTHER_DOCUMENT = 10
# Columns of a plan; see the docstring of `InstancePlanner._plan_pass`.
_COLUMNS = 5
_B_START, _B_STOP, _IS_RANDOM = 2, 3, 4
# Random next sentences per draw; another number would change the records.
_ROWS_PER_DRAW = 256


@dataclasses.dataclass(frozen=True)
class PartsPlan:
    """Everything that determines the contents of the parts.

    Attributes:
      store_folder: Folder of the token store.
      starts_word: <bool>[vocab_size]: False for "##" tokens.
      token_ids: The ids to draw random tokens from.
    """

    config: Flags
    store_folder: str
    parts_folder: str
    num_parts: int
    cls_id: int
    sep_id: int
    mask_id: int
    starts_word: np.ndarray
    token_ids: np.ndarray

    def records_path(self, part: int) -> str:
        return os.path.join(self.parts_folder, f"part-{part:07d}.tfrecord")

    def counts_path(self, part: int) -> str:
        """Returns the path of a part's counts, written before the records."""
        return os.path.join(self.parts_folder, f"part-{part:07d}.json")


def derive_seed(seed: int, *keys: int | str) -> int:
    """Derives a 128-bit seed; `keys` name the purpose of the seed."""
    text = repr((seed, *keys)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def permuted(indices: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Applies a random permutation of 0 .. size-1 to `indices`, <int64>[num].

    A Feistel network permutes the numbers of 2k bits without a table. As long
    as a result is `size` or more, it is permuted again: cycle walking (Black
    and Rogaway, "Ciphers with arbitrary finite domains", 2002). `size` must be
    below 2^62.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = [
        np.uint64(derive_seed(seed, "feistel", number) & (2**64 - 1))
        for number in range(_FEISTEL_ROUNDS)
    ]
    numbers = indices.astype(np.uint64)
    todo = np.arange(len(numbers))
    while len(todo):
        left, right = numbers[todo] >> half, numbers[todo] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        numbers[todo] = left << half | right
        todo = todo[numbers[todo] >= np.uint64(size)]
    return numbers.astype(np.int64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Mixes the bits of <uint64>[num] with the finalizer of SplitMix64."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


def split_lines(lines: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Returns all sentences, and their number in each line <int64>[lines]."""
    split = [corpus.split_sentences(line) for line in lines]
    sentences = [sentence for line in split for sentence in line]
    return sentences, np.array([len(line) for line in split], np.int64)


def write_part(plan: PartsPlan, part: int) -> None:
    """Writes the counts and then the records of a part, each atomically."""
    counts = RecordCounts()
    temporary = f"{plan.records_path(part)}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        for batch, num_truncated in make_part(plan, part):
            counts.add_batch(
                batch, plan.mask_id, num_truncated, plan.config.left_to_right
            )
            file.write(serializer.serialize(batch))
    files.write_json(plan.counts_path(part), counts.to_dict())
    os.replace(temporary, plan.records_path(part))


def make_part(plan: PartsPlan, part: int) -> Iterator[tuple[dict, int]]:
    """Yields batches of `make_records`, and the number of truncated rows."""
    seed = plan.config.random_seed
    store = TokenStore.open(plan.store_folder, len(plan.starts_word))
    size = store.num_passes * plan.config.dupe_factor
    first, stop = (size * i // plan.num_parts for i in (part, part + 1))
    # Each pass covers one span.
    spans = permuted(np.arange(first, stop), size, seed) % store.num_passes
    instances = InstancePlanner(store, plan.config).plan(
        spans.tolist(), derive_seed(seed, "instances", part)
    )
    rng = np.random.default_rng(derive_seed(seed, "masks", part))
    for start in range(0, len(instances), _RECORDS_PER_BATCH):
        rows = slice(start, start + _RECORDS_PER_BATCH)
        columns = {name: x[rows] for name, x in vars(instances).items()}
        chosen = Instances(**columns)
        batch = make_records(plan, store, chosen, rng)
        yield batch, int(chosen.truncated.sum())


@dataclasses.dataclass(frozen=True)
class Instances:
    """Spans of the token store, one pair per instance; <int64>[num].

    Attributes:
      a_starts: Index of segment A's first token in the token store.
      a_lengths: Tokens in A, at least 1.
      b_starts: Index of segment B's first token in the token store.
      b_lengths: Tokens in B: at least 1, or 0 without next-sentence pairs.
      random_next: 1 if B is random, else 0.
      truncated: <bool>[num], True if A or B lost tokens to fit.
    """

    a_starts: np.ndarray
    a_lengths: np.ndarray
    b_starts: np.ndarray
    b_lengths: np.ndarray
    random_next: np.ndarray
    truncated: np.ndarray

    def __len__(self) -> int:
        return len(self.a_starts)


class InstancePlanner:
    """Plans passes over the documents of a corpus."""

    def __init__(self, store: TokenStore, config: Flags) -> None:
        self._store, self._config = store, config
        # Maximum length of A and B together.
        self._max_num_tokens = config.max_seq_length - config.num_special_tokens

    def plan(self, passes: Iterable[int], seed: int) -> Instances:
        """Plans passes over `TokenStore.span`s and shuffles their instances."""
        rng = random.Random(seed)
        generator = np.random.default_rng(rng.getrandbits(128))
        plan = array("q")
        for span in passes:
            self._plan_pass(plan, span, rng)
        spans = np.array(plan, np.int64).reshape(-1, _COLUMNS)
        del plan
        self._fill_in_random_next(spans, generator)
        spans = spans[generator.permutation(len(spans))]
        return self._truncated(spans, generator)

    def _plan_pass(self, plan: array, span: int, rng: random.Random) -> None:
        """Plans one pass over a span; appends `_COLUMNS` numbers per instance.

        The numbers are A's start and stop in the store, B's start and stop, and
        1 if B is random, else 0. If B is random, A's document and B's target
        length stand in for B's start and stop.
        """
        document, first, stop = self._store.span(span)
        # Use Python integers: a loop over numpy integers would be much slower.
        offsets = self._store.sentence_offsets[first : stop + 1].tolist()
        target = self._max_num_tokens
        # Draw once per pass (original: lines 230-241).
        if rng.random() < self._config.short_seq_prob:
            target = rng.randint(2, target)
        draw = rng.random if self._config.next_sentence_pairs else None
        _plan_instances(plan, document, offsets, target, draw)

    def _fill_in_random_next(
        self, spans: np.ndarray, generator: np.random.Generator
    ) -> None:
        """Replaces what `_plan_pass` stored for random Bs by random spans.

        B begins at any sentence of another document. If all ten draws give A's
        document, B comes from A's document (lines 274-289 of the original).
        """
        num_documents = self._store.num_documents
        offsets = self._store.sentence_offsets
        rows = np.flatnonzero(spans[:, _IS_RANDOM])
        for start in range(0, len(rows), _ROWS_PER_DRAW):
            block = rows[start : start + _ROWS_PER_DRAW]
            documents, targets = spans[block, _B_START], spans[block, _B_STOP]
            others = generator.integers(num_documents, size=len(block))
            for _ in range(_DRAWS_OF_ANOTHER_DOCUMENT - 1):
                again = np.flatnonzero(others == documents)
                others[again] = generator.integers(
                    num_documents, size=len(again)
                )
            stops = self._store.document_offsets[others + 1]
            firsts = generator.integers(
                self._store.document_offsets[others], stops
            )
            ends = np.searchsorted(offsets, offsets[firsts] + targets)
            spans[block, _B_START] = offsets[firsts]
            spans[block, _B_STOP] = offsets[np.clip(ends, firsts + 1, stops)]

    def _truncated(
        self, spans: np.ndarray, generator: np.random.Generator
    ) -> Instances:
        """Narrows long spans from both ends (original: lines 418-433).

        The longer segment is cut token by token; at equal lengths, B is cut. In
        the end, either only the longer segment is cut, or the lengths differ by
        at most one. For a maximum of 7, lengths 8 and 6 become 4 and 3, and 8
        and 2 become 5 and 2.
        """
        a_starts, a_stops, b_starts, b_stops, random_next = spans.T
        a_lengths = a_stops - a_starts
        b_lengths = b_stops - b_starts
        most = self._max_num_tokens
        a_kept = np.minimum(a_lengths, most - np.minimum(b_lengths, most // 2))
        b_kept = np.minimum(b_lengths, most - a_kept)
        return Instances(
            a_starts=a_starts + generator.binomial(a_lengths - a_kept, 0.5),
            a_lengths=a_kept,
            b_starts=b_starts + generator.binomial(b_lengths - b_kept, 0.5),
            b_lengths=b_kept,
            random_next=random_next.copy(),
            truncated=a_lengths + b_lengths > most,
        )


def _plan_instances(
    plan: array,
    document: int,
    offsets: list[int],
    target: int,
    draw: Callable[[], float] | None,
) -> None:
    """Plans pairs (original: lines 243-337), or without `draw` only A."""
    i, stop = 0, len(offsets) - 1
    while i < stop:
        # The chunk ends once it has `target` tokens. No sentence is empty, so
        # that takes at most `target` sentences.
        nearest = min(stop, i + target)
        chunk_stop = bisect_left(offsets, offsets[i] + target, i + 1, nearest)
        a_start, count = offsets[i], chunk_stop - i
        if draw is None:
            plan.extend((a_start, offsets[chunk_stop], 0, 0, 0))
            i = chunk_stop
            continue
        b_start = chunk_stop
        if count >= 2:
            b_start = i + 1 + int(draw() * (count - 1))
        a_stop = offsets[b_start]
        if count == 1 or draw() < 0.5:
            plan.extend(
                (a_start, a_stop, document, target - a_stop + a_start, 1)
            )
            # The chunk's sentences after A were not used, so they start the
            # next chunk (lines 290-293 of the original).
            i = b_start
        else:
            plan.extend((a_start, a_stop, a_stop, offsets[chunk_stop], 0))
            i = chunk_stop


def make_records(
    plan: PartsPlan,
    store: TokenStore,
    instances: Instances,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Packs and masks instances as the features of `features.PRETRAINING`.

    A row is [CLS] A [SEP] B [SEP] or, without next-sentence pairs, [CLS] A
    [SEP] with the label 0.
    """
    max_seq_length = plan.config.max_seq_length
    # Columns of the [SEP] tokens. Column 0 has [CLS], so A starts at 1.
    first_sep = 1 + instances.a_lengths
    last_sep = first_sep + 1 + instances.b_lengths
    if not plan.config.next_sentence_pairs:
        last_sep = first_sep
    shape = (len(instances), max_seq_length)
    rows = np.arange(0, len(instances) * max_seq_length, max_seq_length)
    # Column 0 is for A, 1 for B; `places` index `flat_ids`, `starts` the store.
    lengths = np.stack([instances.a_lengths, instances.b_lengths], axis=1)
    places = np.stack([rows + 1, rows + first_sep + 1], axis=1)
    starts = np.stack([instances.a_starts, instances.b_starts], axis=1)
    flat_ids = np.zeros(len(instances) * max_seq_length, np.int32)
    flat_ids[_runs(places, lengths)] = store.tokens[_runs(starts, lengths)]
    flat_ids[rows] = plan.cls_id
    flat_ids[rows + first_sep] = plan.sep_id
    flat_ids[rows + last_sep] = plan.sep_id
    input_ids = flat_ids.reshape(shape)
    # Use narrow integers, so that numpy compares many of them at once.
    column = np.arange(max_seq_length, dtype=np.uint16)
    first, last = (
        x.astype(np.uint16)[:, np.newaxis] for x in (first_sep, last_sep)
    )
    input_mask = column <= last
    segment_ids = ((column > first) & input_mask).view(np.uint8)
    candidates = (column > 0) & (column < last) & (column != first)
    masked = masks.mask_batch(
        input_ids,
        segment_ids,
        candidates,
        plan.starts_word,
        last_sep + 1,
        plan.config,
        plan.mask_id,
        plan.token_ids,
        rng,
    )
    return {
        "input_ids": input_ids,
        "input_mask": input_mask.view(np.uint8),
        "segment_ids": segment_ids,
        "next_sentence_labels": instances.random_next[:, np.newaxis],
        **masked,
    }


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns start, ..., start + length - 1 of each run, concatenated."""
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
