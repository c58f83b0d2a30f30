"""Serving heads that need no fine-tuning: [MASK]s, next sentence, embeddings.

Shapes, in addition to the shapes of `head`:
  P: maximum number of [MASK]s in a text.
  k: candidates.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import ClassVar
from typing import Self

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.config import check_pooling
from bert_tf.errors import UserError
from bert_tf.export.heads.classification import Classification
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.heads.head import Source
from bert_tf.features import INPUT_MASK
from bert_tf.flags import options
from bert_tf.inference import fill_mask
from bert_tf.modeling import heads
from bert_tf.tasks import registry
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.task import TensorMap
from bert_tf.text import packing
from bert_tf.text.vocabulary import MASK

# Labels in the logits' order (create_pretraining_data.py:326 of the original).
NEXT_SENTENCE_LABELS = ("is_next", "not_next")

_IS_MASK = "is_mask"
_IDS = "best_ids"
_PROBABILITIES = "best_probabilities"
# Maximum number of logits per call; logits and probabilities take 128 MiB each.
# Without a limit, rows of nothing but [MASK]s would take gigabytes.
_MAX_LOGITS = 1 << 25


@dataclasses.dataclass(eq=False)
class FillMask(ServingHead):
    """Serves the masked-LM head, as `bert_tf.inference.fill_mask` uses it.

    Only [MASK] is special in a text; "[SEP]" is ordinary text. Tokens
    beyond the maximum length are truncated, including [MASK]s.

    Args, in addition to the arguments of `ServingHead`:
      top_k: The number of candidates.

    Raises:
      UserError: If `top_k` exceeds the size of the vocabulary.
    """

    inputs = ("text",)
    outputs = ("masked_lm_logits",)
    model_values = {"heads": ["masked_lm"]}
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

    def pack(self, strings: TensorMap) -> Rows:
        """Packs texts, in which "[MASK]" is one token."""
        tokens = fill_mask.tokenize(self.tokenizer, strings["text"])
        return self.ids_rows(
            packing.pack_to_bucket(
                [tokens], self.buckets, self.tokenizer.vocabulary
            )
        )

    def tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns token ids and offsets; "[MASK]" is one token."""
        parts = tf.strings.split(text, MASK)
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(
            parts.flat_values
        )
        # Find the byte where each part begins: [MASK]s separate the parts.
        size = len(MASK)
        sizes = tf.strings.length(parts.flat_values) + size
        begins = tf.cumsum(sizes, exclusive=True)
        of_texts = tf.gather(tf.concat([begins, [0]], 0), parts.row_starts())
        begins -= tf.gather(of_texts, parts.value_rowids())
        mask_id = self.tokenizer.vocabulary.mask_id
        return (
            fill_mask.join(parts, ids, tf.fill([tf.size(begins)], mask_id)),
            fill_mask.join(parts, _move(starts, begins), begins - size),
            fill_mask.join(parts, _move(ends, begins), begins),
        )

    def rows_at_once(self, inputs: TensorMap) -> tf.Tensor:
        """Returns the maximum number of rows: few if they have many [MASK]s."""
        most = tf.maximum(tf.shape(inputs[fill_mask.POSITIONS])[1], 1)
        of_row = most * len(self.tokenizer.vocabulary)
        return tf.maximum(_MAX_LOGITS // of_row, 1)

    def condense(self, outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Returns best ids <int32> and probabilities <float32>, [B, P, k]."""
        probs, ids = fill_mask.best_tokens(
            outputs["masked_lm_logits"], self.tokenizer.vocabulary, self.top_k
        )
        return {_IDS: ids, _PROBABILITIES: probs}

    def ids_rows(self, inputs: TensorMap) -> Rows:
        """Returns rows with the positions of their [MASK]s."""
        positions, is_mask = fill_mask.find_masks(
            inputs, self.tokenizer.vocabulary
        )
        return Rows(
            {**inputs, fill_mask.POSITIONS: positions}, {_IS_MASK: is_mask}
        )

    def attention_rows(self, strings: TensorMap) -> dict[str, tf.Tensor]:
        """Returns one packed row for each text."""
        return self.pack(strings).inputs

    def answer(self, outputs: TensorMap, rows: Rows) -> dict[str, tf.Tensor]:
        """Returns the candidates for each [MASK].

        Returns:
          `tokens` <string>[B, P, k] and `probabilities` <float32>[B, P, k] for
          the [MASK]s of each text from left to right, the most likely
          candidate first; padded with "" and 0.
        """
        answer = self.answer_ids(outputs, rows)
        del answer["token_ids"]
        return answer

    def answer_ids(
        self, outputs: TensorMap, rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `answer` and `token_ids` <int32>[B, P, k], padded with -1."""
        best = outputs if _IDS in outputs else self.condense(outputs)
        # Use `expand_dims`: TensorFlow Lite cannot convert [..., tf.newaxis].
        is_mask = tf.expand_dims(rows.state[_IS_MASK], -1)
        ids = tf.where(is_mask, best[_IDS], -1)
        tokens = self.tokenizer.tokens(tf.maximum(ids, 0))
        return {
            "tokens": tf.where(ids >= 0, tokens, ""),
            "probabilities": tf.where(is_mask, best[_PROBABILITIES], 0.0),
            "token_ids": ids,
        }


def _move(places: tf.RaggedTensor, by: tf.Tensor) -> tf.RaggedTensor:
    """Adds each row's offset to the positions in that row."""
    return places.with_flat_values(
        places.flat_values + tf.gather(by, places.value_rowids())
    )


class NextSentence(Classification):
    """Serves the next-sentence head of pretrained models as a classifier."""

    outputs = ("next_sentence_logits",)
    model_values = {"heads": ["next_sentence"]}
    flags = ()

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a pretrained model."""
        task = ClassificationTask(labels=NEXT_SENTENCE_LABELS, metric_names=())
        return cls(*source.parts(), task, pair=True)

    def answer(self, outputs: TensorMap, rows: Rows) -> dict[str, tf.Tensor]:
        """Returns `label`, `probabilities`, `classes` and `scores`."""
        return super().answer({"logits": outputs["next_sentence_logits"]}, rows)

    answer_ids = ServingHead.answer_ids


@dataclasses.dataclass(eq=False)
class Embeddings(ServingHead):
    """Serves the hidden states of a layer, pooled over the tokens of a text.

    The pooled tokens include [CLS] and [SEP].

    Args, in addition to the arguments of `ServingHead`:
      config: The configuration of the model.
      pooling: As for `heads.pool_tokens`.
      layer: The index of the layer, 0 for the first layer, -1 for the last.
      normalize: Whether to scale each vector to an L2 norm of 1.

    Raises:
      UserError: If the model has no such layer, or `pooling` is invalid.
    """

    model_kind: ClassVar[str | None] = "encoder"
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    outputs: ClassVar[tuple[str, ...]] = ("sequence_output",)
    flags: ClassVar[tuple[str, ...]] = ("pooling", "layer", "normalize")

    config: BertConfig
    pooling: str
    layer: int
    normalize: bool

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        count = self.config.num_hidden_layers
        options.require_layer("--layer", self.layer, count)
        # Drop the layers after `layer`, so that `layer` becomes the last one.
        config = dataclasses.replace(
            self.config, num_hidden_layers=self.layer % count + 1
        )
        self.model_values = {"config": config.to_dict(), "has_pooler": False}

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of any stored model."""
        task = registry.build_embeddings(source.stored)
        normalize = source.config.normalize
        return cls(
            *source.parts(),
            source.stored.config,
            source.config.pooling or task.pooling,
            source.config.layer,
            task.normalize if normalize is None else normalize,
        )

    def answer(self, outputs: TensorMap, rows: Rows) -> dict[str, tf.Tensor]:
        """Returns `embedding` <float32>[B, size]."""
        config = self.config
        embedding = heads.pool_tokens(
            outputs["sequence_output"],
            rows.inputs[INPUT_MASK.name],
            self.pooling,
            self.normalize,
            config.left_to_right,
            for_inference=True,
        )
        size = config.hidden_size * len(self.pooling.split("+"))
        return {"embedding": tf.ensure_shape(embedding, [None, size])}
