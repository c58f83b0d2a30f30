"""In-graph pre- and postprocessing for each kind of model.

This module chooses a head, without TensorFlow.
"""

from collections.abc import Container
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import task_values
from bert_tf.flags import export
from bert_tf.flags import options
from bert_tf.flags.export import ExportConfig
from bert_tf.tasks import stored_task


def choose_head(
    name: str,
    task: Mapping[str, Any],
    source: str,
    known_tasks: Container[str] | None = None,
) -> str:
    """Resolves --head: a key of `HEADS`, or "auto" for the first that fits.

    `known_tasks` are the keys of `registry.TASKS`; without them, which need
    TensorFlow, any task passes.

    Raises:
      UserError: If the model at `source`, with this `task`, lacks the head.
    """
    kind, variant = task["kind"], task.get("variant")
    heads = export.heads_of(kind)
    is_served = kind == "classification" and variant in (known_tasks or ())
    if None not in (variant, known_tasks) and not is_served:
        # A graph cannot run a custom task's Python: offer only encoder outputs.
        heads = ["embeddings"]
        options.require(
            name != "auto",
            f"The model in {source} is for the task {variant!r}, which exports "
            "do not support; --head=embeddings exports its encoder.",
        )
    options.require(
        name in ("auto", *heads),
        f"The model in {source} is of kind={kind!r} and can be exported with "
        f"--head={' or '.join(heads)}. Received: --head={name}.",
    )
    return heads[0] if name == "auto" else name


def check_export(config: ExportConfig) -> None:
    """Checks --head, --layer and --max_seq_length by a model's small files."""
    path = config.model_dir
    if kind := stored_task.read_kind(path):
        choose_head(config.head, {"kind": kind} | stored_task.read(path), path)
    if layers := task_values.read_size(path, "num_hidden_layers"):
        options.require_layer("--layer", config.layer, layers)
    stored_task.check_length(config, path)
