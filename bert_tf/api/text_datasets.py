"""Data sets of strings to data sets of a model's inputs, in the graph."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.tasks.classification.task import ClassificationTask
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
        a label's name <string> or its index, a 0 or 1 for each of several
        labels, or a number. All may have a batch axis.
      tokenizer: The tokenizer.
      max_seq_length: The length of every row.
      task: The task of the model; None if it has none.
      batch_size: The size of a batch if there is no batch axis.

    Raises:
      UserError: If the task reads other rows than texts.
    """
    if task is not None and not isinstance(task, ClassificationTask):
        raise UserError(
            "Data sets of strings are for models without a task and for "
            "classification; give the rows in lists. Received: a data set "
            f"for kind={task.kind!r}."
        )
    x, _, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    if any(spec.shape.rank == 0 for spec in tf.nest.flatten(x)):
        dataset = dataset.batch(batch_size)

    def convert_batch(*element):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
        texts = [tokenizer.tokenize(text) for text in _texts(x, task)]
        second = texts[1] if len(texts) > 1 else None
        features = packing.pack(
            texts[0], second, max_seq_length, tokenizer.vocabulary
        )
        if y is not None and y.dtype == tf.string:
            y = _to_indices(y, task)
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
