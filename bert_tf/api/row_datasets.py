"""Data sets and streams of raw rows to those of a model's inputs.

Texts are tokenized in the graph. Rows that the graph cannot read are converted
in Python: question answering makes windows, tagging reads lists of words, and
multiple choice lists of texts; generators and `PyDataset`s give Python values.
"""

import itertools
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.api import raw_rows
from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.modeling.raw_batches import is_text
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Task
from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer

_INPUTS = (INPUT_IDS.name, INPUT_MASK.name, SEGMENT_IDS.name)
# The axes of the labels of a batch.
_LABEL_RANKS = {SquadTask: 1, TaggingTask: 2, MultipleChoiceTask: 1}
_SQUAD_LABELS = ("start_positions", "end_positions")

Stream = Generator | keras.utils.PyDataset
# As `Preprocessor.training_data`: x, y and sample_weight.
Convert = Callable[[Any, Any, Any], tuple[Any, Any, Any]]

_COLUMNS = ("text", "text_pair")


def convert_rows(
    dataset: tf.data.Dataset,
    preprocess: Callable[..., Any],
    task: Task,
    batch_size: int,
) -> tf.data.Dataset:
    """Converts each batch of rows as it is read, in Python.

    A batch of questions becomes a batch of all their windows.

    Args:
      dataset: Elements x, (x, y) or (x, y, weight), a row or a batch of rows
        each. Question answering: `x` is (questions, contexts) and `y` is
        (answers' texts, first characters), <string> and <int>. Tagging: words
        and tags, <string>[words] each, ragged in batches or filled up with "";
        tags may also be indices. Multiple choice: a dictionary of columns, or
        of "context" and "choices" <string>[choices], and an index.
      preprocess: The model's `Preprocessor`.
      task: Its task.
      batch_size: The number of rows of a batch if there is no batch axis.

    Raises:
      UserError: If the task reads other rows.
    """
    label_rank = next(
        (n for cls, n in _LABEL_RANKS.items() if isinstance(task, cls)), None
    )
    if label_rank is None:
        raise UserError(
            "Data sets of strings are for models without a task and for "
            "classification, question answering, tagging and multiple choice; "
            f"give the rows in lists. Received: a data set for {task.kind!r}."
        )
    batches = _batched(dataset, task, batch_size)

    def generate() -> Iterator[Any]:
        for element in batches:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
            rows = _rows(x)
            labels = None if y is None else _labels(y, rows, task)
            weights = None if weight is None else weight.numpy()
            yield preprocess(rows, labels, weights)

    _, y, weight = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    rank = 3 if isinstance(task, MultipleChoiceTask) else 2
    inputs = dict.fromkeys(_INPUTS, tf.TensorSpec([None] * rank, tf.int32))
    signature = inputs
    if y is not None:
        labels = tf.TensorSpec([None] * label_rank, tf.int32)
        if isinstance(task, SquadTask):
            labels = dict.fromkeys(_SQUAD_LABELS, labels)
        signature = (inputs, labels)
        if weight is not None:
            signature += (tf.TensorSpec([None], tf.float32),)
    converted = tf.data.Dataset.from_generator(
        generate, output_signature=signature
    )
    if (size := batches.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        converted = converted.apply(
            tf.data.experimental.assert_cardinality(size)
        )
    return converted.prefetch(tf.data.AUTOTUNE)


def read_rows(dataset: tf.data.Dataset, task: Task) -> list[Any]:
    """Returns the rows of a data set, without their labels.

    Raises:
      UserError: If the data set never ends.
    """
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UserError(
            "Expected a data set that ends. Received: one that repeats; drop "
            "repeat(), or use take()."
        )
    rows = []
    for element in _batched(dataset, task, 1):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(element)
        rows += _rows(x)
    return rows


def _batched(
    dataset: tf.data.Dataset, task: Task, batch_size: int
) -> tf.data.Dataset:
    """Returns the data set in batches, ragged where lengths differ."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    is_row = any(x.shape.rank == 0 for x in tf.nest.flatten((x, y)) if x)
    if isinstance(task, TaggingTask) and not isinstance(x, Mapping | tuple):
        # A text or a batch of texts has no labels, and a list of words does.
        is_words = x.shape.rank == 1 and (
            y is not None or isinstance(x, tf.RaggedTensorSpec)
        )
        is_row = is_words or x.shape.rank == 0
    return dataset.ragged_batch(batch_size) if is_row else dataset


def _rows(x: Any) -> list[Any]:
    """Returns the rows of a batch, as a task reads them."""
    if isinstance(x, Mapping):
        columns = [_to_list(column) for column in x.values()]
        return [
            dict(zip(x, map(_trim, row), strict=True))
            for row in zip(*columns, strict=True)
        ]
    if isinstance(x, tuple | list):
        return list(zip(*map(_to_list, x), strict=True))
    return [_trim(row) for row in _to_list(x)]


def _labels(y: Any, rows: list[Any], task: Task) -> list[Any]:
    """Returns the labels of a batch, as a task reads them."""
    if isinstance(y, Mapping):
        y = tuple(y.values())
    if isinstance(y, tuple | list):
        return list(zip(*map(_to_list, y), strict=True))
    labels = _to_list(y)
    if isinstance(task, TaggingTask):
        words = [r.get("words", r) if isinstance(r, dict) else r for r in rows]
        return [x[: len(w)] for x, w in zip(labels, words, strict=True)]
    return labels


def _to_list(tensor: tf.Tensor | tf.RaggedTensor) -> list[Any]:
    is_ragged = isinstance(tensor, tf.RaggedTensor)
    values = tensor.to_list() if is_ragged else tensor.numpy().tolist()
    return _decode(values)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(one) for one in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _trim(value: Any) -> Any:
    """Returns a list without the empty texts that fill it up."""
    if isinstance(value, list):
        while value and value[-1] == "":
            value = value[:-1]
    return value


def convert_stream(
    stream: Stream, convert: Convert, has_labels: bool = True
) -> Stream:
    """Converts each batch of a stream when Keras takes it.

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
    x, y, _ = _unpack(first) if first is not None else (None, None, None)
    # Raw rows, or features with names as labels.
    if not any(map(is_text, (x, *tf.nest.flatten(y)))):
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


def read_stream(stream: Stream) -> Any:
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


def convert_texts(
    dataset: tf.data.Dataset,
    tokenizer: BertTokenizer,
    max_seq_length: int,
    task: Task | None,
    batch_size: int,
) -> tf.data.Dataset:
    """Tokenizes and packs texts, or pairs, in the graph.

    Args:
      dataset: Elements x, (x, y) or (x, y, weight): `x` is a text <string>, a
        pair of texts in a tuple, or a dictionary of one or two texts; `y` is
        a label's name <string> or its index; for several labels, their names
        <string>[names] (ragged in batches, or filled up with "") or a 0 or 1
        for each label; or a number. All may have a batch axis.
      tokenizer: The tokenizer.
      max_seq_length: The length of every row.
      task: The task of the model, which classifies texts; None if it has
        none.
      batch_size: The size of a batch if there is no batch axis.

    Raises:
      UserError: If the elements are not of this form.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    if any(spec.shape.rank == 0 for spec in tf.nest.flatten(x)):
        dataset = dataset.ragged_batch(batch_size)

    def convert_batch(*element):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
        texts = [tokenizer.tokenize(text) for text in _texts(x, task)]
        second = texts[1] if len(texts) > 1 else None
        features = packing.pack(
            texts[0], second, max_seq_length, tokenizer.vocabulary
        )
        if y is not None and y.dtype == tf.string:
            has_several = y.shape.rank == 2
            y = (_to_zeros_and_ones if has_several else _to_indices)(y, task)
        return keras.utils.pack_x_y_sample_weight(features, y, weight)

    return dataset.map(convert_batch, tf.data.AUTOTUNE).prefetch(
        tf.data.AUTOTUNE
    )


def _texts(x: Any, task: Task | None) -> Sequence[tf.Tensor]:
    """Returns one or two batches of texts, <string>[B] each."""
    texts = x
    if isinstance(x, Mapping):
        columns = getattr(task, "columns", None)
        names = columns.texts if columns else _COLUMNS
        texts = [x[name] for name in names if name in x]
    elif not isinstance(x, tuple | list):
        texts = [x]
    if len(texts) not in (1, 2):
        raise UserError(
            "Expected a text or a pair of texts in each element of the data "
            f"set. Received: {x}."
        )
    return texts


def has_several_labels(dataset: tf.data.Dataset) -> bool:
    """Returns True if the labels of a row are a list or several numbers."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    if isinstance(y, Mapping) and len(y) == 1:
        (y,) = y.values()
    if not hasattr(y, "shape"):
        return False
    texts = tf.nest.flatten(x)[0]
    extra = y.shape.rank - texts.shape.rank
    return extra == 1 and y.shape[-1] != 1


def _to_zeros_and_ones(
    names: tf.Tensor | tf.RaggedTensor, task: Task | None
) -> tf.Tensor:
    """Returns <float32>[B, L] for the names of several labels <string>[B, N].

    An empty name is none.
    """
    if isinstance(names, tf.Tensor):
        names = tf.RaggedTensor.from_tensor(names)
    names = tf.ragged.boolean_mask(names, tf.not_equal(names, ""))
    indices = _to_indices(names.flat_values, task)
    one_hot = names.with_flat_values(tf.one_hot(indices, len(task.labels)))
    return tf.reduce_max(one_hot.to_tensor(), axis=1)


def _to_indices(names: tf.Tensor, task: Task | None) -> tf.Tensor:
    """Returns the indices of labels, <int32>[B] for <string>[B]."""
    labels = getattr(task, "labels", None)
    if labels is None:
        raise UserError(
            "Expected numbers as labels: the model's labels have no names. "
            "Received: strings."
        )
    is_label = tf.equal(tf.reshape(names, [-1, 1]), tf.constant(labels))
    message = f"Expected labels among {', '.join(labels)}. Received:"
    check = tf.debugging.Assert(
        tf.reduce_all(tf.reduce_any(is_label, axis=-1)), [message, names]
    )
    with tf.control_dependencies([check]):
        return tf.argmax(is_label, axis=-1, output_type=tf.int32)
