"""Data sets of strings to data sets of a model's inputs, in the graph."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.tasks.task import Task
from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer

_COLUMNS = ("text", "text_pair")


def convert(
    dataset: tf.data.Dataset,
    tokenizer: BertTokenizer,
    max_seq_length: int,
    task: Task | None,
    batch_size: int,
) -> tf.data.Dataset:
    """Tokenizes and packs texts, or pairs, as the data set is read.

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
