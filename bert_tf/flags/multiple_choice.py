"""Flags of run/finetune_multiple_choice.py."""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.finetune import NamedTaskConfig
from bert_tf.flags.options import require
from bert_tf.flags.options import require_dropout


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
    )
    choice_columns: str | None = options.data(
        None,
        "custom: columns of the choices, separated by commas; a single "
        "column of a .jsonl or .json file holds lists of choices (default: "
        "choices).",
    )
    label_column: str | None = options.data(
        None,
        "custom: column of the correct choice: its index from 0, or the name "
        "of its column (default: label).",
    )
    head_dropout_prob: float = options.training(
        0.1, "Dropout between the encoder and the head."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_custom:
            self._check_own_files()
        else:
            self._require_official_files(
                "context_column", "choice_columns", "label_column"
            )
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

    def choices_of_flag(self) -> tuple[str, ...]:
        """Returns the names in --choice_columns, none if it is not set."""
        if self.choice_columns is None:
            return ()
        return tuple(name.strip() for name in self.choice_columns.split(","))
