"""Packed features to one batch of the arrays that Keras gets."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from bert_tf.data import length_buckets
from bert_tf.errors import UserError
from bert_tf.modeling.keras_methods import NO_LABEL
from bert_tf.tasks.classification.features import ClassificationFeatures
from bert_tf.tasks.squad.features import SquadFeatures
from bert_tf.tasks.tagging.features import LABEL_IDS
from bert_tf.tasks.tagging.features import LABEL_WEIGHTS
from bert_tf.tasks.task import Features


def pad(
    features: Features, max_seq_length: int, is_fixed: bool = False
) -> dict[str, np.ndarray]:
    """Returns all rows as one batch; see `Preprocessor.__call__`.

    With `is_fixed` the length is always `max_seq_length`.
    """
    rows = np.arange(len(features))
    if is_fixed:
        return features.batch(rows, max_seq_length)
    longest = int(max(features.lengths, default=1))
    allowed = length_buckets.every_multiple(max_seq_length)
    length = next(one for one in allowed if one >= longest)
    return features.batch(rows, length)


def labels_of(batch: Mapping[str, np.ndarray]) -> Any:
    """Returns the labels in a batch in the form that Keras gets."""
    if set(batch) == {LABEL_IDS, LABEL_WEIGHTS}:
        return np.where(batch[LABEL_WEIGHTS] > 0, batch[LABEL_IDS], NO_LABEL)
    return batch[LABEL_IDS] if set(batch) == {LABEL_IDS} else dict(batch)


def example_of_row(features: Features, num_examples: int) -> np.ndarray:
    """Returns <int64>[N], the index of each row's example."""
    if isinstance(features, SquadFeatures):
        return np.array([one.example_index for one in features.windows])
    if len(features) == num_examples:
        return np.arange(num_examples)
    if isinstance(features, ClassificationFeatures):
        return np.repeat(
            np.arange(num_examples), np.diff(features.example_splits)
        )
    raise UserError(
        "Expected rows that fit in max_seq_length, as they have a "
        f"sample_weight. Received: {num_examples} rows, which make "
        f"{len(features)} windows."
    )


def one_hot(labels: Any, num_labels: int) -> Any:
    """Returns <float32>[N, L] for indices <int32>[N]; others stay."""
    is_indices = getattr(labels, "dtype", None) == np.int32
    if not is_indices or labels.ndim != 1:
        return labels
    return keras.utils.to_categorical(labels, num_labels)
