"""Multiple-choice examples: SWAG, CODAH, ComVE, custom files and rows."""

import dataclasses
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

import numpy as np
from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import read_text
from bert_tf.tasks.classification.labels import require_line
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import OfficialFiles
from bert_tf.tasks.task_files import SplitKey
from bert_tf.tasks.task_files import TaskFiles

# Matches an index such as "2", or "2.0" in a column that was read as floats.
_INDEX = re.compile(r"[0-9]+(\.0+)?")
# Values of secret labels in test sets; such labels are unknown.
_HIDDEN = ("", "-1")
_ORDER_SALT = 5


@dataclasses.dataclass(frozen=True, slots=True)
class MultipleChoiceExample:
    """A context, or None, with two or more choices that continue or answer it.

    `guid` is the example's file and line, such as "val.csv:12". The name of a
    choice is its column or its index. `label` is the index of the correct
    choice, or None if it is unknown.
    """

    guid: str
    context: str | None
    choices: tuple[str, ...]
    names: tuple[str, ...]
    label: int | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns with contexts, choices and labels.

    Attributes:
      choices: The columns of choices; a single column has lists of choices.
      context: The column of contexts, or None.
      start: The column of words that begin all choices of a row, or None.
      label: The column that names each row's correct choice, by column or by
        index from 0; None if there is no such column.
      right: The column in `choices` that is correct in every row; None if there
        is a `label`.
    """

    choices: tuple[str, ...]
    context: str | None = None
    start: str | None = None
    label: str | None = None
    right: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All columns except the label."""
        return (*filter(None, (self.context, self.start)), *self.choices)

    @property
    def flags(self) -> dict[str, str]:
        """The flag that names each column of custom files."""
        flags = dict.fromkeys(self.choices, "--choice_columns")
        if self.context:
            flags[self.context] = "--context_column"
        if self.label:
            flags[self.label] = "--label_column"
        return flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfficialChoices(OfficialFiles):
    """The files of an official data set and their `columns`."""

    columns: Columns


_FOUR_ENDINGS = ("ending0", "ending1", "ending2", "ending3")

OFFICIAL: Mapping[str, OfficialChoices] = {
    # Choices are whole sentences, as in published scripts for SWAG: the start
    # of the second sentence, followed by an ending.
    "swag": OfficialChoices(
        title="SWAG",
        columns=Columns(_FOUR_ENDINGS, "sent1", start="sent2", label="label"),
    ),
    "codah": OfficialChoices(
        title="CODAH",
        columns=Columns(_FOUR_ENDINGS, "question", label="label"),
        columns_without_header=(
            "category",
            "question",
            *_FOUR_ENDINGS,
            "label",
        ),
    ),
    # Sub-task A: find the statement that is against common sense.
    "comve_a": OfficialChoices(
        title="ComVE, sub-task A",
        columns=Columns(
            ("Correct Statement", "Incorrect Statement"),
            right="Incorrect Statement",
        ),
    ),
    # Sub-task B: find the reason why a statement is nonsense.
    "comve_b": OfficialChoices(
        title="ComVE, sub-task B",
        columns=Columns(
            ("Right Reason1", "Confusing Reason1", "Confusing Reason2"),
            "Incorrect Statement",
            right="Right Reason1",
        ),
    ),
}


def _choose_columns(existing: Sequence[str], columns: Columns) -> Columns:
    """Returns `columns`, or "context" and "choices" if only those exist."""
    general = Columns(
        ("choices",), None if columns.context is None else "context"
    )
    has_own = set(columns.choices) <= set(existing)
    return general if "choices" in existing and not has_own else columns


def _make_example(
    path: str, row: tables.Row, columns: Columns
) -> MultipleChoiceExample:
    """Returns the example of a table's row, without its label."""
    example = _parse(f"{path}, line {row.line}", row.values, columns)
    guid = f"{os.path.basename(path)}:{row.line}"
    return dataclasses.replace(example, guid=guid)


def _parse(
    where: str, values: Mapping[str, Any], columns: Columns
) -> MultipleChoiceExample:
    """Returns an example without its label; errors begin with `where`."""
    if len(columns.choices) == 1:
        choices = _listed_choices(where, values, columns.choices[0])
        names = tuple(map(str, range(len(choices))))
    else:
        names = columns.choices
        # The last columns may be empty.
        while len(names) > 2 and values.get(names[-1]) in (None, ""):
            names = names[:-1]
        choices = tuple(read_text(where, values, name) for name in names)
    if columns.start is not None:
        start = read_text(where, values, columns.start, keep_empty=True)
        choices = tuple(f"{start} {choice}".strip() for choice in choices)
    context = None
    if columns.context is not None:
        context = read_text(where, values, columns.context)
    return MultipleChoiceExample("", context, choices, names)


def _listed_choices(
    where: str, values: Mapping[str, Any], column: str
) -> tuple[str, ...]:
    choices = values.get(column)
    is_list = isinstance(choices, list | tuple) and len(choices) > 1
    if not (is_list and all(isinstance(x, str) and x.strip() for x in choices)):
        received = classification_examples.shown_value(values, column)
        raise UserError(
            f"{where} must have a list of two or more texts in column "
            f"{column!r}; if each choice has its own column, name the columns "
            f"with --choice_columns. Received: {received}."
        )
    return tuple(choices)


def _read_label(
    where: str,
    values: Mapping[str, Any],
    columns: Columns,
    example: MultipleChoiceExample,
) -> int | None:
    """Returns the index of the correct choice, or None if it is unknown."""
    if columns.right is not None:
        return columns.choices.index(columns.right)
    value = values.get(columns.label)
    if value is None or str(value).strip() in _HIDDEN:
        return None
    name = str(value).strip()
    if name in example.names:
        return example.names.index(name)
    is_index = _INDEX.fullmatch(name) and not isinstance(value, bool)
    if is_index and float(name) < len(example.names):
        return int(float(name))
    received = classification_examples.shown_value(values, columns.label)
    raise UserError(
        f"{where} must have the correct choice in column {columns.label!r}: "
        f"its index, 0 to {len(example.names) - 1}, or the name of its column. "
        f"Received: {received}."
    )


def _reorder(
    examples: Sequence[MultipleChoiceExample], lines: Sequence[int]
) -> list[MultipleChoiceExample]:
    """Shuffles the choices of each example, with its line as the seed."""
    # stateless_random imports TensorFlow, so import it only to shuffle.
    from bert_tf import stateless_random

    most = max(len(example.choices) for example in examples)
    drawn = stateless_random.uniform(
        _ORDER_SALT, np.array(lines, np.int64)[:, np.newaxis], np.arange(most)
    ).numpy()
    reordered = []
    for example, numbers in zip(examples, drawn, strict=True):
        order = np.argsort(numbers[: len(example.choices)]).tolist()
        reordered.append(
            dataclasses.replace(
                example,
                choices=tuple(example.choices[i] for i in order),
                names=tuple(example.names[i] for i in order),
                label=order.index(example.label),
            )
        )
    return reordered


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceFiles(TaskFiles):
    """Files of contexts with choices."""

    kind: ClassVar[str] = "multiple_choice"

    name: str = "custom"
    columns: Columns

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        arguments = super().stored(values)
        columns = arguments.get("columns", {"context": "context"})
        choices = tuple(columns.get("choices", ("choices",)))
        return arguments | {
            "columns": Columns(**columns | {"choices": choices})
        }

    def read(self, split: str) -> list[MultipleChoiceExample]:
        """Reads examples with their correct choices.

        If the same column is correct in all rows, the choices of each row are
        shuffled by its line number. Otherwise a model that scores all choices
        equally would seem perfect, because the first choice wins ties. Choices
        are scored separately, so their order does not matter.

        Raises:
          UserError: If the file is not a valid table or lacks a column, or if
            a row has an empty or missing text, fewer than two choices, or no
            label that is a choice.
        """
        path, columns = self.files[split], self.columns
        may_lack_labels = split.startswith(TEST)
        table = self.read_table(path)
        flags = {} if self.name in OFFICIAL else columns.flags
        table.require(columns.texts, flags)
        for name in columns.choices:
            require_line(f"{path}, line 1", name)
        is_read = columns.label in table.repeated or not may_lack_labels
        if columns.label and is_read:
            table.require([columns.label], flags)
        lines, examples = [], []
        for row in table.rows:
            example = _make_example(path, row, columns)
            where = f"{path}, line {row.line}"
            label = _read_label(where, row.values, columns, example)
            if label is None and not may_lack_labels:
                raise UserError(
                    f"{where} has no label in column {columns.label!r}."
                )
            lines.append(row.line)
            examples.append(dataclasses.replace(example, label=label))
        classification_examples.check_all_or_none(examples)
        most = max(len(example.choices) for example in examples)
        num_fewer = sum(len(example.choices) < most for example in examples)
        if num_fewer:
            logging.warning(
                "%s: %d of %d examples have fewer than %d choices.",
                path,
                num_fewer,
                len(examples),
                most,
            )
        return _reorder(examples, lines) if columns.right else examples

    def split_keys(self, examples: Sequence[Any]) -> list[SplitKey]:
        # `read` may shuffle choices; sorted, equal rows have equal keys.
        return [
            SplitKey(x.context or tuple(sorted(x.choices))) for x in examples
        ]

    def read_inputs(self, path: str) -> Iterator[MultipleChoiceExample]:
        """Yields the examples of a file to predict; see `TaskFiles`.

        If `columns.choices` are missing but a column "choices" exists, reads
        the columns "choices" and "context" instead.
        """
        table = self.read_table(path)
        columns = _choose_columns(table.columns, self.columns)
        table.require(columns.texts)
        for row in table.rows:
            yield _make_example(path, row, columns)

    def example_from_row(self, row: Any) -> MultipleChoiceExample:
        """Converts a mapping to an example.

        The keys are the `columns` of the training data, or "context" with a
        text and "choices" with a list of texts; other keys are ignored.

        Raises:
          UserError: If `row` has another form, or a text is empty or missing.
        """
        if not isinstance(row, Mapping):
            raise UserError(
                f"Each row must be a mapping with "
                f"{', '.join(map(repr, self.columns.texts))}. Received: "
                f"{row!r:.80}."
            )
        columns = _choose_columns(row, self.columns)
        return _parse(f"The row {row!r:.80}", row, columns)

    def read_table(self, path: str) -> tables.Table:
        official = OFFICIAL.get(self.name)
        header = official.columns_without_header if official else ()
        return tables.read_table(path, columns_without_header=header)
