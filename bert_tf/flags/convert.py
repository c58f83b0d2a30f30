"""What the scripts that change models and their formats can be told."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least

# The formats of checkpoints that are read and written.
FORMATS = ("tf1", "huggingface", "keras_hub", "model_garden", "bert_tf")


@dataclasses.dataclass(frozen=True)
class ConvertCheckpointConfig:
    """Flags of run/convert_checkpoint.py."""

    target_format: str = option(
        help_text="The format to write.", name="to", choices=FORMATS
    )
    input: str = option(
        help_text="A local directory; for checkpoints of TensorFlow also a "
        "prefix such as bert_model.ckpt."
    )
    output: str = option(help_text="The local directory to write.")
    source_format: str | None = option(
        None,
        "The format of --input (default: recognised).",
        name="from",
        choices=FORMATS,
    )
    overwrite: bool = option(
        False, "Whether --output may replace a directory that is there."
    )
    allow_missing: str | None = option(
        None,
        "Regular expression: weights whose name it matches may be missing "
        "(they begin anew) or unused.",
    )
    allow_activation_change: bool = option(
        False,
        "Whether a model with the exact GELU may go to KerasHub, which has "
        "only the tanh form; prints what that changes.",
    )
    do_lower_case: bool | None = option(
        None,
        "Whether the model reads lower case, where its format does not say "
        "(default: as its vocabulary shows).",
    )


@dataclasses.dataclass(frozen=True)
class ExtendVocabularyConfig:
    """Flags of run/extend_vocabulary.py."""

    input: str = option(
        help_text="The model: a model directory, or any format that "
        "convert_checkpoint.py reads."
    )
    output: str = option(help_text="The model directory to write.")
    new_words_file: str | None = option(
        None, "New words, one a line; a line such as ##itis continues words."
    )
    use_unused: bool = option(
        True,
        "Whether new words take [unusedN] lines first; the table grows by "
        "the others.",
    )
    max_position_embeddings: int | None = option(
        None, "The new length of the position table, filled by copying."
    )
    do_lower_case: bool | None = option(
        None,
        "Whether the model reads lower case, where its format does not say "
        "(default: as its vocabulary shows).",
    )
    overwrite: bool = option(
        False, "Whether --output may replace a directory that is there."
    )

    def __post_init__(self) -> None:
        require(
            bool(self.new_words_file or self.max_position_embeddings),
            "Give --new_words_file, --max_position_embeddings, or both.",
        )
        require(
            bool(self.new_words_file) or self.use_unused,
            "--nouse_unused is of use with --new_words_file only.",
        )
        require_at_least(self, 1, "max_position_embeddings")
