"""The files of multiple choice: SWAG, CODAH, ComVE and own tables."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

from absl import logging

from bert_tf.io import tables
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TaskFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceFiles(TaskFiles):
    """Files of contexts with choices.

    Attributes:
      columns: The columns of the files.
    """

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
        path = self.files[split]
        examples = multiple_choice_examples.read_examples(
            path,
            self.columns,
            may_lack_labels=split.startswith(TEST),
            columns_without_header=self._columns_without_header,
            name_flags=self.name not in multiple_choice_examples.OFFICIAL,
        )
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
        return examples

    def read_inputs(self, path: str) -> Iterator[MultipleChoiceExample]:
        return multiple_choice_examples.read_inputs(
            path, self.columns, self._columns_without_header
        )

    def read_table(self, path: str) -> tables.Table | None:
        return tables.read_table(
            path, columns_without_header=self._columns_without_header
        )

    @property
    def _columns_without_header(self) -> tuple[str, ...]:
        official = multiple_choice_examples.OFFICIAL.get(self.name)
        return official.columns_without_header if official else ()
