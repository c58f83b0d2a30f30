"""Writes and reads the model directory of a fine-tuned model."""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_card
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.experiment import Experiment
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.tasks.task import Task
from bert_tf.training import output as training_output


def read(output_dir: str) -> StoredModel:
    """Returns the model of a finished trial."""
    return formats.read(os.path.join(output_dir, model_directory.MODEL_FOLDER))


def write(
    experiment: Experiment,
    trial_config: TrialConfig,
    task: Task,
    weights: Mapping[str, np.ndarray],
    step: int,
    results: Mapping[str, Metrics],
    output_dir: str,
) -> None:
    """Writes the model directory of a trial.

    Args:
      experiment: Everything that the trials share.
      trial_config: The trial's own settings.
      task: The task with the threshold selected on dev.
      weights: Canonical name to value.
      step: Steps the model was trained for.
      results: Split to metrics.
      output_dir: The trial's folder.

    Raises:
      UserError: If it could not be written.
    """
    stored = experiment.stored
    task_json = {"kind": task.kind} | task.to_json()
    task_json |= {"global_step": step, "results": dict(results)}
    flags = dataclasses.asdict(experiment.config) | dataclasses.asdict(
        trial_config
    )
    card = model_card.build(
        f"A BERT for {task.name}",
        f"A BERT fine-tuned for {step} steps with bert_tf, from {stored.path}.",
        {
            "Data": dict(task.files),
            "Flags": {k: v for k, v in flags.items() if v is not None},
            "Metrics": {
                f"{split} {name}": value
                for split, metrics in results.items()
                for name, value in metrics.items()
            },
        }
        | dict(experiment.objective_source.card),
        "python run/predict.py --model_dir=. --input_file=... "
        "--output_file=...",
    )
    training_output.write_model_directory(
        output_dir,
        stored.config,
        weights,
        stored.vocabulary,
        stored.tokenizer_settings,
        task_json,
        card,
    )


def rewrite_task(
    stored: StoredModel, task: Task, tuned: Task, output_dir: str
) -> None:
    """Rewrites a model directory with the threshold selected on dev.

    Args:
      stored: The model of `output_dir`.
      task: Its previous task.
      tuned: Its task with the selected threshold.
      output_dir: The folder that holds the model directory.

    Raises:
      UserError: If it could not be written; then it is unchanged.
    """
    before, now = task.to_json(), tuned.to_json()
    changes = {name: x for name, x in now.items() if x != before[name]}
    card = os.path.join(stored.path, model_directory.README_FILE)
    training_output.write_model_directory(
        output_dir,
        stored.config,
        {name: stored.weights[name] for name in stored.weights},
        stored.vocabulary,
        stored.tokenizer_settings,
        {**stored.task, **changes},
        files.read_bytes(card).decode(),
    )
    logging.info("The model's task.json now has %s.", changes)
