"""Which tensor of a checkpoint is which weight, strictly.

Nothing is read for this: names and shapes suffice. So whatever does not fit
is known before anything is computed or written.
"""

import dataclasses
import re
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np

from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_layout
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of the tensors of a checkpoint.

    Attributes:
      loaded: Canonical names of the weights found.
      reshaped: Those of them that the format keeps in another order.
      missing: Canonical names of weights not found and allowed to be; they
        get the initial values of a new model.
      unused: The format's names of tensors not used and allowed to be.
      expected: The format's names of tensors that hold nothing of their own.
      absent_heads: Heads that the checkpoint does not have.
      notes: What else a user should know, a sentence each.
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
    shapes: Mapping[str, Shape],
    read: Callable[[str], np.ndarray],
    weights_format: str,
    source: str,
    heads: Iterable[str],
    *,
    allow_missing: re.Pattern | None = None,
    expected_unused: Callable[[str], bool] = lambda name: False,
) -> tuple[Tensors, Report]:
    """Finds every weight of a model among the tensors of a checkpoint.

    A head may be absent as a whole. Everything else that is missing, unused
    or of another shape is an error.

    Args:
      config: The shape of the model.
      shapes: The format's name to the tensor's shape, of all tensors but the
        optimizer's state.
      read: Returns the tensor of one of the format's names.
      weights_format: A column of `weight_map.Row`, or "tf1".
      source: What to call the checkpoint in an error, for instance its path.
      heads: The heads the format's names could mean in this checkpoint: those
        of Hugging Face are called "classifier" in three kinds of model.
      allow_missing: Names that may be missing or unused; it is searched in
        canonical names and in those of the format.
      expected_unused: Whether a tensor holds nothing of its own.

    Returns:
      The weights by canonical name, <float32> in our shapes, and a report. A
      weight that is not finite raises `UserError` when it is read.

    Raises:
      UserError: Listing everything missing, unused or of another shape.
    """
    parts = {weight_map.ENCODER, weight_map.POOLER, *heads}
    candidates = {
        name: row
        for row in recurrent_heads.rows(config, shapes)
        if weight_map.part_of(row.name) in parts
        and (name := weight_map.name_in(row, weights_format)) is not None
    }
    present = {weight_map.ENCODER} | {
        weight_map.part_of(row.name)
        for name, row in candidates.items()
        if name in shapes
    }

    def is_allowed(*names):
        return allow_missing and any(map(allow_missing.search, names))

    found, missing = {}, {}
    for name, row in candidates.items():
        if name in shapes:
            found[name] = row
        elif weight_map.part_of(row.name) in present:
            missing[name] = row
    unused = [n for n in shapes if n not in found and not expected_unused(n)]
    problems = _describe(
        "lacks",
        [n for n, row in missing.items() if not is_allowed(n, row.name)],
    )
    problems += _describe(
        "has besides", [n for n in unused if not is_allowed(n)]
    )
    num_labels = {
        weight_map.part_of(row.name): shapes[name][0]
        for name, row in found.items()
        if row.shape == (weight_map.LABELS,) and shapes[name]
    }

    def labels_of(row):
        return num_labels.get(weight_map.part_of(row.name), 0)

    expected_shapes = {
        name: weight_layout.shape_in(
            row, weights_format, config, labels_of(row)
        )
        for name, row in found.items()
    }
    problems += _describe(
        "has in another shape",
        [
            f"{name} {tuple(shapes[name])} (its config wants {expected})"
            for name, expected in expected_shapes.items()
            if tuple(shapes[name]) != expected
        ],
    )
    if problems:
        raise UserError(
            f"{source} does not hold the BERT that its config describes: it "
            f"{'; it '.join(problems)}."
        )
    ours = {row.name: (name, row) for name, row in found.items()}
    new = {row.name: row for row in missing.values()}

    def read_ours(name):
        if name in new:
            return _initial_value(
                name, weight_map.shape_of(new[name], config), config
            )
        theirs, row = ours[name]
        value = np.asarray(read(theirs), np.float32)
        if not np.isfinite(value).all():
            raise UserError(
                f"{source} holds numbers in {theirs} that are not finite: the "
                "file is damaged, or training has failed; take another copy "
                "or an earlier checkpoint."
            )
        value = weight_layout.from_format(value, row.layout, weights_format)
        return np.ascontiguousarray(value)

    in_order = [r for r in candidates.values() if r.name in ours | new]
    tensors = Tensors(
        {
            r.name: weight_map.shape_of(r, config, labels_of(r))
            for r in in_order
        },
        read_ours,
    )
    return tensors, Report(
        loaded=tuple(r.name for r in in_order if r.name in ours),
        reshaped=tuple(
            r.name
            for r in in_order
            if r.name in ours and _is_rearranged(r.layout, weights_format)
        ),
        missing=tuple(new),
        unused=tuple(unused),
        expected=tuple(n for n in shapes if expected_unused(n)),
        absent_heads=tuple(sorted(parts - present)),
    )


def _is_rearranged(layout: str, weights_format: str) -> bool:
    probe = np.arange(24).reshape((4, 6) if layout != "per_head_bias" else 24)
    kept = weight_layout.to_format(probe, layout, weights_format, 2)
    return layout != "same" and (
        kept.shape != probe.shape or not np.array_equal(kept, probe)
    )


def _initial_value(name: str, shape: Shape, config: BertConfig) -> np.ndarray:
    """Returns what a new model begins with, the same for each call."""
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
    """Returns one clause that lists the first of `names`, if there are any."""
    if not names:
        return []
    shown = names[:8] + ([f"{len(names) - 8} more"] if len(names) > 8 else [])
    return [f"{verb} {', '.join(shown)}"]
