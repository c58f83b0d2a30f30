"""Prometheus metrics of the server."""

import time
from collections.abc import Callable
from collections.abc import Sequence

import prometheus_client

from bert_tf.serving.batching import Task

CONTENT_TYPE = prometheus_client.exposition.CONTENT_TYPE_PLAIN_0_0_4
# Creation times of counters would double the size of the page.
prometheus_client.disable_created_metrics()
_ROWS = tuple(2**i for i in range(11))
_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 30),
)


class Metrics:
    """The counters of one server.

    Args:
      num_queued_rows: Returns the number of waiting rows.
    """

    def __init__(self, num_queued_rows: Callable[[], int]) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._requests = prometheus_client.Counter(
            "serving_requests",
            "Requests by their outcome, a code of TensorFlow's.",
            ("model", "version", "method", "status"),
            registry=self._registry,
        )
        self._seconds = prometheus_client.Histogram(
            "serving_request_seconds",
            "Time from a request's arrival to its answer.",
            ("model", "version", "method"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch_rows = prometheus_client.Histogram(
            "serving_batch_rows",
            "Rows of a call of the model.",
            ("model", "version", "signature"),
            buckets=_ROWS,
            registry=self._registry,
        )
        self._batch_requests = prometheus_client.Histogram(
            "serving_batch_requests",
            "Requests whose rows went into one call of the model.",
            ("model", "version", "signature"),
            buckets=_ROWS,
            registry=self._registry,
        )
        prometheus_client.Gauge(
            "serving_queued_rows",
            "Rows that wait for a call.",
            registry=self._registry,
        ).set_function(num_queued_rows)
        self._loaded = prometheus_client.Gauge(
            "serving_model_version_loaded",
            "1 for a version that is served, 0 for one that was.",
            ("model", "version"),
            registry=self._registry,
        )

    def observe_request(
        self, model: str, version: str, method: str, status: str, start: float
    ) -> None:
        """Counts a request.

        Args:
          model: The model's name; "" if there is no such model.
          version: The version that answered, or "".
          method: The method, such as "Predict".
          status: The code's name, such as "OK".
          start: Time of arrival, by `time.perf_counter`.
        """
        seconds = time.perf_counter() - start
        self._requests.labels(model, version, method, status).inc()
        self._seconds.labels(model, version, method).observe(seconds)

    def observe_batch(self, tasks: Sequence[Task], num_rows: int) -> None:
        """Records the numbers of requests and rows of a batch."""
        first = tasks[0]
        labels = (
            first.servable.name,
            str(first.servable.version),
            first.signature.name,
        )
        self._batch_rows.labels(*labels).observe(num_rows)
        self._batch_requests.labels(*labels).observe(len(tasks))

    def observe_version(self, model: str, version: int, loaded: bool) -> None:
        """Records that a version was loaded or retired."""
        self._loaded.labels(model, str(version)).set(int(loaded))

    def page(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)
