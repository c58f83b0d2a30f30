"""Reads raw rows from Python values and data sets; defines `preprocess`.

Python values are lists, pairs of lists, arrays or data frames. A row is a text,
a pair of texts, a list of words, or a dictionary: see `Task.example_from_row`.
"""

import contextlib
import functools
import itertools
import numbers
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf import errors
from bert_tf.distribute.batches import untuned
from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean
from bert_tf.features import MASKED_LM_POSITIONS
from bert_tf.io import tables
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks.classification.examples import choose_columns
from bert_tf.tasks.classification.examples import parse_row
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.predict import MODEL_INPUTS
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

# Arguments of `fit` that name the columns of a table.
COLUMNS = ("text_column", "text_pair_column", "label_column")
_USUAL_LABELS = ("label", "labels", "tags", "ner_tags", "answers")
# Text columns of models without a task.
_TEXT_CHOICES = (("text", "text_pair"), ("text",))
# Usual columns of other tasks than classification.
_USUAL_TEXTS = (
    "text sentence words tokens question context choices anchor positive"
).split()
# How many elements `first_labels` reads to see if rows have several labels.
_ELEMENTS_TO_JUDGE = 1000
_EXPECTED_ROWS = (
    "Expected raw rows in a list, [row, row, ...], as two lists in a tuple "
    "for pairs, or as columns of texts"
)
_SQUAD_LABELS = ("start_positions", "end_positions")


def to_rows(x: Any) -> list[Any]:
    """Returns the rows of `x`.

    Args:
      x: Texts: one text; an array, string tensor, pandas Series or
        `datasets.Dataset` column of texts; or a DataFrame with one column.
        Pairs: a tuple of two sequences of texts, an array [N, 2], or a
        DataFrame with two columns. Any rows: a list, which is not checked. A
        dictionary of columns, as `split_table` returns for other tables,
        becomes a list of dictionaries with the columns' names as keys.

    Raises:
      UserError: If `x` has another type, or the columns' lengths differ.
    """
    if isinstance(x, str):
        return [x]
    if isinstance(x, list):
        return [decode(row) for row in x]
    if isinstance(x, Mapping):
        columns = [to_list(column) for column in x.values()]
        return [
            dict(zip(x, row, strict=True)) for row in _transpose(columns, x)
        ]
    if isinstance(x, tuple):
        if len(x) == 2 and not any(isinstance(one, str | bytes) for one in x):
            return _transpose([to_list(one) for one in x], x)
    elif (
        isinstance(x, Sequence) or hasattr(x, "shape") or hasattr(x, "to_numpy")
    ):
        return to_list(x)
    raise UserError(f"{_EXPECTED_ROWS}. Received: a {type(x).__name__}.")


def columns_of(x: Any) -> dict[str, Any] | None:
    """Returns the columns of a DataFrame or a `datasets.Dataset`; else None."""
    if isinstance(x, Mapping) and hasattr(x, "column_names"):
        raise UserError(
            f"Expected one split, such as x[{next(iter(x), 'train')!r}]. "
            f"Received: the splits {', '.join(x)}."
        )
    names = getattr(x, "column_names", getattr(x, "columns", None))
    return None if names is None else {name: x[name] for name in names}


def pop_columns(method: str, arguments: dict[str, Any]) -> dict[str, str]:
    """Removes and returns the arguments in `COLUMNS`."""
    check_names(method, arguments)
    return {x: arguments.pop(x) for x in COLUMNS if x in arguments}


def check_names(method: str, given: Iterable[str]) -> None:
    """Raises `UserError` unless Keras' method has the arguments."""
    known = [*errors.arguments_of(getattr(keras.Model, method)), *COLUMNS]
    hint = "; compile(bert_tf.build_optimizer(...)) sets the optimizer."
    # Keras itself passes arguments that begin with "_".
    given = [name for name in given if not name.startswith("_")]
    is_training = method in ("compile", "fit")
    errors.check_arguments(method, given, known, hint if is_training else ".")


def require_data(x: Any) -> None:
    """Raises `UserError` for a file's name, and for values that are no data."""
    is_name = isinstance(x, str | os.PathLike)
    if is_name and tables.is_table(str(x)) and os.path.isfile(x):
        raise UserError(
            f"Expected rows. Received: the name of a file, {str(x)!r}; give a "
            "list of its lines, or a table, for instance of pandas.read_csv."
        )
    if isinstance(x, numbers.Number | os.PathLike | None):
        raise UserError(
            f"{_EXPECTED_ROWS}, or the model's inputs. Received: {x!r:.80}."
        )


def split_table(
    x: Any, y: Any, preprocessor: Any, names: Mapping[str, str]
) -> tuple[Any, Any]:
    """Returns the texts and labels of a table; returns other data unchanged.

    Args:
      x: A DataFrame or `datasets.Dataset`; with `names` also a dictionary.
      y: The labels; if None, the table's column of labels is read.
      preprocessor: The model's `Preprocessor`.
      names: Maps arguments, some of `COLUMNS`, to names of columns.

    Raises:
      UserError: If a column is missing.
    """
    require_data(x)
    table = columns_of(x)
    if isinstance(x, Mapping) and (names or (y is None and is_text(x))):
        table = x
    elif table is None and names:
        table = {}
    if table is None:
        return x, y
    for argument, name in names.items():
        if name not in table:
            raise UserError(
                f"{argument}: expected a table with the column {name!r}. "
                f"Received: {', '.join(table) or type(x).__name__}"
                f"{did_you_mean(name, table, '{!r}')}"
            )
    has_task = getattr(preprocessor, "has_task", False)
    task = preprocessor.task if has_task else None
    own = getattr(getattr(task, "columns", None), "labels", ())[:1]
    labels = (names.get("label_column"), *own, *_USUAL_LABELS)
    label = next((name for name in labels if name in table), None)
    texts = [names[one] for one in COLUMNS[:2] if one in names]
    reads_texts = isinstance(task, ClassificationTask | None)
    choices = getattr(task, "text_choices", _TEXT_CHOICES)
    known = itertools.chain(*choices) if reads_texts else _USUAL_TEXTS
    # One or two columns of a DataFrame are texts, unless one has a known name.
    is_plain = len(table) < 3 and not label and hasattr(x, "columns")
    is_plain &= not {*known} & {*table}
    if not texts and reads_texts and not is_plain:
        texts = choose_columns(table, choices)
    if y is None and label and task is not None:
        y = _named_labels(x, to_list(table[label]), label, task)
    if not texts:  # The task finds the columns by their names.
        return (x if is_plain else table), y
    columns = [to_list(table[name]) for name in texts]
    return (columns[0] if len(columns) == 1 else tuple(columns)), y


def _named_labels(x: Any, y: list[Any], column: str, task: Task) -> Any:
    """Returns the labels of a column in the form that `fit` takes."""
    if isinstance(task, SquadTask):  # {"text": [...], "answer_start": [...]}
        texts = [(*answers["text"], "")[0] for answers in y]
        return texts, [(*answers["answer_start"], 0)[0] for answers in y]
    feature = getattr(x, "features", {}).get(column)
    feature = getattr(feature, "feature", feature)  # A list's inner feature.
    names = getattr(feature, "names", None)
    if names and set(names) <= set(getattr(task, "labels", None) or ()):
        return tf.nest.map_structure(names.__getitem__, y)
    return y


def is_text(x: Any) -> bool:
    """Returns True if rows, columns or tensors contain a text."""
    if isinstance(x, tf.data.Dataset):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
        dtypes = [getattr(x, "dtype", None) for x in tf.nest.flatten(x)]
        return tf.string in dtypes
    for leaf in tf.nest.flatten(x):
        dtype = getattr(leaf, "dtype", None)
        kind = getattr(dtype, "kind", None)
        if kind is None and hasattr(leaf, "to_numpy"):  # A column of polars.
            kind = leaf.to_numpy().dtype.kind
        is_string = dtype == tf.string or kind in ("U", "S", "O")
        if isinstance(leaf, str | bytes) or is_string:
            return True
    # A DataFrame or a `datasets.Dataset` holds raw rows, never model inputs.
    return hasattr(x, "columns") or hasattr(x, "column_names")


def check_stream(stream: Any) -> Any:
    """Checks the first batch of a stream; returns all its batches."""
    if isinstance(stream, keras.utils.PyDataset):
        first = [] if stream.num_batches == 0 else [stream[0]]
    else:
        first = list(itertools.islice(stream, 1))
        stream = (batch for batch in itertools.chain(first, stream))
    if is_text(first):
        raise UserError(
            "Expected batches of the model's inputs, as model.preprocessor(x, "
            "y) returns them, or a tf.data.Dataset of raw rows. Received: "
            f"texts in a {type(stream).__name__}."
        )
    return stream


@contextlib.contextmanager
def naming_row(number: int) -> Iterator[None]:
    """Adds the number of a row to a `UserError` about this row."""
    try:
        yield
    except UserError as error:
        raise UserError(f"Row {number} of the list: {error}") from None


def restores_task(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method restore the task if it refuses data.

    If TensorFlow raised its own error for a `UserError` about a row, the
    `UserError` is raised.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        reader = getattr(self, "preprocessor", self)
        values = reader and dict(reader.task_values)
        try:
            return method(self, *args, **kwargs)
        except (UserError, tf.errors.OpError) as error:
            cause = getattr(reader, "row_error", None) or error
            if reader and isinstance(cause, UserError):
                reader.row_error = None
                if reader.task_values != values:
                    reader.task_values = values
                    reader.change_task()
            raise cause from None

    return run


def read_features(x: Any, vocab_size: int) -> Any:
    """Returns a model's inputs as arrays; returns other data unchanged.

    Raises:
      UserError: If arrays cannot be a model's inputs. Keras would notice only
        after the slow compilation.
    """
    if not (hasattr(x, "shape") or isinstance(x, Mapping)):
        return x
    bert_model.check_inputs(x, MASKED_LM_POSITIONS.name)
    try:
        arrays = {name: np.asarray(values) for name, values in x.items()}
    except ValueError:  # NumPy refuses rows of several lengths.
        arrays = dict.fromkeys(x, np.empty(0))
    shapes = {k: v.shape for k, v in arrays.items() if k in MODEL_INPUTS}
    ids = arrays[MODEL_INPUTS[0]]
    if len({*shapes.values()}) > 1 or ids.ndim < 2:
        raise UserError(
            "Expected the model's inputs in one shape, [rows, tokens]. "
            f"Received: {', '.join(f'{k} {v}' for k, v in shapes.items())}."
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise UserError(
            f"Expected {MODEL_INPUTS[0]} from 0 to {vocab_size - 1}, the ids "
            f"of the model. Received: ids from {ids.min()} to {ids.max()}."
        )
    # Keras would cast booleans to float32, and take lists for structures.
    return {
        k: v.astype("int32") if v.dtype == bool else v
        for k, v in arrays.items()
    }


def to_list(column: Any) -> list[Any]:
    """Returns the values of a list, array, tensor or Series."""
    if isinstance(column, Sequence) and not isinstance(column, str | bytes):
        return [decode(value) for value in column]
    column = np.asarray(column)
    if column.ndim == 0:
        raise UserError(
            "Expected a list, an array or a column of values. Received: "
            f"{column.item()!r:.80}."
        )
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    return [decode(value) for value in column.tolist()]


def to_labels(y: Any, count: int | None = None, name: str = "y") -> list[Any]:
    """Returns the labels of `count` rows, one label for each row.

    A tuple of texts and numbers becomes a pair (text, number) for each row. The
    error message has the `name` of the argument.

    Raises:
      UserError: If the numbers of labels and rows differ.
    """
    if _has_parts(y):
        labels = _transpose([to_list(x) for x in y], y)
    else:
        labels = to_list(y)
    if count is not None and len(labels) != count:
        is_pair = count == 2 < len(labels)
        hint = ", and two columns of texts in a tuple" if is_pair else ""
        raise UserError(
            f"x has {count} rows, and {name} has {len(labels)}; give one for "
            f"each row{hint}."
        )
    return labels


def to_texts(rows: Sequence[Any]) -> tuple[list[str], list[str | None] | None]:
    """Returns the first and second texts of rows, for models without a task.

    Raises:
      UserError: If a row is neither a text nor a pair of texts.
    """
    texts, pairs = [], []
    for number, row in enumerate(rows):
        with naming_row(number):
            example = parse_row(row, _TEXT_CHOICES, may_be_empty=True)
        texts.append(example.text_a)
        pairs.append(example.text_b)
    return texts, pairs if {*pairs} - {None} else None


def _has_parts(y: Any) -> bool:
    """Returns True for a tuple of two sequences: texts, and numbers."""
    if not isinstance(y, tuple) or len(y) != 2:
        return False
    if any(isinstance(one, str) or not hasattr(one, "__len__") for one in y):
        return False
    texts, numbers = (to_list(one) for one in y)
    return all(isinstance(text, str) for text in texts) and not any(
        isinstance(number, str) for number in numbers
    )


def _transpose(columns: list[list[Any]], x: Any) -> list[tuple[Any, ...]]:
    if len({len(column) for column in columns}) > 1:
        raise UserError(
            "Expected columns of equal length. Received: lengths "
            f"{', '.join(str(len(column)) for column in columns)} in a "
            f"{type(x).__name__}."
        )
    return list(zip(*columns, strict=True))


def decode(value: Any) -> Any:
    """Decodes bytes, also within lists; returns other values unchanged."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(
            f"Expected texts in UTF-8; decode others first. Received: "
            f"{value!r:.80}."
        ) from None


# === Data sets ===


def convert_dataset(
    dataset: tf.data.Dataset, preprocessor: Any, batch_size: int
) -> tf.data.Dataset:
    """Converts each batch of rows as it is read.

    Texts are padded to `max_seq_length`. A batch of questions becomes a batch
    of all windows of the questions.

    Args:
      dataset: Elements x, (x, y) or (x, y, weight); each is a row or a batch.
        Texts: x is a text <string>, a pair in a tuple, or a dictionary of
        columns. y is a label's name <string>, its index, or a number; for
        several labels their names <string>[names], or 0 or 1 for each label.
        Question answering: x is (question, context) <string>, y is (answer
        <string>, index of its first character <int>). Tagging: x is words
        <string>[words], y is tags <string>[words] or indices. Multiple choice:
        x is a dictionary of columns, or of "context" and "choices"
        <string>[choices]; y is an index. Lists in a batch are ragged or padded
        with "".
      preprocessor: The model's `Preprocessor`.
      batch_size: The size of a batch, for elements without a batch axis.
    """
    task = preprocessor.task if preprocessor.has_task else None
    length = preprocessor.max_seq_length if preprocessor.reads_texts else None
    batches = untuned(_batched(dataset, task, batch_size))

    def generate() -> Iterator[Any]:
        for element in batches:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
            rows = _rows(x)
            labels = None if y is None else _labels(y, rows, task)
            weights = None if weight is None else weight.numpy()
            try:
                yield keras.utils.pack_x_y_sample_weight(
                    *preprocessor.convert_rows(rows, labels, weights, length)
                )
            except UserError as error:
                # TensorFlow raises its own error, so keep this one.
                preprocessor.row_error = error
                raise

    _, y, weight = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    shape = [None, None] if isinstance(task, MultipleChoiceTask) else [None]
    inputs = tf.TensorSpec([*shape, length], tf.int32)
    signature = keras.utils.pack_x_y_sample_weight(
        dict.fromkeys(MODEL_INPUTS, inputs),
        None if y is None else _label_spec(preprocessor),
        None if weight is None else tf.TensorSpec([None], tf.float32),
    )
    converted = tf.data.Dataset.from_generator(
        generate, output_signature=signature
    )
    if (size := batches.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        converted = converted.apply(
            tf.data.experimental.assert_cardinality(size)
        )
    return untuned(converted.prefetch(tf.data.AUTOTUNE))


def _label_spec(preprocessor: Any) -> Any:
    task = preprocessor.task
    if isinstance(task, SquadTask):
        return dict.fromkeys(_SQUAD_LABELS, tf.TensorSpec([None], tf.int32))
    is_vector = preprocessor.is_multi_label or preprocessor.is_one_hot
    is_score = getattr(task, "problem_type", None) == "regression"
    return tf.TensorSpec(
        [None] * (1 + (is_vector or isinstance(task, TaggingTask))),
        tf.float32 if is_vector or is_score else tf.int32,
    )


def read_rows(dataset: tf.data.Dataset, task: Task) -> list[Any]:
    """Returns the rows of a data set, without their labels."""
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
    dataset: tf.data.Dataset, task: Task | None, batch_size: int
) -> tf.data.Dataset:
    """Returns the data set in batches, ragged where lengths differ."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    is_row = any(x.shape.rank == 0 for x in tf.nest.flatten((x, y)) if x)
    if isinstance(task, TaggingTask) and not isinstance(x, Mapping | tuple):
        # If `x` of rank 1 has labels or is ragged, it is one row's words.
        is_words = x.shape.rank == 1 and (
            y is not None or isinstance(x, tf.RaggedTensorSpec)
        )
        is_row = is_words or x.shape.rank == 0
    return dataset.ragged_batch(batch_size) if is_row else dataset


def _rows(x: Any) -> list[Any]:
    """Returns the rows of a batch in the form that a task reads."""
    if isinstance(x, Mapping):
        rows = zip(*map(_to_list, x.values()), strict=True)
        return [dict(zip(x, map(_trim, row), strict=True)) for row in rows]
    if isinstance(x, tuple | list):
        return list(zip(*map(_to_list, x), strict=True))
    return [_trim(row) for row in _to_list(x)]


def _labels(y: Any, rows: list[Any], task: Task | None) -> list[Any]:
    """Returns the labels of a batch in the form that a task reads."""
    if isinstance(y, Mapping):
        y = tuple(y.values()) if len(y) > 1 else next(iter(y.values()))
    if isinstance(y, tuple | list):
        return list(zip(*map(_to_list, y), strict=True))
    labels = _to_list(y)
    if isinstance(task, TaggingTask):
        words = [r.get("words", r) if isinstance(r, dict) else r for r in rows]
        return [x[: len(w)] for x, w in zip(labels, words, strict=True)]
    return [_trim(label) for label in labels]


def _to_list(tensor: tf.Tensor | tf.RaggedTensor) -> list[Any]:
    is_ragged = isinstance(tensor, tf.RaggedTensor)
    values = tensor.to_list() if is_ragged else tensor.numpy().tolist()
    return decode(values)


def _trim(value: Any) -> Any:
    """Returns a list without the empty texts that pad its end."""
    if isinstance(value, list):
        while value and value[-1] == "":
            value = value[:-1]
    return value


def first_labels(dataset: tf.data.Dataset, task: Task) -> list[Any]:
    """Returns the labels of the first elements of a data set."""
    labels = []
    for element in _batched(dataset, task, 1).take(_ELEMENTS_TO_JUDGE):
        _, y, _ = keras.utils.unpack_x_y_sample_weight(element)
        labels += _labels(y, [], task)
    return labels


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


@errors.suggests_arguments
def preprocess(
    model_or_tokenizer: keras.Model | BertTokenizer,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
) -> Any:
    """Tokenizes and packs raw rows as `fit` of a loaded model does.

    Args:
      model_or_tokenizer: A model of `load_model`, with a task that defines a
        row and its maximum length; or a tokenizer, for texts and pairs.
      x: Raw rows, in a list of texts or pairs, a tuple of two lists for pairs,
        columns of texts, or any other form that the model's `fit` accepts.
      y: The labels of the rows, or None; always None for a tokenizer.
      sample_weight: The weight of each row, or None.

    Returns:
      The inputs `input_ids`, `input_mask` and `segment_ids` <int32>[N, S]; with
      labels, (inputs, labels); with weights, (inputs, labels, weights).

    Raises:
      UserError: If a row or label does not fit the task, or the first argument
        has no tokenizer.

    Example:
      >>> model = bert_tf.load_model(
      ...     "bert-base-uncased", "classification", labels=["bad", "good"]
      ... )
      >>> features = bert_tf.preprocess(model, ["A fine film.", "No."])
      >>> model(features)["logits"].shape
      TensorShape([2, 2])
    """
    if isinstance(model_or_tokenizer, BertTokenizer):
        if y is not None or sample_weight is not None:
            raise UserError(
                "A tokenizer has no labels: pass the model instead. "
                "Received: labels or weights."
            )
        x, _ = split_table(x, None, model_or_tokenizer, {})
        features = model_or_tokenizer(*to_texts(to_rows(x)))
        return {name: value.numpy() for name, value in features.items()}
    preprocessor = getattr(model_or_tokenizer, "preprocessor", None)
    if preprocessor is None:
        raise UserError(
            "Expected a tokenizer, or a model of bert_tf.load_model, which has "
            f"one. Received: {type(model_or_tokenizer).__name__}."
        )
    return preprocessor(x, y, sample_weight)
