"""Models, batch threads and Prometheus metrics, shared by REST and gRPC."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import prometheus_client
import tensorflow as tf
from absl import logging
from google.protobuf import message
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import bodies
from bert_tf.serving import errors
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.batching import BatchScheduler
from bert_tf.serving.batching import Task
from bert_tf.serving.calls import CLASSIFY
from bert_tf.serving.calls import REGRESS
from bert_tf.serving.calls import Call
from bert_tf.serving.model_manager import ModelManager
from bert_tf.serving.pieces import PieceScheduler
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Engine
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import input_size

# Disable the creation times of counters: they would double the metrics page.
prometheus_client.disable_created_metrics()
_ROWS = tuple(2**i for i in range(11))
_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 30),
)

_NUM_PARSERS = 2
# Names of inputs that may be serialized tf.Examples, in any SavedModel.
_EXAMPLES_INPUTS = frozenset({tf.saved_model.CLASSIFY_INPUTS, "examples"})
# Signatures and methods that take only tf.Examples, never plain texts.
_EXAMPLES_ONLY = frozenset({"from_examples", CLASSIFY, REGRESS})


class Metrics:
    """The Prometheus metrics of one server."""

    content_type = prometheus_client.exposition.CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, num_queued_rows: Callable[[], int]) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        histogram = functools.partial(
            prometheus_client.Histogram, registry=registry
        )
        gauge = functools.partial(prometheus_client.Gauge, registry=registry)
        self._requests = prometheus_client.Counter(
            "serving_requests",
            "Requests by their outcome, a code of TensorFlow's.",
            ("model", "version", "method", "status"),
            registry=registry,
        )
        self._seconds = histogram(
            "serving_request_seconds",
            "Time from a request's arrival to its answer.",
            ("model", "version", "method"),
            buckets=_SECONDS,
        )
        batch_labels = ("model", "version", "signature")
        self._batch_rows = histogram(
            "serving_batch_rows",
            "Rows of a call of the model.",
            batch_labels,
            buckets=_ROWS,
        )
        self._batch_requests = histogram(
            "serving_batch_requests",
            "Requests whose rows went into one call of the model.",
            batch_labels,
            buckets=_ROWS,
        )
        queued = gauge("serving_queued_rows", "Rows that wait for a call.")
        queued.set_function(num_queued_rows)
        self._loaded = gauge(
            "serving_model_version_loaded",
            "1 for a version that is served, 0 for one that was.",
            ("model", "version"),
        )

    def observe_request(
        self, servable: Servable | None, method: str, status: str, start: float
    ) -> None:
        """Records a request; `start` is its arrival by `time.perf_counter`."""
        seconds = time.perf_counter() - start
        model = (servable.name, servable.version) if servable else ("", "")
        self._requests.labels(*model, method, status).inc()
        self._seconds.labels(*model, method).observe(seconds)

    def observe_batch(self, tasks: Sequence[Task], num_rows: int) -> None:
        """Records the numbers of requests and rows of a batch."""
        servable, signature = tasks[0].servable, tasks[0].signature
        labels = servable.name, servable.version, signature.name
        self._batch_rows.labels(*labels).observe(num_rows)
        self._batch_requests.labels(*labels).observe(len(tasks))

    def observe_version(self, model: str, version: int, loaded: bool) -> None:
        """Records that a version was loaded or retired."""
        self._loaded.labels(model, version).set(loaded)

    def page(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)


@dataclasses.dataclass
class Request:
    """A request in progress: its memory, and its model for the metrics.

    Attributes:
      reserve: Reserves bytes until the request ends; see `Bodies.room`.
      servable: The version that answers the request; None until it is known.
    """

    reserve: Callable[[int], None]
    servable: Servable | None = None


class Service:
    """The server without its ports: models, batch threads, limits, metrics."""

    def __init__(
        self,
        engine: Engine,
        batching: BatchingOptions,
        warm_up: bool = True,
        limits: ServeLimits | None = None,
    ) -> None:
        self.limits = limits or ServeLimits()
        self.bodies = bodies.Bodies(self.limits)
        # Parsing blocks other threads, so only a few threads parse.
        self._parsers = concurrent.futures.ThreadPoolExecutor(
            _NUM_PARSERS, "parser"
        )
        self.metrics = Metrics(
            lambda: sum(x.num_queued_rows() for x in self._schedulers)
        )
        one_thread = dataclasses.replace(batching, num_batch_threads=1)
        self._schedulers = [
            BatchScheduler(options, self.metrics.observe_batch)
            for options in (batching, one_thread)
        ]
        self._pieces = PieceScheduler(*self._schedulers, batching, self.limits)
        self.manager = ModelManager(
            engine, warm_up, self.metrics.observe_version
        )

    async def answer(self, request: Request, call: Call) -> Any:
        """Returns the response to a call; `request` reserves the memory for it.

        Raises:
          RequestError: If there are too many rows, if a row or the outputs are
            too large, if the queue is full, or if the model fails.
        """
        num_rows = choices = 1
        for name, spec in call.signature.inputs.items():
            if spec.has_free_batch():
                value = call.inputs[name]
                count = count_rows(value)
                num_rows = max(num_rows, count)
                choices = max(choices, count // max(1, len(value)))
        bodies.check_rows(num_rows, self.limits)
        for name in _EXAMPLES_INPUTS & call.inputs.keys():
            examples = call.inputs[name]
            if examples.dtype.hasobject:
                size = bodies.num_bytes({name: examples})
                kinds = {call.signature.name, call.signature.method_name}
                strict = bool(kinds & _EXAMPLES_ONLY)
                longest, read = await self.parse(
                    size, read_examples, examples, self.limits, strict
                )
                call.inputs[name] = read
                bodies.check_rows(examples.size * longest, self.limits)
                choices = max(choices, longest)
        flag, subject = "max_row_choices", f"A row of {choices}"
        errors.check_limit(choices, self.limits, flag, subject, "choices")
        await self._check_tokens(request.servable, call.inputs)
        outputs = await self._pieces.compute(request.servable, call, choices)
        size = bodies.num_bytes(outputs)
        bodies.check_response(size, self.limits)
        if size <= bodies.LARGE_BYTES:
            return call.respond(outputs)
        request.reserve(bodies.ANSWER_COPIES * size)
        return await asyncio.to_thread(call.respond, outputs)

    async def _check_tokens(self, servable: Servable, inputs: Arrays) -> None:
        """Raises `RequestError` if a row has too many tokens."""
        # A token has a byte or more, so rows up to `limit` bytes need no check.
        limit = self.limits.max_row_tokens
        size = input_size(inputs)
        texts = long_rows(inputs, limit) if size > limit else iter(())
        while (text := await self.parse(size, next, texts, None)) is not None:
            await self._pieces.check_tokens(servable, text)

    async def parse(self, size: int, function: Callable, *args):  # noqa: D417
        """Calls a function, in a thread if `size` exceeds `LARGE_BYTES`."""
        if size <= bodies.LARGE_BYTES:
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(
            self._parsers, functools.partial(function, *args)
        )

    @contextlib.asynccontextmanager
    async def counted(self, method: str) -> AsyncIterator[Request]:
        """Counts a request, and turns its exceptions into `RequestError`.

        Raises:
          RequestError: If the request fails, but not if it is canceled.
        """
        with self.bodies.room() as reserve:
            request = Request(reserve)
            start = time.perf_counter()
            status = "OK"
            try:
                yield request
            except asyncio.CancelledError:
                status = "CANCELLED"
                raise
            except TimeoutError as error:
                status = "DEADLINE_EXCEEDED"
                raise errors.deadline_exceeded(
                    "The request timed out."
                ) from error
            except Exception as error:  # noqa: BLE001  # Clients get the error.
                answer = errors.from_exception(error)
                status = answer.code_name
                # Delete `answer`, or else a reference cycle of the error and
                # this frame would keep the request's data for a while.
                if answer is error:
                    del answer
                    raise
                if status == "INTERNAL":
                    logging.exception("A request failed.")
                try:
                    raise answer from error
                finally:
                    del answer
            finally:
                self.metrics.observe_request(
                    request.servable, method, status, start
                )

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> get_model_status_pb2.GetModelStatusResponse:
        """Returns the answer to `GetModelStatus`; see `ModelManager.status`."""
        response = get_model_status_pb2.GetModelStatusResponse()
        states = get_model_status_pb2.ModelVersionStatus.State
        for number, state, error in self.manager.status(name, version, label):
            entry = response.model_version_status.add(
                version=number, state=states.Value(state)
            )
            entry.status.error_code = 0
            if error is not None:
                entry.status.error_code = error.code
                entry.status.error_message = error.message
        return response

    def drain(self) -> None:
        """Reports "not ready", and runs queued requests without waiting."""
        self.manager.set_unready()
        for scheduler in self._schedulers:
            scheduler.drain()

    def stop(self) -> None:
        """Answers queued requests, then retires the models."""
        self._parsers.shutdown(wait=False, cancel_futures=True)
        for scheduler in self._schedulers:
            scheduler.stop()
        self.manager.stop()


def count_rows(value: np.ndarray) -> int:
    """Returns an input's number of rows; each choice counts as a row.

    The last axis of a numeric input holds a row's tokens. Texts of shape [4, 3]
    and `input_ids` of shape [4, 3, 128] both have 12 rows.
    """
    shape = value.shape if value.dtype.kind in "OS" else value.shape[:-1]
    return math.prod(x or 1 for x in (*value.shape[:1], *shape[1:]))


def long_rows(inputs: Arrays, num_bytes: int) -> Iterator[bytes]:
    """Yields the joined texts of each row whose strings exceed `num_bytes`."""
    columns = [
        x.reshape(len(x), math.prod(x.shape[1:]))
        for x in map(np.atleast_1d, inputs.values())
        if x.dtype.kind in "OS"
    ]
    is_example = _EXAMPLES_INPUTS & inputs.keys()
    for row in itertools.zip_longest(*columns, fillvalue=()):
        texts = [*itertools.chain(*row)]
        if sum(map(len, texts)) > num_bytes:
            if is_example:
                texts = map(_text_of_example, texts)
            yield b"\n".join(texts)


def _text_of_example(serialized: bytes) -> bytes:
    example = tf.train.Example()
    try:
        example.ParseFromString(serialized)
    except message.DecodeError:
        return serialized
    features = example.features.feature.values()
    return b"\n".join(text for x in features for text in x.bytes_list.value)


def read_examples(
    examples: np.ndarray, limits: ServeLimits, strict: bool = False
) -> tuple[int, np.ndarray]:
    """Returns the length of the longest list of strings, and the Examples.

    The model pads all lists to the longest length. If `strict`, bytes that are
    no Example are refused, as they would make a batch fail for all clients. The
    Examples <string>[B] are then also serialized again: of two lists in a
    feature, TensorFlow would read the first, but this function checks the last.

    Raises:
      RequestError: If `strict`, and an input is no Example or has too many
        fields.
    """
    longest = 1
    read = examples.copy()
    kind = tf.train.Example.DESCRIPTOR
    for index, serialized in enumerate(examples.flat):
        example = tf.train.Example()
        try:
            if len(serialized) > bodies.COUNTED_BYTES:
                bodies.count_fields(serialized, kind, limits)
            example.ParseFromString(serialized)
        except (message.DecodeError, errors.RequestError) as error:
            if not strict:
                continue
            if isinstance(error, errors.TooLargeError):
                raise
            raise errors.invalid(
                "The inputs must be serialized tf.Examples."
            ) from error
        if strict:
            read.flat[index] = example.SerializeToString()
        for feature in example.features.feature.values():
            longest = max(longest, len(feature.bytes_list.value))
    return longest, read


def metadata(
    servable: Servable,
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Returns the signatures of a version."""
    signatures = get_model_metadata_pb2.SignatureDefMap(
        signature_def=servable.signature_defs
    )
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = servable.name
    response.model_spec.version.value = servable.version
    response.metadata["signature_def"].Pack(signatures)
    return response
