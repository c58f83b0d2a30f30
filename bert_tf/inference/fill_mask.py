"""Predicts the tokens at the [MASK]s of a text with a pretrained model.

Exported models use the functions above `Candidate`, too.

Shapes:
  B: number of texts.
  T: row length.
  P: maximum number of [MASK]s in a text.
  k: number of candidates for a [MASK].
"""

import re
import unicodedata
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.tasks import stored_task
from bert_tf.text import masking
from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import CONTINUATION
from bert_tf.text.vocabulary import MASK
from bert_tf.text.vocabulary import Vocabulary

POSITIONS = "masked_lm_positions"

_BATCH_SIZE = 32


def tokenize(tokenizer: BertTokenizer, text: tf.Tensor) -> tf.RaggedTensor:
    """Returns the tokens of texts with [MASK]s, ragged <int32>[B, None]."""
    parts = tf.strings.split(text, MASK)
    mask_ids = tf.fill(
        [tf.size(parts.flat_values)], tokenizer.vocabulary.mask_id
    )
    return join(parts, tokenizer.tokenize(parts.flat_values), mask_ids)


def find_masks(
    inputs: Mapping[str, tf.Tensor], vocabulary: Vocabulary
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the positions of [MASK]s in rows, from left to right.

    `inputs` has `input_ids` and `input_mask`, <int32>[B, T] each. Returns
    positions <int32>[B, P], padded with 0, and a mask <bool>[B, P], which is
    False for padding.

    With the id 103 for [MASK], [[8, 103, 103], [8, 9, 103]] gives the positions
    [[1, 2], [2, 0]] and the mask [[True, True], [True, False]].
    """
    is_mask = (inputs[INPUT_IDS.name] == vocabulary.mask_id) & (
        inputs[INPUT_MASK.name] > 0
    )
    count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    most = tf.reduce_max(tf.concat([count, [0]], 0))
    length = tf.shape(is_mask)[1]
    # Count from the end, so that `top_k` puts the leftmost [MASK] first.
    from_end = tf.where(is_mask, length - tf.range(length), 0)
    from_end, _ = tf.math.top_k(from_end, most)  # [B, P]
    is_mask = from_end > 0
    return tf.where(is_mask, length - from_end, 0), is_mask


def best_tokens(
    logits: tf.Tensor, vocabulary: Vocabulary, top_k: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the `top_k` most likely tokens at each position, best first.

    From logits <float>[B, P, rows of the embedding matrix], returns
    probabilities <float32>[B, P, k], and token ids <int32>[B, P, k].
    """
    probs = tf.nn.softmax(tf.cast(logits, tf.float32))
    probs = masking.without_blank_rows(probs, vocabulary)
    return tf.math.top_k(probs, top_k)


def join(
    parts: tf.RaggedTensor, values: tf.RaggedTensor, of_masks: tf.Tensor
) -> tf.RaggedTensor:
    """Joins the values of [MASK]s and of the tokens between them.

    Example: "a [MASK] b [MASK]" has the parts "a ", " b " and "". The values
    [[5], [6], []] and `of_masks` [0, 103, 103] give [[5, 103, 6, 103]].

    Args:
      parts: The strings around the [MASK]s, ragged <string>[B, None].
      values: A value of each token of each part, such as its id or offset,
        ragged <int32>[number of parts, None].
      of_masks: <int32>[number of parts], the value of the [MASK] before each
        part. The value for the first part of a text is ignored.

    Returns:
      Ragged <int32>[B, None].
    """
    # Insert a [MASK] before every part of a text except the first.
    rows = parts.value_rowids()
    follows = tf.concat([[False], rows[1:] == rows[:-1]], 0)[: tf.size(rows)]
    masks = tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(of_masks, follows),
        tf.cast(follows, tf.int64),
        validate=False,
    )
    joined = tf.concat([masks, values], axis=1)
    return tf.RaggedTensor.from_row_splits(
        joined.flat_values,
        tf.gather(joined.row_splits, parts.row_splits),
        validate=False,
    )


class Candidate(NamedTuple):
    """A token for a [MASK], with its probability in the whole vocabulary."""

    token: str
    token_id: int
    probability: float


class FillMask:
    """Predicts the tokens at the [MASK]s of texts.

    Example:
      >>> fill_mask = FillMask("output/model")
      >>> fill_mask(["The [MASK] was open."], top_k=1)
      [[[Candidate(token='door', token_id=2341, probability=0.31)]]]

    Args:
      model_dir: A model of any format with a vocabulary and a masked-LM head,
        or such a model from `bert_tf.load_model`.

    Raises:
      UserError: If the model has no vocabulary or no masked-LM head.
    """

    def __init__(self, model_dir: str | keras.Model) -> None:
        if isinstance(model_dir, keras.Model):
            self._model, self._trained_length = model_dir, None
            self._tokenizer = model_dir.preprocessor.tokenizer
            self._vocabulary = self._tokenizer.vocabulary
            self._longest = model_dir.bert_config.max_position_embeddings
            return
        stored = checkpoint_loading.read(model_dir, flag="--model_dir")
        stored_task.require_masked_lm(model_dir, stored.task["kind"])
        self._trained_length = stored.task.get("max_seq_length")
        self._longest = stored.config.max_position_embeddings
        # Only [MASK] is special; other bracketed names, like [SEP], are text.
        self._tokenizer = stored.build_tokenizer(preserve_special_tokens=False)
        self._vocabulary = self._tokenizer.vocabulary
        self._model = checkpoint_loading.build_model(stored)

    def __call__(
        self, texts: Sequence[str], top_k: int = 5
    ) -> list[list[list[Candidate]]]:
        """Returns the candidates for each [MASK] of each text.

        The result has a list for each text, in it a list for each [MASK] from
        left to right, and in it the candidates, the most likely first.

        Raises:
          UserError: If a text has no [MASK] or is too long, or `top_k` exceeds
            the size of the vocabulary.
        """
        if isinstance(texts, str):
            raise UserError("Expected a list of texts. Received: one text.")
        most = len(self._vocabulary.token_ids)
        if not 1 <= top_k <= most:
            raise UserError(
                "The number of candidates must lie between 1 and the size of "
                f"the vocabulary, {most}. Received: {top_k}."
            )
        tokens = tokenize(self._tokenizer, tf.constant(texts, tf.string))
        lengths = tokens.row_lengths().numpy() + 2  # With [CLS] and [SEP].
        for text, length in zip(texts, lengths, strict=True):
            self._check(text, length)
        candidates = []
        for first in range(0, len(texts), _BATCH_SIZE):
            part = slice(first, first + _BATCH_SIZE)
            candidates += self._predict(
                tokens[part], int(lengths[part].max()), top_k
            )
        return candidates

    def _check(self, text: str, length: int) -> None:
        """Refuses a text without [MASK] or with too many tokens."""
        if MASK not in text:
            raise UserError(
                f"The text must contain at least one {MASK}, in capitals. "
                f"Received: {text!r}."
            )
        if length > self._longest:
            raise UserError(
                "The text is too long: the model reads at most "
                f"{self._longest} tokens, with [CLS] and [SEP]. Received: "
                f"{length} tokens; shorten the text."
            )
        if self._trained_length and length > self._trained_length:
            logging.warning(
                "The text has %d tokens, but the model was trained on at most "
                "%d; predictions beyond that are unreliable.",
                length,
                self._trained_length,
            )

    def _predict(
        self, tokens: tf.RaggedTensor, length: int, top_k: int
    ) -> list[list[list[Candidate]]]:
        """Predicts one batch of texts, padded to a length."""
        inputs = packing.pack(tokens, None, length, self._vocabulary)
        positions, is_mask = find_masks(inputs, self._vocabulary)
        outputs = self._model({**inputs, POSITIONS: positions})
        probs, ids = best_tokens(
            outputs["masked_lm_logits"], self._vocabulary, top_k
        )
        names = self._vocabulary.tokens
        return [
            [
                [Candidate(names[i], i, p) for i, p in zip(*one, strict=True)]
                for one in zip(*masks, strict=True)
            ]
            for masks in zip(
                tf.ragged.boolean_mask(ids, is_mask).to_list(),
                tf.ragged.boolean_mask(probs, is_mask).to_list(),
                strict=True,
            )
        ]


def to_json(masks: Sequence[Sequence[Candidate]]) -> dict[str, list]:
    """Returns a text's candidates in the form of an exported model's answer."""
    return {
        "tokens": [[x.token for x in one] for one in masks],
        "probabilities": [[x.probability for x in one] for one in masks],
    }


def render(text: str, masks: Sequence[Sequence[Candidate]]) -> str:
    """Formats the candidates as aligned lines, each with the filled text."""
    lines = []
    for number, candidates in enumerate(masks):
        if len(masks) > 1:
            lines.append(f"{MASK} {number + 1} of {len(masks)}")
        width = max(_width(candidate.token) for candidate in candidates)
        for candidate in candidates:
            padding = " " * (width - _width(candidate.token))
            filled = _fill(text, number, candidate.token)
            lines.append(
                f"{candidate.probability:7.2%}  {candidate.token}{padding}  "
                f"{filled}"
            )
    return "\n".join(lines) + "\n"


def _fill(text: str, number: int, token: str) -> str:
    """Replaces one [MASK] with a token; "##s" is joined to the word before."""
    parts = text.split(MASK)
    before = MASK.join(parts[: number + 1])
    after = MASK.join(parts[number + 1 :])
    if token.startswith(CONTINUATION):
        before = before.rstrip()
        token = token.removeprefix(CONTINUATION)
    return re.sub(r"\s+", " ", before + token + after)


def _width(text: str) -> int:
    """Returns the width of a text on a terminal, in columns."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide
