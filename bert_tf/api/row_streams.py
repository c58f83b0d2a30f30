"""Python generators and `PyDataset`s of raw rows, converted batch by batch."""

import itertools
from collections.abc import Callable
from collections.abc import Generator
from typing import Any

import keras
import tensorflow as tf

from bert_tf.api import raw_rows
from bert_tf.errors import UserError
from bert_tf.modeling.raw_batches import is_text

Stream = Generator | keras.utils.PyDataset
# As `Preprocessor.training_data`: x, y and sample_weight.
Convert = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


def convert(
    stream: Stream, convert: Convert, has_labels: bool = True
) -> Stream:
    """Converts each batch of rows when Keras takes it.

    The first is converted at once, so that a mistake in it is reported as one.

    Args:
      stream: Batches x, (x,), (x, y) or (x, y, sample_weight), each as for
        `fit`; of features rather than rows they stay.
      convert: Converts a batch, to the same length each time.
      has_labels: Whether labels and weights are kept.

    Returns:
      A generator or `PyDataset` of features.

    Raises:
      UserError: If a row or label does not fit the task, or the rows would be
        tokenized in forked processes.
    """

    def convert_batch(batch: Any) -> tuple[Any, ...]:
        x, y, weight = _unpack(batch)
        parts = convert(x, y, weight) if has_labels else convert(x, None, None)
        return tuple(part for part in parts if part is not None)

    first, stream = _peek(stream)
    if first is None or not _has_texts(first):
        return stream
    if not isinstance(stream, keras.utils.PyDataset):
        start = [convert_batch(first)]
        rest = map(convert_batch, itertools.islice(stream, 1, None))
        return (batch for batch in itertools.chain(start, rest))
    if stream.use_multiprocessing:
        raise UserError(
            "Expected a PyDataset of texts to have use_multiprocessing=False: "
            "the tokenizer cannot run in forked processes; workers=N is for "
            "threads. Received: use_multiprocessing=True."
        )
    convert_batch(first)
    return _Converted(stream, convert_batch)


def read_rows(stream: Stream) -> Any:
    """Returns all rows of a stream in a list; one of features stays.

    Raises:
      UserError: If it is a `PyDataset` that does not end.
    """
    first, stream = _peek(stream)
    if first is None or not is_text(_unpack(first)[0]):
        return stream
    if isinstance(stream, keras.utils.PyDataset):
        if stream.num_batches is None:
            raise UserError(
                "Expected a PyDataset that ends. Received: one whose "
                "num_batches is None."
            )
        stream = (stream[index] for index in range(stream.num_batches))
    return [row for one in stream for row in raw_rows.to_rows(_unpack(one)[0])]


class _Converted(keras.utils.PyDataset):
    """A `PyDataset` whose batches are converted."""

    def __init__(
        self,
        source: keras.utils.PyDataset,
        convert_batch: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        super().__init__(
            workers=source.workers, max_queue_size=source.max_queue_size
        )
        self._source = source
        self._convert_batch = convert_batch

    @property
    def num_batches(self) -> int | None:
        return self._source.num_batches

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._convert_batch(self._source[index])

    def on_epoch_begin(self) -> None:
        self._source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._source.on_epoch_end()


def _peek(stream: Stream) -> tuple[Any, Stream]:
    """Returns the first batch, None if there is none, and the whole stream."""
    if isinstance(stream, keras.utils.PyDataset):
        return (None if stream.num_batches == 0 else stream[0]), stream
    first = list(itertools.islice(stream, 1))
    whole = (batch for batch in itertools.chain(first, stream))
    return (first[0] if first else None), whole


def _unpack(batch: Any) -> tuple[Any, Any, Any]:
    if isinstance(batch, list) and all(isinstance(x, str) for x in batch):
        return batch, None, None  # Texts without labels.
    return keras.utils.unpack_x_y_sample_weight(batch)


def _has_texts(batch: Any) -> bool:
    """Returns True for raw rows, and for features with names as labels."""
    x, y, _ = _unpack(batch)
    return is_text(x) or any(map(is_text, tf.nest.flatten(y)))
