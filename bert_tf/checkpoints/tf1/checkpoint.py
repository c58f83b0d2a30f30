"""Reads and writes TF1 checkpoints and models, the original's format.

  bert_config.json
  vocab.txt
  bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001

A checkpoint is named by its prefix, for instance `bert_model.ckpt`. Checkpoints
of training have other prefixes (`model.ckpt-1000`) and also hold Adam's moments
and the step; a file `checkpoint` names the newest checkpoint.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import damaged
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files

_DATA_SUFFIX = ".data-00000-of-00001"
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_CONFIG_FILE = "bert_config.json"
_VOCAB_FILE = "vocab.txt"
_PREFIX = "bert_model.ckpt"
_STEP = re.compile(r"-(\d+)$")
# For a damaged file, TensorFlow may raise Python's own errors, such as
# IndexError at the end of a file.
READ_ERRORS = (
    tf.errors.OpError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    ValueError,
)
OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def find_prefix(path: str) -> str:
    """Returns the prefix of the checkpoint at `path`.

    Args:
      path: A prefix, one of a checkpoint's files, or a directory. In a
        directory, the file `checkpoint` names the checkpoint; without this
        file, the latest step is chosen.

    Raises:
      UserError: If no checkpoint exists, or one of several has no step number.
    """
    if tf.io.gfile.isdir(path):
        return _find_in_directory(path)
    prefix = _PART.sub("", path)
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise UserError(
            "Expected the prefix of a checkpoint, with a file PREFIX.index. "
            f"Received: {path!r}, and there is no {prefix}.index."
        )
    return prefix


def _find_in_directory(path: str) -> str:
    # A damaged file `checkpoint` is ignored.
    with contextlib.suppress(tf.errors.OpError, ValueError):
        if state := tf.train.get_checkpoint_state(path):
            # Drop the stored prefix's folder: it may have been moved.
            name = os.path.basename(state.model_checkpoint_path)
            prefix = os.path.join(path, name)
            if tf.io.gfile.exists(f"{prefix}.index"):
                return prefix
    names = [
        name.removesuffix(".index")
        for name in tf.io.gfile.listdir(path)
        if name.endswith(".index")
    ]
    if not names:
        raise UserError(f"There is no checkpoint in the directory {path!r}.")
    steps = {
        int(match[1]): name for name in names if (match := _STEP.search(name))
    }
    if len(names) > 1 and len(steps) < len(names):
        raise UserError(
            f"The directory {path!r} holds several checkpoints; name one of "
            f"them: {', '.join(sorted(names))}."
        )
    return os.path.join(path, steps[max(steps)] if steps else names[0])


def open_tensors(path: str, object_based: bool = False) -> Tensors:
    """Returns the tensors of a checkpoint, which are read on access.

    Args:
      path: A path for `find_prefix`.
      object_based: True for an object-based checkpoint of TensorFlow 2, False
        for a name-based checkpoint.

    Raises:
      UserError: If no checkpoint exists, or the checkpoint is damaged or of the
        other kind. Reading a damaged tensor raises `UserError`, too.
    """
    prefix = find_prefix(path)
    if set(prefix) & set("[\\"):
        raise UserError(
            "TensorFlow reads [ and \\ in the path of a checkpoint as a "
            f"pattern. Received: {prefix!r}; move or rename it."
        )
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
    except READ_ERRORS as error:
        raise damaged(f"The checkpoint {prefix}", error) from error
    kinds = (
        "a name-based checkpoint of TensorFlow 1",
        "an object-based checkpoint of TensorFlow 2",
    )
    if (OBJECT_GRAPH_KEY in shapes) != object_based:
        raise UserError(
            f"{prefix} is {kinds[not object_based]}. Expected "
            f"{kinds[object_based]}."
        )

    def read_tensor(name):
        try:
            return np.asarray(reader.get_tensor(name))
        except READ_ERRORS as error:
            raise damaged(f"The checkpoint {prefix}", error) from error

    return Tensors({n: tuple(shapes[n]) for n in sorted(shapes)}, read_tensor)


def read(path: str) -> dict[str, np.ndarray]:
    """Reads all tensors of a name-based checkpoint; see `open_tensors`."""
    return dict(open_tensors(path))


def read_weights(
    path: str, config: BertConfig, allow_missing: re.Pattern | None = None
) -> tuple[Tensors, Tensors, matching.Report]:
    """Splits a BERT's checkpoint into weights and optimizer state.

    Values are read on access. `path` is as for `find_prefix`.

    Raises:
      UserError: If the checkpoint is damaged, or holds another model.
    """
    prefix = find_prefix(path)
    tensors = open_tensors(prefix)
    state = tensors.select(weight_map.is_optimizer_state)
    weights, report = matching.match(
        config,
        tensors.select(lambda name: name not in state),
        "tf1",
        prefix,
        allow_missing=allow_missing,
    )
    report = report.with_notes(*_check_types(prefix, report.loaded))
    return matching.with_optimizer_state(
        weights, report, state, prefix, allow_missing
    )


def _check_types(prefix: str, names: Collection[str]) -> list[str]:
    """Checks that weights are real numbers; returns a note on other types."""
    dtypes = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    for name in names:
        if not dtypes[name].is_floating:
            raise UserError(
                f"{prefix} is not a model's: expected floating point numbers, "
                f"but {name} is {dtypes[name].name}."
            )
    others = sorted({dtypes[name].name for name in names} - {"float32"})
    if not others:
        return []
    return [
        f"{prefix} holds numbers of type {', '.join(others)}, which become "
        "float32."
    ]


def write(prefix: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint that the original reads.

    The files equal the files of TensorFlow 1, byte for byte. Each file appears
    only when it is complete. The index appears last, as programs look for it to
    find a checkpoint. An earlier checkpoint of the same prefix is replaced.

    Args:
      prefix: The path of the checkpoint, without suffixes such as ".index".
      tensors: Name to value; all values are in memory at once.

    Raises:
      tf.errors.OpError: If the disk is full or cannot be written to; then no
        file is left behind.
    """
    with (
        files.atomic_file(f"{prefix}.index") as index,
        files.atomic_file(f"{prefix}{_DATA_SUFFIX}") as data,
    ):
        scratch = f"{index}.save"
        names = sorted(tensors)
        try:
            # Use the CPU, or else copies would take an accelerator's memory.
            with tf.device("CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=scratch,
                    tensor_names=names,
                    shape_and_slices=[""] * len(tensors),
                    # Copy with `identity`, or else each tensor would keep its
                    # NumPy array alive.
                    tensors=[
                        tf.identity(tf.convert_to_tensor(tensors[name]))
                        for name in names
                    ],
                )
            tf.io.gfile.rename(f"{scratch}{_DATA_SUFFIX}", data)
            tf.io.gfile.rename(f"{scratch}.index", index)
        except BaseException:
            folder, name = os.path.split(scratch)
            for other in tf.io.gfile.listdir(folder or "."):
                if other.startswith(name):
                    tf.io.gfile.remove(os.path.join(folder, other))
            raise


# === Models ===


def recognizes(path: str) -> bool:
    """Returns whether there is a TF1 checkpoint at `path`.

    A damaged checkpoint is recognized, too: `read_model` will raise an error.
    TensorFlow 2's object-based checkpoints are not recognized.
    """
    key = OBJECT_GRAPH_KEY.encode()
    try:
        indices = [f"{prefix}.index" for prefix in _find_prefixes(path)]
        return any(
            not tf.io.gfile.exists(x) or key not in files.read_small(x)
            for x in indices
        )
    except (OSError, tf.errors.OpError):
        return False


def _find_prefixes(path: str) -> set[str]:
    """Returns the prefixes of files that look like parts of checkpoints."""
    if tf.io.gfile.isdir(path):
        names = tf.io.gfile.listdir(path)
        has_config = _CONFIG_FILE in names
        return {
            os.path.join(path, _PART.sub("", name))
            for name in names
            if (match := _PART.search(name))
            and (match[1] == "index" or has_config and match[1] != "meta")
        }
    prefix = _PART.sub("", path)
    return {prefix} if tf.io.gfile.exists(f"{prefix}.index") else set()


def config_beside(prefix: str) -> str:
    """Returns the path of a checkpoint's config; raises if there is none."""
    path = os.path.join(os.path.dirname(prefix), _CONFIG_FILE)
    if not stored_files.exists(path):
        raise UserError(
            f"The checkpoint {prefix} needs the {_CONFIG_FILE} that it was "
            f"trained with beside it, and there is no {path}."
        )
    return path


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads the checkpoint of a prefix or a directory; see `formats`.

    In a directory, `find_prefix` chooses the checkpoint. Without `vocab.txt`
    the vocabulary is None, and converting the model raises `UserError`.
    """
    prefix = find_prefix(path)
    config = files.read_bert_config(config_beside(prefix))
    stored = read_without_texts(prefix, config, allow_missing)
    stored = dataclasses.replace(stored, path=path)
    return stored.with_vocabulary(os.path.dirname(prefix), "A TF1 checkpoint")


def read_without_texts(
    prefix: str, config: BertConfig, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a checkpoint, but neither bert_config.json nor vocab.txt."""
    weights, state, report = read_weights(prefix, config, allow_missing)
    task = {"kind": weight_map.kind_of(weights)}
    if any(map(recurrent_heads.belongs, weights)):
        task["head"] = "bilstm"
    return StoredModel(
        path=prefix,
        config=config,
        weights=weights,
        task=task,
        optimizer_state=state,
        report=report,
    )


def write_model(directory: str, stored: StoredModel) -> list[str]:
    """Writes a model in the original's format; see `formats`.

    The returned sentences name settings that are lost or that the original
    reads in another way.
    """
    if stored.task.get("approach") == "feature_based":
        raise UserError(
            f"{stored.path} is a feature-based tagger, and a TF1 checkpoint "
            "does not keep which layers of the encoder it reads; convert it "
            "to bert_tf, or a fine-tuned model."
        )
    weights = matching.translate(stored.weights, stored.config, "tf1")
    write(write_texts(directory, stored), weights | stored.optimizer_state)
    return list(_sentences(stored))


def write_texts(directory: str, stored: StoredModel) -> str:
    """Writes config and vocabulary; returns the prefix for the checkpoint."""
    config_file = os.path.join(directory, _CONFIG_FILE)
    files.write_text(config_file, stored.config.to_json())
    stored.vocabulary.write(os.path.join(directory, _VOCAB_FILE))
    return os.path.join(directory, _PREFIX)


def _sentences(stored: StoredModel) -> Iterator[str]:
    config, settings = stored.config, stored.tokenizer_settings
    if config.hidden_act == "gelu_erf":
        # Source: the original's modeling.py:280-314, which raises ValueError.
        yield (
            f'{_CONFIG_FILE} has hidden_act "gelu_erf", the exact GELU, which '
            'the original refuses: its "gelu" is the tanh form, and was the '
            "exact one before 2019-02-07."
        )
    for key, value in config.to_dict().items():
        if key in ("layer_norm_eps", "left_to_right"):
            yield (
                f"{_CONFIG_FILE} has {key} {value}, which the original "
                f"ignores: it computes with {getattr(BertConfig, key)}."
            )
    lower_case = settings["lower_case"]
    yield (
        "A TF1 checkpoint does not keep the tokenizer's settings: give "
        f"--do_lower_case={lower_case} to the original."
    )
    if settings["strip_accents"] != lower_case:
        verb = "strips" if settings["strip_accents"] else "keeps"
        yield (
            f"The model {verb} accents; the original strips them if and only "
            "if it lower-cases."
        )
    yield from stored_model.not_carried(
        "A TF1 checkpoint", stored, ("kind", "head"), has_optimizer=True
    )
