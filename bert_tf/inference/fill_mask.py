"""Predicts the tokens at the [MASK]s of a text with a pretrained model."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.inference import load
from bert_tf.text import masking
from bert_tf.text.vocabulary import CONTINUATION
from bert_tf.text.vocabulary import MASK

_BATCH_SIZE = 32


class Candidate(NamedTuple):
    """One predicted token for a [MASK].

    Attributes:
      probability: Its probability; the whole vocabulary sums to 1.
    """

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
      model_dir: A model of any format, with its vocabulary and a masked-LM
        head.

    Raises:
      UserError: For any other model.
    """

    def __init__(self, model_dir: str) -> None:
        stored = checkpoint_loading.read(model_dir, flag="--model_dir")
        kind = stored.task.get("kind")
        if weight_map.MASKED_LM not in weight_map.HEADS.get(kind, ()):
            raise UserError(
                "Expected a model with a masked-LM head, from pretraining. "
                f"Received: {model_dir}, with a model of kind={kind!r}."
            )
        # Only [MASK] is special; other bracketed names are ordinary text.
        self._tokenizer = stored.build_tokenizer(preserve_special_tokens=False)
        self._vocabulary = self._tokenizer.vocabulary
        self._model = load.build_model(stored)
        self._longest = stored.config.max_position_embeddings
        self._trained_length = stored.task.get("max_seq_length")

    def __call__(
        self, texts: Sequence[str], top_k: int = 5
    ) -> list[list[list[Candidate]]]:
        """Returns the candidates for each [MASK] of each text.

        Returns:
          Per text, per [MASK] from left to right: the candidates, the most
          likely first.

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
        rows = [self._encode(text) for text in texts]
        candidates = []
        for first in range(0, len(rows), _BATCH_SIZE):
            batch = rows[first : first + _BATCH_SIZE]
            candidates += self._predict(batch, top_k)
        return candidates

    def _encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, <int32>[length]."""
        parts = text.split(MASK)
        if len(parts) == 1:
            raise UserError(
                f"The text must contain at least one {MASK}, in capitals. "
                f"Received: {text!r}."
            )
        vocabulary = self._vocabulary
        ids = [vocabulary.cls_id]
        for number, part in enumerate(self._tokenizer.tokenize(parts)):
            ids += [vocabulary.mask_id] * (number > 0) + part.numpy().tolist()
        ids.append(vocabulary.sep_id)
        if len(ids) > self._longest:
            raise UserError(
                "The text is too long: the model reads at most "
                f"{self._longest} tokens, with [CLS] and [SEP]. Received: "
                f"{len(ids)} tokens; shorten the text."
            )
        if self._trained_length and len(ids) > self._trained_length:
            logging.warning(
                "The text has %d tokens, but the model was trained on at most "
                "%d; predictions beyond that are unreliable.",
                len(ids),
                self._trained_length,
            )
        return np.array(ids, np.int32)

    def _predict(
        self, rows: Sequence[np.ndarray], top_k: int
    ) -> list[list[list[Candidate]]]:
        """Predicts one batch of encoded texts."""
        mask_id = self._vocabulary.mask_id
        places = [np.flatnonzero(row == mask_id) for row in rows]
        outputs = self._model(
            {
                "input_ids": _pad(rows, self._vocabulary.pad_id),
                "input_mask": _pad([np.ones_like(row) for row in rows], 0),
                "masked_lm_positions": _pad(places, 0),
            }
        )
        probs = tf.nn.softmax(outputs["masked_lm_logits"])  # [B, P, V]
        probs = masking.without_blank_rows(probs, self._vocabulary)
        best = tf.math.top_k(probs, top_k)
        return [
            [
                self._name(best.indices[row, mask], best.values[row, mask])
                for mask in range(len(places[row]))
            ]
            for row in range(len(rows))
        ]

    def _name(self, ids: tf.Tensor, probs: tf.Tensor) -> list[Candidate]:
        return [
            Candidate(self._vocabulary.tokens[token_id], token_id, prob)
            for token_id, prob in zip(
                ids.numpy().tolist(), probs.numpy().tolist(), strict=True
            )
        ]


def _pad(rows: Sequence[np.ndarray], value: int) -> np.ndarray:
    """Pads rows to the longest, <int32>[n, length]."""
    return keras.utils.pad_sequences(rows, padding="post", value=value)


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
    """Replaces one [MASK] with a token; "##" joins it to the word before."""
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
