"""The features of a pretraining record: names, dtypes and shapes.

The names come from the original (create_pretraining_data.py:95-160), so both
projects can train on the same record files.
"""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record.

    Attributes:
      name: The key in the `tf.train.Example`.
      stored_dtype: The dtype in the record.
      dtype: The dtype of the model's input; int64 is cast to int32.
      length: The flag that sets the number of values; "one" for a single value.
    """

    name: str
    stored_dtype: Literal["int64", "float32"]
    dtype: Literal["int32", "float32"]
    length: Literal["max_seq_length", "max_predictions_per_seq", "one"]

    def size(self, max_seq_length: int, max_predictions_per_seq: int) -> int:
        """Returns the number of values of the feature."""
        return {
            "max_seq_length": max_seq_length,
            "max_predictions_per_seq": max_predictions_per_seq,
            "one": 1,
        }[self.length]


INPUT_IDS = Feature("input_ids", "int64", "int32", "max_seq_length")
INPUT_MASK = Feature("input_mask", "int64", "int32", "max_seq_length")
SEGMENT_IDS = Feature("segment_ids", "int64", "int32", "max_seq_length")
MASKED_LM_POSITIONS = Feature(
    "masked_lm_positions", "int64", "int32", "max_predictions_per_seq"
)
MASKED_LM_IDS = Feature(
    "masked_lm_ids", "int64", "int32", "max_predictions_per_seq"
)
MASKED_LM_WEIGHTS = Feature(
    "masked_lm_weights", "float32", "float32", "max_predictions_per_seq"
)
NEXT_SENTENCE_LABELS = Feature("next_sentence_labels", "int64", "int32", "one")

PRETRAINING = (
    INPUT_IDS,
    INPUT_MASK,
    SEGMENT_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_IDS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABELS,
)
