"""Flags of run/convert_checkpoint.py and run/extend_vocabulary.py."""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.model_source import ModelSourceConfig

# Formats of checkpoints to read and write.
FORMATS = ("tf1", "huggingface", "keras_hub", "model_garden", "bert_tf")
# SavedModels, to read alone.
TF_HUB = "tf_hub"


@dataclasses.dataclass(frozen=True)
class ConvertCheckpointConfig(ModelSourceConfig):
    """Flags of run/convert_checkpoint.py."""

    target_format: str = options.output(
        help_text="Format to write.", name="to", choices=FORMATS
    )
    input: str = options.data(
        help_text="Directory of the model; a checkpoint of TensorFlow may "
        "also be a prefix such as bert_model.ckpt.",
        reads="model",
    )
    output: str = options.output(help_text="Directory to write.")
    source_format: str | None = options.data(
        None,
        "Format of --input (default: detected).",
        name="from",
        choices=(*FORMATS, TF_HUB),
    )
    overwrite: bool = options.output(False, "Replace --output if it exists.")
    allow_missing: str | None = options.model(
        None,
        "Regular expression for the names of weights that may be missing "
        "(they are initialized randomly) or unused.",
    )
    allow_activation_change: bool = options.model(
        False,
        "Convert a model with the exact GELU to KerasHub, which has only the "
        "tanh form; prints the difference.",
    )
    do_lower_case: bool | None = options.model(
        None,
        "The model reads lower-cased text; for formats that do not store "
        "this (default: detected from the vocabulary).",
    )


@dataclasses.dataclass(frozen=True)
class ExtendVocabularyConfig(ModelSourceConfig):
    """Flags of run/extend_vocabulary.py."""

    input: str = options.model(
        help_text="Model to extend: a model directory, or any format that "
        "run/convert_checkpoint.py reads.",
        reads="model",
    )
    output: str = options.output(help_text="Model directory to write.")
    new_words_file: str | None = options.data(
        None,
        "New words, one a line; a line such as ##itis is a token that "
        "continues words.",
        reads="file",
    )
    use_unused: bool = options.model(
        True,
        "Store new words in [unusedN] lines first; only the others enlarge "
        "the embedding table.",
        needs="new_words_file",
    )
    max_position_embeddings: int | None = options.model(
        None,
        "New length of the position table; new rows are copies of the old "
        "ones.",
        at_least=1,
    )
    do_lower_case: bool | None = options.model(
        None,
        "The model reads lower-cased text; for formats that do not store "
        "this (default: detected from the vocabulary).",
    )
    overwrite: bool = options.output(False, "Replace --output if it exists.")

    def check(self) -> None:
        super().check()
        options.require(
            bool(self.new_words_file or self.max_position_embeddings),
            "Give --new_words_file, --max_position_embeddings, or both.",
        )
