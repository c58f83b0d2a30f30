"""Checks that an export answers as its model does.

  python export/verify.py --export_dir=served/mrpc --model_dir=output/mrpc/model

Prints the differences and exits with status 1 if there are any.
"""

import dataclasses
import sys

from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig


@dataclasses.dataclass(frozen=True)
class VerifyConfig(ModelSourceConfig):
    """Flags of export/verify.py."""

    export_dir: str = options.model(
        "Export to check: <output_dir>/<version>, or <output_dir> "
        "for its newest version.",
        options.REQUIRED,
        reads="folder",
    )
    model_dir: str = options.model(
        "Model that was exported.", options.REQUIRED, reads="model"
    )


def main(config: VerifyConfig) -> None:
    from bert_tf.serving import model_config

    model_config.find_version(config.export_dir)
    from bert_tf.export import savedmodel

    report = savedmodel.verify(config.export_dir, config.model_dir)
    sys.stdout.write(report.text())
    report.require_correct()
    sys.stdout.write("The export returns what the model computes.\n")
