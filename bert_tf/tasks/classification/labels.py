"""Labels of classification: a name, several names or a number for a text."""

import json
import math
from collections import Counter
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal

import numpy as np
from absl import logging

from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean
from bert_tf.io import run_folder

ProblemType = Literal["single_label", "multi_label", "regression"]
Label = str | tuple[str, ...] | float

# The value of --class_weights that gives all labels the same total weight.
BALANCED = "balanced"
_MAX_LABELS_SHOWN = 10
# Values that mean "no" and "yes" in a column for a single label.
_FALSE, _TRUE = ("0", "false", "0.0"), ("1", "true", "1.0")


def check_known(where: str, label: Label, known: Collection[str]) -> None:
    """Raises `UserError` if a label, or one of several, is unknown."""
    for name in label if isinstance(label, tuple) else (label,):
        if name not in known:
            hint = did_you_mean(name, known, "{!r}")
            raise UserError(
                f"{where} has the label {name!r}, which is not among the "
                f"{len(known)} known labels: {name_some(sorted(known))}{hint} "
                "Correct the row, or add the label to the training data."
            )


def name_some(labels: Sequence[str]) -> str:
    """Returns the first labels and how many more there are, for messages."""
    return run_folder.shown([*map(repr, labels)], _MAX_LABELS_SHOWN)


def parse_number(where: str, value: Any) -> float:
    """Returns a regression label.

    Raises:
      UserError: If the value is not a finite number in float32, or is written
        with underscores, such as 1_000.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(np.float32(number))
    if not is_finite or isinstance(value, bool) or "_" in str(value):
        raise UserError(
            f"{where} must have a number as its label. Received: {value!r:.80}."
        )
    return number


def read_label(
    where: str,
    values: Mapping[str, Any],
    columns: Sequence[str],
    problem_type: ProblemType,
    separator: str,
) -> Label | None:
    """Returns the label of a table's row; None if the row has none.

    `columns` has the label's column, or one column for each label of a
    multi-label problem; `separator` separates several names in one column.

    Raises:
      UserError: If a value does not fit the problem type.
    """
    if len(columns) > 1:
        return _read_flags(where, values, columns, problem_type)
    value = values.get(columns[0])
    # NaN is a missing label, written by programs that read columns as floats.
    if value is None or _is_nan(value):
        return None
    if problem_type == "multi_label":
        return _parse_names(where, value, separator)
    if isinstance(value, str) and not value.strip():
        return None
    if problem_type == "regression":
        return parse_number(where, value)
    return parse_name(where, value)


def parse_name(where: str, value: Any) -> str:
    """Returns a label as a string: 1 is "1" and JSON's true is "true".

    Raises:
      UserError: If the value is a list, an object, null or NaN, or the label
        has a line break.
    """
    if value is None or _is_nan(value) or isinstance(value, list | dict):
        raise UserError(
            f"{where} must have one label. Received: "
            f"{json.dumps(value, ensure_ascii=False)}."
        )
    name = (value if isinstance(value, str) else json.dumps(value)).strip()
    require_line(where, name)
    return name


def require_line(where: str, name: str) -> None:
    """Raises `UserError` if a label has a line break: tables would break."""
    if len(name.splitlines()) > 1:
        raise UserError(
            f"{where} must have its label in one line. Received: {name!r:.80}; "
            "replace the line break."
        )


def parse_label(
    value: Any, labels: Sequence[str] | None, problem_type: ProblemType
) -> Label:
    """Converts a Python value to a label.

    The value of one label is its name, its index in `labels`, or a one-hot
    vector. The value of several labels is a list of names or indices, or a 0 or
    1 for each label. The value of a regression is a number.

    Raises:
      UserError: If the value is not a label, does not fit the problem type, or
        is the index of one label and the name of another.
    """
    if problem_type == "regression":
        return parse_number("The example", value)
    if problem_type == "single_label":
        return _name_of(value, labels)
    if not isinstance(value, list | tuple | set | frozenset | np.ndarray):
        raise UserError(
            "Expected a list of labels for each example. Received: "
            f'{value!r:.80}; for one label set problem_type="single_label".'
        )
    is_flag = [not isinstance(x, str) and x in (0, 1) for x in value]
    if all(is_flag) and len(value) == len(labels):
        pairs = zip(labels, value, strict=True)
        return tuple(name for name, is_set in pairs if is_set)
    # Indices are integers and do not repeat. So [0, 0, 1] and [1.0, 0.0] are no
    # indices, but flags: refuse them, as there must be one for each label.
    is_vector = any(isinstance(x, float | np.floating) for x in value)
    if all(is_flag) and (is_vector or len({*value}) < len(value)):
        raise UserError(
            f"Expected a 0 or 1 for each of {len(labels)} labels. Received: "
            f"{len(value)} of them, {value!r:.80}."
        )
    return tuple(dict.fromkeys(_name_of(one, labels) for one in value))


def is_one_hot(value: Any, num_labels: int) -> bool:
    """Returns True for `num_labels` > 1 values, one of them 1, all others 0."""
    return (
        isinstance(value, list | tuple | np.ndarray)
        and len(value) == num_labels > 1
        and all(not isinstance(x, str) and x in (0, 1) for x in value)
        and sum(value) == 1
    )


def _name_of(value: Any, labels: Sequence[str]) -> str:
    """Returns a label's name for its name, index or one-hot vector."""
    if isinstance(value, bool | np.bool_):  # A label may be "True" or "true".
        value = {x.lower(): x for x in labels}.get(str(value).lower(), value)
    if isinstance(value, str) and value in labels:
        return value
    if is_one_hot(value, len(labels)):
        return labels[int(np.argmax(value))]
    if isinstance(value, int | float | np.number | np.bool_):
        if value in range(len(labels)):
            index, found = str(int(value)), labels[int(value)]
            if index in labels and index != found:
                raise UserError(
                    f"Expected labels as strings, as {index!r} is a label, and "
                    f"{index} the index of {found!r}. Received: {value!r}."
                )
            return found
    hint = did_you_mean(str(value), labels, "{!r}")
    if isinstance(value, list | tuple | np.ndarray):
        hint = '; for several labels set problem_type="multi_label".'
    raise UserError(
        f"Expected a label among {name_some(labels)}, or its index from 0 to "
        f"{len(labels) - 1}. Received: {value!r:.80}{hint}"
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _parse_names(where: str, value: Any, separator: str) -> tuple[str, ...]:
    if isinstance(value, str):
        if value.strip().startswith("[") and value.strip().endswith("]"):
            raise UserError(
                f"{where} must have labels separated by {separator!r}; lists "
                f"are for .jsonl and .json files. Received: {value!r:.80}."
            )
        value = value.split(separator)
    elif not isinstance(value, list):
        value = [value]
    names = (parse_name(where, name) for name in value)
    return tuple(dict.fromkeys(name for name in names if name))


def _read_flags(
    where: str,
    values: Mapping[str, Any],
    columns: Sequence[str],
    problem_type: ProblemType,
) -> tuple[str, ...] | None:
    if problem_type != "multi_label":
        raise UserError(
            "Several label columns need the problem type multi_label. "
            f"Received: {problem_type} with {', '.join(columns)}."
        )
    if all(values.get(column) in (None, "") for column in columns):
        return None
    names = {x: parse_name(where, values.get(x)).lower() for x in columns}
    for column, name in names.items():
        if name not in (*_FALSE, *_TRUE):
            raise UserError(
                f"{where} must have 0 or 1 in column {column!r}. Received: "
                f"{values[column]!r}."
            )
    return tuple(column for column, name in names.items() if name in _TRUE)


def parse_weights(text: str, labels: Sequence[str]) -> tuple[float, ...]:
    """Returns the weight of each label.

    `text` has label:weight pairs separated by commas, so it cannot name labels
    with a comma. Labels without a pair have weight 1.

    Raises:
      UserError: If a label is unknown or a weight is not a number above 0.
    """
    weights: dict[str, float] = {}
    for pair in text.split(","):
        name, _, number = map(str.strip, pair.rpartition(":"))
        if name not in labels or name in weights:
            raise UserError(
                f"--class_weights must be {BALANCED!r} or name labels once "
                "each, as --class_weights=spam:2.5,ham:0.5; no label may have "
                f"a comma. Received: {pair.strip()!r}, and the labels are "
                f"{name_some(labels)}."
            )
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = math.nan
        if not 0 < weights[name] < math.inf:
            raise UserError(
                "The weights of --class_weights must be numbers above 0. "
                f"Received: {pair.strip()!r}."
            )
    return tuple(weights.get(label, 1.0) for label in labels)


def check_few(
    examples: Sequence[Any], labels: Sequence[str], path: str
) -> None:
    """Checks that few-shot training can learn from labeled texts.

    `path` names the file of the texts, or is "the list".

    Raises:
      UserError: If a text has two labels, or a label has fewer than two texts.
    """
    seen = {}
    for number, example in enumerate(examples):
        name = f"row {number}"
        if example.guid:
            name = f"line {example.guid.rpartition(':')[2]}"
        # Texts that differ only in white space have the same tokens.
        text = *example.text_a.split(), "", *(example.text_b or "").split()
        first, label = seen.setdefault(text, (name, example.label))
        if label != example.label:
            raise UserError(
                f"{path}: {first} and {name} are the same text, with the "
                f"labels {label!r} and {example.label!r}; remove one."
            )
    counts = Counter(label for _, label in seen.values())
    scarce = [label for label in labels if counts[label] < 2]
    if scarce:
        raise UserError(
            "Few-shot training needs at least two different texts of each "
            f"label. Received: {path}, with fewer of {name_some(scarce)}; add "
            "texts, or remove these labels."
        )


def warn_of_missing(
    examples: Sequence[Any], labels: Sequence[str], path: str
) -> None:
    """Logs a warning if a dev set has no text of some labels."""
    present = {example.label for example in examples}
    missing = [label for label in labels if label not in present]
    if missing and present != {None}:
        logging.warning(
            "%s has no text of %s, so its scores do not cover them.",
            path,
            name_some(missing),
        )


def balanced_weights(
    examples: Sequence[Any], labels: Sequence[str], path: str
) -> tuple[float, ...]:
    """Returns weights that give all labels the same total weight.

    Four examples of "a" and two of "b" give the weights 0.75 and 1.5.

    Raises:
      UserError: If a label has no examples; the message names `path`.
    """
    counts = Counter(example.label for example in examples)
    missing = [label for label in labels if not counts[label]]
    if missing:
        raise UserError(
            f"--class_weights={BALANCED} needs examples of every label; "
            f"{path} has none of {name_some(missing)}."
        )
    return tuple(
        len(examples) / (len(labels) * counts[label]) for label in labels
    )
