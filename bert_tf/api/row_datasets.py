"""Data sets of raw rows to those of a model's inputs.

Texts are tokenized in the graph. Rows that the graph cannot read are converted
in Python: question answering makes windows, tagging reads lists of words, and
multiple choice lists of texts.
"""

from collections.abc import Callable
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
        rows = zip(*map(_to_list, x.values()), strict=True)
        return [dict(zip(x, map(_trim, row), strict=True)) for row in rows]
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
    return raw_rows.decode(values)


def _trim(value: Any) -> Any:
    """Returns a list without the empty texts that fill it up."""
    if isinstance(value, list):
        while value and value[-1] == "":
            value = value[:-1]
    return value


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
            y = _to_targets(y, task)
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


def _to_targets(
    names: tf.Tensor | tf.RaggedTensor, task: Task | None
) -> tf.Tensor:
    """Returns the labels that names stand for, in graph.

    <int32>[B], the indices, for <string>[B]; for several labels <string>[B, N],
    of which an empty one is none, <float32>[B, L].
    """
    labels = getattr(task, "labels", None)
    if labels is None:
        raise UserError(
            "Expected numbers as labels: the model's labels have no names. "
            "Received: strings."
        )
    has_several = names.shape.rank == 2
    if isinstance(names, tf.RaggedTensor):
        names = names.to_tensor("")
    is_label = tf.equal(names[..., tf.newaxis], tf.constant(labels))
    is_known = tf.reduce_any(is_label, axis=-1)
    if has_several:
        is_known |= tf.equal(names, "")
    message = f"Expected labels among {', '.join(labels)}. Received:"
    check = tf.debugging.Assert(tf.reduce_all(is_known), [message, names])
    with tf.control_dependencies([check]):
        if has_several:
            return tf.cast(tf.reduce_any(is_label, axis=1), tf.float32)
        return tf.argmax(is_label, axis=-1, output_type=tf.int32)
