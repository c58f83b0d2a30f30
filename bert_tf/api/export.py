"""`export_savedmodel`, `export_tflite`: the exporters for Keras models."""

import contextlib
import dataclasses
import difflib
import os
import tempfile
import types
import typing
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras

from bert_tf import errors
from bert_tf.api import save
from bert_tf.errors import UserError
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig
from bert_tf.modeling import saving

# The source in the model card of an export.
_ORIGIN = "a Keras model"


def export_savedmodel(
    model: keras.Model, directory: str | os.PathLike, **flags: Any
) -> None:
    """Exports a model as a SavedModel that takes texts.

    Writes the files that export/savedmodel.py writes for the model's directory,
    verified in the same way, to `directory`/1 or the next number.
    `model.export(directory)` calls this function.

    Args:
      model: A model of `bert_tf.load_model`, trained or not.
      directory: The directory of the versions.
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
    path = os.fspath(directory)
    with _saved(
        model, SavedModelConfig, {"output_dir": path} | flags
    ) as config:
        # Imported here, as it takes a second that most programs do not need.
        from bert_tf.export import savedmodel

        savedmodel.run(config, _ORIGIN)


def export_tflite(
    model: keras.Model, file: str | os.PathLike, **flags: Any
) -> None:
    """Exports a model as a .tflite file, with a report beside it.

    Writes what export/tflite.py writes for the model's directory, verified in
    the same way.

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
    flags = {"output_file": os.fspath(file)} | flags
    with _saved(model, TfliteConfig, flags) as config:
        from bert_tf.export.tflite import run

        run.run(config, _ORIGIN)


saving.hooks.exporters |= {
    "tf_saved_model": export_savedmodel,
    "litert": export_tflite,
}


@contextlib.contextmanager
def _saved(
    model: keras.Model, config_cls: type, values: dict[str, Any]
) -> Iterator[Any]:
    """Yields an exporter's flags, with the model in a temporary directory.

    Raises:
      UserError: For a wrong flag, or a model without vocabulary.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        config = _to_config(config_cls, values, path)
        save.require_own(model)
        if not model.has_vocabulary:
            raise UserError(
                "An export reads texts, so the model needs a vocabulary. "
                f"Received: a {type(model).__name__} without one; load it with "
                "bert_tf.load_model from a directory that has vocab.txt, or "
                "give model.export an input_signature to export its features."
            )
        save.save_model(model, path)
        with errors.extras():
            yield config


def _to_config(
    config_cls: type, values: Mapping[str, Any], model_dir: str
) -> Any:
    """Returns the flags of an exporter from keyword arguments."""
    annotations = typing.get_type_hints(config_cls)
    fields = {
        field.name: field
        for field in dataclasses.fields(config_cls)
        if field.name != "model_dir"
    }
    values = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in values.items()
    }
    for name, value in values.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {close[0]}?" if close else "see its --help."
            raise UserError(
                "Expected keyword arguments that are flags of the exporter: "
                f"{', '.join(fields)}. Received: {name}; {hint}"
            )
        expected, choices = annotations[name], fields[name].metadata["choices"]
        if choices and value is not None and value not in choices:
            raise UserError(
                f"{name} must be one of {', '.join(choices)}. Received: "
                f"{value!r}."
            )
        if not _fits(value, expected):
            shown = getattr(expected, "__name__", expected)
            raise UserError(
                f"{name} must be of the type {shown}. Received: {value!r}."
            )
    return config_cls(model_dir=model_dir, **values)


def _fits(value: Any, expected: Any) -> bool:
    """Returns whether a value has a flag's type, such as `int | None`."""
    if isinstance(value, bool):
        is_union = isinstance(expected, types.UnionType)
        return bool in (typing.get_args(expected) if is_union else (expected,))
    if isinstance(value, int) and expected is float:
        return True
    return isinstance(value, expected)
