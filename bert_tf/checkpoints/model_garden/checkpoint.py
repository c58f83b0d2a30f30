"""Reads and writes object-based checkpoints of TensorFlow 2.

Such a checkpoint holds a graph: each object has children by their local names,
mostly attributes of Python objects, and some are variables. The key of a
variable's value is one of the paths to it; there may be others.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tf1.checkpoint import OBJECT_GRAPH_KEY
from bert_tf.checkpoints.tf1.checkpoint import READ_ERRORS
from bert_tf.errors import UserError

_VALUE = "VARIABLE_VALUE"
_VALUE_SUFFIX = f"/.ATTRIBUTES/{_VALUE}"
_ESCAPED = re.compile(r"\.([.S])")


def variable_names(prefix: str) -> tuple[str, ...]:
    """Returns the keys of all variables, from the index alone; never raises.

    Args:
      prefix: The checkpoint, without the suffixes.

    Returns:
      The keys without their common suffix; none if this is not an object-based
      checkpoint.
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
    """A checkpoint that is open for reading.

    Objects are numbers; 0 is the root.

    Args:
      prefix: The checkpoint, without the suffixes.

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
        try:
            serialized = self._reader.get_tensor(OBJECT_GRAPH_KEY)
        except READ_ERRORS as error:
            raise self._damaged(error) from error
        self._check_size(len(serialized))
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(serialized)
        self._nodes = graph.nodes

    def _damaged(self, error: Exception | str) -> UserError:
        reason = str(error).splitlines()[0].rstrip(".")
        return UserError(
            f"The checkpoint {self.prefix} is damaged or incomplete and "
            f"cannot be read ({reason}); copy it again."
        )

    def _check_size(self, graph_size: int) -> None:
        """Checks that the data files are not truncated; reads no value."""
        types = self._reader.get_variable_to_dtype_map()
        needed = graph_size + sum(
            types[key].size * int(np.prod(shape))
            for key, shape in self._shapes.items()
            if types[key] != tf.string
        )
        present = sum(
            tf.io.gfile.stat(path).length
            for path in tf.io.gfile.glob(f"{self.prefix}.data-*-of-*")
        )
        if present < needed:
            raise self._damaged(
                f"its data has {present} bytes instead of {needed} or more"
            )

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
                    (*objects, child), (*names, _escape(name))
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
        """Returns a variable's value.

        Raises:
          UserError: If it is damaged.
        """
        try:
            return np.asarray(self._reader.get_tensor(self.key(variable)))
        except READ_ERRORS as error:
            raise self._damaged(error) from error


def _escape(name: str) -> str:
    """Escapes a local name for a path."""
    return name.replace(".", "..").replace("/", ".S")


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
