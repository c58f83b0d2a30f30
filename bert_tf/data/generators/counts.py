"""Counts over generated pretraining records.

`RecordCounts` are added up over batches, shards and runs, so a resumed run
counts the shards that the killed run finished, too.
"""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class RecordCounts:
    """Counts over records; they can be added up.

    Attributes:
      num_instances: Records.
      num_random_next: Records with a random second segment.
      num_truncated: Records that lost tokens to fit into the sequence length.
      num_pieces: Tokens without padding, but with [CLS] and [SEP].
      num_predicted: Tokens to predict, num_masked + num_same + num_random.
      num_masked: Predicted tokens replaced by [MASK].
      num_same: Predicted tokens that are unchanged, including random tokens
        that happen to equal the original token.
      num_random: Predicted tokens replaced by another token.
      length_histogram: <int64>[max_seq_length + 1]: element n is the number of
        records of n tokens. Without records, <int64>[1].
    """

    num_instances: int = 0
    num_random_next: int = 0
    num_truncated: int = 0
    num_pieces: int = 0
    num_predicted: int = 0
    num_masked: int = 0
    num_same: int = 0
    num_random: int = 0
    length_histogram: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(1, np.int64)
    )

    def add_batch(
        self,
        batch: dict[str, np.ndarray],
        mask_id: int,
        num_truncated: int,
        left_to_right: bool = False,
    ) -> None:
        """Adds the counts of a batch of records.

        Args:
          batch: The features of `bert_tf.features.PRETRAINING` by name, each
            <int or float>[batch, length].
          mask_id: The id of [MASK].
          num_truncated: Number of records that lost tokens.
          left_to_right: True if no token is replaced.
        """
        positions = batch["masked_lm_positions"]
        seen = np.take_along_axis(batch["input_ids"], positions, axis=1)
        predicted = batch["masked_lm_weights"] > 0
        masked = predicted & (seen == mask_id)
        same = predicted & ~masked & (seen == batch["masked_lm_ids"])
        if left_to_right:
            masked, same = np.zeros_like(predicted), predicted
        lengths = batch["input_mask"].sum(axis=1, dtype=np.int64)
        self.num_instances += len(lengths)
        self.num_random_next += int(np.sum(batch["next_sentence_labels"]))
        self.num_truncated += num_truncated
        self.num_pieces += int(lengths.sum())
        self.num_predicted += int(predicted.sum())
        self.num_masked += int(masked.sum())
        self.num_same += int(same.sum())
        self.num_random += int((predicted & ~masked & ~same).sum())
        size = batch["input_ids"].shape[1] + 1
        self.length_histogram = self.length_histogram + np.bincount(
            lengths, minlength=size
        )

    def add(self, other: "RecordCounts") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def random_next_share(self) -> float:
        return self.num_random_next / max(1, self.num_instances)

    def describe_cut(self, predictions: np.ndarray, most: int) -> str | None:
        """Describes the predictions that do not fit into the records, or None.

        Without the maximum `most`, a record of n tokens would predict
        `predictions[n]` tokens, <int64>[len(length_histogram)].
        """
        records = self.length_histogram
        is_cut = (predictions > most) & (records > 0)
        if not is_cut.any():
            return None
        left_out = ((predictions - most) * records)[is_cut].sum()
        return (
            f"{records[is_cut].sum():,} of {self.num_instances:,} records have "
            f"more tokens to predict than --max_predictions_per_seq={most}: "
            f"{left_out:,} of {(predictions * records).sum():,} are left out; "
            f"{predictions[is_cut].max()} would hold all."
        )

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"length_histogram": self.length_histogram.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RecordCounts":
        histogram = np.array(values["length_histogram"], np.int64)
        return cls(**(values | {"length_histogram": histogram}))


@dataclasses.dataclass
class GenerationResult:
    """The files and counts of a generator run.

    `files` has the number of "records" and of "bytes" of each path.
    `num_documents` leaves out empty documents; `counts` are over all files.
    """

    files: dict[str, dict[str, int]]
    num_documents: int
    num_sentences: int
    counts: RecordCounts
