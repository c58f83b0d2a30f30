"""Reads and writes object-based checkpoints, and finds a BERT in them.

An object-based checkpoint of TensorFlow 2 holds a graph: each object has
children by their local names, mostly attributes of Python objects, and some are
variables. The key of a variable's value is one of the paths to it; there may be
others.

Variables of a BERT get the names in the column `model_garden` of the weight
map, wherever they are: an encoder may be a checkpoint's `encoder`, its `model`,
or deep inside another model.
"""

import dataclasses
import re
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import damaged
from bert_tf.checkpoints.tf1.checkpoint import OBJECT_GRAPH_KEY
from bert_tf.checkpoints.tf1.checkpoint import READ_ERRORS
from bert_tf.checkpoints.tf1.checkpoint import count_bytes
from bert_tf.errors import UserError

_VALUE = "VARIABLE_VALUE"
_VALUE_SUFFIX = f"/.ATTRIBUTES/{_VALUE}"
_ESCAPED = re.compile(r"\.([.S])")

# The children of a BertEncoderV2, and of a BertEncoder since 2021.
_EMBEDDINGS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)
_LAYERS = "_transformer_layers"
_POOLER = "_pooler_layer"
# An older BertEncoder numbers its layers.
_NUMBERED = "layer_with_weights-"
# Other names in checkpoints released in 2020.
_OLD_NAMES = {
    "_attention_output_dense": "_attention_layer/_output_dense",
    "_position_embeddings": "embeddings",
}

_NEXT_SENTENCE = "model/classification_heads/0"
# Name of a head's pooler in the `checkpoint_items` of a model; a key doubles
# the period.
_HEAD_POOLER = "next_sentence.pooler_dense"
_HEAD_POOLER_PATH = "next_sentence..pooler_dense"
# Head to the second names of objects in a model with that head.
_SECOND_NAMES = {
    "masked_lm": {
        "masked_lm/embedding_table": "encoder/_embedding_layer/embeddings",
        "masked_lm/bias": "masked_lm/output_bias.Sbias",
        "model/masked_lm": "masked_lm",
        "model/encoder_network": "encoder",
    },
    "model/classification_heads": {"model/encoder_network": "encoder"},
    "model/classifier": {"model/_network": "encoder"},
    "model/span_labeling": {"model/_network": "encoder"},
}

# Objects for training, below which no variable is a weight.
_TRAINING_STATE = frozenset(
    {
        ".OPTIMIZER_SLOT",
        "global_step",
        "keras_api",
        "optimizer",
        "save_counter",
    }
)


def variable_names(prefix: str) -> tuple[str, ...]:
    """Returns the keys of all variables, without their common suffix.

    Reads the index alone and never raises: there are none if `prefix` is not an
    object-based checkpoint.
    """
    try:
        shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    except READ_ERRORS:
        return ()
    if OBJECT_GRAPH_KEY not in shapes:
        return ()
    return tuple(
        key.removesuffix(_VALUE_SUFFIX)
        for key in shapes
        if key.endswith(_VALUE_SUFFIX)
    )


class ObjectCheckpoint:
    """A checkpoint open for reading; objects are numbers, and 0 is the root.

    Raises:
      UserError: If it is damaged or name-based.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        try:
            self._reader = tf.train.load_checkpoint(prefix)
            self._shapes = self._reader.get_variable_to_shape_map()
        except READ_ERRORS as error:
            raise self._damaged(error) from error
        if OBJECT_GRAPH_KEY not in self._shapes:
            raise UserError(
                f"{prefix} is a name-based checkpoint of TensorFlow 1. "
                "Expected an object-based checkpoint of TensorFlow 2."
            )
        serialized = self._read(OBJECT_GRAPH_KEY)
        needed, present = count_bytes(prefix, self._reader)
        needed += len(serialized)
        if present < needed:
            raise self._damaged(
                f"its data has {present} bytes instead of {needed} or more"
            )
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(serialized)
        self._nodes = graph.nodes

    def _damaged(self, error: Exception | str) -> UserError:
        return damaged(f"The checkpoint {self.prefix}", error)

    def _read(self, key: str) -> Any:
        try:
            return self._reader.get_tensor(key)
        except READ_ERRORS as error:
            raise self._damaged(error) from error

    def objects(self) -> range:
        """Returns all objects, those near the root first."""
        return range(len(self._nodes))

    def children(self, parent: int) -> dict[str, int]:
        """Returns local name to object."""
        return {x.local_name: x.node_id for x in self._nodes[parent].children}

    def variables(self, start: int) -> Iterator[tuple[str, int]]:
        """Yields path and object of each variable at and below an object.

        Paths are escaped as in keys, where a slash separates names. An object
        with several paths is yielded with each of them.
        """
        yield from self._walk((start,), ())

    def _walk(self, objects, names):
        if self.key(objects[-1]):
            yield "/".join(names), objects[-1]
        for name, child in self.children(objects[-1]).items():
            # Objects may refer to their ancestors.
            if child not in objects:
                yield from self._walk(
                    (*objects, child),
                    (*names, name.replace(".", "..").replace("/", ".S")),
                )

    def key(self, variable: int) -> str | None:
        """Returns the key of an object's value, None if it has none."""
        for attribute in self._nodes[variable].attributes:
            if attribute.name == _VALUE:
                return attribute.checkpoint_key
        return None

    def name(self, variable: int) -> str:
        """Returns a variable's key without the suffix of all keys."""
        return self.key(variable).removesuffix(_VALUE_SUFFIX)

    def full_name(self, variable: int) -> str:
        """Returns the variable's own name."""
        names = [x.full_name for x in self._nodes[variable].attributes]
        return names[0] if names else ""

    def shape(self, variable: int) -> Shape | None:
        """Returns a variable's shape, None if it has no value."""
        shape = self._shapes.get(self.key(variable))
        return None if shape is None else tuple(shape)

    def read(self, variable: int) -> np.ndarray:
        """Returns the value; a damaged one raises `UserError`."""
        return np.asarray(self._read(self.key(variable)))


def _unescape(name: str) -> str:
    return _ESCAPED.sub(lambda x: "/" if x[1] == "S" else ".", name)


def write(
    prefix: str,
    tensors: Tensors,
    aliases: Mapping[str, str],
    full_names: Mapping[str, str],
) -> None:
    """Writes a checkpoint of plain objects.

    Args:
      prefix: The checkpoint, without the suffixes.
      tensors: Path to value. All are in memory while they are written.
      aliases: Second path to first path of an object or variable.
      full_names: Path to the variable's own name, if that is not its path.
    """
    root = tf.train.Checkpoint()
    # On the CPU, to use no memory of an accelerator.
    with tf.device("CPU:0"):
        for path, value in tensors.items():
            variable = tf.Variable(value, name=full_names.get(path, path))
            _attach(root, path, variable)
        for path, target in aliases.items():
            _attach(root, path, _follow(root, target.split("/")))
        root.write(prefix)


def _attach(
    root: tf.train.Checkpoint, path: str, item: tf.Module | tf.Variable
) -> None:
    *folders, name = path.split("/")
    setattr(_follow(root, folders), _unescape(name), item)


def _follow(
    item: tf.train.Checkpoint | tf.Module, names: list[str]
) -> tf.train.Checkpoint | tf.Module | tf.Variable:
    """Returns the object at a path; creates missing objects on the way."""
    for name in map(_unescape, names):
        if name not in vars(item):
            setattr(item, name, tf.Module())
        item = getattr(item, name)
    return item


@dataclasses.dataclass(frozen=True)
class Found:
    """The variables of a BERT in a checkpoint.

    Attributes:
      variables: The weight map's name to the variable; also further variables
        below the same objects, whose names the weight map does not have.
      unused: Variables that are no weights, such as those of a pooler that
        the computation does not use.
      notes: Sentences for the user.
    """

    variables: Mapping[str, int]
    unused: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def find(checkpoint: ObjectCheckpoint) -> Found:
    """Finds the only encoder, and its heads; else raises `UserError`."""
    encoder = _find_encoder(checkpoint)
    heads = {
        f"{prefix}/{path}": variable
        for prefix, item in _head_objects(checkpoint)
        for path, variable in checkpoint.variables(item)
    }
    poolers = _head_poolers(checkpoint)
    pooler = next(iter(poolers), None)
    if pooler is None:
        return Found(heads | encoder)
    own = {n: x for n, x in encoder.items() if n.split("/")[1] == _POOLER}
    pooler_variables = {
        f"encoder/{_POOLER}/{path}": variable
        for path, variable in checkpoint.variables(pooler)
    }
    return Found(
        heads | encoder | pooler_variables,
        tuple(sorted(set(own.values()) - set(pooler_variables.values()))),
        (
            "The pooler is taken from the head, as this model does not use the "
            "encoder's own.",
        ),
    )


def _find_encoder(checkpoint: ObjectCheckpoint) -> dict[str, int]:
    encoders = [
        parts
        for item in checkpoint.objects()
        if (parts := _parts_of_encoder(checkpoint, item))
    ]
    if len(encoders) != 1:
        raise UserError(
            f"{checkpoint.prefix} must hold one BertEncoderV2 or BertEncoder "
            f"of the Model Garden. Received: {len(encoders) or 'none'} of "
            "them; name a checkpoint of a BERT."
        )
    return {
        f"encoder/{part}/{path}": variable
        for part, item in encoders[0].items()
        for path, variable in _variables(checkpoint, item).items()
    }


def _parts_of_encoder(
    checkpoint: ObjectCheckpoint, item: int
) -> dict[str, int]:
    """Returns path to object of an encoder's layers; {} for other objects."""
    children = checkpoint.children(item)
    if _LAYERS in children and children.keys() >= set(_EMBEDDINGS):
        layers = checkpoint.children(children[_LAYERS])
        pooler = children.get(_POOLER)
    else:
        numbered = [
            children[f"{_NUMBERED}{n}"]
            for n in range(len(children))
            if f"{_NUMBERED}{n}" in children
        ]
        children = dict(zip(_EMBEDDINGS, numbered, strict=False))
        others = numbered[len(_EMBEDDINGS) :]
        is_layer = [_is_layer(checkpoint, x) for x in others]
        layers = {str(n): x for n, x in enumerate(others[: sum(is_layer)])}
        pooler = next(iter(others[len(layers) :]), None)
    if not layers or not all(_is_layer(checkpoint, x) for x in layers.values()):
        return {}
    parts = {name: children[name] for name in _EMBEDDINGS}
    parts |= {f"{_LAYERS}/{n}": x for n, x in layers.items()}
    return parts if pooler is None else parts | {_POOLER: pooler}


def _is_layer(checkpoint: ObjectCheckpoint, item: int) -> bool:
    attention = checkpoint.children(item).get("_attention_layer")
    return attention is not None and "_query_dense" in checkpoint.children(
        attention
    )


def _variables(checkpoint: ObjectCheckpoint, item: int) -> dict[str, int]:
    """Returns path to variable below an object, with today's names."""
    variables = {}
    for path, variable in checkpoint.variables(item):
        first, *others = path.split("/")
        variables["/".join((_OLD_NAMES.get(first, first), *others))] = variable
    return variables


def _head_objects(
    checkpoint: ObjectCheckpoint,
) -> Iterator[tuple[str, int]]:
    """Yields each head, after the prefix of its variables' names."""
    for parent in checkpoint.objects():
        children = checkpoint.children(parent)
        for name, child in children.items():
            if name == "masked_lm":
                yield name, child
            elif name in ("classifier", "span_labeling"):
                yield f"model/{name}", child
            elif name == "classification":
                # The older BertPretrainer's is a model of one layer.
                layer = checkpoint.children(child).get(f"{_NUMBERED}0")
                if layer is not None:
                    yield f"{_NEXT_SENTENCE}/out_proj", layer
            elif name == "classification_heads":
                for head in checkpoint.children(child).values():
                    if _is_next_sentence(checkpoint, head):
                        yield _NEXT_SENTENCE, head


def _is_next_sentence(checkpoint: ObjectCheckpoint, head: int) -> bool:
    full_names = [
        checkpoint.full_name(variable).split("/")
        for _, variable in checkpoint.variables(head)
    ]
    return any("next_sentence" in names for names in full_names)


def _head_poolers(checkpoint: ObjectCheckpoint) -> list[int]:
    """Returns the poolers that belong to heads; the first one counts."""
    of_heads = [
        children["dense"]
        for prefix, head in _head_objects(checkpoint)
        if prefix.startswith("model/")
        and "dense" in (children := checkpoint.children(head))
    ]
    items = [
        (name != _HEAD_POOLER, child)
        for parent in checkpoint.objects()
        for name, child in checkpoint.children(parent).items()
        if name.endswith(".pooler_dense")
    ]
    return of_heads + [child for _, child in sorted(items)]


def is_optimizer_state(name: str) -> bool:
    """Returns whether a key belongs to an optimizer."""
    return not {"optimizer", ".OPTIMIZER_SLOT"}.isdisjoint(name.split("/"))


def is_training_state(name: str) -> bool:
    """Returns whether a key belongs to a step, a counter or an optimizer."""
    return not _TRAINING_STATE.isdisjoint(name.split("/"))


def complete(
    tensors: Tensors,
) -> tuple[Tensors, dict[str, str], dict[str, str]]:
    """Adds copies and second names of weights, as Model Garden models need.

    Args:
      tensors: The weight map's name to value.

    Returns:
      The tensors and, if there is a next-sentence head, a copy of the pooler
      for it; second path to first path; and path to full name, of variables
      that are identified by it.
    """
    heads = {"/".join(name.split("/")[:2]) for name in tensors}
    aliases = {}
    for head, second_names in _SECOND_NAMES.items():
        if any(name.startswith(head) for name in heads):
            aliases |= second_names
    full_names = {
        name: name.replace(f"{_NEXT_SENTENCE}/out_proj", "next_sentence/logits")
        for name in tensors
        if name.startswith(_NEXT_SENTENCE)
    }
    if not full_names or f"encoder/{_POOLER}" not in heads:
        return tensors, aliases or {"model": "encoder"}, full_names
    aliases[f"{_NEXT_SENTENCE}/dense"] = _HEAD_POOLER_PATH
    copies = {
        f"{_HEAD_POOLER_PATH}/{name}": f"encoder/{_POOLER}/{name}"
        for name in ("kernel", "bias")
    }
    names = {name: name for name in tensors} | copies
    return tensors.rename(names), aliases, full_names
