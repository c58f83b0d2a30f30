"""Reads KerasHub's HDF5 weight files.

Such a file identifies a layer by its class and its index in the model, and a
variable by its index in the layer: for instance,
`layers/transformer_encoder_3/_feedforward_output_dense/vars/0` is
`transformer_layer_3/feedforward_output_dense/kernel` of a `BertBackbone`.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import h5py
import numpy as np

from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError

_EMBEDDING = ("embeddings",)
_NORM = ("gamma", "beta")
_DENSE = ("kernel", "bias")

# Name in the file to the layer's path and the names of its variables.
Layers = Mapping[str, tuple[str, Sequence[str]]]
BACKBONE: Layers = {
    "reversible_embedding": ("token_embedding", _EMBEDDING),
    "embedding": ("segment_embedding", _EMBEDDING),
    "position_embedding": ("position_embedding", _EMBEDDING),
    "layer_normalization": ("embeddings_layer_norm", _NORM),
    "dense": ("pooled_dense", _DENSE),
}
TEXT_CLASSIFIER: Layers = {"dense": ("logits", _DENSE)}
_ENCODER_LAYER: Layers = {
    "self_attention_layer/query_dense": ("self_attention_layer/query", _DENSE),
    "self_attention_layer/key_dense": ("self_attention_layer/key", _DENSE),
    "self_attention_layer/value_dense": ("self_attention_layer/value", _DENSE),
    "self_attention_layer/output_dense": (
        "self_attention_layer/attention_output",
        _DENSE,
    ),
    "self_attention_layer_norm": ("self_attention_layer_norm", _NORM),
    "feedforward_intermediate_dense": (
        "feedforward_intermediate_dense",
        _DENSE,
    ),
    "feedforward_output_dense": ("feedforward_output_dense", _DENSE),
    "feedforward_layer_norm": ("feedforward_layer_norm", _NORM),
}

# Files from before Keras 3 have the second root.
_NAME = re.compile(
    r"(?:layers|_layer_checkpoint_dependencies)/(?P<layer>[a-z_]+?)"
    r"(?:_(?P<number>\d+))?(?:/(?P<inner>.+))?/vars/(?P<index>\d+)"
)
# Optimizer state and random seeds.
_STATE = re.compile(r"^optimizer/|/seed_generator/")
# h5py raises any of these for damaged files.
_READ_ERRORS = (
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
)


def open_weights(files: Sequence[str], layers: Layers) -> Tensors:
    """Returns the tensors in weight files, which are read on access.

    Args:
      files: Paths; the shards of a model, or one file for the whole model.
      layers: `BACKBONE` or `TEXT_CLASSIFIER`.

    Returns:
      Path of the variable to value, <float32>; tensors that do not belong to a
      BERT keep the file's name.

    Raises:
      UserError: If a file is damaged, or holds other than floating point
        numbers.
    """
    shapes: dict[str, Shape] = {}
    places: dict[str, tuple[str, str]] = {}
    for file in files:
        for name, shape in _datasets(file):
            path = variable_path(name, layers) or name
            shapes[path] = shape
            places[path] = (file, name)

    def read(path):
        return _read(*places[path])

    return Tensors(shapes, read)


def is_state(name: str) -> bool:
    """Returns whether a tensor is optimizer state or a random seed."""
    return _STATE.search(name) is not None


def variable_path(name: str, layers: Layers) -> str | None:
    """Returns the path of a variable from its name in the file, if known."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, number, inner = match["layer"], match["number"], match["inner"]
    prefix = ""
    if layer == "transformer_encoder":
        layers, number = _ENCODER_LAYER, number or "0"
        prefix = f"transformer_layer_{number}/"
        # Keras calls an attribute `_query_dense` or, if there is a property of
        # that name, `query_dense`.
        layer = re.sub(r"(^|/)_", r"\1", inner or "")
    elif number or inner:
        return None
    path, variables = layers.get(layer, ("", ()))
    index = int(match["index"])
    return (
        f"{prefix}{path}/{variables[index]}" if index < len(variables) else None
    )


def _datasets(file: str) -> Iterator[tuple[str, Shape]]:
    """Yields name and shape of each tensor."""
    datasets: list[tuple[str, h5py.Dataset]] = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            datasets.append((name, item))

    try:
        with h5py.File(file, "r") as contents:
            # Links to other files are not followed.
            contents.visititems(visit)
            for name, dataset in datasets:
                if dataset.is_virtual or dataset.external:
                    raise UserError(
                        f"{file}: {name} is in another file; expected a file "
                        "with all numbers, as KerasHub writes it."
                    )
                if not is_state(name) and not _is_float(dataset):
                    raise UserError(
                        f"{file}: {name} holds numbers of type "
                        f"{dataset.dtype}; expected floating point numbers, "
                        "so save the preset again before it is quantized."
                    )
                yield name, tuple(dataset.shape)
    except UserError:
        raise
    except _READ_ERRORS as error:
        raise _damaged(file, error) from error


def _read(file: str, name: str) -> np.ndarray:
    try:
        with h5py.File(file, "r") as contents:
            dataset = contents[name]
            value = dataset[()]
            if _is_bfloat16(dataset):
                # The upper half of a float32; HDF5 has no type for it.
                bits = value.view(np.uint16).astype(np.uint32) << 16
                value = bits.view(np.float32)
    except _READ_ERRORS as error:
        raise _damaged(file, error) from error
    return np.asarray(value, np.float32)


def _is_float(dataset: h5py.Dataset) -> bool:
    return dataset.dtype.kind == "f" or _is_bfloat16(dataset)


def _is_bfloat16(dataset: h5py.Dataset) -> bool:
    return dataset.dtype.itemsize == 2 and (
        dataset.attrs.get("dtype") == "bfloat16"
    )


def _damaged(file: str, error: Exception) -> UserError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else ""
    return UserError(
        f"{file} is damaged or incomplete and cannot be read "
        f"({reason or type(error).__name__}); copy it again."
    )
