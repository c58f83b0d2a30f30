"""How requests are merged."""

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class BatchingOptions:
    """How requests are merged; names are TensorFlow Serving's.

    Attributes:
      max_batch_size: The most rows of a call. A request that has more by
        itself runs alone.
      batch_timeout_micros: How long a request may wait for others while a
        thread is free, in microseconds.
      max_enqueued_batches: How many full batches may wait for each signature;
        0 means any number.
      num_batch_threads: Calls at once; 0 means one a core.
      allowed_batch_sizes: Numbers of rows that calls are padded to, rising,
        the last of them `max_batch_size`; none means any.
    """

    max_batch_size: int = 64
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = 0
    allowed_batch_sizes: tuple[int, ...] = ()

    def num_threads(self) -> int:
        return self.num_batch_threads or len(os.sched_getaffinity(0))

    def max_queued_rows(self) -> int | None:
        if not self.max_enqueued_batches:
            return None
        return self.max_enqueued_batches * self.max_batch_size


def without_merging() -> BatchingOptions:
    """Returns options by which every request runs alone.

    As many run at once as TensorFlow Serving lets.
    """
    return BatchingOptions(
        max_batch_size=1,
        max_enqueued_batches=0,
        num_batch_threads=4 * len(os.sched_getaffinity(0)),
    )
