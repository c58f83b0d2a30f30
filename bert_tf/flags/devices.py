"""Flags for devices, distribution strategy, precision and XLA."""

import dataclasses
from typing import Any

from bert_tf.config import IGNORED
from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least

PRECISIONS = ("float32", "bfloat16", "float16", "auto")
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored")
# XLA compilation of a replica's training step.
XLA_MODES = ("auto", "on", "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Flags of all scripts that choose devices and precision."""

    use_tpu: bool = option(
        False,
        "Same as --distribution_strategy=tpu.",
        group="hardware",
        affects="place",
    )
    tpu_name: str | None = option(
        None,
        "Same as --tpu; ignored without --use_tpu, as in the original.",
        group="hardware",
        affects="place",
    )
    tpu: str | None = option(
        None, "Address of the TPU.", group="hardware", affects="place"
    )
    distribution_strategy: str = option(
        "one_device",
        "tf.distribute strategy.",
        group="hardware",
        affects="place",
        choices=(*STRATEGIES, "tpu", "parameter_server"),
    )
    num_gpus: int = option(
        0,
        "Number of GPUs (or logical CPUs) to use per machine; 0 means all.",
        group="hardware",
        affects="place",
    )
    worker_hosts: str | None = option(
        None,
        "Workers of --distribution_strategy=multi_worker_mirrored, as "
        "host:port, separated by commas, the same list on each worker; "
        "replaces TF_CONFIG.",
        group="hardware",
        affects="place",
    )
    task_index: int | None = option(
        None,
        "Index of this worker in --worker_hosts, from 0.",
        group="hardware",
        affects="place",
    )
    mixed_precision: str = option(
        "float32",
        "Compute precision. auto uses bfloat16 where the hardware supports "
        "it; weights stay float32.",
        group="hardware",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        require(
            self.distribution_strategy != "parameter_server",
            "--distribution_strategy=parameter_server is not supported: Keras "
            "3 keeps no variables on parameter servers "
            "(https://github.com/keras-team/keras/issues/18624); use "
            "multi_worker_mirrored.",
        )
        require_at_least(self, 0, "num_gpus")
        require(
            self.tpu is None
            or self.use_tpu
            or self.distribution_strategy == "tpu",
            "--tpu needs --distribution_strategy=tpu. Received: --tpu="
            f"{self.tpu} with --distribution_strategy="
            f"{self.distribution_strategy}.",
        )
        require(
            (self.worker_hosts is None) == (self.task_index is None),
            "--worker_hosts and --task_index must be set together. Received: "
            f"--worker_hosts={self.worker_hosts}, "
            f"--task_index={self.task_index}.",
        )
        if self.worker_hosts is None:
            return
        num_hosts = len(self.worker_hosts.split(","))
        require(
            0 <= self.task_index < num_hosts,
            f"--task_index must be at least 0 and below {num_hosts}, the "
            f"number of --worker_hosts. Received: {self.task_index}.",
        )
        require(
            self.distribution_strategy in ("auto", "multi_worker_mirrored")
            and not self.use_tpu,
            "--worker_hosts is for --distribution_strategy="
            "multi_worker_mirrored. Received: "
            f"{'tpu' if self.use_tpu else self.distribution_strategy}.",
        )

    def common_flags(self) -> dict[str, Any]:
        """Returns the flags that must be equal on all workers, by name."""
        return {
            f"--{name}": value
            for name, value in dataclasses.asdict(self).items()
            if name != "task_index"
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingDeviceConfig(DeviceConfig):
    """Flags of all training scripts: devices, XLA, rematerialization.

    Also the flags for Cloud TPUs of the original's time, which are ignored.
    """

    tpu_zone: str | None = option(
        None,
        "Accepted for compatibility; ignored.",
        group=IGNORED,
        affects="nothing",
    )
    gcp_project: str | None = option(
        None,
        "Accepted for compatibility; ignored.",
        group=IGNORED,
        affects="nothing",
    )
    master: str | None = option(
        None,
        "Accepted for compatibility; ignored.",
        group=IGNORED,
        affects="nothing",
    )
    num_tpu_cores: int | None = option(
        None,
        "Accepted for compatibility; ignored.",
        group=IGNORED,
        affects="nothing",
    )
    xla: str = option(
        "auto",
        "XLA compilation of the training step: on compiles all of it, off "
        "nothing, auto what suits the device. The log reports what was "
        "compiled.",
        group="hardware",
        affects="place",
        choices=XLA_MODES,
    )
    remat: bool = option(
        False,
        "Recompute activations in the backward pass to save memory; steps "
        "take about a third longer.",
        group="hardware",
        affects="nothing",
    )
    allow_changed_data: bool = option(
        False,
        "Resume although the data or options changed.",
        group="output",
        affects="nothing",
    )
