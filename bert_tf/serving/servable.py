"""Interfaces of engines and loaded model versions: `Engine`, `Servable`.

Batching, REST and gRPC use only `Engine`, `Servable` and NumPy arrays.
"""

import abc
import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from google.protobuf import message

from bert_tf.serving import errors

# Inputs or outputs of a signature by name.
Arrays = Mapping[str, np.ndarray]

DEFAULT_SIGNATURE = "serving_default"
# The signature that converts `text` <string>[B] to `input_ids` <int32>[B, T].
TOKENIZE = "tokenize"
# Maps a dtype to the field of a TensorProto, and to the types of JSON values.
DTYPES = {
    tf.float32: ("float_val", (int, float)),
    tf.float64: ("double_val", (int, float)),
    tf.int8: ("int_val", (int,)),
    tf.int16: ("int_val", (int,)),
    tf.int32: ("int_val", (int,)),
    tf.int64: ("int64_val", (int,)),
    tf.uint8: ("int_val", (int,)),
    tf.uint16: ("int_val", ()),
    tf.uint32: ("uint32_val", (int,)),
    tf.uint64: ("uint64_val", (int,)),
    tf.bool: ("bool_val", (bool,)),
}
# Maximum bytes of a call's outputs. Attention has a number for each pair of
# tokens, head and layer, so a few long rows could otherwise need gigabytes.
_MAX_CALL_BYTES = 64 << 20
# Assumed length of a variable dimension, and assumed bytes of a string output.
_LONG_ROW = 512
_STRING_BYTES = 64
# Bytes of words and white space, of which about 4 make a token. Each other byte
# is punctuation, a token by itself.
_LETTERS = bytes(
    x for x in range(256) if x <= 32 or x > 127 or chr(x).isalnum()
)
_MAX_COUNTED = 1 << 14


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Dtype and shape of an input or output of a signature.

    Attributes:
      shape: Sizes, with None for variable sizes; None if the rank is unknown.
    """

    dtype: tf.DType
    shape: tuple[int | None, ...] | None
    tensor_name: str = ""

    def has_free_batch(self) -> bool:
        """Returns True if the first dimension is variable."""
        return bool(self.shape) and self.shape[0] is None

    def row_bytes(self) -> int:
        """Estimates the bytes of a long row; 0 if the rank is unknown."""
        if self.shape is None:
            return 0
        sizes = [_LONG_ROW if x is None else x for x in self.shape[1:]]
        itemsize = _STRING_BYTES if self.dtype == tf.string else self.dtype.size
        return math.prod(sizes) * itemsize


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature of a model.

    Attributes:
      method_name: The API method, such as "tensorflow/serving/predict".
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""

    def is_batched(self) -> bool:
        """Returns True if rows of several requests can be merged."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        return bool(self.inputs) and all(
            tensor.has_free_batch() for tensor in tensors
        )

    def max_rows(self, outputs: Collection[str]) -> int:
        """Returns the number of rows whose outputs fit in `_MAX_CALL_BYTES`."""
        num_bytes = sum(self.outputs[name].row_bytes() for name in outputs)
        return max(1, _MAX_CALL_BYTES // max(1, num_bytes))

    def check_names(self, names: Collection[str]) -> None:
        """Raises `RequestError` if `names` are not the names of the inputs."""
        if set(names) != self.inputs.keys():
            raise errors.invalid(_other_names(set(names), set(self.inputs)))

    def check(self, inputs: Arrays) -> None:
        """Checks the inputs of a request.

        Raises:
          RequestError: If names, types or shapes do not match.
        """
        self.check_names(inputs)
        for name, spec in self.inputs.items():
            value = inputs[name]
            if type_name(value) != spec.dtype.name:
                raise errors.invalid(
                    f"Input {name!r} of signature {self.name!r} must be "
                    f"{spec.dtype.name}. Received: {type_name(value)}."
                )
            shape = tf.TensorShape(spec.shape)
            if not shape.is_compatible_with(value.shape):
                raise errors.invalid(
                    f"Input {name!r} of signature {self.name!r} must have the "
                    f"shape {_shape_text(spec.shape)}. Received: "
                    f"{_shape_text(value.shape)}."
                )


class Stop:
    """Ends a computation from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = None
        self._is_set = False

    def set(self) -> None:
        """Ends the computation, now or when it begins."""
        with self._lock:
            self._is_set = True
            if self._end:
                self._end()

    def check(self) -> None:
        """Raises `RequestError` if the computation must end."""
        if self._is_set:
            raise errors.cancelled("The client has gone away.")

    @contextlib.contextmanager
    def calls(self, end: Callable[[], None]) -> Iterator[None]:
        """Lets `set` call `end` while the block runs."""
        with self._lock:
            self.check()
            self._end = end
        try:
            yield
        finally:
            with self._lock:
                self._end = None


class Servable(abc.ABC):
    """A loaded version of a model.

    Users call `acquire` and `release`. After `retire`, the last `release`
    closes the servable.

    Args:
      signature_defs: The `SignatureDef` of each signature, for metadata.
    """

    def __init__(
        self,
        name: str,
        version: int,
        signatures: Mapping[str, Signature],
        signature_defs: Mapping[str, message.Message] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.signatures = dict(signatures)
        self.signature_defs = dict(signature_defs or {})
        self._lock = threading.Lock()
        self._users = 1  # The loader is a user until `retire`.
        self._closed = threading.Event()

    @abc.abstractmethod
    def run(
        self,
        signature: Signature,
        inputs: Arrays,
        outputs: Collection[str],
        stop: Stop | None = None,
    ) -> dict[str, np.ndarray]:
        """Computes outputs of a signature.

        Several threads may call `run` at once. Strings, also those returned,
        are object arrays of `bytes`. `stop` lets another thread stop `run`,
        which then raises an exception.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the memory; called when there are no more users."""

    def acquire(self) -> None:
        """Adds a user; the servable must not be closed yet."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Removes a user; closes the servable if there is no other user."""
        with self._lock:
            self._users -= 1
            unused = not self._users
        if unused:
            self.close()
            self._closed.set()

    def retire(self) -> None:
        """Closes the servable when its last user has released it."""
        self.release()

    def wait_closed(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns True if it is closed."""
        return self._closed.wait(timeout)


class Engine(abc.ABC):
    """Loads versions of models from their directories."""

    @abc.abstractmethod
    def load(self, name: str, version: int, directory: str) -> Servable:
        """Loads a version.

        Raises:
          RequestError: If loading fails.
        """

    @abc.abstractmethod
    def missing(self, directory: str) -> str | None:
        """Returns a file that is missing in an incomplete directory, or None.

        Raises:
          OSError: If the directory cannot be read.
        """


def _other_names(received: set[str], expected: set[str]) -> str:
    """Returns predict_util.cc's message for wrong names of inputs."""

    def names(some):
        return "{" + ",".join(map(errors.shortened, sorted(some))) + "}"

    return (
        f"input size does not match signature: {len(received)}!="
        f"{len(expected)} len({names(received)}) != len({names(expected)}). "
        f"Sent extra: {names(received - expected)}. "
        f"Missing but required: {names(expected - received)}."
    )


def type_name(value: np.ndarray) -> str:
    """Returns TensorFlow's name for the type of an array."""
    return "string" if value.dtype.kind in "OS" else value.dtype.name


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("?" if n is None else str(n) for n in shape) + "]"


def row_sizes(inputs: Arrays, choices: int = 1) -> np.ndarray:
    """Returns the size of each row, <int64>[num_rows].

    The size counts bytes of texts and elements of numeric arrays. Each text is
    read `choices` times, so its size is multiplied by `choices`. A punctuation
    mark counts as 4 bytes, so b"a-b" has the size 6.
    """
    sizes = [_sizes(x, choices) for x in inputs.values()]
    return sum(x.sum(axis=tuple(range(1, x.ndim))) for x in sizes)


def _sizes(value: np.ndarray, choices: int) -> np.ndarray:
    lengths = np.ones(value.shape, np.int64)
    if value.dtype.kind in "OS":
        lengths.flat = [choices * _text_size(x) for x in value.flat]
    return lengths


def _text_size(text: bytes) -> int:
    marks = text[:_MAX_COUNTED].translate(None, _LETTERS)
    return max(1, len(text) + 3 * len(marks))


def input_size(inputs: Arrays, choices: int = 1) -> int:
    """Returns the sum of `row_sizes`, also for inputs without rows."""
    return sum(int(_sizes(x, choices).sum()) for x in inputs.values())
