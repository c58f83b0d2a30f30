"""A build of a .tflite file: the model and the settings of the file."""

import dataclasses

import keras

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import assets_extra
from bert_tf.export import savedmodel
from bert_tf.export.heads.head import ServingHead
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig

_SCRIPT = "export/tflite.py"
# Flags that both scripts have.
_SHARED = ("model_dir", "max_seq_length", "head", "pair", "pooling")
_SHARED += ("layer", "top_k")


@dataclasses.dataclass(frozen=True)
class Build:
    """The model and the settings of a .tflite file.

    Attributes:
      name: The name of the head, a key of `heads.registry.ENTRIES`.
      model: The model in its inference form, in float32.
      labels: The label names, or ().
    """

    config: TfliteConfig
    stored: StoredModel
    name: str
    head: ServingHead
    model: keras.Model
    labels: tuple[str, ...]

    @property
    def quantization(self) -> str:
        """One of `flags.export.QUANTIZATIONS`."""
        return self.config.quantization

    @property
    def batch_size(self) -> int | None:
        """Rows per call; None for any number."""
        return self.config.batch_size

    @property
    def seq_length(self) -> int | None:
        """Tokens per row of ids; None for any number."""
        return self.config.max_seq_length

    @property
    def command(self) -> str:
        """The command line that reproduces the file."""
        return savedmodel.command_line(_SCRIPT, self.config, self.stored)


def prepare(config: TfliteConfig, origin: str | None = None) -> Build:
    """Loads the model and resolves the head and its settings.

    Args: As for `savedmodel.run`.

    Raises:
      UserError: If the flags do not fit the model, or TensorFlow Lite cannot
        run it.
    """
    shared = {name: getattr(config, name) for name in _SHARED}
    export = savedmodel.prepare(
        SavedModelConfig(
            output_dir=config.output_file,
            model_name="model",  # Unused.
            **shared,
        ),
        origin,
    )
    if export.name == "classification" and config.input == "ids":
        config = _with_shapes(config, export.head.max_seq_length)
    _require_form(config, export.model)
    return Build(
        config,
        export.stored,
        export.name,
        export.head,
        export.model,
        assets_extra.find_labels(export.name, export.stored),
    )


def _with_shapes(config: TfliteConfig, length: int) -> TfliteConfig:
    """Returns flags with the fixed shapes that MediaPipe needs, by default."""
    if config.dynamic_shapes:
        return config
    return dataclasses.replace(
        config,
        batch_size=config.batch_size or 1,
        max_seq_length=config.max_seq_length or length,
    )


def _require_form(config: TfliteConfig, model: keras.Model) -> None:
    """Raises `UserError` for models that TensorFlow Lite cannot run."""
    is_free = config.input == "ids" and config.max_seq_length is None
    if getattr(model, "lstms", None) and (config.batch_size is None or is_free):
        raise UserError(
            "A head with BiLSTMs can be converted only for a fixed number of "
            "rows of a fixed length; set --batch_size and "
            f"--max_seq_length. Received: {config.batch_size} and "
            f"{config.max_seq_length} for the model in {config.model_dir}."
        )
