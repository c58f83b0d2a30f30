"""The serving head of text embeddings."""

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import ClassVar
from typing import Self

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.features import INPUT_MASK
from bert_tf.modeling import heads


@dataclasses.dataclass(eq=False)
class Embeddings(head.ServingHead):
    """Serves the hidden states of a layer, pooled over the tokens of a text.

    [CLS] and [SEP] count as tokens.

    Args, in addition to those of `ServingHead`:
      config: The configuration of the model.
      pooling: "mean", "cls" or "max". In a left-to-right model, whose [CLS]
        attends to nothing else, "cls" is the last token.
      layer: The index of the layer, from 0, or from -1 backward.

    Raises:
      UserError: If the model has no such layer, or pooling is another word.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text",)
    outputs: ClassVar[tuple[str, ...]] = ("sequence_output",)
    flags: ClassVar[tuple[str, ...]] = ("pooling", "layer")

    config: BertConfig
    pooling: str
    layer: int

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls", "max"):
            raise UserError(
                "The pooling of embeddings must be mean, cls or max. Received: "
                f"{self.pooling!r}."
            )
        count = self.config.num_hidden_layers
        if not -count <= self.layer < count:
            raise UserError(
                f"--layer must lie between {-count} and {count - 1}, as the "
                f"model has {count} layers. Received: {self.layer}."
            )

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of any stored model."""
        return cls(
            *source.parts(),
            source.stored.config,
            source.config.pooling,
            source.config.layer,
        )

    def model_values(self) -> dict[str, Any]:
        """Returns the settings that make the layer the last one."""
        count = self.layer % self.config.num_hidden_layers + 1
        config = dataclasses.replace(self.config, num_hidden_layers=count)
        return {"config": config.to_dict(), "has_pooler": False}

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs texts."""
        return Rows(self.pack_texts(strings["text"]))

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `embedding` <float32>[B, hidden size]."""
        input_mask = rows.inputs[INPUT_MASK.name]
        states = tf.cast(outputs["sequence_output"], tf.float32)
        # Not [..., tf.newaxis], which TensorFlow Lite cannot convert.
        is_token = tf.expand_dims(input_mask, -1) > 0
        if self.pooling == "mean":
            counts = tf.reduce_sum(tf.cast(is_token, tf.float32), 1)
            total = tf.reduce_sum(tf.where(is_token, states, 0.0), 1)
            # Clients may send rows of padding only.
            embedding = total / tf.maximum(counts, 1.0)
        elif self.pooling == "max":
            masked = tf.where(is_token, states, tf.float32.min)
            embedding = tf.reduce_max(masked, 1)
        elif self.config.left_to_right:
            embedding = heads.take_last_token(
                states, input_mask, for_inference=True
            )
        else:
            embedding = states[:, 0]
        return {
            "embedding": tf.ensure_shape(
                embedding, [None, self.config.hidden_size]
            )
        }
