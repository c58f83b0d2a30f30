"""Options by their subject in `--help`, and checks that raise `UserError`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from bert_tf.config import IGNORED
from bert_tf.config import option
from bert_tf.errors import UserError

data = functools.partial(option, group="data")
masking = functools.partial(option, group="masking")
model = functools.partial(option, group="model")
training = functools.partial(option, group="training")
distillation = functools.partial(option, group="distillation")
evaluation = functools.partial(option, group="evaluation and prediction")
output = functools.partial(option, group="output")
server = functools.partial(option, group="server")
batching = functools.partial(option, group="batching")
limits = functools.partial(option, group="limits")
hardware = functools.partial(option, group="hardware")

# Shares of the chosen tokens: [MASK], unchanged, random (Table 8).
MASK_RATES = {"mask_rate": 0.8, "same_rate": 0.1, "random_rate": 0.1}


def ignored(default: Any) -> Any:
    """Declares a flag of the original's that has no effect."""
    return option(
        default,
        "Accepted for compatibility; ignored.",
        group=IGNORED,
        affects="nothing",
    )


def require(condition: bool, message: str) -> None:
    """Raises `UserError` unless the condition holds."""
    if not condition:
        raise UserError(message)


def set_values(config: Any, *names: str) -> dict[str, Any]:
    """Returns the flags among `names` that are not None, with their values."""
    values = {name: getattr(config, name) for name in names}
    return {name: x for name, x in values.items() if x is not None}


def for_card(config: Any, **values: Any) -> dict[str, Any]:
    """Returns the flags for a model card: names and values.

    Only flags that affect the weights or name an input, unless they have their
    default.

    Args:
      config: The flags, a dataclass.
      **values: Values that replace those of `config`.
    """
    found = {}
    for field in dataclasses.fields(config):
        value = values.get(field.name, getattr(config, field.name))
        counts = field.metadata["affects"] == "weights" or (
            field.metadata["affects"] == "place" and field.metadata["reads"]
        )
        if counts and value is not None and value != field.default:
            found[field.metadata["name"] or field.name] = value
    return found


def require_at_least(config: Any, least: int, *names: str) -> None:
    """Raises `UserError` if a flag, unless it is None, is below `least`."""
    _require_each(config, names, lambda x: x >= least, f"be at least {least}")


def require_dropout(config: Any, *names: str) -> None:
    """Raises `UserError` if a dropout rate is outside [0, 1) and not None."""
    bounds = "be at least 0 and below 1"
    _require_each(config, names, lambda x: 0 <= x < 1, bounds)


def require_defaults(config: Any, beside: str, *names: str) -> None:
    """Raises `UserError` if a flag without effect differs from its default.

    Args:
      config: The flags, a dataclass.
      beside: The reason why they have no effect, for instance another flag.
      *names: The flags without effect.
    """
    defaults = {x.name: x.default for x in dataclasses.fields(config)}
    for name in names:
        value = getattr(config, name)
        require(
            value == defaults[name],
            f"--{name} has no effect with {beside}. Received: {value}; drop "
            "it.",
        )


def require_seed(seed: int) -> None:
    """Raises `UserError` for a seed that NumPy does not accept."""
    require(
        0 <= seed < 1 << 32,
        f"--seed, also with --num_restarts added, must be at least 0 and below "
        f"{1 << 32}. Received: {seed}.",
    )


def require_rate(config: Any, *names: str) -> None:
    """Raises `UserError` if a flag does not lie between 0 and 1."""
    bounds = "lie between 0 and 1"
    _require_each(config, names, lambda x: 0 <= x <= 1, bounds)


def require_mask_rates(config: Any) -> None:
    """Raises `UserError` unless the three rates of masking add up to 1."""
    require_rate(config, *MASK_RATES)
    total = sum(getattr(config, rate) for rate in MASK_RATES)
    require(
        abs(total - 1) < 1e-6,
        "--mask_rate, --same_rate and --random_rate must add up to 1. "
        f"Received: {total:g}.",
    )


def require_port(config: Any, least: int, *names: str) -> None:
    """Raises `UserError` if a flag is not a port; `least` is 0 or 1."""
    bounds = f"lie between {least} and 65535"
    _require_each(config, names, lambda x: least <= x < 65536, bounds)


def _require_each(
    config: Any,
    names: tuple[str, ...],
    holds: Callable[[Any], bool],
    bounds: str,
) -> None:
    for name, value in set_values(config, *names).items():
        require(holds(value), f"--{name} must {bounds}. Received: {value}.")
