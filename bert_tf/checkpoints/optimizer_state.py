"""What an optimizer keeps between steps, as files hold it."""

import re
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError


def match(
    shapes: Mapping[str, Shape],
    read: Callable[[str], np.ndarray],
    weights: Mapping[str, Shape],
    source: str,
    allow_missing: re.Pattern | None = None,
) -> tuple[Tensors, tuple[str, ...]]:
    """Checks that each slot belongs to a weight and has its shape.

    A weight needs no slots: the original keeps none of what had no gradient,
    as the pooler in its SQuAD models.

    Args:
      shapes: Name to shape of all slots, and of the step if it is known.
      read: Returns the tensor of a name.
      weights: Canonical name to shape of the weights.
      source: What to call the checkpoint in an error, for instance its path.
      allow_missing: Names of slots that may be missing or unused.

    Returns:
      The state, <float32> and the step <int64>, and the names of slots that
      were left as they belong to no weight.

    Raises:
      UserError: Listing everything that does not fit.
    """
    kept, unused, problems = {}, [], []
    for name, shape in shapes.items():
        expected = _expected_shape(name, weights)
        if expected is None:
            unused.append(name)
            if not (allow_missing and allow_missing.search(name)):
                problems.append(f"{name} belongs to no weight")
        elif tuple(shape) != expected:
            problems.append(f"{name} has the shape {tuple(shape)}")
        else:
            kept[name] = expected
    for name in kept:
        other = _other_slot(name)
        lacks = other and other not in kept
        if lacks and not (allow_missing and allow_missing.search(other)):
            problems.append(f"{other} is missing")
    if problems:
        more = f", and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"The optimizer's state in {source} does not belong to its "
            f"weights: {', '.join(problems[:8])}{more}."
        )

    def read_state(name):
        is_step = name == weight_map.GLOBAL_STEP
        return np.asarray(read(name), np.int64 if is_step else np.float32)

    return Tensors(kept, read_state), tuple(unused)


def _expected_shape(name: str, weights: Mapping[str, Shape]) -> Shape | None:
    if name == weight_map.GLOBAL_STEP:
        return ()
    for suffix in weight_map.SLOT_SUFFIXES:
        if name.endswith(suffix):
            return weights.get(name.removesuffix(suffix))
    return None


def _other_slot(name: str) -> str | None:
    """Returns the other slot of the same weight."""
    first, second = weight_map.SLOT_SUFFIXES
    if name.endswith(first):
        return name.removesuffix(first) + second
    if name.endswith(second):
        return name.removesuffix(second) + first
    return None
