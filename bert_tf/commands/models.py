r"""Lists the models that can be named in place of a path, or fetches one.

  python run/models.py
  python run/models.py --fetch=bert-base-uncased

Every script fetches a named model by itself; fetching it first is useful where
the script runs without a network. --fetch prints the local path.
"""

import dataclasses
import sys

from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig


@dataclasses.dataclass(frozen=True)
class ModelsConfig(ModelSourceConfig):
    """Flags of run/models.py."""

    fetch: str | None = options.model(
        None,
        "Model to fetch: a name of the table, hf://owner/name[@revision], "
        "kaggle://owner/model/keras/variation[/version], or the https:// "
        "address of a .zip or .tar.gz file. Prints its local path.",
    )


def main(config: ModelsConfig) -> None:
    from bert_tf.checkpoints import names
    from bert_tf.recipes import releases

    if config.fetch:
        sys.stdout.write(f"{names.resolve(config.fetch)}\n")
    else:
        sys.stdout.write(releases.format_table())
