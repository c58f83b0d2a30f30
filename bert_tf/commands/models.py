r"""Lists the models that can be named, or fetches or uploads one.

  python run/models.py
  python run/models.py --fetch=bert-base-uncased
  python run/models.py --push=hf://me/films --model_dir=output/films/model

Every script accepts a model's name instead of a path and fetches the model by
itself; fetch a model first if the script will run without a network. --fetch
prints the local path of the fetched model. --push uploads a model directory, or
the output of run/convert_checkpoint.py --to=huggingface, with the token in
HF_TOKEN, and prints the address of the upload.
"""

import dataclasses
import sys

from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig


@dataclasses.dataclass(frozen=True)
class ModelsConfig(ModelSourceConfig):
    """Flags of run/models.py."""

    fetch: str | None = options.model(
        "Model to fetch: a name of the table, hf://owner/name[@revision], "
        "kaggle://owner/model/keras/variation[/version], or the https:// "
        "address of a .zip or .tar.gz file. Prints its local path."
    )
    push: str | None = options.model(
        "Repository on Hugging Face's hub to upload a model to: "
        "hf://owner/name. If it does not exist, it is made, and is public.",
        needs="model_dir",
        not_with=("fetch", "offline"),
    )
    model_dir: str | None = options.model(
        "Model to upload: a model directory, or the Hugging Face form of one.",
        reads="model",
        needs="push",
    )
    overwrite: bool = options.model(
        "Replace the model in a repository that exists, by a new commit.",
        False,
        needs="push",
    )


def main(config: ModelsConfig) -> None:
    from bert_tf.checkpoints import names
    from bert_tf.recipes import releases

    if config.fetch:
        sys.stdout.write(f"{names.resolve(config.fetch)}\n")
    elif config.push:
        from bert_tf.checkpoints import hubs

        address = hubs.push_model(
            config.push, config.model_dir, config.overwrite
        )
        sys.stdout.write(f"{address}\n")
    else:
        sys.stdout.write(releases.format_table())
