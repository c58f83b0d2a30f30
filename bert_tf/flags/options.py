"""Functions that declare flags by subject, and the checks of their values."""

import dataclasses
import functools
import math
import operator
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.config import BOUNDS
from bert_tf.config import IGNORED
from bert_tf.config import REQUIRED  # noqa: F401  Part of the declarations.
from bert_tf.config import option
from bert_tf.errors import UserError
from bert_tf.io import paths

data = functools.partial(option, group="data")
masking = functools.partial(option, group="masking")
model = functools.partial(option, group="model")
training = functools.partial(option, group="training")
distillation = functools.partial(option, group="distillation")
evaluation = functools.partial(option, group="evaluation and prediction")
output = functools.partial(option, group="output")
server = functools.partial(option, group="server")
batching = functools.partial(option, group="batching")
limits = functools.partial(option, group="limits", at_least=1)
hardware = functools.partial(option, group="hardware")
# The functions below declare flags whose values may change in a resumed run.
reporting = functools.partial(output, affects="nothing")
scoring = functools.partial(evaluation, affects="nothing")
speed = functools.partial(hardware, affects="nothing")
devices = functools.partial(hardware, affects="place")
target = functools.partial(output, affects="place")
data_file = functools.partial(data, affects="place", reads="file")
data_folder = functools.partial(data, affects="place", reads="folder")
model_file = functools.partial(model, affects="place", reads="file")
start_model = functools.partial(model, affects="place", reads="model")

_HOLDS = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}
SHARE = {"at_most": 1}
# Endings of compressed and binary files; see `endings` of `option`.
_BINARY = tuple(
    ".7z .bz2 .doc .docx .feather .gz .npy .npz .ods .parquet .pdf .rar .tar "
    ".tgz .xls .xlsx .xz .zip .zst".split()
)
# The original's default of --max_predictions_per_seq.
DEFAULT_PREDICTIONS = 20
# Shares of chosen tokens that are masked, unchanged or random (paper, Table 8).
MASK_RATES = {"mask_rate": 0.8, "same_rate": 0.1, "random_rate": 0.1}


def ignored(default: Any = None) -> Any:
    """Declares a flag of the original that has no effect here."""
    return option(
        "Accepted for compatibility; ignored.",
        default,
        group=IGNORED,
        affects="nothing",
    )


def length_buckets(longest: str) -> Any:
    """Declares --num_length_buckets; its help names the maximum `longest`."""
    return hardware(
        "Lengths that batches are padded to: 0 uses every multiple of 8; 1 "
        f"pads all to {longest}, as the original does; larger numbers choose "
        "the lengths with the least padding (for TPUs, which compile each).",
        0,
    )


def require(condition: object, message: str) -> None:
    """Raises `UserError` unless the condition is true."""
    if not condition:
        raise UserError(message)


def values(
    config: Any, name: str, kind: type = str, may_repeat: bool = False
) -> tuple[Any, ...]:
    """Returns the comma-separated values of a flag; () if it is not set.

    Raises:
      UserError: If a value is empty, repeated or no positive number of `kind`.
    """
    text = getattr(config, name)
    if text is None:
        return ()
    noun = {str: "a name", int: "a whole number above 0"}
    try:
        found = tuple(kind(x.strip()) for x in text.split(","))
    except ValueError:
        found = (0,)
    require(
        all(bool(x) if kind is str else 0 < x < math.inf for x in found),
        f"--{name} must be {noun.get(kind, 'a number above 0')}, or several, "
        f"separated by commas. Received: {text!r}.",
    )
    require(
        may_repeat or len(set(found)) == len(found),
        f"--{name} names a value twice. Received: {text!r}.",
    )
    return found


def set_values(config: Any, *names: str) -> dict[str, Any]:
    """Returns the flags among `names` that are not None, with their values."""
    values = {name: getattr(config, name) for name in names}
    return {name: x for name, x in values.items() if x is not None}


def for_card(config: Any, **values: Any) -> dict[str, Any]:
    """Returns the flags for a model card: names and values.

    Includes the flags that differ from their default and affect the weights or
    name an input. Paths are cut to base names, as a card may be published.

    Args:
      config: The flags, a dataclass.
      **values: Values that replace fields of `config`.
    """
    found = {}
    for field in dataclasses.fields(config):
        value = values.get(field.name, getattr(config, field.name))
        counts = field.metadata["affects"] == "weights" or (
            field.metadata["affects"] == "place" and field.metadata["reads"]
        )
        if counts and value is not None and value != field.default:
            if field.metadata["reads"]:
                value = paths.base_names(value)
            found[field.metadata["name"] or field.name] = value
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of a command; creating an instance checks their values.

    `option` declares rules for one flag; `check` tests rules for several flags.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_bounds(self, field)
            _check_company(self, field)
            _check_ending(self, field)
        self.check()

    def check(self) -> None:
        """Raises `UserError` for flags that do not fit together."""


def _check_bounds(config: Flags, field: dataclasses.Field) -> None:
    value, rules = getattr(config, field.name), field.metadata["rules"]
    bounds = {name: rules[name] for name in BOUNDS if name in rules}
    if type(value) in (int, float) and not {"at_least", "above"} & {*rules}:
        bounds = {"at_least": 0} | bounds
    words = (f"{x.replace('_', ' ')} {bound}" for x, bound in bounds.items())
    require(
        value is None or all(_HOLDS[x](value, y) for x, y in bounds.items()),
        f"--{field.name} must be {' and '.join(words)}. Received: {value}.",
    )


def _check_company(config: Flags, field: dataclasses.Field) -> None:
    """Checks that a flag has the flags it needs, and no flag it excludes."""
    value, rules = getattr(config, field.name), field.metadata["rules"]
    is_off = value is False
    if value in (field.default, "") or (is_off and field.default is not True):
        return  # The flag is not set.
    flag = f"--no{field.name}" if is_off else f"--{field.name}"
    received = flag if isinstance(value, bool) else f"{flag}={value}"
    needs, excluding = _tuple(rules, "needs"), _tuple(rules, "not_with")
    require(
        not needs or any(is_set(config, x) for x in needs),
        f"{flag} needs --{' or --'.join(needs)}. Received: {received} without "
        "it; add it, or drop the flag.",
    )
    for other in excluding:
        require(
            not is_set(config, other),
            f"{flag} cannot be used with --{other}. Received: {received}; drop "
            "one of the two.",
        )


def _check_ending(config: Flags, field: dataclasses.Field) -> None:
    endings = _tuple(field.metadata["rules"], "endings")
    name = str(getattr(config, field.name)).lower()
    ending = os.path.splitext(name)[1]
    require(
        not endings or ending not in _BINARY or name.endswith(endings),
        f"--{field.name} cannot end in {ending}, as no such file is written. "
        f"Received: {getattr(config, field.name)!r}; let it end in "
        f"{' or '.join(endings)}.",
    )


def _tuple(rules: dict[str, Any], name: str) -> tuple[str, ...]:
    value = rules.get(name, ())
    return (value,) if isinstance(value, str) else value


def is_set(config: Any, condition: str) -> bool:
    """Returns True if the flag "head" is set, or "head=bilstm" holds."""
    name, has_value, value = condition.partition("=")
    received = getattr(config, name, None)
    return str(received).lower() == value if has_value else bool(received)


def require_mask_rates(config: Any) -> None:
    """Raises `UserError` unless the three rates of masking add up to 1."""
    total = sum(getattr(config, rate) for rate in MASK_RATES)
    require(
        abs(total - 1) < 1e-6,
        "--mask_rate, --same_rate and --random_rate must add up to 1. "
        f"Received: {total:g}.",
    )


def require_length(config: Any, longest: int, source: str) -> None:
    """Raises `UserError` if a model cannot read --max_seq_length tokens.

    The model, or its configuration, is at `source`, and reads `longest` tokens.
    """
    require(
        (config.max_seq_length or 0) <= longest,
        f"--max_seq_length must be at most {longest}, the longest sequence "
        f"that the model of {source} can read. Received: "
        f"{config.max_seq_length}.",
    )


def require_layer(flag: str, layer: int, num_layers: int) -> None:
    """Raises `UserError` unless a model has a layer, from 0 or from -1."""
    require(
        -num_layers <= layer < num_layers,
        f"{flag} must lie between {-num_layers} and {num_layers - 1}, as the "
        f"model has {num_layers} layers. Received: {layer}.",
    )


def refuse(changes: Sequence[str], problem: str, allow_changes: bool) -> None:
    """Raises `UserError` for changes, or logs them if they are allowed."""
    if changes and not allow_changes:
        raise UserError(
            f"{problem}: {'; '.join(changes)}. Rerun it with the settings it "
            "was started with, choose another --output_dir, start over with "
            "--overwrite_output_dir, or add --allow_changed_data to resume "
            "nevertheless."
        )
    for each in changes:
        logging.warning("Changed, as allowed: %s.", each)
