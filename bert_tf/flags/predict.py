"""Flags of the scripts that use a model, except run/serve.py."""

import dataclasses

from bert_tf.config import IGNORED
from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.devices import DeviceConfig


@dataclasses.dataclass(frozen=True)
class FillMaskConfig:
    """Flags of run/fill_mask.py."""

    model_dir: str = option(
        help_text="Model of any format, with its vocabulary.", group="model"
    )
    text: str = option(help_text="Text with one or more [MASK].", group="data")
    top_k: int = option(
        5, "Candidates per [MASK].", group="evaluation and prediction"
    )

    def __post_init__(self) -> None:
        require_at_least(self, 1, "top_k")


@dataclasses.dataclass(frozen=True)
class ExtractFeaturesConfig:
    """Flags of run/extract_features.py; all but the last are the original's.

    --model_dir and --init_checkpoint both accept a model of any format; the
    original's flags name the files that are not next to it.
    """

    input_file: str = option(
        help_text="One text per line; ' ||| ' separates the two texts of a "
        "pair.",
        group="data",
    )
    output_file: str = option(
        help_text="JSON lines to write, in the original's format.",
        group="output",
    )
    layers: str = option(
        "-1,-2,-3,-4",
        "Layers to write, separated by commas.",
        group="evaluation and prediction",
    )
    bert_config_file: str | None = option(
        None,
        "Model configuration (default: the one next to the model).",
        group="model",
    )
    max_seq_length: int = option(
        128, "Maximum sequence length, in tokens.", group="data"
    )
    init_checkpoint: str | None = option(
        None, "Model: any format, or a checkpoint's prefix.", group="model"
    )
    vocab_file: str | None = option(
        None,
        "Vocabulary, one token a line (default: the model's).",
        group="model",
    )
    do_lower_case: bool = option(True, "Lower-case the text.", group="data")
    batch_size: int = option(32, "Texts computed at once.", group="hardware")
    use_tpu: bool = option(
        False, "Accepted for compatibility; ignored.", group=IGNORED
    )
    master: str | None = option(
        None, "Accepted for compatibility; ignored.", group=IGNORED
    )
    num_tpu_cores: int | None = option(
        None, "Accepted for compatibility; ignored.", group=IGNORED
    )
    use_one_hot_embeddings: bool = option(
        False, "Accepted for compatibility; ignored.", group=IGNORED
    )
    model_dir: str | None = option(
        None,
        "Model of any format; replaces --bert_config_file, --init_checkpoint "
        "and --vocab_file.",
        group="model",
    )

    def __post_init__(self) -> None:
        require_at_least(self, 3, "max_seq_length")
        require_at_least(self, 1, "batch_size")
        trio = (self.bert_config_file, self.init_checkpoint, self.vocab_file)
        if self.model_dir:
            require(
                not any(trio),
                "--model_dir replaces --bert_config_file, --init_checkpoint "
                "and --vocab_file. Received both; drop one.",
            )
        else:
            require(
                bool(self.init_checkpoint),
                "Give --model_dir, or --init_checkpoint with "
                "--bert_config_file and --vocab_file unless these are next to "
                "it.",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PredictionConfig(DeviceConfig):
    """Flags of all scripts that predict with fine-tuned models."""

    batch_size: int = option(32, "Rows computed at once.", group="hardware")
    num_length_buckets: int = option(
        0,
        "Lengths that batches are padded to: 0 uses every multiple of 8; 1 "
        "pads all to the model's max_seq_length, as the original does; "
        "larger numbers choose the lengths with the least padding (for TPUs, "
        "which compile each).",
        group="hardware",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "batch_size")
        require_at_least(self, 0, "num_length_buckets")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(_PredictionConfig):
    """Flags of run/predict.py."""

    model_dir: str = option(
        help_text="Fine-tuned model of any format, with its vocabulary.",
        group="model",
    )
    input_file: str = option(
        help_text="Rows to predict, with the columns of the training data: "
        ".csv, .tsv, .jsonl, .json, .txt or .conll, each also .gz. Labels "
        "are not read.",
        group="data",
    )
    output_file: str = option(
        help_text="JSON lines to write: one object per row, in the input's "
        "order.",
        group="output",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSubmissionConfig(_PredictionConfig):
    """Flags of run/glue_submission.py."""

    model_dirs: str = option(
        help_text="Fine-tuned models, one for each task: comma-separated "
        "globs of directories. Each one's task is read from its files.",
        group="model",
    )
    glue_dir: str = option(
        help_text="Directory with GLUE's folders: CoLA, SST-2, MNLI, AX, ...",
        group="data",
    )
    output_file: str = option(
        "submission.zip",
        "Zip file to write, for the leaderboard.",
        group="output",
    )
    allow_missing_tasks: bool = option(
        False,
        "Omit tasks without a model or a folder; the leaderboard does not "
        "accept such a file.",
        group="output",
    )
