"""Models, batch threads and metrics, shared by REST and gRPC."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from collections.abc import Mapping

import numpy as np
from absl import logging

from bert_tf.serving import errors
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.batching import BatchScheduler
from bert_tf.serving.calls import Call
from bert_tf.serving.metrics import Metrics
from bert_tf.serving.model_manager import ModelManager
from bert_tf.serving.servable import Engine
from bert_tf.serving.servable import Servable


class Request:
    """A request in progress, for the metrics.

    Attributes:
      servable: The version that answers it, when it is known.
    """

    servable: Servable | None = None


class Service:
    """Everything of a server except its ports.

    Args:
      engine: The engine that loads models.
      batching: The batching parameters.
      warm_up: If true, runs new versions' warmup requests before they serve.
    """

    def __init__(
        self, engine: Engine, batching: BatchingOptions, warm_up: bool = True
    ) -> None:
        self.metrics = Metrics(lambda: self._scheduler.num_queued_rows())
        self._scheduler = BatchScheduler(batching, self.metrics.observe_batch)
        self.manager = ModelManager(
            engine, warm_up, self.metrics.observe_version
        )

    async def compute(
        self, servable: Servable, call: Call
    ) -> Mapping[str, np.ndarray]:
        """Returns the outputs of a call.

        Raises:
          RequestError: If the queue is full or the model fails.
        """
        return await self._scheduler.submit(
            servable, call.signature, call.inputs, call.outputs
        )

    @contextlib.asynccontextmanager
    async def counted(self, method: str) -> AsyncIterator[Request]:
        """Counts a request, and turns its exceptions into `RequestError`.

        Args:
          method: The method, such as "Predict".

        Raises:
          RequestError: For every error except a cancellation.
        """
        request = Request()
        start = time.perf_counter()
        status = "OK"
        try:
            yield request
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except TimeoutError as error:
            status = "DEADLINE_EXCEEDED"
            raise errors.deadline_exceeded("The request timed out.") from error
        except Exception as error:  # noqa: BLE001  # It becomes the answer.
            answer = errors.from_exception(error)
            status = answer.code_name
            if answer is not error and status == "INTERNAL":
                logging.exception("A request failed.")
            raise answer from error
        finally:
            servable = request.servable
            self.metrics.observe_request(
                servable.name if servable else "",
                str(servable.version) if servable else "",
                method,
                status,
                start,
            )

    def drain(self) -> None:
        """Reports that the server is not ready, and empties the queues."""
        self.manager.set_unready()
        self._scheduler.drain()

    def stop(self) -> None:
        """Answers queued requests, then retires the models."""
        self._scheduler.stop()
        self.manager.stop()
