"""Texts to predict for, from files and from Python programs."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample

# By how many texts a row has.
_NAMES_OF_ROWS = {1: "a text", 2: "a pair of texts"}
# Of models that do not say it.
USUAL_COLUMNS = (Columns("text", "text_pair"), Columns("text"))


def read_texts(
    path: str, choices: Sequence[Columns] = USUAL_COLUMNS
) -> Iterator[InputExample]:
    """Yields the texts of a file, row by row, whatever its labels are.

    Args:
      path: A file that `tables.read_table` reads.
      choices: What its columns may be called; the first that are there count.

    Raises:
      UserError: If the file cannot be read as a table, lacks a column, or if
        a text is empty or no string, or a row of .jsonl has one more than the
        rows before it.
    """
    table = tables.read_table(path)
    columns = next(
        (c for c in choices if set(c.texts) <= set(table.columns)),
        # What is missing is said of the fewest.
        min(choices, key=lambda columns: len(columns.texts)),
    )
    texts = classification_examples.text_columns(table, columns)
    pairs = {c.text_pair for c in choices if c.text in texts} - {*table.columns}
    for row in table.rows:
        for column in pairs & row.values.keys():
            raise UserError(
                f"{path}, line {row.line} has the column {column!r}, and the "
                "first row has not; give all rows the same columns."
            )
        yield classification_examples.make_example(path, row, texts)


def parse_row(row: Any, choices: Sequence[tuple[str, ...]]) -> InputExample:
    """Returns the example that a value of a Python program means.

    Args:
      row: A text; a pair of texts; or a mapping with the columns of one of
        `choices`, of which other columns do not count.
      choices: What the columns may be called, one of a text, two of a pair.

    Raises:
      UserError: If it is none of these, or a text is empty.
    """
    if isinstance(row, Mapping):
        columns = next((c for c in choices if set(c) <= set(row)), None)
        if columns is None:
            names = " and ".join(map(repr, min(choices, key=len)))
            raise UserError(
                f"A row that is a mapping must have the keys {names}. "
                f"Received: {', '.join(map(repr, row)) or 'none'}."
            )
        texts = [row[column] for column in columns]
    else:
        texts = [row] if isinstance(row, str) else row
    counts = sorted({len(columns) for columns in choices})
    if (
        not isinstance(texts, list | tuple)
        or len(texts) not in counts
        or not all(isinstance(text, str) and text.strip() for text in texts)
    ):
        expected = " or ".join(_NAMES_OF_ROWS[count] for count in counts)
        raise UserError(
            f"A row must be {expected}, not empty. Received: {row!r}."
        )
    return InputExample("", *texts)
