"""Worker of the streaming generator: writes one part of the records.

The passes over all documents are permuted by the seed and cut into parts. A
part is a pure function of the seed, its number, the token store and the flags,
whoever writes it and when. Its records are shuffled, and its passes come from
all over the corpus, so the concatenated parts are as good as one large shuffle.

TensorFlow is not imported, so workers start at once and need little memory.
"""

import dataclasses
import hashlib
import os
from collections.abc import Sequence

import numpy as np

from bert_tf.data import corpus
from bert_tf.data.generators import masks
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.generators.instances import InstancePlanner
from bert_tf.data.generators.instances import Instances
from bert_tf.data.records import serializer
from bert_tf.data.token_store import TokenStore
from bert_tf.flags.options import Flags
from bert_tf.io import files

# Small enough for the processor's caches.
_RECORDS_PER_BATCH = 1024
_FEISTEL_ROUNDS = 6


@dataclasses.dataclass(frozen=True)
class PartsPlan:
    """Everything that determines the contents of the parts.

    Attributes:
      config: The flags.
      store_folder: Folder of the token store.
      parts_folder: Folder for the parts.
      num_parts: Number of parts.
      cls_id: The id of [CLS]; `sep_id` and `mask_id` alike.
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
        """Returns the path of the records of a part."""
        return os.path.join(self.parts_folder, f"part-{part:07d}.tfrecord")

    def counts_path(self, part: int) -> str:
        """Returns the path of a part's `RecordCounts`, written first."""
        return os.path.join(self.parts_folder, f"part-{part:07d}.json")


def derive_seed(seed: int, *keys: int | str) -> int:
    """Returns a 128-bit seed for one purpose."""
    text = repr((seed, *keys)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def permuted(indices: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Applies a random permutation of 0 .. size-1 to `indices`, <int64>[num].

    A Feistel network permutes the numbers of 2k bits, whatever its round
    function. A number that leaves the range passes through it again until it is
    back (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite
    domains", 2002). So no table of all passes is needed. `size` is below 2^62.
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
    """Splits paragraphs into sentences.

    Returns:
      All sentences, and the number of sentences per line <int64>[lines].
    """
    split = [corpus.split_sentences(line) for line in lines]
    sentences = [sentence for line in split for sentence in line]
    return sentences, np.array([len(line) for line in split], np.int64)


def write_part(plan: PartsPlan, part: int) -> None:
    """Writes the counts and then the records of one part, atomically."""
    config, seed = plan.config, plan.config.random_seed
    store = TokenStore.open(plan.store_folder, len(plan.starts_word))
    planner = InstancePlanner(
        store,
        config.max_seq_length,
        config.short_seq_prob,
        config.next_sentence_pairs,
    )
    instances = planner.plan(
        _passes(plan, part, store.num_passes),
        derive_seed(seed, "instances", part),
    )
    rng = np.random.default_rng(derive_seed(seed, "masks", part))
    counts = RecordCounts()
    temporary = f"{plan.records_path(part)}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        for start in range(0, len(instances), _RECORDS_PER_BATCH):
            chosen = instances.take(slice(start, start + _RECORDS_PER_BATCH))
            batch = make_records(plan, store, chosen, rng)
            num_truncated = int(chosen.truncated.sum())
            counts.add_batch(
                batch,
                plan.mask_id,
                num_truncated,
                config.left_to_right,
            )
            file.write(serializer.serialize(batch))
    files.write_json(plan.counts_path(part), counts.to_dict())
    os.replace(temporary, plan.records_path(part))


def _passes(plan: PartsPlan, part: int, num_spans: int) -> list[int]:
    """Returns the spans of the corpus that a part covers."""
    size = num_spans * plan.config.dupe_factor
    first = size * part // plan.num_parts
    stop = size * (part + 1) // plan.num_parts
    return (
        permuted(np.arange(first, stop), size, plan.config.random_seed)
        % num_spans
    ).tolist()


def make_records(
    plan: PartsPlan,
    store: TokenStore,
    instances: Instances,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Packs and masks instances: [CLS] A [SEP] B [SEP], or [CLS] A [SEP].

    Without next-sentence pairs all labels are 0.

    Returns:
      The features of `bert_tf.features.PRETRAINING`, <int or float32>[num,
      length].
    """
    max_seq_length = plan.config.max_seq_length
    # Columns in each row: A starts at 1, then the first [SEP], B and its [SEP].
    first_sep = 1 + instances.a_lengths
    last_sep = first_sep + 1 + instances.b_lengths
    if not plan.config.next_sentence_pairs:
        last_sep = first_sep
    shape = (len(instances), max_seq_length)
    rows = np.arange(0, len(instances) * max_seq_length, max_seq_length)
    # Of the tokens of A, B, A, B, ... in the batch and in the store.
    lengths = np.stack([instances.a_lengths, instances.b_lengths], axis=1)
    places = np.stack([rows + 1, rows + first_sep + 1], axis=1)
    starts = np.stack([instances.a_starts, instances.b_starts], axis=1)
    flat_ids = np.zeros(len(instances) * max_seq_length, np.int32)
    flat_ids[_runs(places, lengths)] = store.take(_runs(starts, lengths))
    flat_ids[rows] = plan.cls_id
    flat_ids[rows + first_sep] = plan.sep_id
    flat_ids[rows + last_sep] = plan.sep_id
    input_ids = flat_ids.reshape(shape)
    # Narrow, as numpy compares many of these at once.
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
    """Returns start, start + 1, ..., start + length - 1 of each run, flat."""
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
