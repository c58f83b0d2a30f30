"""Flags of run/finetune_classifier.py and finetune_multiple_choice.py."""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTaskConfig(FinetuneConfig):
    """Flags of scripts whose --task_name is a data set, or custom files."""

    task_name: str = options.data(help_text="Task, or custom.")
    data_dir: str | None = options.data(
        None,
        "Directory with the task's official files.",
        affects="place",
        reads="folder",
        not_with="task_name=custom",
    )
    train_file: str | None = options.data(
        None,
        "custom: training set.",
        affects="place",
        reads="file",
        needs="task_name=custom",
    )
    dev_file: str | None = options.data(
        None,
        "custom: dev set.",
        affects="place",
        reads="file",
        needs="task_name=custom",
    )
    test_file: str | None = options.data(
        None,
        "custom: test set.",
        affects="nothing",
        reads="file",
        needs="task_name=custom",
    )

    @property
    def is_custom(self) -> bool:
        """True if the task reads the user's own files."""
        return self.task_name.lower() == "custom"

    def check(self) -> None:
        super().check()
        if self.is_custom:
            self._require_own_files()
        options.require(
            self.is_custom or self.data_dir is not None,
            f"--task_name={self.task_name} needs --data_dir, the folder with "
            "its official files.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(NamedTaskConfig):
    """Flags of run/finetune_classifier.py."""

    task_name: str = options.data(
        help_text="Task: cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, "
        "wnli, ax, xnli, snli, or custom for your own files."
    )
    language: str | None = options.data(
        None,
        "Language for XNLI (default: the model's if it is only used; else "
        "zh, as in the original).",
        not_with="task_name=custom",
    )
    text_column: str | None = options.data(
        None,
        "custom: column of the text (default: text).",
        needs="task_name=custom",
    )
    text_pair_column: str | None = options.data(
        None,
        "custom: column of the second text of a pair.",
        needs="task_name=custom",
    )
    label_column: str | None = options.data(
        None,
        "custom: column of the label (default: label); for multi_label also "
        "several columns of 0 and 1, separated by commas.",
        needs="task_name=custom",
    )
    label_separator: str | None = options.data(
        None,
        "custom: separator between the labels of a multi_label row (default: "
        "a comma).",
        needs="task_name=custom",
    )
    problem_type: str | None = options.data(
        None,
        "custom: type of the labels (default: single_label).",
        choices=("single_label", "multi_label", "regression"),
        needs="task_name=custom",
    )
    class_weights: str | None = options.training(
        None,
        "Weight of each label in the loss: balanced, or "
        "label:weight,label:weight,... (default: 1 for each label).",
    )
    doc_stride: int | None = options.data(
        None,
        "Split long texts into windows that start this many tokens apart "
        "(default: truncate them).",
        at_least=1,
    )
    head_dropout_prob: float = options.training(
        0.1, "Dropout between the encoder and the head.", at_least=0, below=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceConfig(NamedTaskConfig):
    """Flags of run/finetune_multiple_choice.py."""

    task_name: str = options.data(
        help_text="Task: a data set in --data_dir, or custom for your own "
        "files.",
        choices=("swag", "codah", "comve_a", "comve_b", "custom"),
    )
    context_column: str | None = options.data(
        None,
        "custom: column of the text that the choices continue or answer "
        "(default: context); --context_column= if there is none.",
        needs="task_name=custom",
    )
    choice_columns: str | None = options.data(
        None,
        "custom: columns of the choices, separated by commas; a single "
        "column of a .jsonl or .json file holds lists of choices (default: "
        "choices).",
        needs="task_name=custom",
    )
    label_column: str | None = options.data(
        None,
        "custom: column of the correct choice: its index from 0, or the name "
        "of its column (default: label).",
        needs="task_name=custom",
    )
    head_dropout_prob: float = options.training(
        0.1, "Dropout between the encoder and the head.", at_least=0, below=1
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.label_column != "",
            "--label_column must not be empty; a test set may lack it.",
        )
        columns = [
            *self.choices_of_flag(),
            *(x for x in (self.context_column, self.label_column) if x),
        ]
        options.require(
            len(set(columns)) == len(columns) and "" not in columns,
            "--choice_columns, --context_column and --label_column must name "
            "different columns. Received: "
            f"{', '.join(map(repr, columns))}.",
        )

    def choices_of_flag(self) -> tuple[str, ...]:
        """Returns the names in --choice_columns, none if it is not set."""
        if self.choice_columns is None:
            return ()
        return tuple(name.strip() for name in self.choice_columns.split(","))
