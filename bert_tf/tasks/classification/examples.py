"""Classification examples: own tables, GLUE's files and Python values."""

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import tables
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.classification.glue_tasks import GlueTask
from bert_tf.tasks.classification.labels import Label
from bert_tf.tasks.classification.labels import ProblemType

# Labels for "no gold label". Only test sets of leaderboards keep such rows.
_NO_GOLD_LABEL = ("-", "-1", "-1.0")
# Placeholders in test files whose real labels only the leaderboard has.
_HIDDEN = (*_NO_GOLD_LABEL, "", "hidden")
# STS-B's scores are in this range, so submitted scores are clipped to it.
_LEAST_SCORE, _GREATEST_SCORE = 0.0, 5.0
# More different fractions than this, and than half of the rows, are scores.
_FEW_SCORES = 10
# Descriptions of rows with one text and with two texts, for error messages.
_ROW_FORMS = {1: "a text (str)", 2: "a pair of texts"}


@dataclasses.dataclass(frozen=True, slots=True)
class InputExample:
    """One text or pair of texts (InputExample of the original).

    `guid` is the example's file and line, such as "dev.tsv:12". An unknown
    label is None.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: Label | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns with texts and labels.

    A .txt file has no header: each of its lines is a text, whatever the name of
    `text`. Several columns of `labels`, each with 0 or 1, are the labels of a
    multi-label problem.
    """

    text: str
    text_pair: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts, one or two."""
        return (self.text, self.text_pair) if self.text_pair else (self.text,)

    @property
    def flags(self) -> dict[str, str]:
        """The flag that names each column."""
        flags = dict.fromkeys(self.labels, "--label_column")
        if self.text_pair:
            flags[self.text_pair] = "--text_pair_column"
        return flags | {self.text: "--text_column"}

    def with_flags(self, config: Flags) -> "Columns":
        """Returns the columns; a flag's column replaces the stored one."""
        return Columns(
            config.text_column or self.text,
            config.text_pair_column or self.text_pair,
            options.values(config, "label_column") or self.labels or ("label",),
        )


# Columns to look for if the model does not name the columns of its files.
USUAL_COLUMNS = (Columns("text", "text_pair"), Columns("text"))


def read_examples(
    path: str,
    columns: Columns,
    problem_type: ProblemType = "single_label",
    labels: Sequence[str] | None = None,
    *,
    may_lack_labels: bool = False,
    label_separator: str = ",",
) -> list[InputExample]:
    """Reads an example from each row of a file that `read_table` can read.

    The label of a regression is a number. A multi-label row has a JSON list, or
    labels joined by `label_separator`. Labels are stripped of white space, and
    must be among `labels`; for training data, `labels` may be None. With
    `may_lack_labels`, all rows may lack a label, as in a test file.

    Raises:
      UserError: If the file is not a valid table or lacks a column, if a text
        is empty or not a string, or if a label is missing, unknown or invalid
        for the problem type.
    """
    table = tables.read_table(path)
    texts = text_columns(table, columns, columns.flags)
    known = None if labels is None else frozenset(labels)
    required = table.repeated if may_lack_labels else columns.labels
    table.require([x for x in columns.labels if x in required], columns.flags)
    for name in columns.labels if len(columns.labels) > 1 else ():
        label_values.require_line(f"{path}, line 1", name)
    examples = []
    for row in table.rows:
        where = f"{path}, line {row.line}"
        label = None
        if columns.labels:
            label = label_values.read_label(
                where, row.values, columns.labels, problem_type, label_separator
            )
            if label is None and not may_lack_labels:
                column = " and ".join(map(repr, columns.labels))
                raise UserError(f"{where} has no label in column {column}.")
            if known is not None and label is not None:
                label_values.check_known(where, label, known)
        examples.append(make_example(path, row, texts, label))
    is_empty = all(example.label == () for example in examples)
    if may_lack_labels and is_empty and len(columns.labels) == 1:
        # If no row has labels, set None (unknown), not () (no label applies).
        examples = [dataclasses.replace(e, label=None) for e in examples]
    check_all_or_none(examples)
    return examples


def make_example(
    path: str,
    row: tables.Row,
    text_columns: Sequence[str],
    label: Label | None = None,
    keep_empty: bool | None = None,
) -> InputExample:
    """Returns the example of a row with one or two columns; see `read_text`."""
    where = f"{path}, line {row.line}"
    texts = [
        read_text(where, row.values, column, keep_empty)
        for column in text_columns
    ]
    guid = f"{os.path.basename(path)}:{row.line}"
    return InputExample(guid, *texts, label=label)


def read_text(
    where: str,
    values: Mapping[str, Any],
    column: str,
    keep_empty: bool | None = None,
) -> str:
    """Returns the text in a column of a row.

    `keep_empty` is the value of --keep_empty, or None if there is no such flag.

    Raises:
      UserError: If the text is missing or not a string, or if it is empty and
        `keep_empty` is not True. The message begins with `where`.
    """
    text = values.get(column)
    if not isinstance(text, str):
        raise UserError(
            f"{where} must have a string in column {column!r}. Received: "
            f"{shown_value(values, column)}."
        )
    if not (text.strip() or keep_empty):
        flag = "; --keep_empty keeps it, with an empty answer"
        raise UserError(
            f"{where} has an empty text in column {column!r}; remove the row "
            f"or fill it in{flag * (keep_empty is False)}."
        )
    return text


def shown_value(values: Mapping[str, Any], column: str) -> str:
    """Returns the value of a column as JSON for messages, or "nothing"."""
    if column not in values:
        return "nothing"
    return json.dumps(values[column], ensure_ascii=False, default=repr)


def text_columns(
    table: tables.Table,
    columns: Columns,
    flags: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Returns the columns of a table that contain the texts.

    Raises:
      UserError: If the table lacks a column, or a .txt file is given for pairs.
    """
    if tables.file_ending(table.path) != ".txt":
        table.require(columns.texts, flags)
        return columns.texts
    if columns.text_pair:
        raise UserError(
            f"{table.path} holds one text per line, but pairs were expected; "
            "give a .tsv, .csv or .jsonl file with the columns "
            f"{' and '.join(map(repr, columns.texts))}."
        )
    return (tables.TEXT_COLUMN,)


def check_all_or_none(examples: Sequence[InputExample]) -> None:
    """Raises `UserError` if only some examples have a label."""
    unlabeled = [example for example in examples if example.label is None]
    if unlabeled and len(unlabeled) < len(examples):
        raise UserError(
            f"All examples must have a label, or none. Received: "
            f"{len(unlabeled)} of {len(examples)} have none, the first of "
            f"which is {unlabeled[0].guid}."
        )


def gather_labels(
    examples: Sequence[InputExample], path: str = "The training data"
) -> tuple[str, ...]:
    """Returns the labels of training examples, sorted.

    If all labels are integers, they are sorted as numbers, else as strings.
    Logs a warning if two labels may be the same, such as "1" and "1.0".

    Raises:
      UserError: If there are fewer than two labels, or none for multi-label.
    """
    labels: set[str] = set()
    least = 2
    for example in examples:
        if isinstance(example.label, tuple):
            labels.update(example.label)
            least = 1
        elif example.label is not None:
            labels.add(example.label)
    if len(labels) < least:
        raise UserError(
            f"{path} must have at least {least} different "
            f"label{'s' if least > 1 else ''} to learn. Received: "
            f"{', '.join(map(repr, sorted(labels))) or 'none'}."
        )
    by_meaning = defaultdict(list)
    for label in sorted(labels):
        try:
            meaning = float(label)
        except ValueError:
            meaning = label.casefold()
        by_meaning[meaning].append(label)
    has_scores = all(isinstance(x, float) for x in by_meaning)
    has_scores &= len(labels) > max(_FEW_SCORES, len(examples) // 2)
    if has_scores and any(x % 1 for x in by_meaning):
        raise UserError(
            f"{path} has {len(labels)} different numbers as labels of "
            f"{len(examples)} rows; to learn numbers, set "
            "--problem_type=regression."
        )
    for spellings in by_meaning.values():
        if len(spellings) > 1:
            logging.warning(
                "%s has the labels %s, which are learned as different ones.",
                path,
                " and ".join(map(repr, spellings)),
            )
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def read_texts(
    path: str,
    choices: Sequence[Columns] = USUAL_COLUMNS,
    keep_empty: bool | None = None,
) -> Iterator[InputExample]:
    """Yields the texts of a file to predict, row by row; labels are not read.

    Uses the first entry of `choices` whose columns are all in the file. See
    `read_text` for `keep_empty`.

    Raises:
      UserError: If the file is not a valid table or lacks a column, if a text
        is not valid, or if later rows of a .jsonl file add a second text.
    """
    table = tables.read_table(path)
    columns = next(
        (c for c in choices if set(c.texts) <= set(table.columns)),
        # If no entry matches, the error names the entry with fewest columns.
        min(choices, key=lambda columns: len(columns.texts)),
    )
    texts = text_columns(table, columns)
    pairs = {c.text_pair for c in choices if c.text in texts} - {*table.columns}
    for row in table.rows:
        for column in pairs & row.values.keys():
            raise UserError(
                f"{path}, line {row.line} has the column {column!r}, which the "
                "first row lacks; give all rows the same columns."
            )
        yield make_example(path, row, texts, keep_empty=keep_empty)


def has_empty_text(example: InputExample) -> bool:
    """Returns True if one of an example's texts is empty."""
    texts = (example.text_a, example.text_b)
    return any(text is not None and not text.strip() for text in texts)


def to_json(example: InputExample) -> dict[str, Any]:
    """Returns texts and gold labels as values for a JSON object."""
    values: dict[str, Any] = {"text": example.text_a}
    if example.text_b is not None:
        values["text_pair"] = example.text_b
    if isinstance(example.label, tuple):
        values["gold_labels"] = list(example.label)
    elif isinstance(example.label, float):
        values["gold_score"] = example.label
    elif example.label is not None:
        values["gold_label"] = example.label
    return values


def parse_row(
    row: Any, choices: Sequence[tuple[str, ...]], may_be_empty: bool = False
) -> InputExample:
    """Converts a Python value to an example.

    The value is a text, a pair of texts, or a mapping with all columns of an
    entry of `choices`, one for a text or two for a pair; other keys are
    ignored. With `may_be_empty`, texts may be empty, as in server requests.

    Raises:
      UserError: If `row` has none of these forms, or a text is empty.
    """
    if isinstance(row, Mapping):
        texts = [row[column] for column in choose_columns(row, choices)]
    else:
        texts = [row] if isinstance(row, str) else row
    counts = sorted({len(columns) for columns in choices})
    if (
        not isinstance(texts, list | tuple)
        or len(texts) not in counts
        or not all(isinstance(text, str) for text in texts)
    ):
        expected = " or ".join(_ROW_FORMS[count] for count in counts)
        raise UserError(
            f"Expected {expected}. Received: {row!r:.80} "
            f"({type(row).__name__})."
        )
    example = InputExample("", *texts)
    if not may_be_empty:
        require_text(example)
    return example


def choose_columns(
    names: Iterable[str], choices: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the first of `choices` with all its columns in `names`.

    Raises:
      UserError: If each entry of `choices` has a column that is not in `names`.
    """
    for columns in choices:
        if set(columns) <= set(names):
            return columns
    expected = (" and ".join(map(repr, c)) for c in sorted(choices, key=len))
    has_text = any(tables.TEXT_COLUMN in columns for columns in choices)
    raise UserError(
        f"Expected the columns {' or '.join(expected)}. Received: "
        f"{', '.join(map(repr, names)) or 'none'}; rename one"
        f"{', or name it by text_column=' * has_text}."
    )


def require_text(example: InputExample) -> None:
    """Raises `UserError` for an example with an empty text."""
    for text in (example.text_a, example.text_b):
        if text is not None and not text.strip():
            raise UserError(
                "Expected a text that is not empty. Received: "
                f"{text!r:.80}; leave the row out."
            )


def read_official_table(task: GlueTask, path: str) -> tables.Table:
    """Opens a file to predict; .txt lines are texts, or pairs with a tab."""
    return _open_official(task, path, ".tsv" if task.is_pair else ".txt")


def read_official(
    task: GlueTask, path: str, split: str, language: str = "zh"
) -> list[InputExample]:
    """Reads an official file by the column names in its header.

    Leaves out rows if annotators did not agree on a label ("-") or the number
    of columns is wrong. Rows with an empty text are kept, as in the original.
    Logs how many rows are left out, and how many have an empty text. Test files
    may lack labels. In XNLI's dev and test sets, only the rows in `language`
    are read.

    Raises:
      UserError: If the file is not a valid table or lacks a column, if a row is
        broken (unless `task.has_broken_rows`), or a label is absent or unknown.
    """
    broken: list[int] = []
    is_test = split.startswith("test")
    # The leaderboard numbers the rows of a test file, so none may be left out.
    may_break = task.has_broken_rows and not is_test
    table = _open_official(
        task, path, ".tsv", broken.append if may_break else None
    )
    texts = official_columns(task, table)
    if not is_test and set(task.label_columns).isdisjoint(table.columns):
        table.require(task.label_columns[:1])
    examples, num_without_label = [], 0
    for row in table.rows:
        row_language = row.values.get("language", language)
        if task.has_languages and row_language != language:
            continue
        # In .jsonl files, the name of the label's column may vary by row.
        value = next(
            (row.values[x] for x in task.label_columns if x in row.values), None
        )
        is_hidden = is_test and task.submissions
        if str(value).strip() in _NO_GOLD_LABEL and not is_hidden:
            num_without_label += 1
            continue
        where = f"{path}, line {row.line}"
        label = _official_label(task, where, value, is_test)
        examples.append(make_example(path, row, texts, label, keep_empty=True))
    if not examples:
        raise UserError(
            f"{path} has no row to use for the split {split} of {task.title}"
            f"{f' in {language!r}' if task.has_languages else ''}."
        )
    check_all_or_none(examples)
    num_empty = sum(map(has_empty_text, examples))
    for count, problem in (
        (num_without_label, "rows without gold label, left out"),
        (len(broken), "rows with wrong columns, left out"),
        (num_empty, "examples with an empty text, kept"),
    ):
        if count:
            logging.warning("%s: %d %s.", path, count, problem)
    return examples


def _open_official(
    task: GlueTask,
    path: str,
    txt_ending: str,
    on_broken_row: Callable[[int], None] | None = None,
) -> tables.Table:
    # Old editions name tab-separated files .txt.
    is_txt = tables.file_ending(path) == ".txt"
    return tables.read_table(
        path,
        ending=txt_ending if is_txt else None,
        columns_without_header=task.columns_without_header,
        columns_of_longer_rows=task.columns_of_longer_rows,
        on_broken_row=on_broken_row,
    )


def official_columns(task: GlueTask, table: tables.Table) -> tuple[str, ...]:
    """Returns the columns of an official table that contain the texts."""
    lines = (tables.TEXT_COLUMN,)  # The columns of a .txt file.
    if table.columns == lines:
        return lines
    fitting = (x for x in task.texts if set(x) <= set(table.columns))
    columns = next(fitting, task.texts[0])
    table.require(columns)
    return columns


def _official_label(
    task: GlueTask, where: str, value: Any, is_test: bool
) -> str | float | None:
    name = ""
    if value is not None:
        name = label_values.parse_name(where, value)
    if is_test and name in _HIDDEN:
        return None
    if not name:
        raise UserError(f"{where} has no label.")
    if task.labels is None:
        return label_values.parse_number(where, name)
    name = task.aliases.get(name, name)
    label_values.check_known(where, name, task.labels)
    return name


def submission_text(task: GlueTask, predictions: Sequence[str | float]) -> str:
    """Returns the text of a submission: a label or score for each test row.

    Raises:
      UserError: If a prediction is not a label of the task.
    """
    lines = ["index\tprediction"]
    for index, prediction in enumerate(predictions):
        if task.labels is None:
            score = min(max(float(prediction), _LEAST_SCORE), _GREATEST_SCORE)
            # Write three decimals, as in the files of the official baselines.
            prediction = f"{score:.3f}"
        elif prediction not in task.labels:
            raise UserError(
                f"The predictions of {task.title} must be among "
                f"{', '.join(task.labels)}. Received: {prediction!r} for row "
                f"{index}."
            )
        lines.append(f"{index}\t{prediction}")
    return "\n".join(lines) + "\n"
