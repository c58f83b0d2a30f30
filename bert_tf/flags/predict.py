"""What the scripts that use a model can be told, the server apart."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.devices import DeviceConfig


@dataclasses.dataclass(frozen=True)
class FillMaskConfig:
    """Flags of run/fill_mask.py."""

    model_dir: str = option(
        help_text="A model of any format, with its vocabulary."
    )
    text: str = option(help_text="Text with one or more [MASK].")
    top_k: int = option(5, "Candidates per [MASK].")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "top_k")


@dataclasses.dataclass(frozen=True)
class ExtractFeaturesConfig:
    """Flags of run/extract_features.py; all but the last are the original's.

    A model of any format may stand in --model_dir as in --init_checkpoint; the
    original's flags are needed where it lies without what they name.
    """

    input_file: str = option(
        help_text="One text a line; ' ||| ' stands between the two of a pair."
    )
    output_file: str = option(help_text="JSON lines in the original's form.")
    layers: str = option("-1,-2,-3,-4", "Layers to write.")
    bert_config_file: str | None = option(
        None, "The shape of the model (default: what lies beside it)."
    )
    max_seq_length: int = option(128, "Longest sequence, in pieces.")
    init_checkpoint: str | None = option(
        None, "The model to read: of any format, or a checkpoint's prefix."
    )
    vocab_file: str | None = option(
        None, "The vocabulary, one piece a line (default: the model's)."
    )
    do_lower_case: bool = option(True, "Whether to lower-case the text.")
    batch_size: int = option(32, "Texts computed at once.")
    use_tpu: bool = option(False, "Of the original; has no meaning now.")
    master: str | None = option(None, "Of the original; has no meaning now.")
    num_tpu_cores: int | None = option(
        None, "Of the original; has no meaning now."
    )
    use_one_hot_embeddings: bool = option(
        False, "Of the original; has no meaning now."
    )
    model_dir: str | None = option(
        None,
        "A model of any format, in place of --bert_config_file, "
        "--init_checkpoint and --vocab_file.",
    )

    def __post_init__(self) -> None:
        require_at_least(self, 3, "max_seq_length")
        require_at_least(self, 1, "batch_size")
        trio = (self.bert_config_file, self.init_checkpoint, self.vocab_file)
        if self.model_dir:
            require(
                not any(trio),
                "--model_dir takes the place of --bert_config_file, "
                "--init_checkpoint and --vocab_file. Received both; drop one.",
            )
        else:
            require(
                bool(self.init_checkpoint),
                "Give --model_dir, or --init_checkpoint with "
                "--bert_config_file and --vocab_file unless they lie beside "
                "it.",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PredictionConfig(DeviceConfig):
    """What scripts that predict with fine-tuned models have in common."""

    batch_size: int = option(32, "Rows computed at once.")
    num_length_buckets: int = option(
        0,
        "Lengths that batches are padded to: 0 takes every multiple of 8, 1 "
        "pads all to the model's max_seq_length as the original does, others "
        "choose the lengths with the least padding (for TPUs, which compile "
        "each).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "batch_size")
        require_at_least(self, 0, "num_length_buckets")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(_PredictionConfig):
    """Flags of run/predict.py."""

    model_dir: str = option(
        help_text="A fine-tuned model of any format, with its vocabulary."
    )
    input_file: str = option(
        help_text="What to predict, with the columns of the training data: "
        ".csv, .tsv, .jsonl, .json, .txt or .conll, each also .gz. Labels are "
        "not read."
    )
    output_file: str = option(
        help_text="JSON lines: one object for each row, in the input's order."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSubmissionConfig(_PredictionConfig):
    """Flags of run/glue_submission.py."""

    model_dirs: str = option(
        help_text="The fine-tuned models, one for each task: comma-separated "
        "globs of directories. Each says itself which task it is for."
    )
    glue_dir: str = option(
        help_text="The folder with GLUE's folders: CoLA, SST-2, MNLI, AX, ..."
    )
    output_file: str = option(
        "submission.zip", "The zip file for the leaderboard."
    )
    allow_missing_tasks: bool = option(
        False,
        "Whether tasks without a model or a folder are left out; the "
        "leaderboard takes no such file.",
    )
