"""What the demo can be told."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require_at_least


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Flags of run/demo.py."""

    output_dir: str = option(".demo", "Where everything made is kept.")
    num_train_steps: int = option(
        0, "Pretraining steps; 0 means the number that the demo is judged by."
    )

    def __post_init__(self) -> None:
        require_at_least(self, 0, "num_train_steps")
