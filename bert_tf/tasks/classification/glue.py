"""Reading the official files of GLUE, XNLI and SNLI, and answering GLUE."""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.glue_tasks import GlueTask

# What stands in the column of labels where the annotators did not agree.
# Numbers are with a point where labels are scores.
_NO_GOLD_LABEL = ("-", "-1", "-1.0")
# The like where the leaderboard keeps the labels to itself.
_HIDDEN = (*_NO_GOLD_LABEL, "", "hidden")
# Of STS-B, which has three digits in its official baselines' answers.
_LEAST_SCORE, _GREATEST_SCORE = 0.0, 5.0


@dataclasses.dataclass(frozen=True)
class Split:
    """The examples of one file.

    Attributes:
      path: The file.
      examples: All with labels, or all without.
      num_without_gold_label: Rows left out because the annotators did not
        agree on a label ("-").
      num_broken_rows: Rows left out because they have too many or too few
        columns.
      num_empty_texts: Examples with a text that is empty.
    """

    path: str
    examples: list[InputExample]
    num_without_gold_label: int = 0
    num_broken_rows: int = 0
    num_empty_texts: int = 0


def find_file(
    task: GlueTask,
    data_dir: str,
    split: str,
    language: str = "zh",
    flag: str = "--data_dir",
) -> str:
    """Returns the path of a split's file.

    Args:
      task: The task.
      data_dir: The folder with its files.
      split: One of `task.stems`.
      language: What {language} in the names of XNLI's files means.
      flag: Where the folder came from, for the error.

    Raises:
      UserError: If there is none.
    """
    path = _find(task, data_dir, split, language)
    if path:
        return path
    name = task.file_names(split)[0].replace("{language}", language)
    raise UserError(
        f"{flag} has no file {name} or one like it for the split {split} of "
        f"{task.title}. Received: {data_dir!r}."
    )


def _find(
    task: GlueTask, data_dir: str, split: str, language: str
) -> str | None:
    for name in task.file_names(split):
        path = os.path.join(data_dir, name.replace("{language}", language))
        if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
            return path
    return None


def find_files(
    task: GlueTask, data_dir: str, kind: str, language: str = "zh"
) -> dict[str, str]:
    """Returns the splits of a kind that there are files of, and these.

    Args:
      task: The task.
      data_dir: The folder with its files.
      kind: "train", "dev" or "test"; the task must have such a split.
      language: What {language} in the names of XNLI's files means.

    Raises:
      UserError: If the folder has no file of any of them.
    """
    splits = task.splits(kind)
    found = {
        split: path
        for split in splits
        if (path := _find(task, data_dir, split, language))
    }
    return found or {splits[0]: find_file(task, data_dir, splits[0], language)}


def read_texts(task: GlueTask, path: str) -> Iterator[InputExample]:
    """Yields the texts of a file, row by row, whatever its labels are.

    Args:
      task: The task.
      path: An official file, or any with the columns of one. In a .txt file,
        which has no header, a line is a text where the task has one text.

    Raises:
      UserError: If the file cannot be read as a table or lacks a column, or a
        text is missing; an empty one is kept, as in the original.
    """
    is_lines = tables.file_ending(path) == ".txt" and not task.is_pair
    table = _read_table(task, path, ".txt" if is_lines else None)
    texts = (tables.TEXT_COLUMN,) if is_lines else _text_columns(task, table)
    for row in table.rows:
        yield classification_examples.make_example(
            path, row, texts, may_be_empty=True
        )


def read_split(
    task: GlueTask, path: str, split: str, language: str = "zh"
) -> Split:
    """Reads an official file; its columns go by its header.

    Args:
      task: The task.
      path: The file, for instance that of `find_file`.
      split: One of `task.stems`. Files of a test need not have labels.
      language: Which rows of XNLI's dev and test to read.

    Raises:
      UserError: If the file cannot be read as a table, lacks a column, or if
        a row is broken (unless `task.has_broken_rows`), or a label is missing
        or unknown. Empty texts are kept, as in the original, and counted.
    """
    broken: list[int] = []
    is_test = split.startswith("test")
    # The rows of a test are counted by the leaderboard.
    may_break = task.has_broken_rows and not is_test
    table = _read_table(
        task, path, on_broken_row=broken.append if may_break else None
    )
    examples, num_without_gold_label = _read_examples(
        task, table, is_test, language
    )
    if not examples:
        raise UserError(
            f"{path} has no row to use for the split {split} of {task.title}"
            f"{f' in {language!r}' if task.has_languages else ''}."
        )
    classification_examples.check_all_or_none(examples)
    return Split(
        path,
        examples,
        num_without_gold_label,
        len(broken),
        sum(_has_empty_text(example) for example in examples),
    )


def _read_table(
    task: GlueTask,
    path: str,
    ending: str | None = None,
    on_broken_row: Callable[[int], None] | None = None,
) -> tables.Table:
    # Old editions call their tab-separated files .txt.
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
    """Returns the examples, and how many rows have no gold label."""
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
        # Of .jsonl each row has its own columns.
        value = next(
            (row.values[x] for x in task.label_columns if x in row.values), None
        )
        if _is_left_out(task, value, is_test):
            num_without_gold_label += 1
            continue
        label = _read_label(task, table.path, row.line, value, is_test)
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


def _has_empty_text(example: InputExample) -> bool:
    texts = (example.text_a, example.text_b)
    return any(text is not None and not text.strip() for text in texts)


def _is_left_out(task: GlueTask, value: Any, is_test: bool) -> bool:
    return str(value).strip() in _NO_GOLD_LABEL and not (
        is_test and task.submissions
    )


def _read_label(
    task: GlueTask, path: str, line: int, value: Any, is_test: bool
) -> str | float | None:
    name = (
        ""
        if value is None
        else classification_examples.parse_name(path, line, value)
    )
    if is_test and name in _HIDDEN:
        return None
    if not name:
        raise UserError(f"{path}, line {line} has no label.")
    if task.labels is None:
        return classification_examples.parse_number(path, line, name)
    name = task.aliases.get(name, name)
    classification_examples.check_known(path, line, name, task.labels)
    return name


def submission_text(task: GlueTask, predictions: Sequence[str | float]) -> str:
    """Returns the leaderboard's file of a split, for `task.submissions`.

    Args:
      task: The task.
      predictions: A label (or a score) for each row of the test's file.

    Raises:
      UserError: If a prediction is no label of the task.
    """
    lines = ["index\tprediction"]
    for index, prediction in enumerate(predictions):
        if task.labels is None:
            score = min(max(float(prediction), _LEAST_SCORE), _GREATEST_SCORE)
            prediction = f"{score:.3f}"
        elif prediction not in task.labels:
            raise UserError(
                f"The predictions of {task.title} must be among "
                f"{', '.join(task.labels)}. Received: {prediction!r} for row "
                f"{index}."
            )
        lines.append(f"{index}\t{prediction}")
    return "\n".join(lines) + "\n"


def majority_label(examples: Sequence[InputExample]) -> str:
    """Returns the most frequent label; of several the first one seen.

    It is what the paper submits for WNLI (section B.1).
    """
    counts = Counter(example.label for example in examples)
    return counts.most_common(1)[0][0]
