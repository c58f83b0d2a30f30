"""Texts to embed: tables and text files, without TensorFlow."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.examples import read_text
from bert_tf.tasks.classification.labels import parse_number
from bert_tf.tasks.task_files import TRAIN
from bert_tf.tasks.task_files import SplitKey
from bert_tf.tasks.task_files import TaskFiles

# Names of the column to embed; the first name that a file has is read.
TEXT_COLUMNS = ("text", "sentence")
# A training file has scored pairs of texts, or anchors with further texts.
SCORE = "score"
_SCORED = ("text_a", "text_b", SCORE)
_GROUP = ("anchor", "positive", "negative")
_FORMS = (_SCORED, _GROUP, _GROUP[:2])
_COLUMNS = {*_SCORED, *_GROUP}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsFiles(TaskFiles):
    """Files of texts to embed, one text in each row."""

    kind: ClassVar[str] = "embeddings"

    name: str = "embeddings"

    def read(self, split: str) -> Sequence[InputExample]:
        """Reads the texts of a split."""
        return list(self.read_inputs(self.files[split]))

    def read_inputs(
        self, path: str, keep_empty: bool | None = None
    ) -> Iterator[InputExample]:
        """Returns the texts of a file: its lines, or one of `TEXT_COLUMNS`."""
        columns = [Columns(x) for x in TEXT_COLUMNS]
        return classification_examples.read_texts(path, columns, keep_empty)

    def example_from_row(self, row: Any) -> InputExample:
        """Converts a text, or a mapping with one of `TEXT_COLUMNS`."""
        choices = [(column,) for column in TEXT_COLUMNS]
        return classification_examples.parse_row(row, choices)


class Pair(dict):
    """An example as a dictionary of columns, with its line in the file."""

    line: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFiles(EmbeddingsFiles):
    """The files to train embeddings on; an example is a dictionary of columns.

    Columns are anchor, positive and maybe negative; or text_a, text_b, score.
    """

    def read(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Reads groups of texts.

        Raises:
          UserError: If the file is not a table with these columns, if a row is
            invalid (`parse`), or if there are no negatives to choose from.
        """
        path = self.files[split]
        table = tables.read_table(path)
        columns = choose_columns(path, table.columns, _FORMS)
        examples = []
        for row in table.rows:
            where = f"{path}, line {row.line}"
            for name in (_COLUMNS - {*columns}) & row.values.keys():
                raise UserError(
                    f"{where} has a {name}, which the first row lacks; give "
                    "one to all rows or to none."
                )
            examples.append(Pair(parse(where, row.values, columns)))
            examples[-1].line = row.line
        if SCORE not in columns:
            require_negatives(path, map(texts_of, examples), split == TRAIN)
        return examples

    def split_keys(self, examples: Sequence[Any]) -> list[SplitKey]:
        return [SplitKey(texts_of(example)[0]) for example in examples]

    def example_from_row(self, row: Any) -> dict[str, Any]:
        """Returns the example of a Python value: texts, or a dictionary."""
        if isinstance(row, list | tuple):
            row = dict(zip((*_GROUP, SCORE), row, strict=False))
        names = row if isinstance(row, Mapping) else ()
        # A pair may have no score yet, because `add_label` can add it later.
        columns = choose_columns("A row", names, (*_FORMS, _SCORED[:2]))
        return parse("The row", row, columns)

    def add_label(self, example: Mapping[str, Any], label: Any) -> Any:
        """Returns the pair with its score; unchanged if the label is None."""
        if label is None:
            return example
        names = (*_SCORED[:2], _GROUP[2])
        texts = dict(zip(names, texts_of(example), strict=False))
        return self.example_from_row({**texts, SCORE: label})


def require_negatives(
    where: str, groups: Iterable[Sequence[Any]], is_training: bool = True
) -> None:
    """Raises `UserError` if anchors can choose nothing but their positives.

    Without negatives, an anchor's negatives are the positives of other anchors.
    So the loss of a single pair, or of a single anchor's pairs, would be 0.
    """
    anchors, positives, *negatives = zip(*groups, strict=True)
    columns = {"positive": positives}
    if is_training:  # On dev, a single anchor is enough.
        columns = {} if negatives else columns | {"anchor": anchors}
    for name, texts in columns.items():
        if len({*texts}) < 2:
            raise UserError(
                f"{where} must have at least two different {name}s, as the "
                "positives of other anchors are an anchor's negatives."
            )


def choose_columns(
    where: str, names: Iterable[str], forms: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the entry of `forms` that equals the `_COLUMNS` in `names`."""
    columns = next((x for x in forms if {*x} == _COLUMNS & {*names}), None)
    if columns is None:
        raise UserError(
            f"{where} must have anchor, positive and maybe negative, or "
            "text_a, text_b and score, but no column of both. Received: "
            f"{', '.join(names) or 'none'}."
        )
    return columns


def parse(
    where: str, values: Mapping[str, Any], columns: Iterable[str]
) -> dict[str, Any]:
    """Returns a row's values in `columns`, as an example.

    Raises:
      UserError: If a text is empty, or a score is not from -1 to 1.
    """
    example = {
        x: parse_number(where, values.get(x))
        if x == SCORE
        else read_text(where, values, x)
        for x in columns
    }
    if not -1 <= example.get(SCORE, 0) <= 1:
        raise UserError(
            f"{where} must have a score from -1 to 1, as cosines are. "
            f"Received: {example[SCORE]:g}; divide all by the greatest one."
        )
    return example


def texts_of(example: Mapping[str, Any]) -> list[str]:
    """Returns the texts of an example."""
    return [value for column, value in example.items() if column != SCORE]
