"""Flags of run/demo.py."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require_at_least


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Flags of run/demo.py."""

    output_dir: str = option(
        ".demo", "Directory for all files.", group="output"
    )
    num_train_steps: int = option(
        0,
        "Pretraining steps; 0 means the number that the demo's quality "
        "checks are made for.",
        group="training",
    )

    def __post_init__(self) -> None:
        require_at_least(self, 0, "num_train_steps")
