"""The tagging task: a tag for each word, as in named entity recognition.

The head classifies the first token of each word; there is no CRF. A window has
as much of the document as fits (section 5.3 of the paper).

Shapes:
  N: number of windows (rows of features).
  B: batch size.
  T: row length.
  L: number of labels.
"""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.tasks import metrics
from bert_tf.tasks import result_tables
from bert_tf.tasks import task
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging import features as tagging_features
from bert_tf.tasks.tagging.examples import ALONE
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.tasks.tagging.examples import TaggingFiles
from bert_tf.tasks.tagging.features import LABEL_WEIGHTS
from bert_tf.tasks.tagging.features import TaggingFeatures
from bert_tf.tasks.tagging.schemes import OUTSIDE
from bert_tf.tasks.task import TensorMap
from bert_tf.text.tokenizer import BertTokenizer

_TAG_IDS = "tag_ids"
# This id marks tokens with logits that are not finite: `predict` then raises.
_BROKEN = -1

Prediction = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask(TaggingFiles, task.Task):
    """Predicts a tag for each word of a sentence.

    A prediction is a tuple with the tags of an example, in IOB2.

    Attributes:
      doc_stride: The distance between the starts of windows, in tokens; 0 for
        a single window; None for half of `max_seq_length`.
      head: "linear" or "bilstm".
      approach: "fine_tuning" or "feature_based" (a frozen encoder).
      layer_combination: The encoder layers that "feature_based" uses.
      lstm_size: Units per direction of BiLSTMs; None for the model's default.
      head_dropout_prob: Dropout before the classification layer.
    """

    doc_stride: int | None = None
    head: str = "linear"
    approach: str = "fine_tuning"
    layer_combination: str | None = None
    lstm_size: int | None = None
    head_dropout_prob: float = 0.1

    metric = "f1"  # The F1 of entities.

    def rows_per_step(
        self, batch_size: int, num_examples: int, num_rows: int
    ) -> int:
        """Returns the number of windows that contain `batch_size` sentences.

        With `batch_size` windows, document context would reduce the number of
        steps. If 100 sentences fit into 25 windows, 32 sentences are 8 windows.
        """
        return max(1, round(batch_size * num_rows / num_examples))

    def featurize(
        self,
        examples: Sequence[TaggingExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> TaggingFeatures:
        """Converts sentences to windows; logs how many words are left out."""
        return tagging_features.convert_examples_to_features(
            examples,
            tokenizer,
            self.max_seq_length,
            self.labels if self.is_labeled(examples) else None,
            self.context,
            self.stride,
        )

    @property
    def stride(self) -> int | None:
        """The tokens between the starts of windows; None for one window."""
        if self.doc_stride is None:
            return max(self.max_seq_length // 2, 1)
        # A stride longer than the window would skip words, so limit the stride.
        return min(self.doc_stride, self.max_seq_length - 2) or None

    def model_arguments(self) -> dict[str, Any]:
        return {
            "labels": self.labels,
            "head": self.head,
            "approach": self.approach,
            "layer_combination": self.layer_combination,
            "lstm_size": self.lstm_size,
            "head_dropout_prob": self.head_dropout_prob,
        }

    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B, T], cross entropies of the labels."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch[LABEL_IDS], outputs["logits"]
        )

    def loss_weights(self, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B, T], 1 for the tokens that have a label."""
        return batch[LABEL_WEIGHTS]

    def soft_targets(
        self, outputs: TensorMap, batch: TensorMap
    ) -> tuple[task.SoftTargets, ...]:
        """Returns the logits, <float32>[B, T, L]."""
        return (task.SoftTargets(outputs["logits"], "choice"),)

    def soft_target_weights(self, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B, T], 1 for the first token of each word."""
        return batch[LABEL_WEIGHTS]

    def featurize_unlabeled(
        self, examples: Sequence[TaggingExample], tokenizer: BertTokenizer
    ) -> TaggingFeatures:
        """Converts sentences to windows; first tokens of words get weight 1."""
        any_tag = self.labels[0]
        return self.featurize(
            [
                dataclasses.replace(one, tags=(any_tag,) * len(one.words))
                for one in examples
            ],
            tokenizer,
        )

    def select_outputs(self, outputs: TensorMap) -> dict[str, tf.Tensor]:
        """Returns the ids of the best labels, <int32>[B, T]."""
        logits = outputs["logits"]
        is_finite = tf.reduce_all(tf.math.is_finite(logits), axis=-1)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {_TAG_IDS: tf.where(is_finite, best, _BROKEN)}

    def predict(
        self,
        examples: Sequence[TaggingExample],
        features: TaggingFeatures,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[Prediction]:
        """Returns the tags of each example's words.

        Raises:
          NotFiniteError: If logits are not finite.
        """
        # Append a row, because `decode` reads row 0 even if there are no rows.
        ids = keras.utils.pad_sequences(
            [*outputs.get(_TAG_IDS, ()), [0]], padding="post"
        )
        if (ids == _BROKEN).any():
            raise NotFiniteError(task.NOT_FINITE)
        tags = self.decode(
            {_TAG_IDS: ids}, features.word_rows, features.word_positions
        )
        names = [tag.decode() for tag in tags.numpy()]
        return [
            tuple(names[start:end])
            for start, end in itertools.pairwise(features.word_splits)
        ]

    def decode(
        self,
        outputs: TensorMap,
        rows: tf.Tensor,
        positions: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the tags of words, eagerly or in graph: <string>[...].

        Args:
          outputs: `logits` <float>[N, T, L], or `tag_ids` <int32>[N, T].
          rows: <int32>[...], the row of each word's first token; -1 for a word
            in no row, which gets the tag O.
          positions: <int32>[...], the index of a word's first token in its row.
        """
        ids = outputs.get(_TAG_IDS)
        if ids is None:
            ids = tf.argmax(outputs["logits"], -1, output_type=tf.int32)
        ids = tf.gather_nd(ids, tf.maximum(tf.stack([rows, positions], -1), 0))
        tags = tf.gather(tf.constant(self.labels), ids)
        return tf.where(rows < 0, OUTSIDE, tags)

    def prediction_to_json(
        self, example: TaggingExample, prediction: Prediction
    ) -> dict[str, Any]:
        """Returns words, tags, and each word's [start, end) in the raw text.

        These `offsets` are in characters, and None without raw text.
        """
        offsets = example.offsets
        return {
            "words": list(example.words),
            "tags": list(prediction),
            "offsets": None if offsets is None else [list(x) for x in offsets],
        }

    def is_labeled(self, examples: Sequence[TaggingExample]) -> bool:
        return bool(examples) and examples[0].tags is not None

    def score(
        self,
        examples: Sequence[TaggingExample],
        predictions: Sequence[Prediction],
    ) -> dict[str, float]:
        """Returns F1, precision and recall of entities, and accuracy."""
        tags = [example.tags for example in examples]
        *_, (_, overall) = metrics.score_entities(tags, predictions)
        return {
            "f1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "accuracy": metrics.tag_accuracy(tags, predictions),
        }

    def write_report(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[TaggingExample],
        predictions: Sequence[Prediction],
    ) -> None:
        r"""Writes predictions in columns, and the scores of each type.

        The tab-separated columns of <split>_predictions.conll are the word, the
        correct tag if there is one, and the predicted tag. To score the file,
        run conlleval with -d '\t'.
        """
        lines = []
        for example, prediction in zip(examples, predictions, strict=True):
            columns = (example.words, example.tags, prediction)
            rows = zip(*(x for x in columns if x is not None), strict=True)
            lines += [*map("\t".join, rows), ""]
        files.write_text(
            os.path.join(output_dir, f"{split}_predictions.conll"),
            "".join(f"{line}\n" for line in lines),
        )
        if not self.is_labeled(examples):
            return
        path = self.report_path(output_dir, split, "entity_scores")
        tags = [example.tags for example in examples]
        rows = metrics.score_entities(tags, predictions)
        result_tables.write_scores(path, "type", rows)

    def example_to_json(self, example: TaggingExample) -> dict[str, Any]:
        return {} if example.tags is None else {"gold_tags": list(example.tags)}

    def must_share_chunk(
        self, first: TaggingExample, second: TaggingExample
    ) -> bool:
        """Returns True if two sentences are in the same document."""
        return (
            self.context == "document"
            and first.document != ALONE
            and first.document == second.document
        )

    def example_from_row(self, row: Any) -> TaggingExample:
        return tagging_examples.parse_row(row)

    def add_label(self, example: TaggingExample, label: Any) -> TaggingExample:
        """Returns the sentence with a tag, or its index, for each word."""
        is_list = isinstance(label, list | tuple | np.ndarray)
        if not is_list or len(label) != len(example.words):
            raise UserError(
                f"Expected a list of {len(example.words)} tags, one for each "
                f"word. Received: {label!r:.80}."
            )
        tags = [
            label_values.parse_label(tag, self.labels, "single_label")
            for tag in label
        ]
        return dataclasses.replace(example, tags=tuple(tags))

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _SAVED}
        options = {x: getattr(self, x) for x in tagging_examples.OPTIONS}
        values |= {x: y for x, y in options.items() if y is not None}
        return values | {"labels": list(self.labels)}


# task.json stores these settings, because predictions depend on them.
_SAVED = (
    "name",
    "max_seq_length",
    "word_column",
    "tag_column",
    "context",
    "doc_stride",
    "head",
    "approach",
    "layer_combination",
    "lstm_size",
)
