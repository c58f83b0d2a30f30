"""The task of embeddings: a vector for each text, without targets.

Shapes:
  N: number of texts.
  H: values of an embedding.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.tasks import packed_rows
from bert_tf.tasks import task
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.embeddings.examples import TEXT_COLUMNS
from bert_tf.tasks.embeddings.examples import EmbeddingsFiles
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.tasks.task import TensorMap
from bert_tf.text.tokenizer import BertTokenizer

EMBEDDING = "embedding"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsTask(EmbeddingsFiles, task.Task):
    """Turns each text into a vector, `BertForEmbeddings` does it.

    Attributes:
      pooling: How vectors of tokens become one; see `heads.pool_tokens`.
      normalize: Whether each vector has length 1.
    """

    pooling: str = "mean"
    normalize: bool = True
    max_seq_length: int = 512

    @property
    def metric(self) -> str:
        return "spearman"

    def featurize(
        self,
        examples: Sequence[InputExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> PackedRows:
        """Converts texts to rows, one each, and logs how many were cut."""
        texts = [example.text_a for example in examples]
        rows = packed_rows.pack_texts(
            texts, None, tokenizer, self.max_seq_length
        )
        if rows.num_truncated:
            logging.warning(
                "%d of %d texts have more than max_seq_length=%d tokens and "
                "were truncated.",
                rows.num_truncated,
                len(examples),
                self.max_seq_length,
            )
        return rows

    def model_arguments(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "normalize": self.normalize}

    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        raise UserError("Embeddings of texts alone have no targets to learn.")

    def select_outputs(self, outputs: TensorMap) -> dict[str, tf.Tensor]:
        """Returns `embedding` <float32>[B, H]."""
        return {EMBEDDING: outputs[EMBEDDING]}

    def predict(
        self,
        examples: Sequence[InputExample],
        features: PackedRows,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[np.ndarray]:
        """Returns the embeddings, <float32>[H] each."""
        return list(outputs[EMBEDDING])

    def prediction_to_json(
        self, example: InputExample, prediction: np.ndarray
    ) -> dict[str, Any]:
        """Returns `text` and `embedding`."""
        return {"text": example.text_a, EMBEDDING: prediction.tolist()}

    def score(
        self,
        examples: Sequence[InputExample],
        predictions: Sequence[np.ndarray],
    ) -> dict[str, float]:
        raise UserError("Embeddings of texts alone have no score.")

    def example_from_row(self, row: Any) -> InputExample:
        choices = [(column,) for column in TEXT_COLUMNS]
        return classification_examples.parse_row(row, choices)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "max_seq_length": self.max_seq_length,
            **self.model_arguments(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EmbeddingsTask":
        return cls(**cls.stored(values))
