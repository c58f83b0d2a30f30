"""Flags of run/finetune_multiple_choice.py."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_dropout
from bert_tf.flags.finetune import FinetuneConfig

_OWN_CHOICE_FLAGS = (
    "train_file",
    "dev_file",
    "test_file",
    "context_column",
    "choice_columns",
    "label_column",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceConfig(FinetuneConfig):
    """Flags of run/finetune_multiple_choice.py."""

    task_name: str = option(
        help_text="Task: a data set in --data_dir, or custom for your own "
        "files.",
        group="data",
        choices=("swag", "codah", "comve_a", "comve_b", "custom"),
    )
    data_dir: str | None = option(
        None,
        "Directory with the task's official files.",
        group="data",
        affects="place",
    )
    train_file: str | None = option(
        None, "custom: training set.", group="data", affects="place"
    )
    dev_file: str | None = option(
        None, "custom: dev set.", group="data", affects="place"
    )
    test_file: str | None = option(
        None, "custom: test set.", group="data", affects="nothing"
    )
    context_column: str | None = option(
        None,
        "custom: column of the text that the choices continue or answer "
        "(default: context); --context_column= if there is none.",
        group="data",
    )
    choice_columns: str | None = option(
        None,
        "custom: columns of the choices, separated by commas; a single "
        "column of a .jsonl or .json file holds lists of choices (default: "
        "choices).",
        group="data",
    )
    label_column: str | None = option(
        None,
        "custom: column of the correct choice: its index from 0, or the name "
        "of its column (default: label).",
        group="data",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the encoder and the head.", group="training"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_custom:
            self._check_own_files()
        else:
            self._check_official_files()
        require_dropout(self, "head_dropout_prob")

    def _check_own_files(self) -> None:
        require(
            self.data_dir is None,
            "--data_dir is for the tasks with official files; "
            "--task_name=custom takes --train_file, --dev_file and "
            "--test_file.",
        )
        self._require_own_files()
        require(
            self.label_column != "",
            "--label_column must not be empty; a test set may lack it.",
        )
        columns = [
            *self.choices_of_flag(),
            *(x for x in (self.context_column, self.label_column) if x),
        ]
        require(
            len(set(columns)) == len(columns) and "" not in columns,
            "--choice_columns, --context_column and --label_column must name "
            "different columns. Received: "
            f"{', '.join(map(repr, columns))}.",
        )

    def _check_official_files(self) -> None:
        set_flags = [
            f"--{name}"
            for name in _OWN_CHOICE_FLAGS
            if getattr(self, name) is not None
        ]
        require(
            not set_flags,
            f"{', '.join(set_flags)}: these are for --task_name=custom; "
            f"{self.task_name} reads its official files from --data_dir.",
        )
        require(
            self.data_dir is not None,
            f"--task_name={self.task_name} needs --data_dir, the folder with "
            "its official files.",
        )

    @property
    def is_custom(self) -> bool:
        """True if the task reads the user's own files."""
        return self.task_name == "custom"

    def choices_of_flag(self) -> tuple[str, ...]:
        """Returns the names in --choice_columns, none if it is not set."""
        if self.choice_columns is None:
            return ()
        return tuple(name.strip() for name in self.choice_columns.split(","))
