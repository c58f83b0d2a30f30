"""Distillation: fine-tuning that learns from a teacher beside the labels.

It is fine-tuning in all but what it begins with (`student`) and what it learns
from (`Teacher`).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distillation import student as students
from bert_tf.distillation import task as distilled_task
from bert_tf.distillation.objective import DistillationObjective
from bert_tf.distillation.objective import LayerPairs
from bert_tf.distillation.objective import Weights
from bert_tf.distillation.unlabeled_rows import MixedFeatures
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning import run as finetuning
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.flags.distill import DistillConfig
from bert_tf.inference import load
from bert_tf.io import files
from bert_tf.tasks import registry
from bert_tf.tasks.task import TRAIN
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.training.preemption import Preemption

_FLAG = "--teacher_dir"
# Before the names of a teacher's metrics.
PREFIX = "teacher_"


def run(config: DistillConfig) -> dict[str, Metrics]:
    """Does what run/distill.py is asked for.

    Returns:
      Split to metrics: the student's, and with `teacher_` before their names
      the teacher's.

    Raises:
      UserError: For whatever the user can mend.
    """
    with Preemption() as preemption:
        # Workers must find each other before anything is computed.
        devices = device_setup.prepare(config)
        with devices.together():
            return _run_on(devices, preemption, config)


def _run_on(
    devices: Devices, preemption: Preemption, config: DistillConfig
) -> dict[str, Metrics]:
    """Does it on devices that are prepared."""
    stored = formats.read(config.teacher_dir)
    task = registry.from_stored(stored, _FLAG)
    if config.max_seq_length is None:
        config = dataclasses.replace(config, max_seq_length=task.max_seq_length)
    stored.build_tokenizer()  # Without a vocabulary it can read nothing.
    pretrained_models.check_length(stored, config)
    task = distilled_task.with_files(task, config)
    if devices.coordinator.num_workers > 1:
        # Teachers that differ would have learnt something else of each step.
        devices.coordinator.agree(
            {"the teacher": stored.fingerprint()}, "teacher"
        )

    def build_task(
        config: DistillConfig, stored_task: Mapping[str, Any] | None
    ) -> Task:
        own = distilled_task.of_student(task, config)
        if stored_task is None:
            return own
        return _restore(own, stored_task)

    return finetuning.run_on(
        devices,
        preemption,
        config,
        build_task,
        functools.partial(students.read, teacher=stored),
        lambda own, reader, devices: Teacher(
            config, stored, task, own, reader, devices
        ),
    )


def _restore(task: Task, stored_task: Mapping[str, Any]) -> Task:
    """Returns the task with what a student has chosen when it was trained."""
    names = {field.name for field in dataclasses.fields(task)}
    chosen = ("head", "null_score_diff_threshold")
    return dataclasses.replace(
        task,
        **{
            name: stored_task[name]
            for name in chosen
            if name in names and name in stored_task
        },
    )


class Teacher:
    """A fine-tuned model as what runs learn from; see `Supervision`.

    Args:
      config: The flags.
      stored: The model.
      task: Its task, with the student's files.
      student_task: The student's.
      reader: The data.
      devices: Where to compute.

    Raises:
      UserError: If it does not read text as the student does.
    """

    def __init__(
        self,
        config: DistillConfig,
        stored: StoredModel,
        task: Task,
        student_task: Task,
        reader: SplitReader,
        devices: Devices,
    ) -> None:
        self._config = config
        self._stored = stored
        self._task = task
        self._student_task = student_task
        self._reader = reader
        self._devices = devices
        self._metrics: dict[str, Metrics] = {}
        self._features: tuple[int, Features] | None = None
        self.model_arguments = _arguments(config)
        with devices.strategy.scope():
            self._model = load.build_model(
                stored,
                fuse=devices.fuse,
                dtype=devices.precision.policy,
                **self.model_arguments,
            )
        if not config.learns_from_teacher:
            logging.warning(
                "All weights of the teacher are 0: the student learns from "
                "the labels alone."
            )

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """The teacher's weights and the unlabeled data, by their hashes."""
        identity = {"the teacher": self._stored.fingerprint()}
        if self._config.unlabeled_file:
            path = self._config.unlabeled_file
            identity["the file of the unlabeled data"] = files.sha256(path)
        return identity

    @property
    def card(self) -> Mapping[str, Mapping[str, Any]]:
        """What the teacher is."""
        shape = self._stored.config
        rows = {
            "model": self._stored.path,
            "layers": shape.num_hidden_layers,
            "width": shape.hidden_size,
            "attention heads": shape.num_attention_heads,
            "parameters": f"{self._model.count_params():,}",
        }
        if self._config.unlabeled_file:
            rows["labeled by it"] = self._config.unlabeled_file
        return {"Teacher": rows}

    def read(self) -> tuple[int, Features]:
        """Returns the number of examples to train on, and their rows."""
        if self._features is None:
            self._features = self._read()
        return self._features

    def _read(self) -> tuple[int, Features]:
        examples, features = self._reader.read(TRAIN)
        path = self._config.unlabeled_file
        if path is None:
            return len(examples), features
        more = list(self._student_task.read_inputs(path))
        if not more:
            raise UserError(f"--unlabeled_file={path} has no rows.")
        unlabeled = self._student_task.featurize_unlabeled(
            more, self._reader.tokenizer
        )
        logging.info(
            "%s: %d examples without labels, %d rows.",
            path,
            len(more),
            len(unlabeled),
        )
        return len(examples) + len(more), MixedFeatures(features, unlabeled)

    def build_objective(self, model: keras.Model) -> DistillationObjective:
        """Returns what to minimise for a student."""
        config = self._config
        mine, theirs = model.bert_config, self._stored.config
        with self._devices.strategy.scope():
            layer_pairs = LayerPairs(
                students.choose_layers(
                    config, mine.num_hidden_layers, theirs.num_hidden_layers
                ),
                (mine.hidden_size, theirs.hidden_size)
                if config.hidden_weight
                else None,
                mine.initializer_range,
            )
        weights = Weights(
            config.distillation_weight,
            config.hidden_weight,
            config.attention_weight,
            config.temperature,
            config.hidden_loss,
        )
        logging.info(
            "The student has %s parameters, its teacher %s.",
            f"{model.count_params():,}",
            f"{self._model.count_params():,}",
        )
        return DistillationObjective(
            self._student_task, self._model, weights, layer_pairs
        )

    def compare(self, split: str) -> Metrics:
        """Returns the teacher's metrics, computed once for all runs."""
        if split not in self._metrics:
            logging.info("The teacher says of %s:", split)
            evaluator = Evaluator(
                self._model,
                self._reader,
                self._config.eval_batch_size,
                self._config.num_length_buckets,
                self._devices.strategy,
                self._devices.coordinator.is_chief,
            )
            evaluated = evaluator.evaluate(split, self._task, tune=True)
            self._metrics[split] = {
                PREFIX + name: value
                for name, value in evaluated.metrics.items()
            }
        return self._metrics[split]


def _arguments(config: DistillConfig) -> dict[str, bool]:
    """Returns what models are told to return beside what their heads say."""
    return {
        name: True
        for name, weight in (
            ("return_all_layers", config.hidden_weight),
            ("return_embeddings", config.hidden_weight),
            ("return_attention_probs", config.attention_weight),
        )
        if weight
    }
