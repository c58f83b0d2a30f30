r"""Converts a BERT from one project's format to another's.

  python run/convert_checkpoint.py --input=bert-base-uncased \
      --to=huggingface --output=bert-base

Formats: tf1 (the original's checkpoints), huggingface, keras_hub, model_garden
and bert_tf (a model directory); --input may also be a SavedModel of TF Hub or
Kaggle (tf_hub). The format of --input is detected, unless --from names it.
Prints how many weights were loaded and rearranged, and which are missing or
unused. Missing or unused weights are errors unless --allow_missing names them.
"""

import dataclasses
import re

from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.groups import FORMATS
from bert_tf.flags.groups import TF_HUB
from bert_tf.flags.groups import ConversionConfig


@dataclasses.dataclass(frozen=True)
class ConvertCheckpointConfig(ConversionConfig):
    """Flags of run/convert_checkpoint.py."""

    target_format: str = options.output(
        "Format to write.", options.REQUIRED, name="to", choices=FORMATS
    )
    input: str = options.data(
        "Directory of the model; a checkpoint of TensorFlow may "
        "also be a prefix such as bert_model.ckpt.",
        options.REQUIRED,
        reads="model",
    )
    output: str = options.target("Directory to write.", options.REQUIRED)
    source_format: str | None = options.data(
        "Format of --input (default: detected).",
        name="from",
        choices=(*FORMATS, TF_HUB),
    )
    allow_missing: str | None = options.model(
        "Regular expression for the names of weights that may be missing "
        "(they are initialized randomly) or unused."
    )
    allow_activation_change: bool = options.model(
        "Convert a model with the exact GELU to KerasHub, which has only the "
        "tanh form; prints the difference.",
        False,
    )

    def check(self) -> None:
        super().check()
        options.require(
            not self.allow_activation_change
            or self.target_format == "keras_hub",
            "--allow_activation_change is for --to=keras_hub only. Received: "
            f"--to={self.target_format}; drop the flag.",
        )
        self.missing_pattern  # noqa: B018  Raises an error for a wrong value.

    @property
    def missing_pattern(self) -> re.Pattern | None:
        """The pattern in --allow_missing."""
        try:
            return self.allow_missing and re.compile(self.allow_missing)
        except re.error as error:
            raise UserError(
                "--allow_missing must be a regular expression of Python. "
                f"Received: {self.allow_missing!r} ({error})."
            ) from error


def main(config: ConvertCheckpointConfig) -> None:
    from bert_tf.checkpoints import task_values

    task_values.check_replaced(config)
    task_values.check_format(config.input, config.source_format)
    from bert_tf.checkpoints import convert as conversion

    conversion.run(config)
