"""Texts to embed: tables and text files, without TensorFlow."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Self

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.examples import read_text
from bert_tf.tasks.classification.labels import parse_number
from bert_tf.tasks.task_files import TaskFiles

# The columns of texts to embed; the first that a file has is read.
TEXT_COLUMNS = ("text", "sentence")
# Those of files to train on: pairs with a score, and an anchor's texts.
_SCORED = ("text_a", "text_b", "score")
_GROUP = ("anchor", "positive", "negative")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsFiles(TaskFiles):
    """The files of embeddings: a text in each row."""

    kind: ClassVar[str] = "embeddings"

    name: str = "embeddings"

    def read(self, split: str) -> Sequence[InputExample]:
        """Reads the texts of a split."""
        return list(self.read_inputs(self.files[split]))

    def read_inputs(
        self, path: str, keep_empty: bool = False
    ) -> Iterator[InputExample]:
        """Returns the texts of a file; lines or columns of `TEXT_COLUMNS`.

        Raises:
          UserError: If the file is not a valid table or lacks a column, or a
            text is empty, unless that is allowed, or not a string.
        """
        columns = [Columns(x) for x in TEXT_COLUMNS]
        return classification_examples.read_texts(path, columns, keep_empty, "")


@dataclasses.dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts that are learned together.

    Attributes:
      texts: An anchor, a text that belongs to it, and maybe one that does not;
        or two texts with a score.
      score: The cosine of the two; None for an anchor's.
    """

    texts: tuple[str, ...]
    score: float | None = None

    @classmethod
    def parse(cls, where: str, values: Mapping[str, Any]) -> Self:
        """Returns the group of a row, column to value.

        Raises:
          UserError: If a text is empty, or a score is not from -1 to 1.
        """
        texts = [x for x in values if x != _SCORED[-1]]
        texts = tuple(read_text(where, values, column) for column in texts)
        if len(texts) == len(values):
            return cls(texts)
        score = parse_number(where, values[_SCORED[-1]])
        if not -1 <= score <= 1:
            raise UserError(
                f"{where} must have a score from -1 to 1, as cosines are. "
                f"Received: {score:g}; divide all by the greatest one."
            )
        return cls(texts, float(score))

    @classmethod
    def from_row(cls, row: Any) -> Self:
        """Returns the group of a Python value: texts, or a dictionary."""
        if isinstance(row, list | tuple) and len(row) <= len(_GROUP):
            row = dict(zip(_GROUP, row, strict=False))
        names = {*row} if isinstance(row, Mapping) else set()
        forms = (_GROUP, _GROUP[:2], _SCORED[:2])
        columns = next((x for x in forms if names.issuperset(x)), None)
        if columns is None:
            raise UserError(
                "A row must be two or three texts: an anchor, a positive and "
                f"maybe a negative. Received: {row!r:.80}."
            )
        return cls.parse("The row", {x: row[x] for x in columns})

    def with_score(self, score: Any) -> Self:
        """Returns the pair with its score."""
        if len(self.texts) != 2:
            raise UserError(
                "A score is for two texts. Received: "
                f"{score!r} for {len(self.texts)}."
            )
        values = dict(zip(_SCORED, (*self.texts, score), strict=True))
        return self.parse("The row", values)

    def to_json(self) -> dict[str, Any]:
        """Returns the row, column to value."""
        if self.score is None:
            return dict(zip(_GROUP, self.texts, strict=False))
        return dict(zip(_SCORED, (*self.texts, self.score), strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFiles(EmbeddingsFiles):
    """The files to train embeddings on: pairs, or triples, of texts."""

    def read(self, split: str) -> Sequence[TextGroup]:
        """Reads anchor, positive[, negative], or text_a, text_b and score.

        Raises:
          UserError: If the file is not a table of such columns, or as
            `TextGroup.parse`.
        """
        path = self.files[split]
        table = tables.read_table(path)
        forms = (_SCORED, _GROUP, _GROUP[:2])
        columns = next((x for x in forms if {*x} <= {*table.columns}), None)
        if columns is None:
            raise UserError(
                f"{path} must have the columns anchor and positive, maybe "
                "negative, or text_a, text_b and score. Received: "
                f"{', '.join(map(repr, table.columns))}; rename them."
            )
        groups = [
            TextGroup.parse(
                f"{path}, line {row.line}",
                {column: row.values.get(column) for column in columns},
            )
            for row in table.rows
        ]
        if columns != _SCORED and len({x.texts[1] for x in groups}) < 2:
            raise UserError(
                f"{path} must have at least two different positives, as those "
                "of other rows are what an anchor is told from."
            )
        return groups
