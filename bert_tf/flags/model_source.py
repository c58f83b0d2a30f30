"""Flags of all scripts that read a model, and of run/models.py."""

import dataclasses
import os

from bert_tf.flags import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSourceConfig(options.Flags):
    """Flags of all scripts that read a model, which may be named.

    Processes that a script starts inherit them, as environment variables.
    """

    cache_dir: str | None = options.model(
        None,
        "Directory for models that are fetched by a short name or https:// "
        "(default: BERT_TF_CACHE, else ~/.cache/bert_tf); hf:// and kaggle:// "
        "use HF_HOME and KAGGLEHUB_CACHE.",
        affects="place",
    )
    offline: bool = options.model(
        False, "Use fetched models, but fetch none.", affects="place"
    )

    def set_environment(self) -> None:
        """Sets the variables that `checkpoints.names` reads."""
        if self.cache_dir:
            os.environ["BERT_TF_CACHE"] = self.cache_dir
        if self.offline:
            os.environ["BERT_TF_OFFLINE"] = "1"


@dataclasses.dataclass(frozen=True)
class ModelsConfig(ModelSourceConfig):
    """Flags of run/models.py."""

    fetch: str | None = options.model(
        None,
        "Model to fetch: a name of the table, hf://owner/name[@revision], "
        "kaggle://owner/model/keras/variation[/version], or the https:// "
        "address of a .zip or .tar.gz file. Prints its local path.",
    )
