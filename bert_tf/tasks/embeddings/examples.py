"""Texts to embed: tables and text files, without TensorFlow."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import ClassVar

from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.task_files import TaskFiles

# The columns of texts to embed; the first that a file has is read.
TEXT_COLUMNS = ("text", "sentence")


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
