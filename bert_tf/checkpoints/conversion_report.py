"""What a conversion says: what was read, what was not, what lies where."""

import itertools
import math
import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_layout
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel

_NUMBER = re.compile(r"\d+")
_HEAD_NAMES = {
    weight_map.POOLER: "pooler",
    weight_map.MASKED_LM: "masked LM",
    weight_map.NEXT_SENTENCE: "next sentence",
    weight_map.CLASSIFIER: "classification",
    weight_map.SQUAD: "question answering",
    weight_map.TAGGER: "tagging",
    weight_map.MULTIPLE_CHOICE: "multiple choice",
}


def describe_source(stored: StoredModel, source_format: str) -> str:
    """Returns lines about what was read.

    Weights that differ in the number of their layer only share a line.

    Args:
      stored: What the format's `read_model` returned.
      source_format: Its name.
    """
    config, report = stored.config, stored.report
    numbers = sum(map(math.prod, stored.weights.shapes.values()))
    lower = stored.tokenizer_settings["lower_case"]
    lines = [
        f"Read {stored.path} (format {source_format}):",
        f"  a BERT of kind {stored.task['kind']}: {config.num_hidden_layers} "
        f"layers of width {config.hidden_size}, {numbers:,} numbers, "
        f"hidden_act {config.hidden_act}",
        f"  a vocabulary of {len(stored.vocabulary)} pieces; text is read "
        + ("in lower case" if lower else "as it stands"),
    ]
    if stored.task.get("labels"):
        lines.append(f"  labels: {', '.join(stored.task['labels'])}")
    if stored.optimizer_state:
        lines.append(f"  {_describe_optimizer(stored)}")
    lines += [f"  {note}" for note in report.notes]
    lines.append(
        f"Loaded {len(report.loaded)} weights, {len(report.reshaped)} of them "
        "reshaped:"
    )
    lines += _loaded(stored, source_format)
    for title, names, remark in (
        ("Missing", report.missing, ", which begin anew"),
        ("Unused", report.unused, ""),
        ("Nothing of their own in", report.expected, ""),
    ):
        if names:
            lines.append(f"{title}: {', '.join(collapse(names))}{remark}")
        elif title in ("Missing", "Unused"):
            lines.append(f"{title}: none")
    if report.absent_heads:
        names = sorted(_HEAD_NAMES[head] for head in report.absent_heads)
        lines.append(f"Heads it could have and has not: {', '.join(names)}")
    return "\n".join(lines) + "\n"


def describe_target(
    path: str,
    target_format: str,
    sentences: Iterable[str],
    contents: Mapping[str, int],
) -> str:
    """Returns lines about what was written.

    Args:
      path: The directory.
      target_format: The name of its format.
      sentences: What the format's `write_model` returned.
      contents: File to size in bytes.
    """
    total = sum(contents.values())
    lines = [f"Wrote {path} (format {target_format}, {_size(total)}):"]
    lines += [
        f"  {name}, {_size(size)}" for name, size in sorted(contents.items())
    ]
    lines += [f"  {sentence}" for sentence in sentences]
    return "\n".join(lines) + "\n"


def lost_settings(
    format_name: str, task: Mapping[str, Any], carried: Collection[str]
) -> list[str]:
    """Returns a sentence on what of the task stays behind, if anything does.

    Args:
      format_name: Whose format it is.
      task: What task.json holds.
      carried: The names in it that the format keeps, or that the format's own
        sentences speak of.
    """
    lost = sorted(
        name
        for name, value in task.items()
        if value is not None and name not in carried
    )
    if not lost:
        return []
    return [
        f"{format_name} has no place for {', '.join(lost)} of the task; not "
        "carried."
    ]


def collapse(names: Iterable[str]) -> list[str]:
    """Returns names once that differ in their first number only.

    For instance "layer_{0..11}/bias"; a name without a like stays.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for name in names:
        parts = tuple(_NUMBER.split(name, maxsplit=1))
        match = _NUMBER.search(name)
        groups.setdefault(parts, []).extend([int(match[0])] if match else [])
    return [_join(parts, numbers) for parts, numbers in groups.items()]


def _join(parts: tuple[str, ...], numbers: list[int]) -> str:
    if len(numbers) < 2:
        return str(numbers[0]).join(parts) if numbers else parts[0]
    runs = []
    # Numbers of a run are all as far from their place in the list.
    for _, run in itertools.groupby(
        enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]
    ):
        run = [number for _, number in run]
        runs.append(str(run[0]) + (f"..{run[-1]}" if len(run) > 1 else ""))
    return f"{{{','.join(runs)}}}".join(parts)


def _loaded(stored: StoredModel, source_format: str) -> list[str]:
    """Returns a line for each weight, those of all layers together."""
    loaded = set(stored.report.loaded)
    reshaped = set(stored.report.reshaped)
    groups: dict[tuple, list[str]] = {}
    for row in recurrent_heads.rows(stored.config, stored.weights.shapes):
        if row.name not in loaded:
            continue
        remark = str(list(stored.weights.shapes[row.name]))
        theirs = weight_map.name_in(row, source_format)
        if theirs != row.name:
            remark += f" from {_NUMBER.sub('{n}', theirs)}"
        if row.name in reshaped:
            remark += f", {_rearrangement(row, stored, source_format)}"
        key = (_NUMBER.sub("", row.name), remark)
        groups.setdefault(key, []).append(row.name)
    return [
        f"  {', '.join(collapse(names))} {remark}"
        for (_, remark), names in groups.items()
    ]


def _rearrangement(row, stored, source_format) -> str:
    ours = stored.weights.shapes[row.name]
    labels = ours[0] if row.layout == "output" else 0
    theirs = weight_layout.shape_in(row, source_format, stored.config, labels)
    if len(theirs) != len(ours):
        return f"there {list(theirs)}"
    return "transposed"


def _describe_optimizer(stored: StoredModel) -> str:
    state = stored.optimizer_state
    slots = sum(name.endswith(weight_map.SLOT_SUFFIXES[0]) for name in state)
    text = f"the optimizer's state: both moments of {slots} weights"
    if weight_map.GLOBAL_STEP in state:
        text += f", step {int(state[weight_map.GLOBAL_STEP])}"
    return text


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
