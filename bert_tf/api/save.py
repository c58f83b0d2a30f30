"""`save_model` and the exporters: Keras models to files."""

import contextlib
import dataclasses
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf.api.preprocessor import Preprocessor
from bert_tf.checkpoints import keras_model
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import check_bools
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig
from bert_tf.io import files
from bert_tf.modeling import task_models
from bert_tf.tasks import registry
from bert_tf.tasks.predict import MODEL_INPUTS

# Values of task.json to drop, as later training may outdate them.
_OF_A_RUN = ("global_step", "results")

# The source of an exported model, for its model card.
_ORIGIN = "a Keras model"


@errors.suggests_arguments
def save_model(
    model: keras.Model, directory: str | os.PathLike, overwrite: bool = True
) -> None:
    """Writes a model as a model directory, which every script reads.

    The directory has the configuration, weights, vocabulary, the tokenizer's
    settings, the task with the names of its labels, and a model card. Only
    `model.save("x.keras")` also keeps the optimizer's state. The directory
    appears only when it is complete.

    Args:
      model: A model of `bert_tf.load_model`, trained or not; or a model that a
        constructor made, which is saved without a vocabulary.
      directory: The directory to write.
      overwrite: Whether to replace an existing model directory. A directory
        with other files is never replaced.

    Raises:
      UserError: If the model is not one of bert_tf's, or the directory contains
        anything but a model; or a model, and `overwrite` is False.

    Example:
      >>> model = bert_tf.load_model(
      ...     "bert-base-uncased", "classification", labels=["bad", "good"]
      ... )
      >>> bert_tf.save_model(model, "films")
      >>> bert_tf.load_model("films").labels
      ('bad', 'good')
    """
    check_bools(overwrite=overwrite)
    path = as_path(directory)
    _require_own(model)
    _require_replaceable(path, overwrite)
    stored = keras_model.from_model(model, path)
    task = _describe_task(stored)
    stored = dataclasses.replace(stored, task=task)
    with files.atomic_directory(path) as temporary:
        model_directory.write_model(temporary, stored, _card(model, task))
    logging.info("The model is in %s.", path)


def export_savedmodel(
    model: keras.Model, directory: str | os.PathLike, **flags: Any
) -> None:
    """Exports a model as a SavedModel that takes texts.

    Writes and verifies the files that export/savedmodel.py would write for the
    saved model. The first export writes the folder `directory`/1, the second
    `directory`/2. `model.export(directory)` calls this function.

    Args:
      model: A model of `bert_tf.load_model`, trained or not.
      directory: The directory that has one folder for each version.
      **flags: Flags of export/savedmodel.py, such as `max_seq_length=64` or
        `litert=True`.

    Raises:
      UserError: If a flag does not exist or does not fit the model, the model
        has no vocabulary, or verification fails.

    Example:
      >>> model = bert_tf.load_model("films")
      >>> bert_tf.export_savedmodel(model, "served/films", max_seq_length=16)
      >>> sorted(os.listdir("served/films"))
      ['1', 'batching_parameters.txt', 'models.config']
    """
    flags = {"output_dir": as_path(directory)} | flags
    with _saved(model, SavedModelConfig, flags) as config:
        # Import only for an export, as the import takes a second.
        from bert_tf.export import savedmodel

        savedmodel.run(config, _ORIGIN)


def export_tflite(
    model: keras.Model, file: str | os.PathLike, **flags: Any
) -> None:
    """Exports a model as a .tflite file, with a report beside it.

    Writes the files that export/tflite.py would write for the saved model, and
    verifies them in the same way.

    Args:
      model: A model of `bert_tf.load_model`, trained or not.
      file: The .tflite file.
      **flags: Flags of export/tflite.py, such as `quantization="float16"` or
        `max_seq_length=64`.

    Raises:
      UserError: If a flag does not exist or does not fit the model, the model
        has no vocabulary, or verification fails.

    Example:
      >>> model = bert_tf.load_model("films")
      >>> bert_tf.export_tflite(model, "films.tflite", max_seq_length=16)
      >>> os.path.exists("films.tflite.json")
      True
    """
    flags = {"output_file": as_path(file)} | flags
    with _saved(model, TfliteConfig, flags) as config:
        from bert_tf.export.tflite import run as tflite_export

        tflite_export.run(config, _ORIGIN)


def as_path(
    path: Any, expected: str = 'a path as a text, as in save_model(model, "x")'
) -> str:
    """Returns a path as a text, with the home directory for ~."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"Expected {expected}. Received: {path!r:.80}.")
    return os.path.expanduser(path)


def _require_own(model: Any) -> None:
    """Raises `UserError` for a model that is not one of bert_tf's."""
    if not hasattr(model, "current_text_files"):
        raise UserError(
            "Expected a model of bert_tf, as bert_tf.load_model returns it. "
            f"Received: {type(model).__name__}; for a model that contains one, "
            "give that one, for instance `model.get_layer(...)`."
        )


def _require_replaceable(path: str, overwrite: bool) -> None:
    """Raises `UserError` for a path that holds anything but a model."""
    if not tf.io.gfile.exists(path):
        return
    names: set[str] = set()
    if tf.io.gfile.isdir(path):
        names = {name.rstrip("/") for name in tf.io.gfile.listdir(path)}
        if not names:
            return
    checksums = model_directory.CHECKSUMS_FILE
    if checksums not in names:
        raise UserError(
            "Expected a new directory, or a model directory to replace. "
            f"Received: {path!r}, which holds something else; choose another "
            "name."
        )
    if not overwrite:
        raise UserError(
            f"{path!r} holds a model already, and overwrite=False; choose "
            "another name, or drop the argument."
        )
    listed = model_directory.read_checksums(path)
    others = sorted(names - {*listed, checksums})
    if others:
        raise UserError(
            f"{path!r} holds a model and {', '.join(others)}, which would be "
            "deleted with it; move this first, or choose another name."
        )


def _describe_task(stored: StoredModel) -> dict[str, Any]:
    """Returns the contents of task.json, complete with the task's defaults."""
    values = {k: v for k, v in stored.task.items() if k not in _OF_A_RUN}
    if (values.get("variant") or values["kind"]) not in registry.TASKS:
        return values
    task = registry.build_task(
        values, stored.num_labels, stored.config.max_position_embeddings
    )
    # Drop the `language` of earlier versions: `to_json` adds it if it is used.
    values.pop("language", None)
    complete = values | task.to_json()
    if values.get("labels") is None and "labels" in complete:
        complete["labels"] = None  # Otherwise the names would be "0", "1", ...
    return complete


def _card(model: keras.Model, task: dict[str, Any]) -> str:
    name = task.get("name") or task["kind"]
    training = {}
    if getattr(model, "optimizer", None) is not None:
        optimizer = model.optimizer
        training = {
            "optimizer": type(optimizer).__name__,
            "steps": int(optimizer.iterations),
        }
    return model_directory.build_card(
        f"A BERT for {name}",
        "A BERT from a Keras program, saved with bert_tf.save_model.",
        {
            "Task": {k: v for k, v in task.items() if v is not None},
            "Training": training,
        },
        'import bert_tf\nmodel = bert_tf.load_model(".")',
        model_directory.card_header(task, getattr(model, "source", "")),
    )


@contextlib.contextmanager
def _saved(
    model: keras.Model, config_cls: type, values: dict[str, Any]
) -> Iterator[Any]:
    """Yields an exporter's flags, with the model in a temporary directory."""
    _require_own(model)
    if model_directory.VOCAB_FILE not in model.text_files:
        raise UserError(
            "An export reads texts, so the model needs a vocabulary. "
            f"Received: a {type(model).__name__} without one; load it with "
            "bert_tf.load_model from a directory that has vocab.txt, or "
            "give model.export an input_signature to export its features."
        )
    if "model_dir" in values:
        raise UserError(
            "model_dir is a temporary directory here. Received: "
            f"{values['model_dir']!r}; drop it."
        )
    try:
        with tempfile.TemporaryDirectory() as folder, errors.extras():
            values |= {"model_dir": os.path.join(folder, "model")}
            config = cli.parse(config_cls, cli.words(values))
            save_model(model, config.model_dir)
            yield config
    except UserError as error:
        # Name arguments of Python: top_k, not --top_k.
        error.args = (re.sub(r"(?<!\.py )--(\w)", r"\1", str(error)),)
        raise


_EXPORTERS = {"tf_saved_model": export_savedmodel, "litert": export_tflite}


class FileMethods:
    """A mixin for models: files, exports, and methods that only raise."""

    @errors.suggests_arguments
    def save(self, filepath, overwrite=True):
        """Writes a .keras file, like `keras.Model.save`.

        Raises:
          UserError: For any other file, as `load_model` could not read it.
        """
        path = as_path(filepath)
        if not path.endswith(".keras"):
            raise UserError(
                "model.save writes .keras files; for a directory, call "
                f"bert_tf.save_model(model, directory). Received: {path!r}."
            )
        files.make_folders(os.path.dirname(path))
        super().save(path, overwrite)

    def quantize(self, *args, **kwargs):
        """Raises `UserError`: Keras can quantize none of the model's layers."""
        raise UserError(
            "quantize changes no layer of this model; for int8 call "
            'bert_tf.export_tflite(model, "model.tflite").'
        )

    def enable_lora(self, *args, **kwargs):
        """Raises `UserError`: Keras can adapt none of the model's layers."""
        raise UserError(
            "enable_lora changes no layer of this model; train all weights, or "
            "freeze the encoder with model.bert.trainable = False."
        )

    def export(
        self,
        filepath,
        format="tf_saved_model",
        verbose=None,
        input_signature=None,
        **kwargs,
    ):
        """Exports the model, with its tokenizer if it has one.

        Args:
          filepath: The directory for all versions, or the file for "litert".
          format: "tf_saved_model" writes the files of export/savedmodel.py,
            "litert" the files of export/tflite.py. If the format is another
            one, the model has no vocabulary or `input_signature` is given,
            Keras exports a model that reads features.
          verbose: Whether to print how to use the result; by default True.
          input_signature: As for Keras.
          **kwargs: Flags of the export script, such as `max_seq_length=64`.

        Raises:
          UserError: For another format, a wrong flag, or if verification fails.
        """
        if format == "onnx":
            raise UserError(
                "Keras cannot write this model as ONNX: call export(path, "
                "ids_only=True), and tf2onnx converts path_ids/1. Received: "
                'format="onnx".'
            )
        errors.require_choice(
            "format", format, (*_EXPORTERS, "openvino", "torch")
        )
        exporter = _EXPORTERS.get(format)
        has_signature = input_signature is not None
        if exporter is None or has_signature or not self.has_vocabulary:
            has_choices = isinstance(self, task_models.BertForMultipleChoice)
            shape = [None] * (3 if has_choices else 2)
            features = {
                x: keras.InputSpec("int32", shape, name=x) for x in MODEL_INPUTS
            }
            super().export(
                filepath,
                format=format,
                verbose=verbose,
                input_signature=input_signature or [features],
                **kwargs,
            )
            return
        quiet = contextlib.redirect_stdout(io.StringIO())
        with contextlib.nullcontext() if verbose in (None, True) else quiet:
            exporter(self, os.path.expanduser(filepath), **kwargs)

    @property
    def has_vocabulary(self):
        return model_directory.VOCAB_FILE in self.text_files

    def current_text_files(self):
        """Returns `text_files` with the current values of the task."""
        contents = super().current_text_files()
        if self.preprocessor is not None:
            values = self.preprocessor.task_values
            contents[model_directory.TASK_FILE] = json.dumps(
                values, ensure_ascii=False
            )
        return contents

    def load_assets(self, dir_path):
        """Restores the preprocessor from the text files; called by Keras."""
        super().load_assets(dir_path)
        if self.text_files:
            source = f"the .keras file of {self.name}"
            stored = keras_model.from_model(self, source)
            self.attach_text(stored, stored.task)

    def attach_text(self, stored, task_values, max_seq_length=None):
        """Sets `preprocessor`, and the `text_files` that a .keras file stores.

        The `task_values` are the contents of task.json, except the labels.
        """
        self.source = stored.source
        labels = getattr(self, "labels", None)
        nothing = Tensors.from_arrays({})
        # Drop the weights: the model has them, and a copy would waste memory.
        rest = dataclasses.replace(
            stored, weights=nothing, optimizer_state=nothing
        )
        self.text_files = model_directory.text_files(rest)
        self.preprocessor = Preprocessor(
            {**task_values, "labels": None if labels is None else list(labels)},
            rest.build_tokenizer,
            self.bert_config,
            getattr(self, "num_labels", None),
            max_seq_length,
        )
