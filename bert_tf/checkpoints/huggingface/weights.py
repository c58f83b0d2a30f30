"""Reads the tensors of a Hugging Face directory: safetensors or PyTorch.

Names are normalized to the form in `weight_map`: with the prefix "bert." for
the encoder, and LayerNorm's parameters called weight and bias.
"""

import dataclasses
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np

from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import read_safetensors
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files

SAFETENSORS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
INDEX_SUFFIX = ".index.json"

# In the order of precedence.
WEIGHT_FILES = (
    SAFETENSORS_FILE,
    SAFETENSORS_FILE + INDEX_SUFFIX,
    TORCH_FILE,
    TORCH_FILE + INDEX_SUFFIX,
)

_BARE = ("embeddings.", "encoder.", "pooler.")
# Names of LayerNorm's weights in checkpoints converted from TF1.
_OLD_SUFFIXES = {".LayerNorm.gamma": "weight", ".LayerNorm.beta": "bias"}
# Copies of other weights; a checkpoint may hold only the copy.
_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_FLOATS = ("F32", "F16", "BF16", "F64")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a directory.

    Attributes:
      path: The file, or the index of the files.
      tensors: The names in `weight_map` to value, in the file's types.
      types: The distinct types, in safetensors' notation.
    """

    path: str
    tensors: Tensors
    types: tuple[str, ...]

    def holds_nothing_new(self, name: str) -> bool:
        """Returns whether a tensor is a buffer or the copy of a weight."""
        if name.endswith("embeddings.position_ids"):
            return True
        return name in _COPIES and _COPIES[name] in self.tensors


def read(directory: str) -> Checkpoint:
    """Reads names and shapes; values are read on access.

    Raises:
      UserError: If there are no weights, a file is damaged or missing, PyTorch
        is needed and not installed, or copies of a weight differ.
    """
    name = next(
        (n for n in WEIGHT_FILES if os.path.isfile(os.path.join(directory, n))),
        None,
    )
    if name is None:
        raise UserError(
            f"{directory} has no weights: expected one of "
            f"{', '.join(WEIGHT_FILES)} in it."
        )
    path = os.path.join(directory, name)
    is_torch = name.startswith(TORCH_FILE)
    read_file = _read_torch if is_torch else read_safetensors
    if name.endswith(INDEX_SUFFIX):
        tensors, types = _read_shards(path, read_file)
    else:
        tensors, types = read_file(path)
    tensors, theirs = _rename(tensors, path)
    for ours, original in theirs.items():
        is_buffer = ours.endswith("position_ids")
        if types[original] not in _FLOATS and not is_buffer:
            raise UserError(
                f"{path} is quantized or not a model's: expected floating "
                f"point numbers, but {original} is {types[original]}."
            )
    used = {types[n] for o, n in theirs.items() if "position_ids" not in o}
    checkpoint = Checkpoint(path, tensors, tuple(sorted(used)))
    _check_copies(checkpoint)
    return checkpoint


def _rename(tensors: Tensors, path: str) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors under `weight_map`'s names, and ours to theirs."""
    theirs: dict[str, str] = {}
    for name in tensors:
        ours = _normalize(name)
        if ours in theirs:
            raise UserError(
                f"{path} holds one weight twice, as {theirs[ours]} and as "
                f"{name}; remove one of them."
            )
        theirs[ours] = name
    for copy, weight in _COPIES.items():
        if copy in theirs and weight not in theirs:
            theirs[weight] = theirs.pop(copy)
    return tensors.rename(theirs), theirs


def _normalize(name: str) -> str:
    for old, new in _OLD_SUFFIXES.items():
        if name.endswith(old):
            name = f"{name.removesuffix(old)}.LayerNorm.{new}"
    return f"bert.{name}" if name.startswith(_BARE) else name


def _check_copies(checkpoint: Checkpoint) -> None:
    """Raises `UserError` if the decoder is not the word embeddings."""
    tensors = checkpoint.tensors
    for copy, weight in _COPIES.items():
        if copy not in tensors or weight not in tensors:
            continue
        if not np.array_equal(tensors[copy], tensors[weight]):
            raise UserError(
                f"{checkpoint.path}: {copy} must equal {weight}, as BERT has "
                "one table for both; this model was trained with two "
                "(tie_word_embeddings=false)."
            )


def _read_shards(
    index_file: str, read_file: Callable
) -> tuple[Tensors, dict[str, str]]:
    """Reads the files in an index, which must list their tensors."""
    folder = os.path.dirname(index_file)
    places = _read_index(index_file)
    shards = {}
    for file in sorted(set(places.values())):
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            raise UserError(
                f"{index_file} names {file}, which does not exist; copy the "
                "directory again."
            )
        shards[file] = read_file(path)
    held = {name: f for f, (tensors, _) in shards.items() for name in tensors}
    wrong = sorted(set(held.items()) ^ set(places.items()))
    if wrong or sum(len(t) for t, _ in shards.values()) != len(places):
        name, file = wrong[0] if wrong else next(iter(held.items()))
        raise UserError(
            f"{index_file} and its files do not agree on what each holds, "
            f"first on {name} in {file}; copy the directory again."
        )
    shapes: dict[str, Shape] = {}
    types: dict[str, str] = {}
    for tensors, shard_types in shards.values():
        shapes |= tensors.shapes
        types |= shard_types
    return Tensors(shapes, lambda name: shards[places[name]][0][name]), types


def _read_index(path: str) -> dict[str, str]:
    contents = files.read_json(path)
    places = contents.get("weight_map") if isinstance(contents, dict) else None
    is_valid = isinstance(places, dict) and all(
        # A name with a folder could be outside of the directory.
        stored_files.is_base_name(file)
        for file in places.values()
    )
    if not places or not is_valid:
        raise UserError(
            f"{path} must hold `weight_map`, from the names of tensors to the "
            "names of files in the same directory."
        )
    return places


def _read_torch(path: str) -> tuple[Tensors, dict[str, str]]:
    """Reads a state dictionary of PyTorch without running code in it."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"Reading {path} needs PyTorch, which is not installed; `pip "
            "install torch`, or save the model as model.safetensors."
        ) from error
    try:
        state = torch.load(
            path,
            map_location="cpu",
            weights_only=True,
            # Before PyTorch 1.6, files were not zip archives.
            mmap=zipfile.is_zipfile(path),
        )
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        # PyTorch's own message suggests running the code in the file.
        raise UserError(
            f"{path} is damaged, or holds more than tensors, and is not read "
            f"({type(error).__name__} of PyTorch); copy it again, or save the "
            "model as model.safetensors."
        ) from error
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(x, torch.Tensor)
        for name, x in state.items()
    ):
        raise UserError(
            f"{path} must hold the state dictionary of a model, from names to "
            f"tensors. Received: {type(state).__name__}."
        )
    names = {
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float64: "F64",
    }
    types = {n: names.get(x.dtype, str(x.dtype)) for n, x in state.items()}

    def read_one(name):
        value = state[name].detach()
        # NumPy does not support bfloat16.
        value = value.float() if value.dtype == torch.bfloat16 else value
        return value.contiguous().numpy()

    return Tensors(
        {n: tuple(x.shape) for n, x in state.items()}, read_one
    ), types
