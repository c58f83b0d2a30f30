"""A .tflite file to be: a model, and what was chosen for this file."""

import dataclasses

import keras

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import labels
from bert_tf.export import savedmodel
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads.head import Head
from bert_tf.flags import cli
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig

_SCRIPT = "export/tflite.py"
# Flags of both scripts.
_SHARED = ("model_dir", "max_seq_length", "head", "pair", "pooling")
_SHARED += ("layer", "top_k")


@dataclasses.dataclass(frozen=True)
class Build:
    """A file to be.

    Attributes:
      config: What the user asks for.
      quantization: One of `run_config.export.QUANTIZATIONS`; that of
        `config` may be all of them.
      stored: The model as it lies on disk.
      name: The head's, a key of `bert_tf.export.heads.registry.ENTRIES`.
      head: The head.
      model: The model, in its fastest form, in float32.
      labels: The names of what the head chooses from, or none.
    """

    config: TfliteConfig
    quantization: str
    stored: StoredModel
    name: str
    head: Head
    model: keras.Model
    labels: tuple[str, ...]

    @property
    def batch_size(self) -> int | None:
        """Rows of a call; None for any number."""
        return self.config.batch_size

    @property
    def seq_length(self) -> int | None:
        """Pieces of a row of ids; None for any number."""
        return self.config.max_seq_length

    @property
    def command(self) -> str:
        """The command line that makes the file."""
        config = dataclasses.replace(
            self.config,
            quantization=self.quantization,
            representative_file=(
                self.config.representative_file
                if self.quantization == "full_int8"
                else None
            ),
        )
        return cli.command_line(_SCRIPT, config)

    def artifact(self) -> Artifact:
        """Returns what it is, as export/expectations wants to know it."""
        return Artifact(
            model_name=self.name,
            version=1,
            head=self.name,
            precision="float32",
            ids_only=self.config.input == "ids",
            max_seq_length=self.head.max_seq_length,
            buckets=self.head.buckets,
            settings=self.head.settings(),
            command=self.command,
        )


def prepare(config: TfliteConfig) -> Build:
    """Loads the model, and chooses the head and all that is not told.

    Raises:
      UserError: If the flags do not fit the model, or TensorFlow Lite has
        nothing like it.
    """
    shared = {name: getattr(config, name) for name in _SHARED}
    export = savedmodel.prepare(
        SavedModelConfig(
            output_dir=config.output_file,
            model_name="model",  # Which nobody sees.
            **shared,
        )
    )
    _require_form(config, export.model)
    return Build(
        config,
        config.quantization,
        export.stored,
        export.name,
        export.head,
        export.model,
        labels.find(export.name, export.stored),
    )


def _require_form(config: TfliteConfig, model: keras.Model) -> None:
    """Raises `UserError` for models that TensorFlow Lite has no form of."""
    is_free = config.input == "ids" and config.max_seq_length is None
    if getattr(model, "lstms", None) and (config.batch_size is None or is_free):
        raise UserError(
            "A head with BiLSTMs becomes a .tflite file only for a fixed "
            "number of rows of a fixed length: give --batch_size and "
            f"--max_seq_length. Received: {config.batch_size} and "
            f"{config.max_seq_length} for the model in {config.model_dir}."
        )
