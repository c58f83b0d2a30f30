"""Reads a Hugging Face directory's tensors: safetensors, PyTorch or Keras.

Tensors get the names in `Row.huggingface`: names in the encoder begin with
"bert.", and LayerNorm has "weight" and "bias". Names and kernels that
transformers' TensorFlow classes saved are converted to PyTorch's form.
"""

import contextlib
import dataclasses
import math
import os
import re
import zipfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import h5py
import numpy as np

from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import damaged
from bert_tf.checkpoints.tensors import read_safetensors
from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import stored_files

SAFETENSORS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
KERAS_FILE = "tf_model.h5"
INDEX_SUFFIX = ".index.json"

# Names of weight files, best first: pickles, which need PyTorch, come last.
WEIGHT_FILES = (
    SAFETENSORS_FILE,
    SAFETENSORS_FILE + INDEX_SUFFIX,
    KERAS_FILE,
    KERAS_FILE + INDEX_SUFFIX,
    TORCH_FILE,
    TORCH_FILE + INDEX_SUFFIX,
)

_BARE = ("embeddings.", "encoder.", "pooler.")
# LayerNorm's names in checkpoints converted from TF1 are changed, for instance
# from "embeddings.LayerNorm.gamma" to "bert.embeddings.LayerNorm.weight".
_OLD_SUFFIXES = {".LayerNorm.gamma": "weight", ".LayerNorm.beta": "bias"}
_WORDS = "bert.embeddings.word_embeddings.weight"
# Copy -> weight. If a checkpoint has only the copy, read it as the weight.
_COPIES = {
    "cls.predictions.decoder.weight": _WORDS,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_FLOATS = ("F32", "F16", "BF16", "F64")

# A file name with a folder could lead out of the directory, so refuse it.
_INDEX = {
    "weight_map": stored_files.Kind(
        "an object from tensors to files in this folder",
        lambda x: (
            isinstance(x, dict)
            and bool(x)
            and all(map(stored_files.is_base_name, x.values()))
        ),
    )
}

# Keras prefixes these layers with model names, which `_torch_name` drops.
_KERAS_LAYERS = ("bert", "cls", "classifier", "qa_outputs")
_KERAS_KERNEL = "/kernel:0"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a directory.

    Attributes:
      path: The file of weights, or the index of several files.
      tensors: Name in `weight_map` -> value, in the file's type.
      types: The distinct types of the tensors, such as "F32".
      keras_class: The class of a Keras model, such as "tfbertformaskedlm".
    """

    path: str
    tensors: Tensors
    types: tuple[str, ...]
    keras_class: str | None = None

    def is_redundant(self, name: str) -> bool:
        """Returns whether a tensor is a buffer or the copy of a weight."""
        if name.endswith("embeddings.position_ids"):
            return True
        return name in _COPIES and _COPIES[name] in self.tensors


def find(directory: str) -> str | None:
    """Returns the name of the best file of weights; None if there is none."""
    files = ((x, os.path.join(directory, x)) for x in WEIGHT_FILES)
    return next((name for name, path in files if os.path.isfile(path)), None)


def read(directory: str) -> Checkpoint:
    """Reads names and shapes; values are read on access.

    Raises:
      UserError: If there are no weights, a file is damaged or missing, PyTorch
        is needed and not installed, or copies of a weight differ.
    """
    name = find(directory)
    if name is None:
        raise UserError(
            f"{directory} has no weights: expected one of "
            f"{', '.join(WEIGHT_FILES)} in it. Received: "
            f"{paths.describe(directory)}."
        )
    path = os.path.join(directory, name)
    readers = {TORCH_FILE: _read_torch, KERAS_FILE: _read_keras}
    reader = readers.get(name.removesuffix(INDEX_SUFFIX), read_safetensors)

    def read_file(path):
        return _to_torch(*reader(path), path)

    if name.endswith(INDEX_SUFFIX):
        tensors, types = _read_shards(path, read_file)
    else:
        tensors, types = read_file(path)
    tensors, originals = _rename(tensors, path)
    if reader is _read_keras and _WORDS not in tensors:
        raise UserError(
            f"{path} holds no BERT of transformers: expected "
            "bert/embeddings/word_embeddings/weight:0 in it. Received: "
            f"{', '.join(sorted(tensors)[:2]) or 'no tensors'}."
        )
    used = {
        types[original]: original
        for name, original in originals.items()
        if not name.endswith("position_ids")
    }
    for dtype, original in used.items():
        if dtype not in _FLOATS:
            raise UserError(
                f"{path} is quantized or not a model's: expected floating "
                f"point numbers, but {original} is {dtype}."
            )
    named = None
    if name == KERAS_FILE:
        # "bert/tf_bert_for_masked_lm_1/bert/..." names tfbertformaskedlm.
        models = {(*x.split("/"), "")[1] for x in _read_keras(path)[0]}
        if len(models) == 1:
            named = re.sub(r"_(\d+$)?", "", models.pop())
    checkpoint = Checkpoint(path, tensors, tuple(sorted(used)), named)
    _check_copies(checkpoint)
    return checkpoint


def _rename(tensors: Tensors, path: str) -> tuple[Tensors, dict[str, str]]:
    """Renames the tensors as in `weight_map`; also returns new -> old names."""
    originals: dict[str, str] = {}
    for name in tensors:
        new_name = _normalize(name)
        if new_name in originals:
            raise UserError(
                f"{path} holds one weight twice, as {originals[new_name]} and "
                f"as {name}; remove one of them."
            )
        originals[new_name] = name
    for copy, weight in _COPIES.items():
        if copy in originals and weight not in originals:
            originals[weight] = originals.pop(copy)
    return tensors.rename(originals), originals


def _normalize(name: str) -> str:
    for old, new in _OLD_SUFFIXES.items():
        if name.endswith(old):
            name = f"{name.removesuffix(old)}.LayerNorm.{new}"
    return f"bert.{name}" if name.startswith(_BARE) else name


def _check_copies(checkpoint: Checkpoint) -> None:
    """Raises `UserError` if a copy in the decoder differs from its weight."""
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
    """Reads the files that an index names; the index must list all tensors."""
    folder = os.path.dirname(index_file)
    values = stored_files.read_object(index_file)
    stored_files.check(values, _INDEX, index_file, tuple(_INDEX))
    places = {_torch_name(n): f for n, f in values["weight_map"].items()}
    shards = {}
    for file in sorted(set(places.values())):
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            raise UserError(
                f"{index_file} names {file}, which does not exist; copy the "
                "directory again."
            )
        shards[file] = read_file(path)
    tensor_files = {n: f for f, (x, _) in shards.items() for n in x}
    wrong = sorted(set(tensor_files.items()) ^ set(places.items()))
    if wrong or sum(len(t) for t, _ in shards.values()) != len(places):
        name, file = wrong[0] if wrong else next(iter(tensor_files.items()))
        raise UserError(
            f"{index_file} and its files do not agree on what each holds, "
            f"first on {name} in {file}; copy the directory again."
        )
    shapes, types = {}, {}
    for tensors, shard_types in shards.values():
        shapes |= tensors.shapes
        types |= shard_types
    return Tensors(shapes, lambda name: shards[places[name]][0][name]), types


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
            # Only zip archives (since PyTorch 1.6) can be mapped to memory.
            mmap=zipfile.is_zipfile(path),
        )
    except Exception as error:
        # PyTorch raises many types of errors. Omit the message, as it suggests
        # running the code in the file.
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
        # NumPy does not support bfloat16, so convert it first.
        value = value.float() if value.dtype == torch.bfloat16 else value
        return value.contiguous().numpy()

    return Tensors(
        {n: tuple(x.shape) for n, x in state.items()}, read_one
    ), types


def _read_keras(path: str) -> tuple[Tensors, dict[str, str]]:
    """Reads the tensors of an HDF5 file by the paths of its data sets."""
    shapes: dict[str, Shape] = {}
    types: dict[str, str] = {}
    outside = []

    def add(name, item):
        name = os.fsdecode(name)  # h5py gives bytes if it is not UTF-8.
        # Skip the optimizer's state, which a compiled model may store, too.
        is_state = name.startswith("optimizer_weights/")
        if isinstance(item, h5py.Dataset) and not is_state:
            shapes[name] = tuple(item.shape or ())
            letter, bits = item.dtype.kind.upper(), 8 * item.dtype.itemsize
            types[name] = f"{letter}{bits}"
            if item.external or item.is_virtual:
                outside.append(name)

    with _open_keras(path) as file:
        file.visititems(add)
    if outside:
        raise UserError(
            f"{path} takes {outside[0]} from another file, which is not read; "
            "copy the numbers into it."
        )

    def read_one(name):
        with _open_keras(path) as file:
            return file[name][()]

    return Tensors(shapes, read_one), types


@contextlib.contextmanager
def _open_keras(path: str) -> Iterator[h5py.File]:
    try:
        with h5py.File(path) as file:
            yield file
    except (
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise damaged(path, error) from error


def _to_torch(
    tensors: Tensors, types: Mapping[str, str], path: str
) -> tuple[Tensors, dict[str, str]]:
    """Returns a Keras model's tensors in PyTorch's form; others unchanged."""
    names: dict[str, str] = {}
    for name in tensors:
        first = names.setdefault(_torch_name(name), name)
        # Each layer that shares a weight stores a copy; copies must be equal.
        if first != name and not np.array_equal(tensors[name], tensors[first]):
            raise UserError(
                f"{path} holds two models: {first} and {name} differ; save "
                "one of them alone."
            )

    shapes = {n: _plain_shape(x, tensors.shapes[x]) for n, x in names.items()}
    kernels = {n for n, x in names.items() if x.endswith(_KERAS_KERNEL)}

    def read_one(name):
        value = tensors[names[name]].reshape(shapes[name])
        return value.T if name in kernels else value

    return Tensors(
        {n: s[::-1] if n in kernels else s for n, s in shapes.items()}, read_one
    ), {n: types[x] for n, x in names.items()}


def _plain_shape(name: str, shape: Shape) -> Shape:
    """Returns a shape without the axis of heads that transformers 4.2 stored.

    A kernel [in, heads, size] or [heads, size, out] becomes a matrix: [768, 12,
    64] becomes [768, 768]. A bias [12, 64] becomes [768].
    """
    if "/attention/" not in name:
        return shape
    if name.endswith(_KERAS_KERNEL) and len(shape) == 3:
        split = 1 if "/attention/self/" in name else 2
        return math.prod(shape[:split]), math.prod(shape[split:])
    return (math.prod(shape),) if name.endswith("/bias:0") else shape


def _torch_name(name: str) -> str:
    """Returns PyTorch's name of a Keras model's weight; others unchanged.

    "mlm___cls/tf_bert_for_masked_lm/mlm___cls/predictions/bias:0" becomes
    "cls.predictions.bias".
    """
    parts = name.removesuffix(":0").replace("_._", "/").split("/")
    parts = [part.rpartition("___")[2] for part in parts]
    starts = [i for i, part in enumerate(parts) if part in _KERAS_LAYERS]
    if "/" not in name or not starts:
        return name
    if parts[-1] in ("kernel", "embeddings"):
        parts[-1] = "weight"
    return ".".join(parts[starts[-1] :])
