"""The serving head that predicts the tokens at [MASK]s."""

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import Self

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.text import masking
from bert_tf.text import packing
from bert_tf.text import vocabulary as vocabulary_lib

_POSITIONS = "masked_lm_positions"
_IS_MASK = "is_mask"
_IDS = "best_ids"
_PROBABILITIES = "best_probabilities"
# The maximum in memory at once: 128 MiB, and the same for the probabilities. A
# batch of rows with nothing but [MASK]s would have gigabytes.
_MAX_LOGITS = 1 << 25


@dataclasses.dataclass(eq=False)
class FillMask(head.ServingHead):
    """Serves the masked-LM head, as `bert_tf.inference.fill_mask` uses it.

    Only [MASK] is special in a text: other names in brackets are text. Tokens
    beyond the maximum length are truncated, with any [MASK]s among them.

    Shapes, in addition to those of `head`:
      P: maximum number of [MASK]s in a text.
      k: candidates.

    Args, in addition to those of `ServingHead`:
      top_k: The number of candidates.

    Raises:
      UserError: If `top_k` exceeds the size of the vocabulary.
    """

    inputs = ("text",)
    outputs = ("masked_lm_logits",)
    flags = ("top_k",)

    top_k: int

    def __post_init__(self) -> None:
        most = len(self.tokenizer.vocabulary.token_ids)
        if self.top_k > most:
            raise UserError(
                "--top_k must be at most the size of the vocabulary, "
                f"{most}. Received: {self.top_k}."
            )

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a pretrained model."""
        parts = source.parts(preserve_special_tokens=False)
        return cls(*parts, source.config.top_k)

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs texts, in which "[MASK]" is one token."""
        parts = tf.strings.split(strings["text"], vocabulary_lib.MASK)
        vocabulary = self.tokenizer.vocabulary
        tokens = _join(
            parts,
            self.tokenizer.tokenize(parts.flat_values),
            tf.fill([tf.size(parts.flat_values)], vocabulary.mask_id),
        )
        return self.ids_rows(
            packing.pack_to_bucket(tokens, None, self.buckets, vocabulary)
        )

    def tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns token ids and offsets, "[MASK]" as one token."""
        parts = tf.strings.split(text, vocabulary_lib.MASK)
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(
            parts.flat_values
        )
        # Where each part begins in its text, and the [MASK] before it ends.
        size = len(vocabulary_lib.MASK)
        sizes = tf.strings.length(parts.flat_values) + size
        begins = tf.cumsum(sizes, exclusive=True)
        of_texts = tf.gather(tf.concat([begins, [0]], 0), parts.row_starts())
        begins -= tf.gather(of_texts, parts.value_rowids())
        mask_id = self.tokenizer.vocabulary.mask_id
        return (
            _join(parts, ids, tf.fill([tf.size(begins)], mask_id)),
            _join(parts, _move(starts, begins), begins - size),
            _join(parts, _move(ends, begins), begins),
        )

    def model_values(self) -> dict[str, Any]:
        """Returns the settings that leave out the next-sentence head."""
        return {"heads": ["masked_lm"]}

    def rows_at_once(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns fewer rows, the more [MASK]s a row has."""
        most = tf.maximum(tf.shape(inputs[_POSITIONS])[1], 1)
        of_row = most * len(self.tokenizer.vocabulary)
        return tf.maximum(_MAX_LOGITS // of_row, 1)

    def condense(self, outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Returns the best candidates, <int32> and <float32>[B, P, k]."""
        logits = tf.cast(outputs["masked_lm_logits"], tf.float32)
        probs = masking.without_blank_rows(
            tf.nn.softmax(logits), self.tokenizer.vocabulary
        )
        probs, ids = tf.math.top_k(probs, self.top_k)
        return {_IDS: ids, _PROBABILITIES: probs}

    def ids_rows(self, inputs: Mapping[str, tf.Tensor]) -> Rows:
        """Returns rows with the positions of their [MASK]s."""
        is_mask = (
            inputs[INPUT_IDS.name] == self.tokenizer.vocabulary.mask_id
        ) & (inputs[INPUT_MASK.name] > 0)
        count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
        most = tf.reduce_max(tf.concat([count, [0]], 0))
        length = tf.shape(is_mask)[1]
        # The first positions have the greatest values, other tokens have 0.
        from_end = tf.where(is_mask, length - tf.range(length), 0)
        from_end, _ = tf.math.top_k(from_end, most)  # [B, P]
        is_mask = from_end > 0
        positions = tf.where(is_mask, length - from_end, 0)
        return Rows({**inputs, _POSITIONS: positions}, {_IS_MASK: is_mask})

    def attention_rows(
        self, strings: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns the rows of the texts."""
        return self.pack(strings).inputs

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the candidates for each [MASK].

        Returns:
          `tokens` <string>[B, P, k] and `probabilities` <float32>[B, P, k] for
          the [MASK]s of each text from left to right, the most likely first;
          padded with "" and 0.
        """
        return self._name(*self._best(outputs, rows))

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the outputs of `answer` and `token_ids` <int32>[B, P, k].

        `token_ids` are padded with -1.
        """
        ids, probs = self._best(outputs, rows)
        return self._name(ids, probs) | {"token_ids": ids}

    def _name(self, ids: tf.Tensor, probs: tf.Tensor) -> dict[str, tf.Tensor]:
        tokens = self.tokenizer.tokens(tf.maximum(ids, 0))
        return {
            "tokens": tf.where(ids >= 0, tokens, ""),
            "probabilities": probs,
        }

    def _best(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids <int32> and probabilities <float32>, [B, P, k] each."""
        best = outputs if _IDS in outputs else self.condense(outputs)
        # Not [..., tf.newaxis], which TensorFlow Lite cannot convert.
        is_mask = tf.expand_dims(rows.state[_IS_MASK], -1)
        return (
            tf.where(is_mask, best[_IDS], -1),
            tf.where(is_mask, best[_PROBABILITIES], 0.0),
        )


def _join(
    parts: tf.RaggedTensor, values: tf.RaggedTensor, of_masks: tf.Tensor
) -> tf.RaggedTensor:
    """Joins the values of tokens between [MASK]s with those of the [MASK]s.

    Args:
      parts: The strings around the [MASK]s, ragged <string>[B, None].
      values: The values of the tokens of each part, such as ids or offsets,
        ragged <int32>[number of parts, None].
      of_masks: The value of the [MASK] before each part, <int32>[number of
        parts].

    Returns:
      Ragged <int32>[B, None].
    """
    # A [MASK] separates two parts of a text.
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


def _move(places: tf.RaggedTensor, by: tf.Tensor) -> tf.RaggedTensor:
    """Adds an offset to the places of each row."""
    return places.with_flat_values(
        places.flat_values + tf.gather(by, places.value_rowids())
    )
