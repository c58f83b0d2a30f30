r"""Prints a pretrained model's best tokens for each [MASK] in a text.

  python run/fill_mask.py --model_dir=output/model \
      --text='The [MASK] returns a new array.'

Several [MASK] are predicted independently. The model may be of any format, for
instance a Hugging Face directory.
"""

import dataclasses
import sys

from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig


@dataclasses.dataclass(frozen=True)
class FillMaskConfig(ModelSourceConfig):
    """Flags of run/fill_mask.py."""

    model_dir: str = options.model(
        "Model of any format, with its vocabulary.",
        options.REQUIRED,
        reads="model",
    )
    text: str = options.data("Text with one or more [MASK].", options.REQUIRED)
    top_k: int = options.evaluation("Candidates per [MASK].", 5, at_least=1)

    def check(self) -> None:
        super().check()
        options.require(
            "[MASK]" in self.text,
            "--text must contain at least one [MASK], in capitals. Received: "
            f"{self.text!r}.",
        )


def main(config: FillMaskConfig) -> None:
    from bert_tf.tasks import stored_task

    stored_task.require_masked_lm(
        config.model_dir, stored_task.read_kind(config.model_dir)
    )
    from bert_tf.inference import fill_mask

    (masks,) = fill_mask.FillMask(config.model_dir)([config.text], config.top_k)
    sys.stdout.write(fill_mask.render(config.text, masks))
