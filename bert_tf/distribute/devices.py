"""The devices of a run, its workers, and the precision that suits them."""

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

# How long workers that are all there may take to connect. TensorFlow would wait
# for an hour for one that ended meanwhile.
_SECONDS_TO_CONNECT = 180


@dataclasses.dataclass(frozen=True)
class Devices:
    """Where to compute, and how precisely.

    Attributes:
      strategy: The devices.
      kind: "CPU", "GPU" or "TPU".
      precision: The precision.
      coordinator: What all workers do together.
      cluster: The workers; None for a run of one process.
      xla: `--xla`, of the scripts that have it.
    """

    strategy: tf.distribute.Strategy
    kind: str
    precision: precisions.Precision
    coordinator: Coordinator
    cluster: Cluster | None = None
    xla: str = "auto"

    @property
    def fuse(self) -> bool:
        """Whether to compile the chains between the matrix products."""
        # TPUs compile the whole step by themselves.
        return self.kind != "TPU" and self.xla != "off"

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Lets all workers end together; see `peers.together`.

        Raises:
          UserError: If they do not all compute on the same kind of device, in
            the same precision.
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
    """Chooses devices and precision, says which, and makes runs repeatable.

    To be called before anything else that TensorFlow computes: several
    workers must find each other first. It waits until all are there.

    Raises:
      UserError: If there are no such devices, or the workers are not well
        described.
      Preempted: If a worker was asked to stop before all were there.
    """
    cluster = clusters.find(flags)
    if cluster is not None:
        _sign_log(cluster)
        # It describes every collective, each time that it builds one.
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
    # Else the order of additions may differ from one run to the next.
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
    """Ends this process if the others do not connect in time, or at SIGTERM.

    Nothing in Python can meanwhile: TensorFlow lets no other thread run.
    """
    logging.info(
        "Connecting. If that takes more than %d s, as another worker has ended "
        "meanwhile, this one ends with 1, to be started again.",
        _SECONDS_TO_CONNECT,
    )
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL) if is_main else None
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        faulthandler.dump_traceback_later(
            _SECONDS_TO_CONNECT, exit=True, file=nowhere
        )
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            if is_main:
                signal.signal(signal.SIGTERM, before)


def _sign_log(cluster: Cluster) -> None:
    """Lets each line of the log begin with the worker it comes from."""
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(_SignedFormatter(f"[worker {cluster.index}] "))


class _SignedFormatter(logging.PythonFormatter):
    """Absl's lines, with a text before each."""

    def __init__(self, signature: str) -> None:
        super().__init__()
        self._signature = signature

    def format(self, record) -> str:
        return self._signature + super().format(record)
