"""What the runs of one command share, and what lets a run go on."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.finetuning.objective_source import Supervision
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import files
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import TRAIN
from bert_tf.tasks.task import Task
from bert_tf.training import checkpoints
from bert_tf.training import resume as resume_checks
from bert_tf.training.preemption import Preemption

# On these neither weights nor their choice depend.
_WITHOUT_EFFECT = frozenset(
    {
        # Contents of files count, not where they lie.
        "allow_changed_data",
        "bert_config_file",
        "data_dir",
        "dev_file",
        "distribution_strategy",
        "do_eval",
        "do_predict",
        "do_train",
        "eval_batch_size",
        "gcp_project",
        "init_checkpoint",
        "iterations_per_loop",
        "keep_checkpoint_max",
        "master",
        "micro_batch_size",
        "num_gpus",
        "num_restarts",
        "num_tpu_cores",
        "output_dir",
        "predict_batch_size",
        "predict_file",
        "pretrained_model_dir",
        "remat",
        "save_checkpoints_steps",
        "task_index",
        "teacher_dir",
        "test_file",
        "tpu",
        "tpu_name",
        "tpu_zone",
        "train_file",
        "unlabeled_file",
        "use_tpu",
        "verbose_logging",
        "vocab_file",
        "worker_hosts",
        "xla",
        # These are in the run's settings.
        "learning_rate",
        "num_train_epochs",
        "seed",
        "train_batch_size",
    }
)
# Before the flag that names the model.
_MODEL_OF = "the model of --"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What all runs of one command share.

    Attributes:
      config: The flags.
      task: The task.
      stored: The model that runs begin with.
      reader: The data.
      devices: Where to compute.
      data_hashes: Split to SHA-256 of its file.
      supervision: What they learn from.
      preemption: Whether to stop early.
    """

    config: FinetuneConfig
    task: Task
    stored: StoredModel
    reader: SplitReader
    devices: Devices
    data_hashes: Mapping[str, str]
    supervision: Supervision
    preemption: Preemption


def describe(
    experiment: Experiment, trial_config: TrialConfig
) -> dict[str, Any]:
    """Returns what must be the same for a run to go on; JSON values."""
    flags = {
        f"--{name}": value
        for name, value in dataclasses.asdict(experiment.config).items()
        if name not in _WITHOUT_EFFECT
    }
    kinds = (TRAIN, DEV) if experiment.config.selects_evaluation else (TRAIN,)
    return (
        flags
        | {
            f"--{name}": value
            for name, value in dataclasses.asdict(trial_config).items()
            if name != "name"
        }
        | _name_data(
            {
                split: value
                for split, value in experiment.data_hashes.items()
                if split.split("_")[0] in kinds
            }
        )
        | {"the vocabulary": experiment.stored.vocabulary.hash}
        | _hash_model(experiment)
        | dict(experiment.supervision.identity)
    )


def _hash_model(experiment: Experiment) -> dict[str, str]:
    """Returns the hash of the model that a flag names.

    Of one that is drawn it is that of the configuration: its weights follow
    from that and the seed, and may differ in the last bit elsewhere, where the
    run may well go on.
    """
    for name in ("pretrained_model_dir", "init_checkpoint"):
        if getattr(experiment.config, name):
            return {_MODEL_OF + name: experiment.stored.fingerprint()}
    if not experiment.config.bert_config_file:
        return {}  # A student, whose shape is in flags.
    described = experiment.stored.config.to_json().encode()
    return {
        f"{_MODEL_OF}bert_config_file": hashlib.sha256(described).hexdigest()
    }


def check_continuation(
    checkpoint: checkpoints.Checkpoint,
    identity: Mapping[str, Any],
    devices: Mapping[str, Any],
    output_dir: str,
    allow_changes: bool = False,
) -> None:
    """Compares a run with its checkpoint, and says what has changed.

    Args:
      checkpoint: Where it is to go on.
      identity: What `describe` returns now.
      devices: What `run_identity.describe_devices` returns now.
      output_dir: Where the checkpoint is.
      allow_changes: Whether --allow_changed_data is set.

    Raises:
      UserError: If the checkpoint is that of another run.
    """
    step = checkpoint.step
    check_identity(
        checkpoint.metadata.get("identity"),
        identity,
        f"{output_dir} (step {step})",
        allow_changes,
    )
    before = checkpoint.metadata.get("devices", {})
    resume_checks.log_devices(before, devices, step)


def check_identity(
    before: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    where: str,
    allow_changes: bool = False,
) -> None:
    """Compares a run with what is left of one.

    Args:
      before: What `describe` returned when it was begun.
      now: What it returns now.
      where: The run's folder.
      allow_changes: Whether they may differ, which is logged then.

    Raises:
      UserError: If they differ, naming how.
    """
    if before is None:
        raise UserError(
            f"What is in {where} was not written by fine-tuning; give another "
            "--output_dir."
        )
    changes = [
        _change(name, before.get(name), now.get(name))
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
        # Earlier versions noted paths, too.
        and (name in now or name.removeprefix("--") not in _WITHOUT_EFFECT)
        # Of what was begun when models were not hashed nobody knows it.
        and (name in before or not name.startswith(_MODEL_OF))
    ]
    if changes and not allow_changes:
        raise UserError(
            f"The run in {where} cannot go on like this: "
            f"{'; '.join(changes)}. Use what it was begun with, another "
            "--output_dir, or --allow_changed_data."
        )
    for change in changes:
        logging.warning("Changed in %s, as allowed: %s.", where, change)


def _change(name: str, old: Any, new: Any) -> str:
    return f"{name} was {old!r} and is {new!r} now"


def agree(
    coordinator: Coordinator,
    config: FinetuneConfig,
    stored: StoredModel,
    data_hashes: Mapping[str, str],
) -> None:
    """Makes sure that all workers do the same with the same.

    Args:
      coordinator: What they do together.
      config: The flags.
      stored: The model that they begin with.
      data_hashes: What `hash_data` returned.

    Raises:
      UserError: If they differ, naming how.
    """
    if coordinator.num_workers == 1:
        return  # Who is alone need not compute hashes of large models.
    vocabulary = stored.vocabulary
    coordinator.agree(
        config.common_flags()
        | _name_data(data_hashes)
        | {
            "the vocabulary": vocabulary.hash if vocabulary else None,
            "the model": stored.fingerprint(),
        },
        "flags, model and data",
    )


def _name_data(data_hashes: Mapping[str, str]) -> dict[str, str]:
    return {
        f"the file of the {split} data": value
        for split, value in data_hashes.items()
    }


def hash_data(task: Task) -> dict[str, str]:
    """Returns the SHA-256 of each file of a task, by split."""
    return {
        split: files.sha256(path)
        for split, path in task.files.items()
        if tf.io.gfile.exists(path)
    }
