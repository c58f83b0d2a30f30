"""The flags that say where and how precisely to compute."""

import dataclasses
from typing import Any

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least

PRECISIONS = ("float32", "bfloat16", "float16", "auto")
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored")
# What a replica's step is compiled with XLA.
XLA_MODES = ("auto", "on", "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """The flags of all scripts that choose devices, and how precisely."""

    use_tpu: bool = option(False, "Same as --distribution_strategy=tpu.")
    tpu_name: str | None = option(
        None, "Same as --tpu; without --use_tpu it has no effect, as ever."
    )
    tpu: str | None = option(None, "Address of the TPU.")
    distribution_strategy: str = option(
        "one_device",
        "Where to compute.",
        choices=(*STRATEGIES, "tpu", "parameter_server"),
    )
    num_gpus: int = option(
        0, "GPUs of a machine (or logical CPUs) to use; 0 means all."
    )
    worker_hosts: str | None = option(
        None,
        "The workers of --distribution_strategy=multi_worker_mirrored, as "
        "host:port, comma-separated, the same on all of them; in place of "
        "TF_CONFIG.",
    )
    task_index: int | None = option(
        None, "Which of --worker_hosts this one is, counted from 0."
    )
    mixed_precision: str = option(
        "float32",
        "Precision of the arithmetic; auto takes bfloat16 where the hardware "
        "has it. Weights stay float32.",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        require(
            self.distribution_strategy != "parameter_server",
            "--distribution_strategy=parameter_server cannot be had: Keras 3 "
            "keeps no variables on parameter servers "
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
            "--worker_hosts and --task_index belong together. Received: "
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
        """Returns by name the flags that all workers must have alike."""
        return {
            f"--{name}": value
            for name, value in dataclasses.asdict(self).items()
            if name != "task_index"
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingDeviceConfig(DeviceConfig):
    """The same for scripts whose originals ran on the TPUs of their time."""

    tpu_zone: str | None = option(None, "Of the original; has no meaning now.")
    gcp_project: str | None = option(
        None, "Of the original; has no meaning now."
    )
    master: str | None = option(None, "Of the original; has no meaning now.")
    num_tpu_cores: int | None = option(
        None, "Of the original; has no meaning now."
    )
    xla: str = option(
        "auto",
        "on compiles the whole step of a device with XLA; off compiles "
        "nothing; auto does what suits the device. The log says what was "
        "compiled.",
        choices=XLA_MODES,
    )
    remat: bool = option(
        False,
        "Whether layers are computed again in the backward pass, which takes "
        "a third longer and far less memory.",
    )
    allow_changed_data: bool = option(
        False, "Whether a resumed run may have other data or options."
    )
