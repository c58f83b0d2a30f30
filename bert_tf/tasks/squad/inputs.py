"""Questions about paragraphs as users have them."""

import json
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.io import text_lines
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.examples import SquadExample

QUESTION, CONTEXT, ID = "question", "context", "id"


def read_questions(path: str) -> Iterator[SquadExample]:
    """Yields the questions of a file; answers are not asked for.

    Args:
      path: A SQuAD file, .json or .json.gz; or a .csv, .tsv or .jsonl file, or
        .json with a list or an object a line, with the columns "question",
        "context" and, if rows have a name, "id", which is read row by row.
        Others are named by their file and line.

    Raises:
      UserError: If the file is neither, or a question or context of a row is
        empty; those of SQuAD files may be, as in the original.
    """
    if tables.file_ending(path) == ".json" and not _has_rows(path):
        read = squad_examples.read_squad_examples(
            path, is_training=False, with_answers=False
        )
        yield from read.examples
        return
    table = tables.read_table(path)
    columns = (QUESTION, CONTEXT)
    table.require(columns)
    for row in table.rows:
        texts = classification_examples.make_example(path, row, columns)
        qas_id = row.values.get(ID)
        yield squad_examples.make_example(
            texts.guid if qas_id in (None, "") else str(qas_id),
            texts.text_a,
            texts.text_b,
        )


def _has_rows(path: str) -> bool:
    """Returns whether a JSON file holds a list, or an object a line."""
    lines = (line.strip() for _, line in text_lines.read_lines(path))
    first = next(filter(None, lines), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):  # Perhaps it goes on below.
        return first.startswith("[")
    return isinstance(value, list) or (
        isinstance(value, dict) and QUESTION in value
    )


def parse_question(row: Any) -> SquadExample:
    """Returns the question that a value of a Python program means.

    Args:
      row: {"question": ..., "context": ...}, maybe with an "id", or the pair
        (question, context).

    Raises:
      UserError: If it is neither, or a text is empty.
    """
    values = row
    if isinstance(row, tuple | list) and len(row) == 2:
        values = dict(zip((QUESTION, CONTEXT), row, strict=True))
    texts = []
    for name in (QUESTION, CONTEXT):
        text = values.get(name) if isinstance(values, Mapping) else None
        if not isinstance(text, str) or not text.strip():
            raise UserError(
                "Expected a pair (question, context) or {'question': ..., "
                "'context': ...}, texts that are not empty. Received: "
                f"{row!r:.80}."
            )
        texts.append(text)
    qas_id = values.get(ID)
    return squad_examples.make_example(
        "" if qas_id is None else str(qas_id), *texts
    )
