"""The SavedModel engine, which runs models in a session.

A session's callable converts NumPy arrays to tensors and back in a third of the
time that a signature of `tf.saved_model.load` takes.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

# Registers operators, without which models that take text would not load.
import tensorflow_text  # noqa: F401
from google.protobuf import message
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.saved_model import loader_impl

from bert_tf.io import files
from bert_tf.serving import errors
from bert_tf.serving import preflight
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Engine
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Signature
from bert_tf.serving.servable import Stop
from bert_tf.serving.servable import TensorSpec

# The main file of every SavedModel has one of these names.
MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")

# Each combination of requested outputs needs a function, which takes memory. So
# if there are this many functions, a new combination computes all outputs.
_MAX_CALLABLES = 64

# Calls that can be stopped may be long, so they run in their own thread pool.
# The operation that stops a call must not wait for a free thread, so it runs in
# its caller's thread.
_CALLER, _STOPPABLE = -1, 1
_NUM_STOPPABLE_THREADS = 4

# Exceptions from reading a damaged SavedModel.
_FAULTS = (
    tf.errors.OpError,
    message.Error,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class SavedModel(Servable):
    """A loaded SavedModel.

    Raises:
      RequestError: If loading fails.
    """

    def __init__(
        self,
        name: str,
        version: int,
        directory: str,
        config: config_pb2.ConfigProto,
    ) -> None:
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            with graph.as_default():
                # Like tf.compat.v1.saved_model.load, but logs no warning.
                loader = loader_impl.SavedModelLoader(directory)
                meta_graph = loader.load(
                    self._session, [tf.saved_model.SERVING]
                )
        except _FAULTS as error:
            self._session.close()
            raise _loading_error(error, directory) from error
        self._callables = {}
        self._lock_of_callables = threading.Lock()
        self._end = _End(self._session)
        definitions = meta_graph.signature_def
        signatures = read_signatures(definitions)
        super().__init__(name, version, signatures, definitions)

    def run(
        self,
        signature: Signature,
        inputs: Arrays,
        outputs: Collection[str],
        stop: Stop | None = None,
    ) -> dict[str, np.ndarray]:
        names = tuple(sorted(outputs))
        if (
            len(self._callables) >= _MAX_CALLABLES
            and (signature.name, names, bool(stop)) not in self._callables
        ):
            names = tuple(sorted(signature.outputs))
        function = self._callable(signature, names, bool(stop))
        arrays = [inputs[name] for name in signature.inputs]
        with self._end.called_by(stop) if stop else contextlib.nullcontext():
            values = function(*arrays)
        computed = dict(zip(names, values, strict=True))
        return {name: computed[name] for name in outputs}

    def close(self) -> None:
        self._callables.clear()
        self._session.close()
        del self._session, self._end  # Frees the memory of the variables.

    def _callable(
        self,
        signature: Signature,
        outputs: tuple[str, ...],
        is_stoppable: bool = False,
    ) -> Callable[..., list[np.ndarray]]:
        """Returns the session's function from inputs to these outputs."""
        key = (signature.name, outputs, is_stoppable)
        with self._lock_of_callables:
            if key not in self._callables:
                options = config_pb2.CallableOptions()
                options.feed.extend(
                    spec.tensor_name for spec in signature.inputs.values()
                )
                options.fetch.extend(
                    signature.outputs[name].tensor_name for name in outputs
                )
                if is_stoppable:
                    self._end.add_to(options)
                make = self._session._make_callable_from_options
                self._callables[key] = make(options)
            return self._callables[key]


class _End:
    """Operations that let another thread end a call of a session.

    Each call asserts that the next value in a queue is True. After its outputs,
    the call adds True to the queue; to end the call, another thread adds False.
    """

    def __init__(self, session: tf.compat.v1.Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        with session.graph.as_default():
            self._queue = tf.queue.FIFOQueue(-1, [tf.bool], [()])
            # Not tf.debugging.Assert: it would warn that its result is unused.
            self._check = tf.raw_ops.Assert(
                condition=self._queue.dequeue(), data=["ended"]
            )
            self._left = self._queue.dequeue_many(self._queue.size())
            end = self._queue.enqueue(False)
        options = config_pb2.CallableOptions(target=[end.name])
        options.run_options.inter_op_thread_pool = _CALLER
        self._end = session._make_callable_from_options(options)

    def add_to(self, options: config_pb2.CallableOptions) -> None:
        """Adds the operations to a function, so that it can be stopped."""
        graph = self._session.graph
        outputs = [graph.get_tensor_by_name(name) for name in options.fetch]
        with graph.as_default(), tf.control_dependencies(outputs):
            after = self._queue.enqueue(True)
        options.target.extend((self._check.name, after.name))
        options.run_options.inter_op_thread_pool = _STOPPABLE

    @contextlib.contextmanager
    def called_by(self, stop: Stop) -> Iterator[None]:
        """Lets `stop` end the call in the `with` block; calls take turns."""
        with self._lock:
            try:
                with stop.calls(self._end):
                    yield
            finally:
                # Empty the queue: a late False would end the next call.
                self._session.run(self._left)


class SavedModelEngine(Engine):
    """Loads SavedModels.

    Args:
      intra_op_threads: Threads inside one operator; 0 means one per core. The
        first model of a process sets this number for all models.
      inter_op_threads: Number of concurrent operators; 0 means one per core.
    """

    def __init__(
        self, intra_op_threads: int = 0, inter_op_threads: int = 0
    ) -> None:
        self._config = config_pb2.ConfigProto(
            intra_op_parallelism_threads=intra_op_threads,
            inter_op_parallelism_threads=inter_op_threads,
        )
        # Name the pools, so that all models share the same threads.
        pools = self._config.session_inter_op_thread_pool
        pools.add(global_name="calls")
        pools.add(global_name="stoppable", num_threads=_NUM_STOPPABLE_THREADS)

    def load(self, name: str, version: int, directory: str) -> SavedModel:
        preflight.report_precision(name, version, directory)
        return SavedModel(name, version, directory, self._config)

    def missing(self, directory: str) -> str | None:
        if not any(
            files.is_file(os.path.join(directory, name)) for name in MODEL_FILES
        ):
            return MODEL_FILES[0]
        variables = os.path.join(directory, "variables")
        # A model without variables is complete, even if variables/ is empty.
        if files.is_folder(variables) and files.names_in(variables):
            index = os.path.join(variables, "variables.index")
            if not files.is_file(index):
                return "variables/variables.index"
        return None


def read_signature_defs(
    directory: str,
) -> dict[str, meta_graph_pb2.SignatureDef]:
    """Reads the signatures of a SavedModel without loading it.

    Raises:
      RequestError: If there is no SavedModel, or it is damaged.
    """
    try:
        loader = loader_impl.SavedModelLoader(directory)
        graph = loader.get_meta_graph_def_from_tags([tf.saved_model.SERVING])
    except _FAULTS as error:
        raise _loading_error(error, directory) from error
    return dict(graph.signature_def)


def read_signatures(
    definitions: Mapping[str, meta_graph_pb2.SignatureDef],
) -> dict[str, Signature]:
    """Returns the inputs and outputs of signatures, sorted by name."""
    return {
        name: Signature(
            name,
            _specs(definition.inputs),
            _specs(definition.outputs),
            definition.method_name,
        )
        for name, definition in sorted(definitions.items())
    }


def _specs(
    infos: Mapping[str, meta_graph_pb2.TensorInfo],
) -> dict[str, TensorSpec]:
    """Returns the tensors of a signature, sorted by name."""
    specs = {}
    for name, info in sorted(infos.items()):
        # Skip the outputs of initializers, which are not tensors.
        if info.dtype != types_pb2.DT_INVALID:
            shape = tf.TensorShape(info.tensor_shape)
            sizes = None if shape.rank is None else tuple(shape.as_list())
            specs[name] = TensorSpec(tf.as_dtype(info.dtype), sizes, info.name)
    return specs


def _loading_error(error: Exception, directory: str) -> errors.RequestError:
    if isinstance(error, tf.errors.OpError):
        return errors.from_exception(error)
    if isinstance(error, OSError):
        return errors.not_found(
            "Could not find SavedModel .pb or .pbtxt at supplied export "
            f"directory path: {directory}. {error}"
        )
    return errors.invalid(f"Not a SavedModel to serve: {directory}. {error}")
