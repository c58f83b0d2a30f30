"""Flags of run/finetune_classifier.py."""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.finetune import NamedTaskConfig
from bert_tf.flags.options import require
from bert_tf.flags.options import require_at_least
from bert_tf.flags.options import require_dropout


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
    )
    text_column: str | None = options.data(
        None, "custom: column of the text (default: text)."
    )
    text_pair_column: str | None = options.data(
        None, "custom: column of the second text of a pair."
    )
    label_column: str | None = options.data(
        None,
        "custom: column of the label (default: label); for multi_label also "
        "several columns of 0 and 1, separated by commas.",
    )
    label_separator: str | None = options.data(
        None,
        "custom: separator between the labels of a multi_label row (default: "
        "a comma).",
    )
    problem_type: str | None = options.data(
        None,
        "custom: type of the labels (default: single_label).",
        choices=("single_label", "multi_label", "regression"),
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
    )
    head_dropout_prob: float = options.training(
        0.1, "Dropout between the encoder and the head."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_custom:
            require(
                self.data_dir is None and self.language is None,
                "--data_dir and --language are for the tasks with official "
                "files; --task_name=custom takes --train_file, --dev_file and "
                "--test_file.",
            )
            self._require_own_files()
        else:
            self._require_official_files(
                "text_column",
                "text_pair_column",
                "label_column",
                "label_separator",
                "problem_type",
            )
        require_at_least(self, 1, "doc_stride")
        require_dropout(self, "head_dropout_prob")
