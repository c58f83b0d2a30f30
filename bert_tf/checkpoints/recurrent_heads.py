"""The weights of BiLSTMs and layer combinations under a head.

`weight_map` has a row for each weight of a plain BERT. A `BertConfig` does not
contain the number and the size of BiLSTMs, so the names and shapes in a
checkpoint determine which rows this module adds:

  <head>/layer_combination/{weights,scale}   weighted sums of layers
  <head>/bilstm_{n}/{forward,backward}/{kernel,recurrent_kernel,bias}

Only the formats bert_tf, tf1 and keras can store these weights.
"""

import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.weight_map import Row
from bert_tf.checkpoints.weight_map import Shape
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.config import BertConfig
from bert_tf.errors import UserError

_HEADS = (weight_map.SQUAD, weight_map.TAGGER, weight_map.MULTIPLE_CHOICE)
_PREFIXES = {weight_map.CLASSIFIER: ""} | {head: f"{head}/" for head in _HEADS}
# Number of layers in weighted_sum_last_four_hidden and concat_last_four_hidden.
_FOUR = 4
_WEIGHTED_SUM = "weighted_sum"
_UNDER_HEAD = re.compile(r"(^|/)(bilstm_\d+|layer_combination)/")


def rows(config: BertConfig, shapes: Mapping[str, Shape]) -> list[Row]:
    """Returns the rows of `weight_map`, BiLSTMs and layer combinations.

    Args:
      config: The shape of the encoder.
      shapes: Canonical name -> shape, for all weights of a checkpoint. If a
        weight of bilstm_1 is among them, the result has all rows of bilstm_0
        and bilstm_1.
    """
    result = {row.name: row for row in weight_map.rows(config)}

    def add(name, *shape):
        result[name] = Row(name, shape, "same")

    hidden = config.hidden_size
    for prefix in _PREFIXES.values():
        combined = f"{prefix}layer_combination/"
        if any(name.startswith(combined) for name in shapes):
            is_four = tuple(shapes.get(f"{combined}weights", ())) == (_FOUR,)
            add(
                f"{combined}weights",
                _FOUR if is_four else config.num_hidden_layers,
            )
            add(f"{combined}scale", 1)
        number = _count(prefix, shapes)
        if not number:
            continue
        first = f"{prefix}bilstm_0/forward"
        width, *_ = shapes.get(f"{first}/kernel") or (hidden,)
        width = width if width == _FOUR * hidden else hidden
        size, *_ = shapes.get(f"{first}/recurrent_kernel") or (0,)
        for level in range(number):
            for direction in ("forward", "backward"):
                lstm = f"{prefix}bilstm_{level}/{direction}"
                add(f"{lstm}/kernel", width, 4 * size)
                add(f"{lstm}/recurrent_kernel", size, 4 * size)
                add(f"{lstm}/bias", 4 * size)
            width = 2 * size
        output = result[f"{prefix}output_weights"]
        result[output.name] = dataclasses.replace(
            output, shape=(output.shape[0], width)
        )
    return list(result.values())


def belongs(name: str) -> bool:
    """Returns whether a weight is part of a BiLSTM or a layer combination."""
    return _UNDER_HEAD.search(name) is not None


def check(task: Mapping[str, Any], names: Iterable[str], source: str) -> None:
    """Checks that a model has the BiLSTMs that its task.json requires.

    `names` are the canonical names of the model's weights.
    """
    prefix = _prefix_of(task["kind"])
    if prefix is None:
        return
    names = list(names)
    combined = f"{prefix}layer_combination/"
    number = _count(prefix, names)
    combination = task.get("layer_combination")
    is_feature_based = task.get("approach") == "feature_based"
    allowed = LAYER_COMBINATIONS if is_feature_based else (None,)
    if combination not in allowed:
        raise UserError(
            f"The task of {source} must name a layer_combination, one of "
            f"{', '.join(LAYER_COMBINATIONS)}, if and only if its approach is "
            f"'feature_based'. Received: {combination!r} with approach="
            f"{task.get('approach')!r}."
        )
    expected = (
        2 if is_feature_based else int(_head_type(task, number) != "linear")
    )
    is_weighted = is_feature_based and combination.startswith(_WEIGHTED_SUM)
    has_weighted = any(name.startswith(combined) for name in names)
    if number != expected or has_weighted != is_weighted:
        raise UserError(
            f"The task of {source} needs {expected} BiLSTMs and "
            f"{'a' if is_weighted else 'no'} learned sum of layers. Its "
            f"weights have {number} and {'one' if has_weighted else 'none'}: "
            "task.json belongs to another model."
        )


def arguments(
    task: Mapping[str, Any], kind: str, shapes: Mapping[str, Shape]
) -> dict[str, Any]:
    """Returns the constructor's arguments that a stored head determines.

    `task` may be empty; `kind` is the kind of model to build; and `shapes` maps
    the canonical names of all stored weights to shapes.
    """
    prefix = _prefix_of(kind)
    if prefix is None or f"{prefix}output_weights" not in shapes:
        return {}
    number = _count(prefix, shapes)
    result: dict[str, Any] = {"head": _head_type(task, number)}
    if kind == "tagging":
        result["approach"] = task.get("approach", "fine_tuning")
    if kind == "classification" and task.get("pooling"):
        result |= {x: task[x] for x in ("pooling", "normalize")}
    if result.get("approach") == "feature_based":
        result |= {
            "head": "linear",
            "layer_combination": task["layer_combination"],
        }
    if number:
        shape = shapes[f"{prefix}bilstm_0/forward/recurrent_kernel"]
        result["lstm_size"] = shape[0]
    return result


def _head_type(task: Mapping[str, Any], number: int) -> str:
    """Returns the head's type, which BiLSTMs determine if `task` lacks it."""
    return task.get("head") or ("bilstm" if number else "linear")


def _prefix_of(kind: str) -> str | None:
    heads = weight_map.HEADS[kind]
    return _PREFIXES.get(heads[0]) if len(heads) == 1 else None


def _count(prefix: str, names: Iterable[str]) -> int:
    """Returns the number of BiLSTMs under a head."""
    pattern = re.compile(rf"{re.escape(prefix)}bilstm_(\d+)/")
    levels = [int(match[1]) for name in names if (match := pattern.match(name))]
    return max(levels, default=-1) + 1
