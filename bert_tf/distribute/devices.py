"""Sets up the devices of a run: strategy, workers and precision."""

import contextlib
import dataclasses
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from bert_tf.distribute import cluster as clusters
from bert_tf.distribute import health as worker_health
from bert_tf.distribute import precision as precisions
from bert_tf.distribute import rendezvous
from bert_tf.distribute import strategy as strategies
from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.flags.devices import DeviceConfig

# How long the workers may take to connect once all are running. TensorFlow
# would wait an hour for one that ended in the meantime.
_SECONDS_TO_CONNECT = 180


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of a run, its compute precision and its workers.

    Attributes:
      strategy: The strategy.
      kind: "CPU", "GPU" or "TPU".
      precision: The compute precision.
      coordinator: Exchanges values between the workers.
      cluster: The workers; None for a run of one process.
      xla: `--xla`; "auto" in scripts without that flag.
    """

    strategy: tf.distribute.Strategy
    kind: str
    precision: precisions.Precision
    coordinator: Coordinator
    cluster: Cluster | None = None
    xla: str = "auto"

    @property
    def fuse(self) -> bool:
        """True if the chains between the matrix products are compiled."""
        # The TPU strategy compiles the whole step.
        return self.kind != "TPU" and self.xla != "off"

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Makes all workers end together; see `health.together`.

        Raises:
          UserError: If the workers differ in the kind of device or precision.
        """
        with worker_health.together(self.cluster, self.coordinator):
            self.coordinator.agree(
                {"the device": self.kind, "the precision": self.precision.name},
                "kind of device, and precision",
                "give --mixed_precision=float32 or bfloat16 in place of auto, "
                "or use machines of one kind",
            )
            yield


def prepare(flags: DeviceConfig) -> Devices:
    """Chooses and logs devices and precision, and makes runs repeatable.

    Call it before TensorFlow computes anything: with several workers it waits
    until all of them are running.

    Raises:
      UserError: If the devices are missing, or the flags for the workers are
        wrong.
      Preempted: If a worker got SIGTERM before all were running.
    """
    cluster = clusters.find(flags)
    if cluster is not None:
        _prefix_log(cluster)
        # TensorFlow logs every collective each time it builds one.
        tf.get_logger().setLevel(logging.converter.STANDARD_WARNING)
        strategies.check_worker(flags.num_gpus, cluster)
        rendezvous.wait_for_all(cluster)
        clusters.export(cluster)
    with _connecting() if cluster else contextlib.nullcontext():
        strategy = strategies.build(
            "tpu" if flags.use_tpu else flags.distribution_strategy,
            flags.num_gpus,
            flags.tpu or flags.tpu_name,
            cluster,
        )
    # Otherwise the order of additions may differ from run to run.
    tf.config.experimental.enable_op_determinism()
    kind = strategies.device_type(strategy)
    if flags.tpu_name and kind != "TPU":
        logging.warning("--tpu_name has no effect without --use_tpu.")
    precision = precisions.resolve(flags.mixed_precision, kind)
    logging.info(
        "Strategy %s with %d %s%s; precision %s (%s).",
        type(strategy).__name__,
        strategy.num_replicas_in_sync,
        kind,
        f" of {cluster.num_workers} workers" if cluster else "",
        precision.name,
        precision.reason,
    )
    # Scripts that only predict have no such flag.
    xla = getattr(flags, "xla", "auto")
    coordinator = Coordinator(strategy, cluster)
    return Devices(strategy, kind, precision, coordinator, cluster, xla)


@contextlib.contextmanager
def _connecting() -> Iterator[None]:
    """Ends the process on SIGTERM, or if the workers do not connect in time.

    Python code cannot do so: TensorFlow blocks all Python threads meanwhile.
    """
    logging.info(
        "Connecting. If that takes more than %d s, because another worker has "
        "ended, this one exits with status 1; rerun it then.",
        _SECONDS_TO_CONNECT,
    )
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL) if is_main else None
    with open(os.devnull, "w", encoding="utf-8") as null:
        faulthandler.dump_traceback_later(
            _SECONDS_TO_CONNECT, exit=True, file=null
        )
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            if is_main:
                signal.signal(signal.SIGTERM, before)


def _prefix_log(cluster: Cluster) -> None:
    """Starts each line of the log with the index of this worker."""
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(_PrefixFormatter(f"[worker {cluster.index}] "))


class _PrefixFormatter(logging.PythonFormatter):
    """Puts a prefix before absl's log lines."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record) -> str:
        return self._prefix + super().format(record)
