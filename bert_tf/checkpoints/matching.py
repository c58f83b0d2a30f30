"""Matches checkpoint tensors to model weights, strictly.

Matching needs only names and shapes, so a checkpoint that does not fit is
refused before any tensor is read or written.
"""

import dataclasses
import re
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.weight_map import Shape
from bert_tf.config import BertConfig
from bert_tf.errors import UserError

_ALL_HEADS = frozenset(
    head for heads in weight_map.HEADS.values() for head in heads
)
# Formats return this array itself, or rearrange it into another one.
_PROBE = np.zeros([2, 2])


@dataclasses.dataclass(frozen=True)
class Report:
    """The tensors of a checkpoint that were loaded, missing or unused.

    Attributes:
      loaded: Canonical names of the loaded weights.
      reshaped: Loaded weights whose layout in the checkpoint is not canonical.
      missing: Canonical names of missing weights that `allow_missing` permits;
        missing weights get the initial values of a new model.
      unused: The format's names of unused tensors that `allow_missing` permits.
      expected: Unused tensors that no model of this project needs, such as
        copies of weights, by their names in the checkpoint's format.
      absent_heads: Missing heads, and "bert/pooler" if there is no pooler.
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

    def __str__(self) -> str:
        slots = [x for x in self.unused if weight_map.is_optimizer_state(x)]
        others = [x for x in self.unused if x not in set(slots)]
        parts = [f"loaded {len(self.loaded)} weights"]
        if self.missing:
            parts.append(f"new: {', '.join(self.missing)}")
        else:
            parts[0] += ", all of the model's"
        if others:
            reason = "not needed, as this model has no such part"
            parts.append(f"{reason}: {', '.join(others)}")
        if slots:
            parts.append(f"not needed: {len(slots)} tensors of the optimizer")
        return "; ".join(parts)


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

    The checkpoint may lack the pooler or a whole head.

    Args:
      config: The model's config.
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
      UserError: If any other tensor is missing or unused without permission, or
        if a tensor has another shape.
    """
    shapes = tensors.shapes
    parts = {weight_map.ENCODER, weight_map.POOLER, *heads}
    candidates = {
        name: row
        for row in recurrent_heads.rows(config, shapes)
        if row.part in parts
        and (name := weight_map.name_in(row, weights_format)) is not None
    }
    found = {name: row for name, row in candidates.items() if name in shapes}
    present = {weight_map.ENCODER} | {row.part for row in found.values()}
    rows = {n: row for n, row in candidates.items() if row.part in present}
    missing = {name: row for name, row in rows.items() if name not in found}
    unused = [n for n in shapes if n not in found and not expected_unused(n)]
    head_sizes = {
        row.part: shapes[name][0]
        for name, row in found.items()
        if row.shape == (weight_map.LABELS,) and shapes[name]
    }
    canonical = {
        row.name: weight_map.shape_of(row, config, head_sizes.get(row.part, 0))
        for row in rows.values()
    }
    expected = {
        name: weight_map.shape_in(
            canonical[row.name],
            row.layout,
            weights_format,
            config.num_attention_heads,
        )
        for name, row in found.items()
    }
    refuse(
        f"{source} does not hold the BERT that its config describes",
        [
            name
            for name, row in missing.items()
            if not is_allowed(allow_missing, name, row.name)
        ],
        [x for x in unused if not is_allowed(allow_missing, x)],
        expected,
        shapes,
    )
    stored = {row.name: (name, row.layout) for name, row in found.items()}

    def read_weight(name):
        if name not in stored:
            return _initial_value(name, canonical[name], config)
        stored_name, layout = stored[name]
        value = np.asarray(tensors[stored_name], np.float32)
        if not np.isfinite(value).all():
            raise UserError(
                f"{source} holds numbers in {stored_name} that are not finite: "
                "the file is damaged, or training has failed; take another "
                "copy or an earlier checkpoint."
            )
        return np.ascontiguousarray(
            weight_map.from_format(value, layout, weights_format)
        )

    return Tensors(canonical, read_weight), Report(
        loaded=tuple(stored),
        reshaped=tuple(
            row.name
            for row in found.values()
            if weight_map.to_format(_PROBE, row.layout, weights_format, 2)
            is not _PROBE
        ),
        missing=tuple(row.name for row in missing.values()),
        unused=tuple(unused),
        expected=tuple(n for n in shapes if expected_unused(n)),
        absent_heads=tuple(sorted(parts - present)),
    )


def is_allowed(allow_missing: re.Pattern | None, *names: str) -> bool:
    """Returns whether the pattern, if any, is found in one of the names."""
    return bool(allow_missing and any(map(allow_missing.search, names)))


def refuse(
    start: str,
    lacking: list[str],
    unused: list[str],
    expected: Mapping[str, Shape],
    shapes: Mapping[str, Shape],
) -> None:
    """Raises `UserError` if tensors are lacking, unused or of other shapes.

    The message begins with `start` and lists at most 8 names of each kind.
    `expected` may have names that `shapes`, the actual shapes, lacks.
    """
    problems = {
        "lacks": lacking,
        "also has": unused,
        "has in another shape": [
            f"{name} {tuple(shapes[name])} (expected {shape})"
            for name, shape in expected.items()
            if name in shapes and tuple(shapes[name]) != shape
        ],
    }
    clauses = []
    for verb, names in problems.items():
        more = [f"{len(names) - 8} more"] if len(names) > 8 else []
        if names:
            clauses.append(f"it {verb} {', '.join(names[:8] + more)}")
    if clauses:
        raise UserError(f"{start}: {'; '.join(clauses)}.")


def _initial_value(name: str, shape: Shape, config: BertConfig) -> np.ndarray:
    """Returns a missing weight's initial value; its name is the random seed."""
    if name.endswith("/gamma"):
        return np.ones(shape, np.float32)
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    seed = np.array([zlib.crc32(name.encode()), 0])
    stddev = config.initializer_range
    return tf.random.stateless_truncated_normal(shape, seed, 0, stddev).numpy()


def translate(
    weights: Tensors, config: BertConfig, weights_format: str
) -> Tensors:
    """Renames and rearranges weights for a format; the reverse of `match`.

    Returns:
      Values by the format's names, each contiguous and computed on access,
      without the weights that the format does not have.

    Raises:
      UserError: If there are BiLSTMs and the format cannot store them.
    """
    if weights_format not in weight_map.OURS and any(
        map(recurrent_heads.belongs, weights)
    ):
        raise UserError(
            "The model has BiLSTMs under its head, and the format "
            f"{weights_format} has no such models; convert it to bert_tf, or "
            "another model."
        )
    rows = {
        name: row
        for row in recurrent_heads.rows(config, weights.shapes)
        if row.name in weights
        and (name := weight_map.name_in(row, weights_format)) is not None
    }
    heads = config.num_attention_heads
    shapes = {
        name: weight_map.shape_in(
            weights.shapes[row.name], row.layout, weights_format, heads
        )
        for name, row in rows.items()
    }

    def read(name):
        row = rows[name]
        value = weights[row.name]
        return np.ascontiguousarray(
            weight_map.to_format(value, row.layout, weights_format, heads)
        )

    return Tensors(shapes, read)


def with_optimizer_state(
    weights: Tensors,
    report: Report,
    state: Tensors,
    source: str,
    allow_missing: re.Pattern | None,
) -> tuple[Tensors, Tensors, Report]:
    """Returns matched weights, the state that belongs to them, and a report."""
    loaded = {name: weights.shapes[name] for name in report.loaded}
    state, unused = match_optimizer_state(state, loaded, source, allow_missing)
    report = dataclasses.replace(report, unused=report.unused + unused)
    return weights, state, report


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
      The slots <float32> and the step <int64>; and the names of unused slots.

    Raises:
      UserError: If a slot belongs to no weight, a shape is wrong, or a weight
        has only one of its two slots.
    """
    slots = weight_map.SLOT_SUFFIXES
    expected: dict[str, Shape] = {weight_map.GLOBAL_STEP: ()}
    for weight, shape in weights.items():
        expected |= {weight + slot: shape for slot in slots}
    shapes = tensors.shapes
    unused = tuple(name for name in shapes if name not in expected)
    lacking = [
        weight + slot
        for weight in weights
        for slot, other in (slots, slots[::-1])
        if weight + other in shapes and weight + slot not in shapes
    ]
    refuse(
        f"The optimizer's state in {source} does not belong to its weights",
        [x for x in lacking if not is_allowed(allow_missing, x)],
        [x for x in unused if not is_allowed(allow_missing, x)],
        expected,
        shapes,
    )

    def read_state(name):
        is_step = name == weight_map.GLOBAL_STEP
        return np.asarray(tensors[name], np.int64 if is_step else np.float32)

    kept = {name: expected[name] for name in shapes if name in expected}
    return Tensors(kept, read_state), unused
