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
from bert_tf.checkpoints.tensors import damaged
from bert_tf.errors import UserError

# Name in the file to the layer's path.
Layers = Mapping[str, str]
BACKBONE: Layers = {
    "reversible_embedding": "token_embedding",
    "embedding": "segment_embedding",
    "position_embedding": "position_embedding",
    "layer_normalization": "embeddings_layer_norm",
    "dense": "pooled_dense",
}
TEXT_CLASSIFIER: Layers = {"dense": "logits"}
_ENCODER_LAYER: Layers = {
    "self_attention_layer/query_dense": "self_attention_layer/query",
    "self_attention_layer/key_dense": "self_attention_layer/key",
    "self_attention_layer/value_dense": "self_attention_layer/value",
    "self_attention_layer/output_dense": (
        "self_attention_layer/attention_output"
    ),
    "self_attention_layer_norm": "self_attention_layer_norm",
    "feedforward_intermediate_dense": "feedforward_intermediate_dense",
    "feedforward_output_dense": "feedforward_output_dense",
    "feedforward_layer_norm": "feedforward_layer_norm",
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
      files: The shards of a model, or one file for the whole model.
      layers: `BACKBONE` or `TEXT_CLASSIFIER`.

    Returns:
      Path of the variable to value, <float32>; tensors that do not belong to a
      BERT keep the file's name.

    Raises:
      UserError: If a file is damaged, or has numbers that are not floats.
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
    index = int(match["index"])
    if layer not in layers or index >= len(_variables(layers[layer])):
        return None
    path = layers[layer]
    return f"{prefix}{path}/{_variables(path)[index]}"


def _variables(path: str) -> tuple[str, ...]:
    """Returns the names of a layer's variables, in the order of the file."""
    if path.endswith("embedding"):
        return ("embeddings",)
    return ("gamma", "beta") if path.endswith("norm") else ("kernel", "bias")


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
                if not is_state(name) and not (
                    dataset.dtype.kind == "f" or _is_bfloat16(dataset)
                ):
                    raise UserError(
                        f"{file}: {name} holds numbers of type "
                        f"{dataset.dtype}; expected floating point numbers, "
                        "so save the preset again before it is quantized."
                    )
                yield name, tuple(dataset.shape)
    except UserError:
        raise
    except _READ_ERRORS as error:
        raise damaged(file, error) from error


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
        raise damaged(file, error) from error
    return np.asarray(value, np.float32)


def _is_bfloat16(dataset: h5py.Dataset) -> bool:
    return dataset.dtype.itemsize == 2 and (
        dataset.attrs.get("dtype") == "bfloat16"
    )
