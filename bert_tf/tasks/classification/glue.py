"""Readers of the official GLUE, XNLI and SNLI files, and GLUE submissions."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.glue_tasks import GlueTask

# Labels of rows whose annotators did not agree; -1.0 where labels are scores.
_NO_GOLD_LABEL = ("-", "-1", "-1.0")
# Labels of test sets whose labels the leaderboard keeps secret.
_HIDDEN = (*_NO_GOLD_LABEL, "", "hidden")
# The range of STS-B's scores.
_LEAST_SCORE, _GREATEST_SCORE = 0.0, 5.0


def read_texts(task: GlueTask, path: str) -> Iterator[InputExample]:
    """Yields the texts of a file to predict, row by row; labels are not read.

    For tasks with a single text, each line of a .txt file is a text.

    Raises:
      UserError: If the file is not a valid table or lacks a column, or a text
        is missing; empty texts are kept, as in the original.
    """
    table = read_input_table(task, path)
    is_lines = _holds_lines(task, path)
    texts = (tables.TEXT_COLUMN,) if is_lines else _text_columns(task, table)
    for row in table.rows:
        yield classification_examples.make_example(
            path, row, texts, may_be_empty=True
        )


def read_input_table(task: GlueTask, path: str) -> tables.Table:
    """Opens a file to predict; see `read_texts`."""
    is_lines = _holds_lines(task, path)
    return _read_table(task, path, ".txt" if is_lines else None)


def _holds_lines(task: GlueTask, path: str) -> bool:
    return tables.file_ending(path) == ".txt" and not task.is_pair


def read_split(
    task: GlueTask, path: str, split: str, language: str = "zh"
) -> list[InputExample]:
    """Reads an official file by the column names in its header.

    Logs how many rows are left out, as their annotators did not agree on a
    label ("-") or they have too many or too few columns, and how many have an
    empty text, which is kept, as in the original.

    Only the rows in `language` are read of XNLI's dev and test. Test files may
    lack labels.

    Raises:
      UserError: If the file is not a valid table or lacks a column, a row is
        broken (unless `task.has_broken_rows`), or a label is missing or
        unknown.
    """
    broken: list[int] = []
    is_test = split.startswith("test")
    # The leaderboard numbers the rows of a test, so none may be left out.
    may_break = task.has_broken_rows and not is_test
    table = _read_table(
        task, path, on_broken_row=broken.append if may_break else None
    )
    examples, num_without_label = _read_examples(task, table, is_test, language)
    if not examples:
        raise UserError(
            f"{path} has no row to use for the split {split} of {task.title}"
            f"{f' in {language!r}' if task.has_languages else ''}."
        )
    classification_examples.check_all_or_none(examples)
    num_empty = sum(map(classification_examples.has_empty_text, examples))
    for count, problem in (
        (num_without_label, "rows without gold label, left out"),
        (len(broken), "rows with wrong columns, left out"),
        (num_empty, "examples with an empty text, kept"),
    ):
        if count:
            logging.warning("%s: %d %s.", path, count, problem)
    return examples


def _read_table(
    task: GlueTask,
    path: str,
    ending: str | None = None,
    on_broken_row: Callable[[int], None] | None = None,
) -> tables.Table:
    # Old editions name their tab-separated files .txt.
    if tables.file_ending(path) == ".txt":
        ending = ending or ".tsv"
    return tables.read_table(
        path,
        ending=ending,
        columns_without_header=task.columns_without_header,
        columns_of_longer_rows=task.columns_of_longer_rows,
        on_broken_row=on_broken_row,
    )


def _read_examples(
    task: GlueTask, table: tables.Table, is_test: bool, language: str
) -> tuple[list[InputExample], int]:
    """Returns the examples, and the number of rows without a gold label."""
    texts = _text_columns(task, table)
    if not is_test and set(task.label_columns).isdisjoint(table.columns):
        table.require(task.label_columns[:1])
    examples = []
    num_without_gold_label = 0
    for row in table.rows:
        if (
            task.has_languages
            and row.values.get("language", language) != language
        ):
            continue
        # Each row of a .jsonl file has its own columns.
        value = next(
            (row.values[x] for x in task.label_columns if x in row.values), None
        )
        is_hidden = is_test and task.submissions
        if str(value).strip() in _NO_GOLD_LABEL and not is_hidden:
            num_without_gold_label += 1
            continue
        where = f"{table.path}, line {row.line}"
        label = _read_label(task, where, value, is_test)
        examples.append(
            classification_examples.make_example(
                table.path, row, texts, label, may_be_empty=True
            )
        )
    return examples, num_without_gold_label


def _text_columns(task: GlueTask, table: tables.Table) -> tuple[str, ...]:
    for columns in task.texts:
        if set(columns) <= set(table.columns):
            return columns
    table.require(task.texts[0])
    return task.texts[0]


def _read_label(
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
    """Returns a submission file of the leaderboard, for `task.submissions`.

    There is a label (or a score) for each row of the test file.

    Raises:
      UserError: If a prediction is not a label of the task.
    """
    lines = ["index\tprediction"]
    for index, prediction in enumerate(predictions):
        if task.labels is None:
            score = min(max(float(prediction), _LEAST_SCORE), _GREATEST_SCORE)
            # With three digits, like the official baselines.
            prediction = f"{score:.3f}"
        elif prediction not in task.labels:
            raise UserError(
                f"The predictions of {task.title} must be among "
                f"{', '.join(task.labels)}. Received: {prediction!r} for row "
                f"{index}."
            )
        lines.append(f"{index}\t{prediction}")
    return "\n".join(lines) + "\n"
