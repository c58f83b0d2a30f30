"""task.json of a model directory, read without TensorFlow."""

import os
from typing import Any

from bert_tf.checkpoints import task_values
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import stored_files


def read(model_dir: str) -> dict[str, Any]:
    """Returns task.json, or {} if there is none that can be read.

    Args:
      model_dir: A model directory, or the output directory of a training run.

    Raises:
      UserError: If a value in it is of another kind.
    """
    for folder in (model_dir, os.path.join(model_dir, "model")):
        try:
            path = os.path.join(folder, "task.json")
            values = stored_files.read_object(path)
        except (OSError, ValueError):  # The reader of the model reports it.
            continue
        # KerasHub's presets have a file of that name, too.
        if "kind" in values:
            task_values.check_task(values, path)
            return values
    return {}


def read_for_evaluation(
    config: FinetuneConfig, kind: str
) -> dict[str, Any] | None:
    """Returns what names the columns of the files that a script reads.

    Args:
      config: The flags.
      kind: The kind of model that the script trains.

    Returns:
      {} for training, where flags alone name the columns; without training the
      task.json of the model to evaluate, or None if it has none of that kind.
    """
    if config.do_train:
        return {}
    values = read(
        config.pretrained_model_dir or os.path.join(config.output_dir, "model")
    )
    return values if values.get("kind") == kind else None
