"""What run/finetune_classifier.py can be told."""

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
        help_text="cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, "
        "xnli, snli, or custom for own files."
    )
    data_dir: str | None = option(
        None, "The folder with the task's official files."
    )
    language: str | None = option(
        None,
        "XNLI's language (default: that of the model, if it is not trained "
        "now, else zh, as in the original).",
    )
    train_file: str | None = option(None, "custom: what to train on.")
    dev_file: str | None = option(None, "custom: what to score.")
    test_file: str | None = option(None, "custom: what to predict.")
    text_column: str | None = option(
        None, "custom: the column of the text (default: text)."
    )
    text_pair_column: str | None = option(
        None, "custom: the column of the second text of a pair."
    )
    label_column: str | None = option(
        None,
        "custom: the column of the label (default: label); several, with "
        "commas between, hold 0 or 1 each, of a multi_label problem.",
    )
    label_separator: str | None = option(
        None,
        "custom: what stands between the labels of a multi_label row (default: "
        "a comma).",
    )
    problem_type: str | None = option(
        None,
        "custom: what the labels are (default: single_label).",
        choices=("single_label", "multi_label", "regression"),
    )
    class_weights: str | None = option(
        None,
        "balanced, or label:weight,label:weight,...: how much the loss of an "
        "example with that label counts (default: 1).",
    )
    doc_stride: int | None = option(
        None,
        "Texts that are too long are read in windows that begin so many pieces "
        "after each other (default: they are truncated).",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the encoder and the head."
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
        given = [
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
                not given,
                f"{', '.join(given)}: these are for --task_name=custom; "
                f"{self.task_name} has its official files in --data_dir.",
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
        """Whether the user's own files are meant."""
        return self.task_name.lower() == "custom"
