"""What run/finetune_multiple_choice.py can be told."""

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
        help_text="What to learn: a data set in --data_dir, or custom for own "
        "files.",
        choices=("swag", "codah", "comve_a", "comve_b", "custom"),
    )
    data_dir: str | None = option(
        None, "The folder with the task's official files."
    )
    train_file: str | None = option(None, "custom: what to train on.")
    dev_file: str | None = option(None, "custom: what to score.")
    test_file: str | None = option(None, "custom: what to predict.")
    context_column: str | None = option(
        None,
        "custom: the column of what the choices continue or answer (default: "
        "context); --context_column= if there is none.",
    )
    choice_columns: str | None = option(
        None,
        "custom: the columns of the choices, with commas between; a single "
        "one, of a .jsonl or .json file, holds lists of choices (default: "
        "choices).",
    )
    label_column: str | None = option(
        None,
        "custom: the column of the right choice, by its index from 0 or the "
        "name of its column (default: label).",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the encoder and the head."
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
            "--label_column must not be empty; a test set need not have it.",
        )
        columns = [
            *self.choices_of_flag(),
            *(x for x in (self.context_column, self.label_column) if x),
        ]
        require(
            len(set(columns)) == len(columns) and "" not in columns,
            "--choice_columns, --context_column and --label_column must each "
            f"name other columns. Received: {', '.join(map(repr, columns))}.",
        )

    def _check_official_files(self) -> None:
        given = [
            f"--{name}"
            for name in _OWN_CHOICE_FLAGS
            if getattr(self, name) is not None
        ]
        require(
            not given,
            f"{', '.join(given)}: these are for --task_name=custom; "
            f"{self.task_name} has its official files in --data_dir.",
        )
        require(
            self.data_dir is not None,
            f"--task_name={self.task_name} needs --data_dir, the folder with "
            "its official files.",
        )

    @property
    def is_custom(self) -> bool:
        """Whether the user's own files are meant."""
        return self.task_name == "custom"

    def choices_of_flag(self) -> tuple[str, ...]:
        """Returns the names in --choice_columns, none if it is not given."""
        if self.choice_columns is None:
            return ()
        return tuple(name.strip() for name in self.choice_columns.split(","))
