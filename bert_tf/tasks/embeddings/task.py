"""The task of embeddings: a vector for each text, without targets.

Shapes:
  N: number of texts.
  H: number of values in an embedding.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.distribute import batches as batches_lib
from bert_tf.errors import UserError
from bert_tf.tasks import metrics
from bert_tf.tasks import packed_rows
from bert_tf.tasks import task
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.embeddings import examples as pair_examples
from bert_tf.tasks.embeddings.examples import SCORE
from bert_tf.tasks.embeddings.examples import EmbeddingsFiles
from bert_tf.tasks.embeddings.examples import PairFiles
from bert_tf.tasks.packed_rows import GroupedRows
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.tasks.task import TensorMap
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TRAIN
from bert_tf.text.tokenizer import BertTokenizer

EMBEDDING = "embedding"
# Factor of the cosines before the softmax, as in sentence-transformers.
_SCALE = 20.0
TEXT_IDS = "text_ids"
SCORES = "scores"
_RANKS = 10
_MRR, _NDCG = "mrr@10", "ndcg@10"

# The texts, and maybe the score, of a row of `PairFiles`, by column.
TextGroup = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsTask(EmbeddingsFiles, task.Task):
    """Converts each text to a vector, with `BertForEmbeddings`.

    Attributes:
      pooling: How token vectors are combined; see `heads.pool_tokens`.
      normalize: Whether each vector is scaled to an L2 norm of 1.
    """

    pooling: str = "mean"
    normalize: bool = True
    max_seq_length: int = 512

    metric = "spearman"

    def featurize(
        self,
        examples: Sequence[InputExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> PackedRows:
        """Converts each text to a row, and warns of truncated texts."""
        texts = [example.text_a for example in examples]
        rows = packed_rows.pack_texts(
            texts, None, tokenizer, self.max_seq_length
        )
        task.warn_of_truncated(
            rows.num_truncated,
            f"{len(texts)} texts have",
            f"max_seq_length={self.max_seq_length}",
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

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "max_seq_length": self.max_seq_length,
            **self.model_arguments(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairsTask(PairFiles, EmbeddingsTask):
    """Learns embeddings from pairs of texts, for models of `EmbeddingsTask`.

    An anchor is trained to be closer to its positive than to the other texts of
    all rows in a step (`in_batch_losses`). If pairs have scores, the cosine of
    a pair's vectors is trained to equal the score. On dev without scores, each
    anchor ranks all positives and negatives.
    """

    def _is_scored(self, kind: str) -> bool:
        """Returns True if the splits of a kind, such as "dev", have scores."""
        data = (self.data[x] for x in self.splits(kind) if x in self.data)
        return any(SCORE in first for one in data for first in one.examples[:1])

    @property
    def coupled(self) -> str | None:
        return None if self._is_scored(TRAIN) else EMBEDDING

    @property
    def metric(self) -> str:
        return metrics.SPEARMAN if self._is_scored(DEV) else _NDCG

    def featurize(
        self,
        examples: Sequence[TextGroup],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> GroupedRows:
        """Converts examples to groups of rows; equal texts share a row."""
        groups = [pair_examples.texts_of(example) for example in examples]
        counts = {len(group) for group in groups}
        if len(counts) != 1:
            raise UserError(
                "Expected rows, and as many texts in each. Received: rows of "
                f"{' and '.join(map(str, sorted(counts))) or 'no'} texts."
            )
        texts, groups = np.unique(np.array(groups, object), return_inverse=True)
        groups = groups.reshape(len(examples), -1).astype(np.int32)
        rows = super().featurize(
            [InputExample("", text) for text in texts], tokenizer
        )
        targets = {}
        if SCORE in examples[0]:
            scores = [example[SCORE] for example in examples]
            targets[SCORES] = np.array(scores, np.float32)
        elif is_training:
            targets[TEXT_IDS] = groups
        return GroupedRows(rows, groups, targets)

    def loss_weights(self, batch: TensorMap) -> tf.Tensor:
        return batches_lib.example_weights(batch)

    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B]: cross entropies, or squared errors of cosines.

        sentence-transformers calls these losses MultipleNegativesRankingLoss
        and CosineSimilarityLoss.
        """
        if SCORES not in batch:
            return in_batch_losses(
                outputs[EMBEDDING],
                batch[TEXT_IDS],
                batches_lib.example_weights(batch) > 0,
            )
        units = tf.math.l2_normalize(outputs[EMBEDDING], -1, epsilon=1e-24)
        cosines = tf.reduce_sum(units[:, 0] * units[:, 1], -1)
        return tf.square(cosines - batch[SCORES])

    def prediction_to_json(
        self, example: TextGroup, prediction: np.ndarray
    ) -> dict[str, Any]:
        """Returns the cosine of the first two texts."""
        units = keras.utils.normalize(prediction)
        return {"similarity": float(units[0] @ units[1])}

    def example_to_json(self, example: TextGroup) -> dict[str, Any]:
        return dict(example)

    def is_labeled(self, examples: Sequence[TextGroup]) -> bool:
        return bool(examples)

    def score(
        self,
        examples: Sequence[TextGroup],
        predictions: Sequence[np.ndarray],
    ) -> dict[str, float]:
        """Returns correlations of scores, or retrieval metrics of anchors."""
        units = keras.utils.normalize(np.stack(predictions))
        if SCORE not in examples[0]:
            groups = [pair_examples.texts_of(example) for example in examples]
            return score_retrieval(groups, units)
        cosines = np.sum(units[:, 0] * units[:, 1], -1)
        return metrics.compute_metrics(
            (metrics.SPEARMAN, metrics.PEARSON),
            np.array([example[SCORE] for example in examples]),
            cosines,
        )


def in_batch_losses(
    embeddings: tf.Tensor, text_ids: tf.Tensor, is_row: tf.Tensor
) -> tf.Tensor:
    """Returns the cross entropy of each anchor's choice among all candidates.

    A row's candidates are its own positive, and the positives and negatives of
    all rows. Left out are texts that equal the row's anchor, or that any row
    pairs with this text as anchor and positive. Rows (a, p) and (b, q) both
    choose among p and q; rows (a, p) and (a, q) have one candidate each.

    Args:
      embeddings: <float32>[B, C, H] of anchor, positive and maybe negative.
      text_ids: <int32>[B, C]; equal texts must have equal ids.
      is_row: <bool>[B], False for rows of weight 0, to exclude their texts.

    Returns:
      <float32>[B].
    """
    units = tf.math.l2_normalize(embeddings, -1, epsilon=1e-24)
    number, choices = tf.shape(text_ids)[0], tf.shape(text_ids)[1] - 1

    # Put positives before negatives: candidate i is the positive of row i.
    candidates = tf.transpose(units[:, 1:], [1, 0, 2])
    candidates = tf.reshape(candidates, [choices * number, -1])
    logits = _SCALE * tf.matmul(units[:, 0], candidates, transpose_b=True)
    ids = tf.reshape(tf.transpose(text_ids[:, 1:]), [-1])
    anchors = text_ids[:, :1]
    pairs = tf.concat([text_ids[:, :2], text_ids[:, 1::-1]], 0)
    is_first = tf.cast(pairs[:, 0] == anchors, tf.float32)
    is_second = tf.cast(pairs[:, 1:] == ids, tf.float32)
    may_belong = (is_first @ is_second > 0) | (ids == anchors)
    may_belong |= ~tf.tile(is_row, [choices])
    is_own = tf.eye(number, choices * number) > 0
    logits = tf.where(may_belong & ~is_own, logits.dtype.min, logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.range(number), logits
    )


def score_retrieval(
    groups: Sequence[Sequence[str]], units: np.ndarray
) -> dict[str, float]:
    """Returns the nDCG and the mean reciprocal rank of the first 10 texts.

    Each distinct anchor searches all distinct positives and negatives for its
    own positives. The anchor's text is left out unless it is a positive of the
    anchor. One relevant text at rank 2 gives nDCG 0.63 and reciprocal rank 0.5.

    `units` <float32>[N, C, H] are the embeddings of `groups` of anchor,
    positive and maybe negative, with an L2 norm of 1.
    """
    _, places, ids = np.unique(
        np.array(groups, object), return_index=True, return_inverse=True
    )
    vectors = units.reshape([-1, units.shape[-1]])[places]
    anchors, positives, *negatives = ids.reshape(len(groups), -1).T
    corpus = np.unique([positives, *negatives])
    discounts = 1.0 / np.log2(np.arange(2, _RANKS + 2))
    ranks, gains = [], []
    for query in np.unique(anchors):
        relevant = np.unique(positives[anchors == query])
        texts = corpus[(corpus != query) | np.isin(corpus, relevant)]
        order = np.argsort(-(vectors[texts] @ vectors[query]), kind="stable")
        is_hit = np.isin(texts[order[:_RANKS]], relevant)
        ranks.append(is_hit.any() / (1 + is_hit.argmax()))
        ideal = discounts[: len(relevant)].sum()
        gains.append(discounts[: len(is_hit)] @ is_hit / ideal)
    return {_NDCG: float(np.mean(gains)), _MRR: float(np.mean(ranks))}
