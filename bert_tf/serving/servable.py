"""One version of a model, loaded: what an engine has to offer.

An engine is an `Engine` and its `Servable`. Everything else of the server,
batching and both interfaces, works on these and on numpy arrays.
"""

import abc
import dataclasses
import threading
from collections.abc import Collection
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.serving import errors

DEFAULT_SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What a signature says of one tensor.

    Attributes:
      dtype: Its type.
      shape: Its dimensions, None where free; None if not even their number is
        known.
      tensor_name: What the graph calls it.
    """

    dtype: tf.DType
    shape: tuple[int | None, ...] | None
    tensor_name: str = ""

    def has_free_batch(self) -> bool:
        """Whether the first dimension may be any number of rows."""
        return bool(self.shape) and self.shape[0] is None

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape fits."""
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(
                expected is None or size == expected
                for size, expected in zip(shape, self.shape, strict=True)
            )
        )


@dataclasses.dataclass(frozen=True)
class Signature:
    """One thing that can be asked of a model.

    Attributes:
      name: Its name.
      inputs: Its inputs by name.
      outputs: Its outputs by name.
      method_name: What it says it is for, such as
        "tensorflow/serving/predict".
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""

    def is_batched(self) -> bool:
        """Whether rows of several requests can go through it together."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        return bool(self.inputs) and all(
            tensor.has_free_batch() for tensor in tensors
        )

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Checks the inputs of a request.

        Raises:
          RequestError: If names, types or shapes are others.
        """
        if inputs.keys() != self.inputs.keys():
            raise errors.invalid(_other_names(set(inputs), set(self.inputs)))
        for name, spec in self.inputs.items():
            value = inputs[name]
            if not _has_type(value, spec.dtype):
                raise errors.invalid(
                    f"Input {name!r} of signature {self.name!r} must be "
                    f"{spec.dtype.name}. Received: {_type_name(value)}."
                )
            if not spec.holds(value.shape):
                raise errors.invalid(
                    f"Input {name!r} of signature {self.name!r} must have the "
                    f"shape {_shape_text(spec.shape)}. Received: "
                    f"{_shape_text(value.shape)}."
                )


class Servable(abc.ABC):
    """A loaded version of a model.

    Whoever uses it says so with `acquire` and `release`; `retire` closes it
    as soon as nobody does.

    Args:
      name: The model's name.
      version: The number of its directory.
      signatures: What can be asked of it, by name.
    """

    def __init__(
        self, name: str, version: int, signatures: Mapping[str, Signature]
    ) -> None:
        self.name = name
        self.version = version
        self.signatures = dict(signatures)
        self._lock = threading.Lock()
        self._users = 1  # Whoever loaded it, until `retire`.
        self._closed = threading.Event()

    @abc.abstractmethod
    def run(
        self,
        signature: Signature,
        inputs: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> dict[str, np.ndarray]:
        """Computes some outputs of a signature.

        May be called by several threads at once.

        Args:
          signature: One of `signatures`.
          inputs: All its inputs; strings as object arrays of `bytes`.
          outputs: The names of the outputs that are wanted.

        Returns:
          These, in the same form.
        """

    @abc.abstractmethod
    def signature_defs(self) -> Mapping[str, object]:
        """Returns the `SignatureDef` of each signature."""

    @abc.abstractmethod
    def close(self) -> None:
        """Gives the memory back. Nobody uses the servable any more."""

    def acquire(self) -> bool:
        """Counts one more user; returns False if it is closed already."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Counts one user less."""
        with self._lock:
            self._users -= 1
            unused = not self._users
        if unused:
            self.close()
            self._closed.set()

    def retire(self) -> None:
        """Closes the servable when its last user has released it."""
        self.release()

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Waits until it is closed; `timeout` is in seconds."""
        return self._closed.wait(timeout)


class Engine(abc.ABC):
    """Loads versions of models from their directories."""

    @abc.abstractmethod
    def load(self, name: str, version: int, directory: str) -> Servable:
        """Loads a version.

        Args:
          name: The model's name.
          version: The version's number.
          directory: Where it lies.

        Raises:
          RequestError: If it cannot be loaded.
        """

    @abc.abstractmethod
    def missing(self, directory: str) -> str | None:
        """Returns a file that a half-written directory still lacks, or None.

        Raises:
          OSError: If the directory cannot be read.
        """


def _other_names(received: set[str], expected: set[str]) -> str:
    """Returns TensorFlow Serving's sentence for it (predict_util.cc)."""

    def names(some):
        return "{" + ",".join(sorted(some)) + "}"

    return (
        f"input size does not match signature: {len(received)}!="
        f"{len(expected)} len({names(received)}) != len({names(expected)}). "
        f"Sent extra: {names(received - expected)}. "
        f"Missing but required: {names(expected - received)}."
    )


def _has_type(value: np.ndarray, dtype: tf.DType) -> bool:
    if dtype == tf.string:
        return value.dtype.kind in "OS"
    return value.dtype == dtype.as_numpy_dtype


def _type_name(value: np.ndarray) -> str:
    return "string" if value.dtype.kind in "OS" else value.dtype.name


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("?" if n is None else str(n) for n in shape) + "]"
