"""State shared by all trials of a command, and the resume check."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import keras

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.flags.finetune import TrialConfig
from bert_tf.io import run_folder
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.training.losses import Objective
from bert_tf.training.losses import TaskObjective
from bert_tf.training.preemption import Preemption

# With several trials, this folder in --output_dir has a folder for each trial.
RUNS_FOLDER = "runs"
# In `identity`, the key of a model is this prefix and the name of its flag.
_MODEL_OF = "the model of --"
_REVISION = "the revision of the model"


class ObjectiveSource:
    """Training data and objective of all trials; here, the labels of a task.

    Subclasses change data or objective; distillation adds a teacher.

    Attributes:
      identity: JSON values that must not change when a trial resumes.
      model_arguments: More arguments for the constructor of the trained model.
      card: Rows to add to the model card, by the heading above them.
    """

    identity: Mapping[str, Any] = {}
    model_arguments: Mapping[str, Any] = {}
    card: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, reader: SplitReader) -> None:
        self._reader = reader

    def read(self) -> tuple[int, Features]:
        """Returns the number of training examples, and their rows."""
        examples, features = self._reader.read(TRAIN)
        return len(examples), features

    def build_objective(self, model: keras.Model) -> Objective:
        """Returns the objective that a model minimizes."""
        return TaskObjective(self._reader.task)

    def finish(self, model: keras.Model, devices: Devices) -> None:
        """Sets weights that depend on the trained weights, after training."""

    def tune(self, task: Task) -> Task:
        """Returns the task with the thresholds to use without a dev set."""
        return task

    def compare(self, split: str) -> Metrics:
        """Returns metrics of a split to report beside the model's metrics."""
        return {}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that the trials of one command share.

    Attributes:
      stored: The model that trials start from, or the model to evaluate.
      output_dir: --output_dir; with several trials, the folder of this trial.
      trial: The hyperparameters of the trial; None until `trials` sets them.
    """

    config: FinetuneConfig
    task: Task
    stored: StoredModel
    reader: SplitReader
    devices: Devices
    preemption: Preemption
    objective_source: ObjectiveSource
    output_dir: str
    trial: TrialConfig | None = None

    @property
    def coordinator(self) -> Coordinator:
        return self.devices.coordinator

    def data_hashes(self, *kinds: str) -> dict[str, str]:
        """Returns the SHA-256 of files by split, for the splits of `kinds`."""
        return {
            split: data.sha256
            for split, data in self.task.data.items()
            if split in self.task.files and data.sha256
            if split.split("_")[0] in kinds
        }

    def trials(self) -> list["Experiment"]:
        """Returns an experiment for each trial, with its task and folder."""
        trials, each = self.config.trials(), []
        for trial in trials:
            own = dataclasses.replace(self, trial=trial)
            if (layers := trial.layer_combination) is not None:
                task = dataclasses.replace(self.task, layer_combination=layers)
                own = dataclasses.replace(own, task=task)
            if len(trials) > 1:
                folder = os.path.join(self.output_dir, RUNS_FOLDER, trial.name)
                own = dataclasses.replace(own, output_dir=folder)
            each.append(own)
        return each

    @property
    def identity(self) -> dict[str, Any]:
        """The JSON values that must not change when a trial resumes.

        Files are compared by contents, so their paths may change.
        """
        config = self.config
        kinds = (TRAIN, DEV) if config.selects_evaluation else (TRAIN,)
        return (
            config.identity(self.trial)
            | _name_data(self.data_hashes(*kinds))
            | {"the vocabulary": self.stored.vocabulary.hash}
            | _hash_model(config, self.stored)
            | dict(self.objective_source.identity)
        )

    @property
    def sources(self) -> dict[str, str]:
        """The paths of files and models, by their names in `identity`."""
        config = self.config
        names = ("pretrained_model_dir", "init_checkpoint", "bert_config_file")
        return (
            _name_data(self.task.files)
            | {_MODEL_OF + x: getattr(config, x) for x in names}
            | {
                "the vocabulary": self.stored.vocabulary.source,
                "the teacher": getattr(config, "teacher_dir", None),
                "the file of the unlabeled data": getattr(
                    config, "unlabeled_file", None
                ),
            }
        )

    def check_identity(
        self, before: Mapping[str, Any] | None, where: str
    ) -> None:
        """Raises `UserError` if the trial was started with another `identity`.

        The error names the trial's folder, `where`. With --allow_changed_data,
        changes are only logged.
        """
        if before is None:
            raise UserError(
                f"The files in {where} were not written by fine-tuning; choose "
                "another --output_dir."
            )
        both = [dict(before), self.identity]
        if not all(_REVISION in each for each in both):
            # A copied model lacks the revision: compare only the hashes.
            for each in both:
                each.pop(_REVISION, None)
        options.refuse(
            run_folder.changes(*both, self.sources),
            f"Cannot resume the trial in {where}",
            self.config.allow_changed_data,
        )


def prepare(
    config: FinetuneConfig,
    task: Task,
    stored: StoredModel,
    devices: Devices,
    preemption: Preemption,
) -> Experiment:
    """Returns an experiment that learns from labels; checks its data."""
    kinds = config.requested_splits()
    for kind in kinds:
        if not task.splits(kind):
            raise UserError(f"The task {task.name} has no {kind} data.")
    tokenizer = stored.build_tokenizer()
    # Load all splits now, to report malformed data before training.
    task = task.load(
        *(x for x in task.files if config.do_train or x.split("_")[0] in kinds)
    )
    reader = SplitReader(task, tokenizer)
    experiment = Experiment(
        config,
        task,
        stored,
        reader,
        devices,
        preemption,
        ObjectiveSource(reader),
        config.output_dir,
    )
    if devices.coordinator.num_workers > 1:  # Hash only to compare workers.
        devices.coordinator.agree(
            {
                **config.common_flags(),
                **_name_data(experiment.data_hashes(TRAIN, DEV, TEST)),
                "the vocabulary": stored.vocabulary.hash,
                "the model": stored.fingerprint,
            },
            "flags, model and data",
        )
    return experiment


def _name_data(values: Mapping[str, str]) -> dict[str, str]:
    return {f"the file of the {x} data": value for x, value in values.items()}


def _hash_model(config: FinetuneConfig, stored: StoredModel) -> dict[str, str]:
    """Returns the hash and the revision of the model that a flag names.

    For a randomly initialized model, the hash is of its configuration: weights
    drawn from the same seed may differ in the last bit on another machine, but
    the trial must resume there.
    """
    for name in ("pretrained_model_dir", "init_checkpoint"):
        if getattr(config, name):
            revision = {_REVISION: stored.revision} if stored.revision else {}
            return {_MODEL_OF + name: stored.fingerprint} | revision
    if not config.bert_config_file:
        return {}  # A new student: `identity` has the flags of its shape.
    described = stored.config.to_json().encode()
    return {
        f"{_MODEL_OF}bert_config_file": hashlib.sha256(described).hexdigest()
    }
