"""The devices of a run, its workers, and the precision that suits them."""

import dataclasses

import tensorflow as tf
from absl import logging

from bert_tf import precision as precisions
from bert_tf import strategies
from bert_tf.cluster import Cluster
from bert_tf.coordination import Coordinator
from bert_tf.run_config import DeviceConfig


@dataclasses.dataclass(frozen=True)
class Devices:
    """Where to compute, and how precisely.

    Attributes:
      strategy: The devices.
      kind: "CPU", "GPU" or "TPU".
      precision: The precision.
      coordinator: What all workers do together.
      cluster: The workers; None for a run of one process.
    """

    strategy: tf.distribute.Strategy
    kind: str
    precision: precisions.Precision
    coordinator: Coordinator
    cluster: Cluster | None = None

    @property
    def fuse(self) -> bool:
        """Whether to compile the chains between the matrix products."""
        # TPUs compile the whole step by themselves.
        return self.kind != "TPU"


def prepare(flags: DeviceConfig) -> Devices:
    """Chooses devices and precision, says which, and makes runs repeatable.

    To be called before anything else that TensorFlow computes: several
    workers must find each other first.

    Raises:
      UserError: If there are no such devices.
    """
    strategy = strategies.build(
        "tpu" if flags.use_tpu else flags.distribution_strategy,
        flags.num_gpus,
        flags.tpu or flags.tpu_name,
    )
    # Else the order of additions may differ from one run to the next.
    tf.config.experimental.enable_op_determinism()
    kind = strategies.device_type(strategy)
    precision = precisions.resolve(flags.mixed_precision, kind)
    logging.info(
        "Strategy %s with %d %s; precision %s (%s).",
        type(strategy).__name__,
        strategy.num_replicas_in_sync,
        kind,
        precision.name,
        precision.reason,
    )
    return Devices(strategy, kind, precision, Coordinator(strategy))
