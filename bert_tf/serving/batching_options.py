"""Parameters of the batch scheduler, with TensorFlow Serving's names."""

import dataclasses
import os

from bert_tf.serving.servable import Signature


@dataclasses.dataclass(frozen=True)
class BatchingOptions:
    """Batching parameters, with TensorFlow Serving's names.

    Attributes:
      max_batch_size: Maximum number of rows in a batch. A request with more
        rows is split (bert_tf.serving.pieces).
      batch_timeout_micros: Time that a request may wait for others while a
        thread is free, in microseconds.
      max_enqueued_batches: Number of full batches that may wait for each
        signature; 0 means any number.
      num_batch_threads: Batches computed at once; 0 means one per core.
      allowed_batch_sizes: Numbers of rows that batches are padded to,
        increasing up to `max_batch_size`; empty means any number.
      has_independent_rows: False if no request is split.
    """

    max_batch_size: int = 64
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = 0
    allowed_batch_sizes: tuple[int, ...] = ()
    has_independent_rows: bool = True

    def num_threads(self) -> int:
        return self.num_batch_threads or len(os.sched_getaffinity(0))

    def most_rows(self, signature: Signature, outputs: tuple[str, ...]) -> int:
        """Returns the maximum number of rows of a call."""
        return min(self.max_batch_size, signature.most_rows(outputs))

    def max_queued_rows(self) -> int | None:
        if not self.max_enqueued_batches:
            return None
        return self.max_enqueued_batches * self.max_batch_size


def without_merging() -> BatchingOptions:
    """Returns options that run every request alone.

    As many requests run at once as in TensorFlow Serving.
    """
    return BatchingOptions(
        max_batch_size=1,
        max_enqueued_batches=0,
        num_batch_threads=4 * len(os.sched_getaffinity(0)),
        has_independent_rows=False,
    )
