"""Tests for bert_tf.finetuning.trial."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.finetuning.trial import FinetuneInput


@dataclasses.dataclass
class _Numbers:
    """Features that hold the number of their example."""

    lengths: np.ndarray

    def __len__(self):
        return len(self.lengths)

    def batch(self, indices, length):
        ids = np.repeat(indices[:, np.newaxis], length, axis=1)
        mask = np.arange(length) < self.lengths[indices][:, np.newaxis]
        return {"input_ids": ids, "input_mask": mask.astype(np.int32)}


class InputTest(tf.test.TestCase):
    def test_shares_of_workers_make_up_the_batch(self):
        source = FinetuneInput(
            _Numbers(np.array([3, 9, 5, 12, 7, 8, 2, 11])), 5, 1, 6, (8, 12)
        )
        whole = iter(source.dataset(2))
        # The third worker gets no rows.
        parts = [
            iter(source.dataset(2, first, count))
            for first, count in ((0, 3), (3, 2), (5, 0))
        ]
        for step in range(2, 6):
            batch = next(whole)
            shares = [next(part) for part in parts]
            self.assertEqual([len(x["input_ids"]) for x in shares], [3, 2, 0])
            for name, value in batch.items():
                self.assertAllEqual(
                    tf.concat([share[name] for share in shares], 0), value
                )
            self.assertAllEqual(
                batch["input_ids"], source.read(step)["input_ids"]
            )


if __name__ == "__main__":
    tf.test.main()
