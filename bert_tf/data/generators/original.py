"""The original generator: its algorithm for pretraining records, draw by draw.

Source: create_pretraining_data.py of google-research/bert at eedf571; comments
give its lines. For the same flags and files the records equal the original's,
because every random draw comes from one `random.Random` in the original's
order. All documents and instances are in memory, and one process does the work,
as in the original. For larger corpora use the streaming generator.

The original stores tokens. This module stores their ids, which gives equal
records, because no token occurs twice in a vocabulary.
"""

import collections
import contextlib
import dataclasses
import itertools
import random
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from bert_tf.data import corpus
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records import serializer
from bert_tf.features import PRETRAINING
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.text.tokenizer import BertTokenizer

Sentence = list[int]
Document = list[Sentence]

# Maximum number of draws to find another document (line 277).
_OTHER_DOCUMENT_TRIES = 10
_RECORDS_PER_BATCH = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """One training example.

    Attributes:
      input_ids: <int32>[n], [CLS] A [SEP] B [SEP] with some tokens replaced.
      length_a: Number of tokens in segment 0, with [CLS] and the first [SEP].
      is_random_next: True if B is random, False if B follows A in the text.
      was_truncated: True if A or B lost tokens to fit.
      positions: <int32>[p], indices of the tokens to predict, ascending.
      labels: <int32>[p], the ids at `positions` before masking.
    """

    input_ids: np.ndarray
    length_a: int
    is_random_next: bool
    was_truncated: bool
    positions: np.ndarray
    labels: np.ndarray


def generate(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
    output_files: Sequence[str],
    work_dir: str,
) -> GenerationResult:
    """Writes records to the files in turn; all files appear at the end.

    The text has one sentence per line. `work_dir` is unused: a killed run
    starts again from the beginning. Text without a token raises `UserError`.
    """
    rng = random.Random(config.random_seed)
    documents = read_documents(config, input_files, tokenizer)
    rng.shuffle(documents)
    instances = create_instances(config, documents, tokenizer, rng)
    rng.shuffle(instances)
    counts, written = RecordCounts(), {}
    with (
        progress.bar(len(instances), "writing", "record") as bar,
        contextlib.ExitStack() as stack,
    ):
        opened = [
            stack.enter_context(files.atomic_file(path))
            for path in output_files
        ]
        for index, path in enumerate(output_files):
            mine = instances[index :: len(output_files)]
            with files.open_binary(opened[index], "wb") as file:
                file.write(b"")  # Creates the file even if it gets no record.
                for start in range(0, len(mine), _RECORDS_PER_BATCH):
                    chunk = mine[start : start + _RECORDS_PER_BATCH]
                    batch = to_batch(chunk, config)
                    file.write(serializer.serialize(batch))
                    counts.add_batch(
                        batch,
                        tokenizer.vocabulary.mask_id,
                        sum(instance.was_truncated for instance in chunk),
                    )
                    bar.update(len(chunk))
            num_bytes = files.size(opened[index])
            written[path] = {"records": len(mine), "bytes": num_bytes}
    return GenerationResult(
        files=written,
        num_documents=len(documents),
        num_sentences=sum(map(len, documents)),
        counts=counts,
    )


def read_documents(
    config: Flags,
    input_files: Sequence[str],
    tokenizer: BertTokenizer,
) -> list[Document]:
    """Returns the documents as ids, without empty sentences and documents."""
    total = corpus.count_bytes(input_files)
    documents: dict[int, Document] = collections.defaultdict(list)
    with progress.bar(total, "tokenizing", "B") as bar:
        for lines, numbers in streaming_generator.read_batches(
            config,
            input_files,
            as_original=not config.one_document_per_file,
            on_bytes=bar.update,
        ):
            ids = tokenizer.tokenize(lines).to_list()
            for number, sentence in zip(numbers, ids, strict=True):
                if sentence:
                    documents[number].append(sentence)
    if not documents:
        raise corpus.empty_corpus_error(input_files, unit="token")
    return list(documents.values())


def create_instances(
    config: Flags,
    documents: Sequence[Document],
    tokenizer: BertTokenizer,
    rng: random.Random,
) -> list[Instance]:
    """Creates instances in `dupe_factor` passes (lines 212-219)."""
    instances: list[Instance] = []
    total = config.dupe_factor * len(documents)
    masker = _Masker(config, tokenizer)
    with progress.bar(total, "making instances", "document") as bar:
        for number in range(total):
            index = number % len(documents)
            for pair in _create_pairs(config, documents, index, rng):
                instances.append(masker.create_instance(*pair, rng))
            bar.update()
    return instances


def _create_pairs(
    config: Flags,
    documents: Sequence[Document],
    index: int,
    rng: random.Random,
) -> Iterator[tuple[Sentence, Sentence, bool]]:
    """Yields (A, B, whether B is random) for a document (lines 223-297).

    For a target of 10, sentences of 4, 3 and 5 tokens form a chunk. A is the
    first sentence or the first two. B is the rest of the chunk, or random text;
    then the next chunk begins with the rest.

    The caller must draw from `rng` between the pairs, hence the generator.
    """
    document = documents[index]
    # Maximum length of A and B together, without [CLS] and two [SEP].
    max_num_tokens = config.max_seq_length - 3
    target = max_num_tokens
    if rng.random() < config.short_seq_prob:
        target = rng.randint(2, max_num_tokens)
    start = position = length = 0
    while position < len(document):
        length += len(document[position])
        position += 1
        if length < target and position < len(document):
            continue
        chunk = document[start:position]
        num_a = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
        a = list(itertools.chain(*chunk[:num_a]))
        # Like the original, draw no number for a chunk of one sentence.
        is_random_next = len(chunk) == 1 or rng.random() < 0.5
        if is_random_next:
            b = _draw_other_text(documents, index, target - len(a), rng)
            position = start + num_a  # Reuse the rest of the chunk.
        else:
            b = list(itertools.chain(*chunk[num_a:]))
        yield a, b, is_random_next
        start, length = position, 0


def _draw_other_text(
    documents: Sequence[Document], index: int, target: int, rng: random.Random
) -> Sentence:
    """Returns at least `target` tokens of another document, if possible."""
    for _ in range(_OTHER_DOCUMENT_TRIES):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    ids: Sentence = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        ids += sentence
        if len(ids) >= target:
            break
    return ids


def truncate_pair(
    a: Sentence, b: Sentence, max_num_tokens: int, rng: random.Random
) -> tuple[Sentence, Sentence]:
    """Cuts the ends of the longer text until both fit (lines 418-433)."""
    spans = [[0, len(a)], [0, len(b)]]
    lengths = [len(a), len(b)]
    for _ in range(len(a) + len(b) - max_num_tokens):
        longer = 0 if lengths[0] > lengths[1] else 1
        lengths[longer] -= 1
        if rng.random() < 0.5:
            spans[longer][0] += 1
        else:
            spans[longer][1] -= 1
    return a[slice(*spans[0])], b[slice(*spans[1])]


class _Masker:
    """Packs pairs and chooses the tokens to predict."""

    def __init__(self, config: Flags, tokenizer: BertTokenizer) -> None:
        self._config = config
        self._vocabulary = tokenizer.vocabulary
        self._continues_word = [
            token.startswith("##") for token in self._vocabulary.tokens
        ]

    def create_instance(
        self, a: Sentence, b: Sentence, is_random_next: bool, rng: random.Random
    ) -> Instance:
        """Truncates, joins and masks a pair (lines 299-340)."""
        cls_id, sep_id = self._vocabulary.cls_id, self._vocabulary.sep_id
        num_tokens = len(a) + len(b)
        a, b = truncate_pair(a, b, self._config.max_seq_length - 3, rng)
        ids = [cls_id, *a, sep_id, *b, sep_id]
        masked, positions = self.mask(ids, rng)
        return Instance(
            input_ids=np.array(masked, np.int32),
            length_a=len(a) + 2,
            is_random_next=is_random_next,
            was_truncated=len(a) + len(b) < num_tokens,
            positions=np.array(positions, np.int32),
            labels=np.array([ids[i] for i in positions], np.int32),
        )

    def mask(
        self, ids: Sentence, rng: random.Random
    ) -> tuple[Sentence, list[int]]:
        """Returns masked ids and positions (lines 342-415)."""
        config = self._config
        groups = self._candidates(ids)
        rng.shuffle(groups)
        # `round` rounds halves to even, as in the original: 4.5 gives 4.
        limit = round(len(ids) * config.masked_lm_prob)
        limit = min(config.max_predictions_per_seq, max(1, limit))
        masked = list(ids)
        positions: list[int] = []
        for group in groups:
            if len(positions) >= limit:
                break
            if len(positions) + len(group) > limit:
                continue
            for position in group:
                masked[position] = self._replacement(ids[position], rng)
                positions.append(position)
        return masked, sorted(positions)

    def _candidates(self, ids: Sentence) -> list[list[int]]:
        """Returns groups of positions that are masked together.

        A token that continues a word joins the previous token's group, even if
        truncation has cut off the start of its word, as in the original.
        """
        special = (self._vocabulary.cls_id, self._vocabulary.sep_id)
        groups: list[list[int]] = []
        whole_words = self._config.do_whole_word_mask
        for position, token in enumerate(ids):
            if token in special:
                continue
            if whole_words and groups and self._continues_word[token]:
                groups[-1].append(position)
            else:
                groups.append([position])
        return groups

    def _replacement(self, token: int, rng: random.Random) -> int:
        if rng.random() < 0.8:
            return self._vocabulary.mask_id
        if rng.random() < 0.5:
            return token
        token_ids = self._vocabulary.token_ids
        return token_ids[rng.randint(0, len(token_ids) - 1)]


def to_batch(
    instances: Sequence[Instance], config: Flags
) -> dict[str, np.ndarray]:
    """Returns the features of `bert_tf.features.PRETRAINING`, zero padded."""
    lengths = (config.max_seq_length, config.max_predictions_per_seq)
    batch = {
        feature.name: np.zeros(
            [len(instances), feature.size(*lengths)], feature.dtype
        )
        for feature in PRETRAINING
    }
    for row, instance in enumerate(instances):
        length = len(instance.input_ids)
        predictions = len(instance.positions)
        batch["input_ids"][row, :length] = instance.input_ids
        batch["input_mask"][row, :length] = 1
        batch["segment_ids"][row, instance.length_a : length] = 1
        batch["masked_lm_positions"][row, :predictions] = instance.positions
        batch["masked_lm_ids"][row, :predictions] = instance.labels
        batch["masked_lm_weights"][row, :predictions] = 1.0
        batch["next_sentence_labels"][row] = instance.is_random_next
    return batch
