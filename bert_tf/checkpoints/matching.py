"""Matches checkpoint tensors to model weights, strictly.

Matching needs only names and shapes, so a checkpoint that does not fit is
refused before any tensor is read or written.
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np

from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.weight_map import Row
from bert_tf.checkpoints.weight_map import Shape
from bert_tf.config import BertConfig
from bert_tf.errors import UserError

_ALL_HEADS = frozenset(
    head for heads in weight_map.HEADS.values() for head in heads
)


@dataclasses.dataclass(frozen=True)
class Report:
    """The tensors of a checkpoint that were loaded, missing or unused.

    Attributes:
      loaded: Canonical names of the loaded weights.
      reshaped: Loaded weights whose layout in the checkpoint is not canonical.
      missing: Canonical names of missing weights that `allow_missing` permits;
        missing weights get the initial values of a new model.
      unused: The format's names of unused tensors that `allow_missing` permits.
      expected: The format's names of tensors that may be unused, like copies.
      absent_heads: Heads that the checkpoint does not have.
      notes: Notes for the user, one sentence each.
    """

    loaded: tuple[str, ...]
    reshaped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    absent_heads: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> "Report":
        return dataclasses.replace(self, notes=(*self.notes, *notes))


def match(
    config: BertConfig,
    tensors: Tensors,
    weights_format: str,
    source: str,
    heads: Iterable[str] = _ALL_HEADS,
    *,
    allow_missing: re.Pattern | None = None,
    expected_unused: Callable[[str], bool] = lambda name: False,
) -> tuple[Tensors, Report]:
    """Finds every weight of a model among the tensors of a checkpoint.

    The checkpoint may lack a whole head. Any other tensor that is missing,
    unused or of another shape is an error.

    Args:
      config: The shape of the model.
      tensors: The format's name -> value, without the optimizer's state.
      weights_format: The format, a column of `weight_map.Row` or "tf1".
      source: The checkpoint's name in error messages, for instance its path.
      heads: The heads that the checkpoint may have. Names can be ambiguous, as
        Hugging Face uses "classifier" for three kinds of head.
      allow_missing: A pattern for tensors that may be missing or unused, which
        is searched for in canonical names and in the format's names.
      expected_unused: Returns True for the name of a tensor that may be unused.

    Returns:
      The weights, <float32>, with canonical names and shapes, and a report.
      Reading a weight with NaN or infinity raises `UserError`.

    Raises:
      UserError: If any tensor is missing, unused or of another shape.
    """
    shapes = tensors.shapes
    parts = {weight_map.ENCODER, weight_map.POOLER, *heads}
    candidates = {
        name: row
        for row in recurrent_heads.rows(config, shapes)
        if weight_map.part_of(row.name) in parts
        and (name := weight_map.name_in(row, weights_format)) is not None
    }
    found = {name: row for name, row in candidates.items() if name in shapes}
    present = {weight_map.ENCODER} | {
        weight_map.part_of(row.name) for row in found.values()
    }
    missing = {
        name: row
        for name, row in candidates.items()
        if name not in found and weight_map.part_of(row.name) in present
    }
    unused = [n for n in shapes if n not in found and not expected_unused(n)]
    matched = _Match(config, shapes, weights_format, source, found, missing)
    _check(matched, unused, allow_missing)
    new = tuple(row.name for row in missing.values())
    ours = {row.name for row in found.values()}
    in_order = [r for r in candidates.values() if r.name in ours.union(new)]
    return matched.open(in_order, tensors), Report(
        loaded=tuple(r.name for r in in_order if r.name in ours),
        reshaped=tuple(
            r.name
            for r in in_order
            if r.name in ours and _is_rearranged(r.layout, weights_format)
        ),
        missing=new,
        unused=tuple(unused),
        expected=tuple(n for n in shapes if expected_unused(n)),
        absent_heads=tuple(sorted(parts - present)),
    )


@dataclasses.dataclass(frozen=True)
class _Match:
    """The weights that a checkpoint has and lacks: the format's name -> row."""

    config: BertConfig
    shapes: Mapping[str, Shape]
    weights_format: str
    source: str
    found: Mapping[str, Row]
    missing: Mapping[str, Row]

    @functools.cached_property
    def _head_sizes(self) -> dict[str, int]:
        return {
            weight_map.part_of(row.name): self.shapes[name][0]
            for name, row in self.found.items()
            if row.shape == (weight_map.LABELS,) and self.shapes[name]
        }

    def num_labels(self, row: Row) -> int:
        """Returns the number of labels of a row's head, 0 if it has none."""
        return self._head_sizes.get(weight_map.part_of(row.name), 0)

    def misshapen(self) -> list[str]:
        """Returns a phrase for each tensor with an unexpected shape."""
        phrases = []
        for name, row in self.found.items():
            expected = weight_map.shape_in(
                row, self.weights_format, self.config, self.num_labels(row)
            )
            received = tuple(self.shapes[name])
            if received != expected:
                phrases.append(f"{name} {received} (expected {expected})")
        return phrases

    def open(self, rows: Iterable[Row], tensors: Tensors) -> Tensors:
        """Returns the weights of `rows`, with canonical names and shapes."""
        found = {row.name: (name, row) for name, row in self.found.items()}
        shapes = {
            row.name: weight_map.shape_of(
                row, self.config, self.num_labels(row)
            )
            for row in rows
        }

        def read_ours(name):
            if name not in found:
                return _initial_value(name, shapes[name], self.config)
            theirs, row = found[name]
            value = np.asarray(tensors[theirs], np.float32)
            if not np.isfinite(value).all():
                raise UserError(
                    f"{self.source} holds numbers in {theirs} that are not "
                    "finite: the file is damaged, or training has failed; "
                    "take another copy or an earlier checkpoint."
                )
            value = weight_map.from_format(
                value, row.layout, self.weights_format
            )
            return np.ascontiguousarray(value)

        return Tensors(shapes, read_ours)


def _check(
    matched: _Match, unused: list[str], allow_missing: re.Pattern | None
) -> None:

    def is_allowed(*names):
        return allow_missing and any(map(allow_missing.search, names))

    missing = [
        name
        for name, row in matched.missing.items()
        if not is_allowed(name, row.name)
    ]
    problems = [
        *_describe("lacks", missing),
        *_describe("also has", [n for n in unused if not is_allowed(n)]),
        *_describe("has in another shape", matched.misshapen()),
    ]
    if problems:
        raise UserError(
            f"{matched.source} does not hold the BERT that its config "
            f"describes: it {'; it '.join(problems)}."
        )


def _is_rearranged(layout: str, weights_format: str) -> bool:
    probe = np.arange(24).reshape((4, 6) if layout != "per_head_bias" else 24)
    kept = weight_map.to_format(probe, layout, weights_format, 2)
    return layout != "same" and (
        kept.shape != probe.shape or not np.array_equal(kept, probe)
    )


def _initial_value(name: str, shape: Shape, config: BertConfig) -> np.ndarray:
    """Returns a missing weight's initial value; its name is the random seed."""
    if name.endswith("/gamma"):
        return np.ones(shape, np.float32)
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape, np.float32)
    outside = np.abs(values) > 2
    while outside.any():
        values[outside] = rng.standard_normal(outside.sum(), np.float32)
        outside = np.abs(values) > 2
    return values * np.float32(config.initializer_range)


def _describe(verb: str, names: list[str]) -> list[str]:
    """Returns a clause that lists at most 8 names; [] if there are none."""
    if not names:
        return []
    shown = names[:8] + ([f"{len(names) - 8} more"] if len(names) > 8 else [])
    return [f"{verb} {', '.join(shown)}"]


def translate(
    weights: Tensors, config: BertConfig, weights_format: str
) -> tuple[Tensors, tuple[str, ...]]:
    """Renames and rearranges weights for a format; the reverse of `match`.

    Args:
      weights: Canonical name -> value.
      config: The shape of the model.
      weights_format: The format, a column of `weight_map.Row` or "tf1".

    Returns:
      Values by the format's names, each contiguous and computed on access; and
      the canonical names of weights that the format does not have.

    Raises:
      UserError: If there are BiLSTMs and the format cannot store them.
    """
    is_ours = weights_format in ("bert_tf", "tf1")
    if not is_ours and any(map(recurrent_heads.belongs, weights)):
        raise UserError(
            "The model has BiLSTMs under its head, and the format "
            f"{weights_format} has no such models; convert it to bert_tf, or "
            "another model."
        )
    named = [
        (row, weight_map.name_in(row, weights_format))
        for row in recurrent_heads.rows(config, weights.shapes)
        if row.name in weights
    ]
    rows = {name: row for row, name in named if name is not None}
    heads = config.num_attention_heads

    def convert(row, value):
        return weight_map.to_format(value, row.layout, weights_format, heads)

    shapes = {
        name: convert(
            row, np.broadcast_to(np.int8(0), weights.shapes[row.name])
        ).shape
        for name, row in rows.items()
    }

    def read(name):
        row = rows[name]
        return np.ascontiguousarray(convert(row, weights[row.name]))

    left = tuple(row.name for row, name in named if name is None)
    return Tensors(shapes, read), left


def match_optimizer_state(
    tensors: Tensors,
    weights: Mapping[str, Shape],
    source: str,
    allow_missing: re.Pattern | None = None,
) -> tuple[Tensors, tuple[str, ...]]:
    """Checks that each slot (a moment of Adam) has a weight of its shape.

    A weight may lack both slots: the original has no slots for weights without
    a gradient, such as the pooler of its SQuAD models.

    Args:
      tensors: All slots, and the step if it is stored.
      weights: Canonical name -> shape of the weight.
      source: The checkpoint's name in error messages, for instance its path.
      allow_missing: A pattern for slots that may be missing or unused.

    Returns:
      The slots <float32> with the step <int64>, and the names of unused slots.

    Raises:
      UserError: If a slot belongs to no weight, a shape is wrong, or a weight
        has only one of its two slots.
    """
    slots = weight_map.SLOT_SUFFIXES
    expected: dict[str, Shape] = {weight_map.GLOBAL_STEP: ()}
    for weight, shape in weights.items():
        expected |= {weight + slot: shape for slot in slots}
    other_slots = {
        weight + slot: weight + other
        for weight in weights
        for slot, other in (slots, slots[::-1])
    }
    kept, unused, problems = {}, [], []
    for name, shape in tensors.shapes.items():
        if name not in expected:
            unused.append(name)
            if not (allow_missing and allow_missing.search(name)):
                problems.append(f"{name} belongs to no weight")
        elif tuple(shape) != expected[name]:
            problems.append(f"{name} has the shape {tuple(shape)}")
        else:
            kept[name] = expected[name]
    for name in kept:
        other = other_slots.get(name)
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
        return np.asarray(tensors[name], np.int64 if is_step else np.float32)

    return Tensors(kept, read_state), tuple(unused)
