"""Flags of the scripts that use a model, except serve.py."""

import dataclasses
import os

from bert_tf.flags import options
from bert_tf.flags.devices import DeviceConfig
from bert_tf.flags.model_source import ModelSourceConfig

# Endings of tables that run/predict.py writes, and of some that it does not.
_TABLES = (".csv", ".tsv")
_NOT_WRITTEN = (".gz", ".xls", ".xlsx", ".ods", ".parquet", ".feather", ".zip")


@dataclasses.dataclass(frozen=True)
class FillMaskConfig(ModelSourceConfig):
    """Flags of run/fill_mask.py."""

    model_dir: str = options.model(
        help_text="Model of any format, with its vocabulary.", reads="model"
    )
    text: str = options.data(help_text="Text with one or more [MASK].")
    top_k: int = options.evaluation(5, "Candidates per [MASK].", at_least=1)


@dataclasses.dataclass(frozen=True)
class ExtractFeaturesConfig(ModelSourceConfig):
    """Flags of run/extract_features.py; all but the last are the original's.

    --model_dir and --init_checkpoint both accept a model of any format; the
    original's flags name the files that are not next to it.
    """

    input_file: str = options.data(
        help_text="One text per line; ' ||| ' separates the two texts of a "
        "pair.",
        reads="file",
    )
    output_file: str = options.output(
        help_text="JSON lines to write, in the original's format."
    )
    layers: str = options.evaluation(
        "-1,-2,-3,-4",
        "Layers to write, separated by commas; of the default a smaller model "
        "writes the layers it has.",
    )
    bert_config_file: str | None = options.model(
        None,
        "Model configuration (default: the one next to the model).",
        reads="file",
    )
    max_seq_length: int = options.data(
        128, "Maximum sequence length, in tokens.", at_least=3
    )
    init_checkpoint: str | None = options.model(
        None, "Model: any format, or a checkpoint's prefix.", reads="model"
    )
    vocab_file: str | None = options.model(
        None,
        "Vocabulary, one token a line (default: the model's).",
        reads="file",
    )
    do_lower_case: bool = options.data(True, "Lower-case the text.")
    batch_size: int = options.hardware(
        32, "Texts computed at once.", at_least=1
    )
    use_tpu: bool = options.ignored(False)
    master: str | None = options.ignored(None)
    num_tpu_cores: int | None = options.ignored(None)
    use_one_hot_embeddings: bool = options.ignored(False)
    model_dir: str | None = options.model(
        None,
        "Model of any format; replaces --bert_config_file, --init_checkpoint "
        "and --vocab_file.",
        reads="model",
        not_with=("bert_config_file", "init_checkpoint", "vocab_file"),
    )

    def check(self) -> None:
        super().check()
        options.require(
            bool(self.model_dir or self.init_checkpoint),
            "Give --model_dir, or --init_checkpoint with --bert_config_file "
            "and --vocab_file unless these are next to it.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PredictionConfig(DeviceConfig, ModelSourceConfig):
    """Flags of all scripts that predict with fine-tuned models."""

    batch_size: int = options.hardware(32, "Rows computed at once.", at_least=1)
    num_length_buckets: int = options.hardware(
        0,
        "Lengths that batches are padded to: 0 uses every multiple of 8; 1 "
        "pads all to the model's max_seq_length, as the original does; "
        "larger numbers choose the lengths with the least padding (for TPUs, "
        "which compile each).",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(_PredictionConfig):
    """Flags of run/predict.py."""

    model_dir: str = options.model(
        help_text="Fine-tuned model of any format, with its vocabulary.",
        reads="model",
    )
    input_file: str = options.data(
        help_text="Rows to predict, with the columns of the training data: "
        ".csv, .tsv, .jsonl, .json, .txt or .conll, each also .gz, or "
        ".parquet. Labels are not read.",
        reads="file",
    )
    output_file: str = options.output(
        help_text="File to write, a row for each row of the input, in its "
        "order: a table for .csv and .tsv, else JSON lines."
    )
    keep_columns: str | None = options.output(
        None,
        "Columns of a table to copy to the output, separated by commas, or "
        "all (default: none). A column that the predictions have too is "
        "named input_<name>.",
    )
    top_k: int | None = options.evaluation(
        None,
        "Labels or choices to write with their probabilities, the best first "
        "(default: all in JSON lines; one in a table).",
        at_least=1,
    )
    keep_empty: bool = options.data(
        False,
        "Classification: keep rows with an empty text, and give them an empty "
        "answer (default: such a row is an error).",
    )

    def check(self) -> None:
        super().check()
        ending = os.path.splitext(self.output_file)[1].lower()
        options.require(
            ending not in _NOT_WRITTEN,
            "--output_file must end in .csv, .tsv or .jsonl. Received: "
            f"{self.output_file!r}.",
        )
        self.columns_to_keep()

    @property
    def output_ending(self) -> str | None:
        """The format of a table, ".csv" or ".tsv"; None for JSON lines."""
        ending = os.path.splitext(self.output_file)[1].lower()
        return ending if ending in _TABLES else None

    def columns_to_keep(self) -> tuple[str, ...] | None:
        """Returns the names in --keep_columns, None for all columns."""
        if self.keep_columns is None:
            return ()
        if self.keep_columns.strip() == "all":
            return None
        names = tuple(x.strip() for x in self.keep_columns.split(","))
        options.require(
            len(set(names)) == len(names) and "" not in names,
            "--keep_columns must be different names, separated by commas, or "
            f"all. Received: {self.keep_columns!r}.",
        )
        return names


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSubmissionConfig(_PredictionConfig):
    """Flags of run/glue_submission.py."""

    model_dirs: str = options.model(
        help_text="Fine-tuned models, one for each task: comma-separated "
        "globs of directories. Each one's task is read from its files."
    )
    glue_dir: str = options.data(
        help_text="Directory with GLUE's folders: CoLA, SST-2, MNLI, AX, ...",
        reads="folder",
    )
    output_file: str = options.output(
        "submission.zip", "Zip file to write, for the leaderboard."
    )
    allow_missing_tasks: bool = options.output(
        False,
        "Omit tasks without a model or a folder; the leaderboard does not "
        "accept such a file.",
    )
