"""Sentences with a masked word, filled in before and after training.

The sentences come from the first records, so they are in the user's language.
Before training, a file stores the sentences and the model's predictions, so
that a resumed run can still show the change.
"""

import os
import unicodedata
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.io import files
from bert_tf.text import masking
from bert_tf.text import packing
from bert_tf.text.vocabulary import CONTINUATION
from bert_tf.text.vocabulary import MASK
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary

FILE = "masked_words.json"
_COUNT, _WORDS_SHOWN = 5, 3
# Minimum and maximum tokens of a sample; it may be a part of a sentence.
_FEWEST, _MOST = 8, 25


def choose(dataset: tf.data.Dataset, vocabulary: Vocabulary) -> list[Any]:
    """Returns the first suitable sentences, with different masked words."""
    found: dict[str, Any] = {}
    for batch in dataset.take(50).as_numpy_iterator():
        is_masked = batch["masked_lm_weights"] > 0
        rows = masking.restore_ids(batch).numpy()
        for i in np.flatnonzero(rows.max(axis=1) < len(vocabulary)):
            # `_find_window` stops at special tokens: put one at each end.
            ids = [vocabulary.cls_id, *rows[i][1:].tolist(), vocabulary.sep_id]
            tokens = [vocabulary.tokens[x] for x in ids]
            for column in batch["masked_lm_positions"][i][is_masked[i]]:
                first, end = _find_window(tokens, column)
                word = tokens[column]
                if word in found or end - first < _FEWEST:
                    continue
                tokens[column], ids[column] = MASK, vocabulary.mask_id
                text = " ".join(tokens[first:end])
                found[word] = {
                    "text": text.replace(f" {CONTINUATION}", ""),
                    "word": word,
                    "input_ids": ids[first:end],
                }
                break
            if len(found) == _COUNT:
                return [*found.values()]
    return [*found.values()]


def _find_window(tokens: Sequence[str], i: int) -> tuple[int, int]:
    """Returns the bounds of words around token i; (i, i) if it is no word."""
    # Marks ("M") count as letters, because some scripts write vowels as marks.
    is_word = all(unicodedata.category(x)[0] in "LM" for x in tokens[i])
    if not is_word or tokens[i + 1].startswith(CONTINUATION):
        return i, i
    first, end = i, i + 1
    while tokens[first - 1] not in SPECIAL_TOKENS and i - first < _MOST // 2:
        first -= 1
    while tokens[end] not in SPECIAL_TOKENS and end - first < _MOST:
        end += 1
    # Leave out words that the window cuts at its ends.
    while tokens[first].startswith(CONTINUATION):
        first += 1
    while tokens[end].startswith(CONTINUATION):
        end -= 1
    return first, end


def fill_in(
    output_dir: str,
    vocabulary: Vocabulary | None,
    model: keras.Model,
    chosen: list[Any] | None = None,
) -> None:
    """Writes predicted words: "before" if `chosen` is given, else "after"."""
    path = os.path.join(output_dir, FILE)
    samples = _read(path) if chosen is None else chosen
    if not samples or vocabulary is None:
        # A killed run may have left samples of other records.
        files.remove(path)
        return
    rows = [x["input_ids"] for x in samples]
    columns = [[1 + row.index(vocabulary.mask_id)] for row in rows]
    longest = max(map(len, rows)) + 2
    ids = tf.ragged.constant(rows, tf.int32, ragged_rank=1)
    inputs = packing.pack(ids, None, longest, vocabulary)
    inputs["masked_lm_positions"] = tf.constant(columns)
    # Call the model in a graph: eager calls would log retracing warnings.
    outputs = tf.function(lambda: model(inputs), autograph=False)()
    probs = tf.nn.softmax(tf.cast(outputs["masked_lm_logits"][:, 0], "float32"))
    probs = masking.without_blank_rows(probs, vocabulary)
    best = tf.math.top_k(probs, _WORDS_SHOWN).indices.numpy()
    for sample, words in zip(samples, best, strict=True):
        name = "before" if chosen else "after"
        sample[name] = [vocabulary.tokens[x] for x in words]
    try:
        files.write_json(path, samples)
    except (OSError, tf.errors.OpError) as error:
        logging.error("%s could not be written: %s", path, error)


def _read(path: str) -> list[Any]:
    return files.read_json(path) if files.exists(path) else []


def describe(output_dir: str) -> list[str]:
    """Returns one text per sentence, with its masked word and predictions."""
    return [
        f"{x['text']}\n  in text: {x['word']}"
        f"\n  before:  {'  '.join(x['before'])}"
        f"\n  after:   {'  '.join(x.get('after', ()))}"
        for x in _read(os.path.join(output_dir, FILE))
    ]
