"""Flags of run/finetune_classifier.py."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.checks import require_dropout
from bert_tf.flags.finetune import FinetuneConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(FinetuneConfig):
    """Flags of run/finetune_classifier.py."""

    task_name: str = option(
        help_text="Task: cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, "
        "wnli, ax, xnli, snli, or custom for your own files.",
        group="data",
    )
    data_dir: str | None = option(
        None,
        "Directory with the task's official files.",
        group="data",
        affects="place",
    )
    language: str | None = option(
        None,
        "Language for XNLI (default: the model's if it is only used; else "
        "zh, as in the original).",
        group="data",
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
    text_column: str | None = option(
        None, "custom: column of the text (default: text).", group="data"
    )
    text_pair_column: str | None = option(
        None, "custom: column of the second text of a pair.", group="data"
    )
    label_column: str | None = option(
        None,
        "custom: column of the label (default: label); for multi_label also "
        "several columns of 0 and 1, separated by commas.",
        group="data",
    )
    label_separator: str | None = option(
        None,
        "custom: separator between the labels of a multi_label row (default: "
        "a comma).",
        group="data",
    )
    problem_type: str | None = option(
        None,
        "custom: type of the labels (default: single_label).",
        group="data",
        choices=("single_label", "multi_label", "regression"),
    )
    class_weights: str | None = option(
        None,
        "Weight of each label in the loss: balanced, or "
        "label:weight,label:weight,... (default: 1 for each label).",
        group="training",
    )
    doc_stride: int | None = option(
        None,
        "Split long texts into windows that start this many tokens apart "
        "(default: truncate them).",
        group="data",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the encoder and the head.", group="training"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {
            name: getattr(self, name)
            for name in (
                "train_file",
                "dev_file",
                "test_file",
                "text_column",
                "text_pair_column",
                "label_column",
                "label_separator",
                "problem_type",
            )
        }
        set_flags = [
            f"--{name}" for name, value in own.items() if value is not None
        ]
        if self.is_custom:
            require(
                self.data_dir is None and self.language is None,
                "--data_dir and --language are for the tasks with official "
                "files; --task_name=custom takes --train_file, --dev_file and "
                "--test_file.",
            )
            self._require_own_files()
        else:
            require(
                not set_flags,
                f"{', '.join(set_flags)}: these are for --task_name=custom; "
                f"{self.task_name} reads its official files from --data_dir.",
            )
            require(
                self.data_dir is not None,
                f"--task_name={self.task_name} needs --data_dir, the folder "
                "with its official files.",
            )
        require_at_least(self, 1, "doc_stride")
        require_dropout(self, "head_dropout_prob")

    @property
    def is_custom(self) -> bool:
        """True if the task reads the user's own files."""
        return self.task_name.lower() == "custom"
