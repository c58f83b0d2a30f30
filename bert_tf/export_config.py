"""What the scripts in export/ can be told: one frozen dataclass per script.

As in `run_config`; nothing here imports TensorFlow.
"""

import dataclasses

from bert_tf.config import option


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """Flags of export/verify.py."""

    export_dir: str = option(
        help_text="The export: <output_dir>/<version>, or <output_dir>, of "
        "which the newest version counts."
    )
    model_dir: str = option(help_text="The model that was exported.")
    url: str | None = option(
        None,
        "A live server to ask as well: http://HOST:PORT/v1/models/NAME, or "
        "HOST:PORT of gRPC.",
    )
