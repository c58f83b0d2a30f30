"""The model directory that fine-tuning leaves in --output_dir."""

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
from bert_tf.pretraining import output as pretraining_output
from bert_tf.tasks.task import Task


def read(output_dir: str) -> StoredModel:
    """Returns the model of a run that is done."""
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
    """Writes the model directory, without which a run has failed.

    Args:
      experiment: What all runs share.
      trial_config: What this one has for itself.
      task: The task as dev tuned it.
      weights: Canonical name to value.
      step: Steps the model was trained for.
      results: Split to metrics.
      output_dir: The run's folder.

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
        | dict(experiment.supervision.card),
        "python run/predict.py --model_dir=. --input_file=... "
        "--output_file=...",
    )
    pretraining_output.write_model_directory(
        output_dir,
        stored.config,
        weights,
        stored.vocabulary,
        stored.tokenizer_settings,
        task_json,
        card,
    )


def keep_tuning(
    stored: StoredModel, task: Task, tuned: Task, output_dir: str
) -> None:
    """Writes a model again, with what dev has chosen.

    Args:
      stored: The model of `output_dir`.
      task: Its task before.
      tuned: Its task now.
      output_dir: The run's folder.

    Raises:
      UserError: If it could not be written; then it is as it was.
    """
    before, now = task.to_json(), tuned.to_json()
    chosen = {name: x for name, x in now.items() if x != before[name]}
    card = os.path.join(stored.path, model_directory.README_FILE)
    pretraining_output.write_model_directory(
        output_dir,
        stored.config,
        {name: stored.weights[name] for name in stored.weights},
        stored.vocabulary,
        stored.tokenizer_settings,
        {**stored.task, **chosen},
        files.read_bytes(card).decode(),
    )
    logging.info("The model has %s now.", chosen)
