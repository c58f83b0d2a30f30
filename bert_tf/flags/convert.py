"""Flags of run/convert_checkpoint.py and run/extend_vocabulary.py."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least

# Formats of checkpoints to read and write.
FORMATS = ("tf1", "huggingface", "keras_hub", "model_garden", "bert_tf")


@dataclasses.dataclass(frozen=True)
class ConvertCheckpointConfig:
    """Flags of run/convert_checkpoint.py."""

    target_format: str = option(
        help_text="Format to write.", group="output", name="to", choices=FORMATS
    )
    input: str = option(
        help_text="Directory of the model; a checkpoint of TensorFlow may "
        "also be a prefix such as bert_model.ckpt.",
        group="data",
    )
    output: str = option(help_text="Directory to write.", group="output")
    source_format: str | None = option(
        None,
        "Format of --input (default: detected).",
        group="data",
        name="from",
        choices=FORMATS,
    )
    overwrite: bool = option(
        False, "Replace --output if it exists.", group="output"
    )
    allow_missing: str | None = option(
        None,
        "Regular expression for the names of weights that may be missing "
        "(they are initialized randomly) or unused.",
        group="model",
    )
    allow_activation_change: bool = option(
        False,
        "Convert a model with the exact GELU to KerasHub, which has only the "
        "tanh form; prints the difference.",
        group="model",
    )
    do_lower_case: bool | None = option(
        None,
        "The model reads lower-cased text; for formats that do not store "
        "this (default: detected from the vocabulary).",
        group="model",
    )


@dataclasses.dataclass(frozen=True)
class ExtendVocabularyConfig:
    """Flags of run/extend_vocabulary.py."""

    input: str = option(
        help_text="Model to extend: a model directory, or any format that "
        "convert_checkpoint.py reads.",
        group="model",
    )
    output: str = option(help_text="Model directory to write.", group="output")
    new_words_file: str | None = option(
        None,
        "New words, one a line; a line such as ##itis is a token that "
        "continues words.",
        group="data",
    )
    use_unused: bool = option(
        True,
        "Store new words in [unusedN] lines first; only the others enlarge "
        "the embedding table.",
        group="model",
    )
    max_position_embeddings: int | None = option(
        None,
        "New length of the position table; new rows are copies of the old "
        "ones.",
        group="model",
    )
    do_lower_case: bool | None = option(
        None,
        "The model reads lower-cased text; for formats that do not store "
        "this (default: detected from the vocabulary).",
        group="model",
    )
    overwrite: bool = option(
        False, "Replace --output if it exists.", group="output"
    )

    def __post_init__(self) -> None:
        require(
            bool(self.new_words_file or self.max_position_embeddings),
            "Give --new_words_file, --max_position_embeddings, or both.",
        )
        require(
            bool(self.new_words_file) or self.use_unused,
            "--nouse_unused is for --new_words_file only.",
        )
        require_at_least(self, 1, "max_position_embeddings")
