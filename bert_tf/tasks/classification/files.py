"""The files of classification: own tables, and those of GLUE."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Self

from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.labels import ProblemType
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.tasks.task_files import TaskFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationFiles(TaskFiles):
    """Files of texts with a label, labels or a score for each.

    Attributes:
      labels: Their names in the order of their ids; None for regression, and
        until the training data are read.
      problem_type: "single_label", "multi_label" or "regression".
      columns: The columns of a custom file; None for a model that does not
        name them.
      label_separator: The separator of the labels in a multi-label row.
      class_weights: The weight of each label; None if all are equal.
      official: The task with official files, or None.
      language: The language of the rows to read from XNLI's files.
    """

    kind: ClassVar[str] = "classification"

    name: str = "custom"
    labels: tuple[str, ...] | None = None
    problem_type: ProblemType = "single_label"
    columns: Columns | None = None
    label_separator: str = ","
    class_weights: tuple[float, ...] | None = None
    official: glue_tasks.GlueTask | None = None
    language: str = "zh"

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that task.json has, without defaults.

        Without a type, a model with one label is a regression, as in Hugging
        Face Transformers.
        """
        arguments = super().stored(values)
        labels, columns = values.get("labels"), values.get("columns")
        if labels is not None and len(labels) == 1:
            arguments.setdefault("problem_type", "regression")
        is_score = arguments.get("problem_type") == "regression"
        if columns is not None:
            columns = columns | {"labels": tuple(columns.get("labels", ()))}
            arguments["columns"] = Columns(**columns)
        if weights := values.get("class_weights"):
            arguments["class_weights"] = tuple(weights)
        has_names = labels is not None and not is_score
        return arguments | {
            "labels": tuple(labels) if has_names else None,
            "official": glue_tasks.TASKS.get(values.get("name", "custom")),
        }

    def read(self, split: str) -> Sequence[InputExample]:
        path = self.files[split]
        if self.official is not None:
            return glue.read_split(self.official, path, split, self.language)
        return classification_examples.read_examples(
            path,
            self.columns,
            self.problem_type,
            self.labels,
            may_lack_labels=split.startswith(TEST),
            label_separator=self.label_separator,
        )

    def with_labels_of(self, path: str) -> Self:
        """Returns the files with the labels of a training set, if not known.

        They are also read to evaluate a model that does not name its labels.
        """
        if self.labels is not None or self.problem_type == "regression":
            return self
        training = dataclasses.replace(self, files={TRAIN: path}).load(TRAIN)
        examples = training.data[TRAIN].examples
        return dataclasses.replace(
            self,
            labels=classification_examples.gather_labels(examples, path),
            data=training.data,
        )

    def read_inputs(
        self, path: str, keep_empty: bool = False
    ) -> Iterator[InputExample]:
        """Yields the texts of a file with the columns of the training data.

        `keep_empty` yields empty texts, too, instead of refusing them.
        """
        if self.official is not None:
            return glue.read_texts(self.official, path)
        return classification_examples.read_texts(
            path, self.column_choices, keep_empty
        )

    def read_table(self, path: str) -> tables.Table | None:
        if self.official is not None:
            return glue.read_input_table(self.official, path)
        return super().read_table(path)

    @property
    def column_choices(self) -> Sequence[Columns]:
        """The columns that a file to predict may have."""
        if self.columns is None:
            return classification_examples.USUAL_COLUMNS
        return (self.columns,)
