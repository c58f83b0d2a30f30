"""Writes the zip file for GLUE's leaderboard from one model per task."""

import collections
import dataclasses
import io
import os
import zipfile
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import names
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.inference import predict
from bert_tf.io import files
from bert_tf.io import paths as path_names
from bert_tf.io import progress
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.glue_tasks import GlueTask
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.predict import Predictor

# The leaderboard expects these numbers of rows.
_OFFICIAL_ROWS = {
    "AX.tsv": 1104,
    "CoLA.tsv": 1063,
    "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847,
    "MRPC.tsv": 1725,
    "QNLI.tsv": 5463,
    "QQP.tsv": 390965,
    "RTE.tsv": 3000,
    "SST-2.tsv": 1821,
    "STS-B.tsv": 1379,
    "WNLI.tsv": 146,
}
_MNLI = "mnli"
# MNLI's model also predicts these diagnostics (gluebenchmark.com/diagnostics).
_AX = "ax"
# WNLI needs no model: "we always predicted the majority class" (paper, B.1).
_WITHOUT_MODEL = "wnli"
# Files in the zip get a fixed time, so equal predictions give equal zips.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class _Part:
    """One file of the zip."""

    name: str
    task: GlueTask
    split: str
    path: str

    def read(self) -> list[InputExample]:
        """Returns the examples to predict."""
        examples = classification_examples.read_official(
            self.task, self.path, self.split
        )
        official = _OFFICIAL_ROWS[self.name]
        if len(examples) != official:
            logging.warning(
                "%s has %d rows instead of the official %d, so the leaderboard "
                "will reject %s.",
                self.path,
                len(examples),
                official,
                self.name,
            )
        return examples


def run(config: Flags) -> None:
    """Writes the submission of run/glue_submission.py.

    All workers compute the predictions; only the chief writes them.
    """
    # Workers must connect before TensorFlow computes anything.
    devices = device_setup.prepare(config)
    with devices.together():
        _run_on(devices, config)


def _run_on(devices: Devices, config: Flags) -> None:
    models = _find_models(config.model_dirs)
    parts, missing = _find_parts(config.glue_dir, models)
    if missing and not config.allow_missing_tasks:
        raise UserError(
            "A submission needs all of GLUE's tasks. Missing: "
            f"{', '.join(missing)}; add them, or omit these tasks with "
            "--allow_missing_tasks."
        )
    if missing:
        logging.warning(
            "Incomplete, so the leaderboard will reject the file. Missing: %s.",
            ", ".join(missing),
        )
    coordinator = devices.coordinator
    if coordinator.num_workers > 1:
        coordinator.agree(
            config.common_flags()
            | {f"the data for {x.name}": files.sha256(x.path) for x in parts}
            | {
                f"the model for {name}": stored.fingerprint
                for name, stored in models.items()
            },
            "flags, models and data",
        )
    # Check all inputs first, so that an error does not come hours later.
    if coordinator.is_chief:
        files.require_writable(config.output_file, "--output_file")
    examples = {part.name: part.read() for part in parts}
    texts = {
        part.name: _predict_majority(part, len(examples[part.name]))
        for part in parts
        if part.task.name == _WITHOUT_MODEL
    }
    for name, stored in models.items():
        predictor = predict.build_predictor(
            stored,
            registry.from_stored(stored, "--model_dirs"),
            devices,
            config,
        )
        for part in parts:
            if _model_of(part.task) == name:
                inputs = examples[part.name]
                texts[part.name] = _predict(
                    predictor, part, inputs, coordinator.is_chief
                )
    if coordinator.is_chief:
        contents = io.BytesIO()
        with zipfile.ZipFile(contents, "w") as archive:
            for name in sorted(texts):
                entry = zipfile.ZipInfo(name, _NO_TIME)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, texts[name], zipfile.ZIP_DEFLATED)
        files.write_bytes(config.output_file, contents.getvalue())
        logging.info(
            "Wrote %s: %s.", config.output_file, ", ".join(sorted(texts))
        )


def _model_of(task: GlueTask) -> str | None:
    """Returns the name of the task whose model predicts `task`, or None."""
    if task.name == _WITHOUT_MODEL:
        return None
    return _MNLI if task.name == _AX else task.name


def _find_models(patterns: str) -> dict[str, StoredModel]:
    """Returns the models by task name."""
    expected = set(map(_model_of, glue_tasks.of_leaderboard())) - {None}
    models: dict[str, StoredModel] = {}
    for pattern in patterns.split(","):
        pattern = pattern.strip()
        paths = [pattern]
        if not names.is_name(pattern) or os.path.exists(pattern):
            paths = sorted(tf.io.gfile.glob(pattern))
        if not paths:
            raise path_names.no_match(pattern, "--model_dirs")
        for path in paths:
            stored = checkpoint_loading.read(path, flag="--model_dirs")
            kind, name = stored.task.get("kind"), stored.task.get("name")
            if kind != ClassificationTask.kind or name not in expected:
                logging.warning(
                    "%s is skipped: the leaderboard needs no model for %s.",
                    path,
                    name or kind,
                )
                continue
            task = registry.from_stored(stored, "--model_dirs")
            if task.name in models:
                raise UserError(
                    "--model_dirs must name one model for each task. Received "
                    f"two for {task.name}: {models[task.name].path} and {path}."
                )
            models[task.name] = stored
    return models


def _find_parts(
    glue_dir: str, models: Mapping[str, StoredModel]
) -> tuple[list[_Part], list[str]]:
    """Returns the files that can be written, and a list of what is missing."""
    parts, missing = [], []
    for task in glue_tasks.of_leaderboard():
        model = _model_of(task)
        if model is not None and model not in models:
            missing.append(f"a model for {task.title}")
            continue
        folder = glue_tasks.find_folder(glue_dir, task)
        if folder is None:
            missing.append(f"the folder {task.title} in {glue_dir}")
            continue
        parts += [
            _Part(
                name,
                task,
                split,
                task.find_file(folder, split, flag="--glue_dir"),
            )
            for split, name in task.submissions.items()
        ]
    return parts, missing


def _predict_majority(part: _Part, num_rows: int) -> str:
    """Predicts the majority label of the training set for every row."""
    folder = os.path.dirname(part.path)
    path = part.task.find_file(folder, "train", flag="--glue_dir")
    training = classification_examples.read_official(part.task, path, "train")
    # On a tie, `most_common` returns the label that occurs first.
    label = collections.Counter(x.label for x in training).most_common(1)[0][0]
    logging.info("%s: predicting %s for every row.", part.name, label)
    return classification_examples.submission_text(
        part.task, [label] * num_rows
    )


def _predict(
    predictor: Predictor,
    part: _Part,
    examples: Sequence[InputExample],
    show_progress: bool,
) -> str:
    """Predicts every row with the model; returns the text of the file."""
    task = predictor.task
    is_score = task.problem_type == "regression"
    answers = []
    with progress.bar(
        len(examples), part.name, "example", hidden=not show_progress
    ) as bar:
        for chunk in task_prediction.chunks(task, examples):
            answers += [
                float(x[0]) if is_score else task.label(x)
                for x in predictor.predict(chunk, bar.update)
            ]
    return classification_examples.submission_text(part.task, answers)
