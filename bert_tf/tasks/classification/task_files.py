"""The files of classification, as task.json and the flags describe them."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Self

from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import tables
from bert_tf.tasks import confidence
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.glue_tasks import GlueTask
from bert_tf.tasks.classification.labels import Label
from bert_tf.tasks.classification.labels import ProblemType
from bert_tf.tasks.classification.labels import parse_name
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.tasks.task_files import SplitKey
from bert_tf.tasks.task_files import TaskFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationFiles(TaskFiles):
    """Files of texts; each text has a label, several labels or a score.

    Attributes:
      labels: The labels' names in the order of their ids; None for regression,
        and until the training data are read.
      problem_type: "single_label", "multi_label" or "regression".
      columns: The columns of a custom file; None if task.json has none.
      label_separator: The separator of the labels in a multi-label row.
      class_weights: The weight of each label; None if all are equal.
      official: The task with official files, or None.
      language: The language of the rows to read from XNLI's files.
      temperature: The divisor of the logits; None if none was fitted.
      thresholds: For each label of a multi-label task, the lowest probability
        that assigns the label; None for 0.5.
      reject_below: The lowest probability of an answer, or None for no limit.
      reject_label: The answer if no label reaches `reject_below`.
      calibrates: Whether temperature and thresholds are fitted on dev.
      reject_precision: The share of correct answers that a fitted
        `reject_below` must reach on dev; None without fitting.
    """

    kind: ClassVar[str] = "classification"

    name: str = "custom"
    labels: tuple[str, ...] | None = None
    problem_type: ProblemType = "single_label"
    columns: Columns | None = None
    label_separator: str = ","
    class_weights: tuple[float, ...] | None = None
    official: GlueTask | None = None
    language: str = "zh"
    temperature: float | None = None
    thresholds: tuple[float, ...] | None = None
    reject_below: float | None = None
    reject_label: str | None = None
    calibrates: bool = False
    reject_precision: float | None = None

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the constructor's arguments that task.json has.

        Without "problem_type", a model with one label is a regression, as in
        Hugging Face Transformers.
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
        if thresholds := values.get("thresholds"):
            arguments["thresholds"] = tuple(thresholds)
        has_names = labels is not None and not is_score
        return arguments | {
            "labels": tuple(labels) if has_names else None,
            "official": glue_tasks.TASKS.get(values.get("name", "custom")),
        }

    def read(self, split: str) -> Sequence[InputExample]:
        path = self.files[split]
        if self.official is not None:
            return classification_examples.read_official(
                self.official, path, split, self.language
            )
        labels = self.labels
        if labels and self.reject_label and split != TRAIN:
            labels = (*labels, self.reject_label)
        return classification_examples.read_examples(
            path,
            self.columns,
            self.problem_type,
            labels,
            may_lack_labels=split.startswith(TEST),
            label_separator=self.label_separator,
        )

    def confidence(self) -> dict[str, Any]:
        """Returns the values of `confidence.FIELDS` that are set."""
        values = {x: getattr(self, x) for x in confidence.FIELDS}
        if self.thresholds is not None:
            values["thresholds"] = [*self.thresholds]
        return {name: x for name, x in values.items() if x is not None}

    def with_threshold(self, stored: Mapping[str, Any]) -> Self:
        """Returns the files with unset `confidence.FIELDS` from task.json."""
        known = self.stored({**stored, **self.confidence()})
        values = {x: known.get(x) for x in confidence.FIELDS}
        return dataclasses.replace(self, **values)

    def may_calibrate(self, config: Flags) -> bool:
        """Returns True if training on custom labels can fit a calibration.

        This needs a dev set, or the cross-validation of few-shot training.
        """
        is_own = self.official is None and self.problem_type != "regression"
        has_fit = config.do_eval or getattr(config, "few_shot", False)
        return is_own and config.do_train and has_fit

    def with_confidence(self, config: Flags) -> Self:
        """Returns the files, changed by the calibration and rejection flags.

        Raises:
          UserError: If the flags do not fit the task.
        """
        calibrates, label = config.calibrate, self.reject_label
        if calibrates is None:
            calibrates = self.may_calibrate(config)
        fits = self.problem_type != "regression" or not calibrates
        if config.reject_below or config.reject_precision:
            fits = self.problem_type == "single_label"
            label = config.reject_label or label or confidence.REJECT_LABEL
            label = parse_name("--reject_label", label)
            options.require(
                label not in (self.labels or ()),
                "--reject_label is for texts that no label fits, so it cannot "
                f"be a label. Received: {label!r}; choose another.",
            )
        expected = "--calibrate is for labels"
        if self.problem_type == "multi_label" or not calibrates:
            rejects = "--reject_below and --reject_precision"
            expected = f"{rejects} need one label of each text"
        options.require(
            fits,
            f"{expected}. Received: --problem_type={self.problem_type}; drop "
            "what cannot be used.",
        )
        return dataclasses.replace(
            self,
            calibrates=calibrates,
            reject_below=config.reject_below or self.reject_below,
            reject_label=label,
            reject_precision=config.reject_precision,
        )

    def with_labels_of(self, path: str) -> Self:
        """Returns the files with the labels of a training set, if unknown.

        Evaluation needs the training set if the model does not name its labels.
        """
        if self.labels is not None or self.problem_type == "regression":
            return self
        training = dataclasses.replace(self, files={TRAIN: path}).load(TRAIN)
        found = training.data[TRAIN].examples
        return dataclasses.replace(
            self,
            labels=classification_examples.gather_labels(found, path),
            data=training.data,
        )

    def split_keys(self, examples: Sequence[Any]) -> list[SplitKey]:
        def labels(label: Label | None) -> tuple[str, ...]:
            if label is None or self.problem_type == "regression":
                return ()
            return label if isinstance(label, tuple) else (label,)

        return [
            SplitKey((x.text_a, x.text_b), labels(x.label)) for x in examples
        ]

    def read_inputs(
        self, path: str, keep_empty: bool | None = None
    ) -> Iterator[InputExample]:
        """Yields the texts of a file; see `read_text` for `keep_empty`.

        Empty texts of official tasks are always kept, as in the original.
        """
        if self.official is None:
            choices = self.column_choices
            yield from classification_examples.read_texts(
                path, choices, keep_empty
            )
            return
        table = self.read_table(path)
        columns = classification_examples.official_columns(self.official, table)
        for row in table.rows:
            yield classification_examples.make_example(
                path, row, columns, keep_empty=True
            )

    def read_table(self, path: str) -> tables.Table | None:
        if self.official is not None:
            return classification_examples.read_official_table(
                self.official, path
            )
        return super().read_table(path)

    @property
    def column_choices(self) -> Sequence[Columns]:
        """The columns that a file to predict may have."""
        if self.columns is None:
            return classification_examples.USUAL_COLUMNS
        return (self.columns,)
