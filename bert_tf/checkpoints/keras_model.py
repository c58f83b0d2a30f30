"""Reads Keras models, in memory or in `.keras` files, as stored models.

A `.keras` file has vocab.txt, tokenizer.json and task.json of the model in the
folder assets/. Earlier versions, and models without `text_files`, wrote none.
"""

import json
import re
import zipfile
from typing import Any

import keras
import numpy as np

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import damaged
from bert_tf.errors import UserError
from bert_tf.io import archives
from bert_tf.io import stored_files
from bert_tf.modeling import bert as bert_model

# Importing the classes registers them with Keras.
from bert_tf.modeling import task_models  # noqa: F401

_SUFFIX = ".keras"
_CONFIG_FILE = "config.json"
_PACKAGE = "bert_tf>"


def from_model(model: keras.Model, path: str) -> StoredModel:
    """Returns a model of `bert_tf.modeling` as a stored model.

    The weights are not copied. `path` names the model in errors.
    """
    variables = bert_model.named_variables(model)
    shapes = {name: tuple(x.shape) for name, x in variables.items()}

    def read(name):
        value = keras.ops.cast(variables[name], "float32")
        return np.asarray(keras.ops.convert_to_numpy(value))

    weights, report = matching.match(
        model.bert_config, Tensors(shapes, read), "bert_tf", path
    )
    texts = model.current_text_files()
    vocabulary, settings = model_directory.parse_vocabulary(texts, path)
    stored = StoredModel(
        path=path,
        config=model.bert_config,
        weights=weights,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task=_task_of(
            model,
            shapes,
            stored_files.parse_json(
                texts.get(model_directory.TASK_FILE, "{}"), path
            ),
        ),
        report=report,
    )
    stored_model.check(stored)
    return stored


def _task_of(
    model: keras.Model, names: Any, values: dict[str, Any]
) -> dict[str, Any]:
    """Returns the contents of task.json, completed from the model itself."""
    kind = values.get("kind")
    present = weight_map.parts_of(names)
    if kind is None or not present.issuperset(weight_map.HEADS[kind]):
        kind = weight_map.kind_of(names)
    derived: dict[str, Any] = {"kind": kind}
    if getattr(model, "lstms", None):
        if getattr(model, "combination", None) is not None:
            derived["approach"] = model.approach
            derived["layer_combination"] = model.combination.combination
        else:
            derived["head"] = model.head_type
    labels = getattr(model, "labels", None)
    if labels is not None:
        derived["labels"] = list(labels)
    stored = {name: x for name, x in values.items() if x is not None}
    if getattr(model, "pooling", None):
        stored |= {x: getattr(model, x) for x in ("pooling", "normalize")}
    return derived | stored | {"kind": kind}


def recognizes(path: str) -> bool:
    """Returns whether `path` is a `.keras` file of a model of this project."""
    if not path.endswith(_SUFFIX):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(_CONFIG_FILE)
            is_small = info.file_size <= stored_files.MAX_BYTES
            if not is_small or not archives.is_bounded(info):
                return False
            config = json.loads(archive.read(info))
    except (OSError, *archives.DAMAGED):
        return False
    name = config.get("registered_name") if isinstance(config, dict) else None
    return isinstance(name, str) and name.startswith(_PACKAGE)


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads the model of a `.keras` file, without its optimizer."""
    del allow_missing  # Not supported: Keras loads all weights or none.
    try:
        model = keras.saving.load_model(path, compile=False)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  # Keras raises many types.
        raise damaged(path, error) from error
    return from_model(model, path)
