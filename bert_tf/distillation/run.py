"""Runs distillation: fine-tuning with a teacher in addition to labels.

Distillation differs from fine-tuning in the initial model (the student), the
task, the data and the objective (`Teacher`). A new student has L layers of
width H with A heads, like the small models of Turc et al., 2019
(https://arxiv.org/abs/1908.08962).

Shapes:
  B: batch size.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.distillation import inputs
from bert_tf.distillation import objective
from bert_tf.distillation.objective import IS_LABELED
from bert_tf.distillation.objective import DistillationObjective
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning import run as finetuning
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.finetuning.experiment import Experiment
from bert_tf.finetuning.experiment import ObjectiveSource
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.tasks import confidence
from bert_tf.tasks import dev_split
from bert_tf.tasks import registry
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import TaskFiles
from bert_tf.training import preemption as preemptions
from bert_tf.training.preemption import Preemption

_FLAG = "--teacher_dir"
# Prefix of the names of the teacher's metrics in the results of a student.
PREFIX = "teacher_"

# A student tagger is always fine-tuned, even if its teacher is feature-based.
_FINE_TUNED = {
    "approach": "fine_tuning",
    "layer_combination": None,
    "lstm_size": None,
}

_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_LAYERS = "bert/encoder/"
# The projection is computed from the first table and applied to all three.
_EMBEDDINGS = (
    "bert/embeddings/word_embeddings",
    "bert/embeddings/position_embeddings",
    "bert/embeddings/token_type_embeddings",
)
# Student and teacher must share these settings, or ids mean different tokens.
_SAME_TEXT = {
    "vocabulary_hash": "a vocabulary of the hash",
    "lower_case": "lower case",
}
# A student layer can copy a teacher layer if these sizes are equal.
_LAYER_SHAPE = ("hidden_size", "num_attention_heads", "intermediate_size")


def run(
    config: Flags, task_files: TaskFiles | None = None
) -> dict[str, Metrics]:
    """Runs distillation for run/distill.py.

    Returns the metrics by split; the names of the teacher's metrics begin with
    `teacher_`. `task_files` are the files of the teacher's task with their
    data, or None if the teacher has to be read first.
    """
    with preemptions.prepare(config) as place:
        return finetuning.run_experiment(_read(config, task_files, *place))


def _read(
    config: Flags,
    task_files: TaskFiles | None,
    devices: Devices,
    preemption: Preemption,
) -> Experiment:
    stored_teacher = formats.read(config.teacher_dir)
    teacher_task = registry.from_stored(stored_teacher, _FLAG)
    if config.max_seq_length is None:
        config = dataclasses.replace(
            config, max_seq_length=teacher_task.max_seq_length
        )
    stored_teacher.build_tokenizer()  # Raises if there is no vocabulary.
    longest = stored_teacher.config.max_position_embeddings
    options.require_length(config, longest, stored_teacher.path)
    teacher_task = dataclasses.replace(
        inputs.with_files(teacher_task, config),
        max_seq_length=config.max_seq_length,
    )
    if task_files is None:
        task_files = dev_split.split(teacher_task, config)
    teacher_task = dataclasses.replace(
        teacher_task, files=task_files.files, data=task_files.data
    )
    if devices.coordinator.num_workers > 1:
        # Each worker runs its own copy of the teacher, so compare the copies.
        devices.coordinator.agree(
            {"the teacher": stored_teacher.fingerprint}, "teacher"
        )
    task = of_student(teacher_task, config)
    if config.do_train:
        student = read_student(config, stored_teacher)
    else:
        student = pretrained_models.read(config)
        task = _restore_choices(task, student.task)
    experiment = experiments.prepare(config, task, student, devices, preemption)
    teacher = Teacher(
        config, stored_teacher, teacher_task, experiment.reader, devices
    )
    return dataclasses.replace(experiment, objective_source=teacher)


def _restore_choices(task: Task, stored_task: Mapping[str, Any]) -> Task:
    """Returns the task with the head and thresholds of a trained student."""
    if hasattr(task, "head") and "head" in stored_task:
        task = dataclasses.replace(task, head=stored_task["head"])
    return task.with_threshold(stored_task)


class Teacher(ObjectiveSource):
    """A fine-tuned model that students learn from, in addition to labels."""

    def __init__(
        self,
        config: Flags,
        stored: StoredModel,
        task: Task,
        reader: SplitReader,
        devices: Devices,
    ) -> None:
        super().__init__(reader)
        self._config = config
        self._stored = stored
        self._task = task
        self._devices = devices
        self._metrics: dict[str, Metrics] = {}
        # Both models must output the states that the losses compare.
        names = []
        if config.hidden_weight:
            names += ["return_all_layers", "return_embeddings"]
        if config.attention_weight:
            names.append("return_attention_probs")
        self.model_arguments = dict.fromkeys(names, True)
        with devices.strategy.scope():
            self._model = checkpoint_loading.build_model(
                stored,
                fuse=devices.fuse,
                dtype=devices.precision.policy,
                **self.model_arguments,
            )
        if not config.learns_from_teacher:
            logging.warning(
                "All weights of the teacher's losses are 0: the student learns "
                "from the labels alone."
            )

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """The hashes of the teacher's weights and of the unlabeled data."""
        identity = {"the teacher": self._stored.fingerprint}
        if self._config.unlabeled_file:
            path = self._config.unlabeled_file
            identity["the file of the unlabeled data"] = files.sha256(path)
        return identity

    @property
    def card(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows of the model card that describe the teacher."""
        shape = self._stored.config
        rows = {
            "model": paths.base_names(self._stored.source),
            "layers": shape.num_hidden_layers,
            "width": shape.hidden_size,
            "attention heads": shape.num_attention_heads,
            "parameters": f"{self._model.count_params():,}",
        }
        if self._config.unlabeled_file:
            rows["labeled by it"] = paths.base_names(
                self._config.unlabeled_file
            )
        return {"Teacher": rows}

    def read(self) -> tuple[int, Features]:
        return self._training_data

    @functools.cached_property
    def _training_data(self) -> tuple[int, Features]:
        num_labeled, features = super().read()
        path = self._config.unlabeled_file
        if path is None:
            return num_labeled, features
        unlabeled_examples = list(self._reader.task.read_inputs(path))
        if not unlabeled_examples:
            raise UserError(f"--unlabeled_file={path} has no rows.")
        unlabeled = self._reader.task.featurize_unlabeled(
            unlabeled_examples, self._reader.tokenizer
        )
        logging.info(
            "%s: %d examples without labels, %d rows.",
            path,
            len(unlabeled_examples),
            len(unlabeled),
        )
        return (
            num_labeled + len(unlabeled_examples),
            MixedFeatures(features, unlabeled),
        )

    def build_objective(self, model: keras.Model) -> DistillationObjective:
        config = self._config
        student, teacher = model.bert_config, self._stored.config
        layers = inputs.choose_layers(
            config, student.num_hidden_layers, teacher.num_hidden_layers
        )
        widths, projection = (student.hidden_size, teacher.hidden_size), None
        if config.hidden_weight and widths[0] != widths[1]:
            with self._devices.strategy.scope():
                projection = objective.build_projection(
                    *widths, student.initializer_range
                )
        logging.info(
            "The student has %s parameters, its teacher %s.",
            f"{model.count_params():,}",
            f"{self._model.count_params():,}",
        )
        return DistillationObjective(
            self._reader.task, self._model, config, layers, projection
        )

    def compare(self, split: str) -> Metrics:
        """Returns the teacher's metrics, computed once for all trials."""
        if split not in self._metrics:
            logging.info("The teacher's metrics on %s:", split)
            evaluated = Evaluator(
                self._model, self._reader, self._config, self._devices
            ).evaluate(split, self._task, select_threshold=True)
            self._metrics[split] = {
                PREFIX + name: value
                for name, value in evaluated.metrics.items()
            }
        return self._metrics[split]


def of_student(task: Task, config: Flags) -> Task:
    """Returns the student's task, with the head that the flags describe."""
    changes: dict[str, Any] = {"head": config.head}
    if hasattr(task, "head_dropout_prob"):
        changes["head_dropout_prob"] = config.head_dropout_prob
    elif config.head_dropout_prob != type(config).head_dropout_prob:
        raise UserError(
            "--head_dropout_prob has no effect on a student of kind="
            f"{task.kind!r}, whose head has no dropout; drop it."
        )
    if isinstance(task, TaggingTask):
        changes |= _FINE_TUNED
    if isinstance(task, SquadTask):  # The student selects its own threshold.
        changes["null_score_diff_threshold"] = None
    if isinstance(task, ClassificationTask):
        if task.reject_below and config.do_train:
            logging.info(
                "The student answers all texts: --reject_below=%.4g is for the "
                "probabilities of its teacher; choose another on dev.",
                task.reject_below,
            )
        changes |= dict.fromkeys(confidence.FIELDS)
        changes["reject_label"] = task.reject_label  # Rows of dev may have it.
        changes["calibrates"] = task.may_calibrate(config)
        # Drop a few-shot teacher's pooling: unit vectors slow learning down.
        changes |= {"pooling": None, "normalize": False}
    return dataclasses.replace(task, **changes)


class MixedFeatures:
    """Labeled rows, then unlabeled rows, in the form of `Features`."""

    def __init__(self, labeled: Features, unlabeled: Features) -> None:
        self._labeled = labeled
        self._unlabeled = unlabeled

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], the number of tokens of each row."""
        return np.concatenate([self._labeled.lengths, self._unlabeled.lengths])

    def __len__(self) -> int:
        return len(self._labeled) + len(self._unlabeled)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns a batch of rows of both kinds, see `Features`.

        Adds `is_labeled` <float32>[B]. Features that unlabeled rows lack are 0.
        """
        is_labeled = indices < len(self._labeled)
        labeled = self._labeled.batch(indices[is_labeled], length)
        unlabeled = self._unlabeled.batch(
            indices[~is_labeled] - len(self._labeled), length
        )
        batch = {IS_LABELED: is_labeled.astype(np.float32)}
        for name, value in labeled.items():
            other = unlabeled.get(name, np.zeros([0, *value.shape[1:]]))
            # Pad to the larger number of choices, as the numbers may differ.
            shape = np.maximum(value.shape[1:], other.shape[1:])
            rows = np.zeros([len(indices), *shape], value.dtype)
            _put(rows, is_labeled, value)
            if name in unlabeled:
                _put(rows, ~is_labeled, other)
            batch[name] = rows
        return batch


def _put(rows: np.ndarray, which: np.ndarray, values: np.ndarray) -> None:
    """Writes `values` to the rows where `which` is true; padding stays 0."""
    parts = tuple(slice(size) for size in values.shape[1:])
    rows[(np.flatnonzero(which), *parts)] = values


def read_student(config: Flags, teacher: StoredModel) -> StoredModel:
    """Returns the student that training starts from."""
    if config.has_student:
        student = pretrained_models.read(config)
        _check_text(student, teacher)
        inputs.choose_layers(
            config,
            student.config.num_hidden_layers,
            teacher.config.num_hidden_layers,
        )
    else:
        student = pretrained_models.adapt(_make(config, teacher), config)
    if config.attention_weight:
        _check_attention(student.config, teacher.config)
    return student


def _make(config: Flags, teacher: StoredModel) -> StoredModel:
    """Returns a new student with the teacher's tokenizer."""
    base = teacher.config
    new = dataclasses.replace(
        base, **config.shape(*(getattr(base, x) for x in _LAYER_SHAPE))
    )
    layers = inputs.choose_layers(
        config, new.num_hidden_layers, base.num_hidden_layers
    )
    student = StoredModel(
        path=f"the new student of {teacher.path}",
        config=new,
        weights=pretrained_models.draw_weights(new, config.seed),
        vocabulary=teacher.vocabulary,
        tokenizer_settings=teacher.tokenizer_settings,
        task={"kind": "encoder"},
    )
    if config.initialize_from_teacher:
        if new.hidden_size == base.hidden_size:
            return _copy_teacher(student, teacher, layers)
        if new.hidden_size < base.hidden_size:
            return _project_embeddings(student, teacher)
    logging.info(
        "The student of %s starts with random weights.", _describe(new)
    )
    return student


def _project_embeddings(
    student: StoredModel, teacher: StoredModel
) -> StoredModel:
    """Returns a student with its teacher's embeddings, projected to its width.

    The projection keeps the principal components of the word embeddings. With
    random embeddings, words that the training text lacks would stay random.
    """
    words = teacher.weights[_EMBEDDINGS[0]]
    # `eigh` sorts by ascending variance, so keep the last vectors.
    _, vectors = np.linalg.eigh(words.T @ words)
    projection = vectors[:, -student.config.hidden_size :]
    projected = {x: teacher.weights[x] @ projection for x in _EMBEDDINGS}
    logging.info(
        "The student of %s starts with the teacher's embeddings, projected to "
        "its width, and layers with random weights.",
        _describe(student.config),
    )
    weights = student.weights | Tensors.from_arrays(projected)
    return dataclasses.replace(student, weights=weights)


def _copy_teacher(
    student: StoredModel, teacher: StoredModel, layers: Sequence[int]
) -> StoredModel:
    """Returns a student with the weights of a teacher of the same width."""
    copied = teacher.weights.select(lambda x: not x.startswith(_LAYERS))
    has_layers = all(
        getattr(student.config, name) == getattr(teacher.config, name)
        for name in _LAYER_SHAPE
    )
    if has_layers:

        def of_teacher(match: re.Match) -> str:
            return f"{_LAYERS}layer_{layers[int(match[1])] - 1}/"

        copied |= teacher.weights.rename(
            {
                name: _LAYER.sub(of_teacher, name)
                for name in student.weights
                if _LAYER.match(name)
            }
        )
    logging.info(
        "The student of %s starts with the teacher's %s.",
        _describe(student.config),
        f"layers {', '.join(map(str, layers))}, embeddings, pooler and head"
        if has_layers
        else "embeddings, pooler and head; its layers have another shape and "
        "start with random weights",
    )
    weights = student.weights | copied
    return dataclasses.replace(student, weights=weights, task=teacher.task)


def _check_text(student: StoredModel, teacher: StoredModel) -> None:
    """Raises `UserError` if an id is not the same token in both models.

    The text normalization (--normalization) may differ, because the teacher
    reads the student's tokens.
    """
    own, expected = student.tokenizer_settings, teacher.tokenizer_settings
    received = "; ".join(
        f"{label} {own[name]} of the student, {expected[name]} of the teacher"
        for name, label in _SAME_TEXT.items()
        if own[name] != expected[name]
    )
    if received:
        raise UserError(
            f"The student {student.path} must have the vocabulary of its "
            f"teacher {teacher.path}, as they get the same tokens. Received: "
            f"{received}; choose another student, or a new one with "
            "--num_hidden_layers."
        )


def _check_attention(student: BertConfig, teacher: BertConfig) -> None:
    """Raises `UserError` if attention of the two models is not comparable."""
    if student.num_attention_heads != teacher.num_attention_heads:
        raise UserError(
            "--attention_weight compares pairs of heads, so the student must "
            f"have as many as its teacher, {teacher.num_attention_heads}. "
            f"Received: {student.num_attention_heads}; add "
            f"--num_attention_heads={teacher.num_attention_heads}, or drop "
            "--attention_weight."
        )
    if student.attention_probs_dropout_prob:
        raise UserError(
            "--attention_weight compares probabilities, which attention "
            "dropout would change; add --attention_probs_dropout_prob=0."
        )


def _describe(config: BertConfig) -> str:
    return (
        f"L={config.num_hidden_layers}, H={config.hidden_size}, "
        f"A={config.num_attention_heads}"
    )
