"""What run/serve.py can be told."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least

# What runs the models of a server.
ENGINES = ("savedmodel", "litert")


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Flags of run/serve.py; names are TensorFlow Serving's where it has them.

    The flags that say how requests are merged may be left out (None).
    """

    model_base_path: str | None = option(
        None, "The folder that holds the model's versions: 1, 2, ..."
    )
    model_name: str | None = option(
        None, "What requests call the model (default: the folder's name)."
    )
    model_config_file: str | None = option(
        None,
        "A text file of ModelServerConfig, for several models, version labels "
        "or other versions than the newest.",
    )
    engine: str = option(
        "savedmodel",
        "What runs the models: savedmodel runs any, as TensorFlow Serving "
        "does; litert, the fastest on an x86 CPU, those that were exported "
        "with --litert.",
        choices=ENGINES,
    )
    host: str = option(
        "127.0.0.1", "The address to listen at; 0.0.0.0 means all."
    )
    port: int = option(8500, "The port of gRPC; 0 means none.")
    rest_api_port: int = option(
        8501, "The port of REST, the page and /metrics; 0 means none."
    )
    rest_api_timeout_in_ms: int = option(
        30000, "How long a REST request may take, in milliseconds."
    )
    file_system_poll_wait_seconds: float = option(
        1.0, "Seconds between two looks for new versions; 0: no second look."
    )
    enable_model_warmup: bool = option(
        True,
        "Whether a new version first answers the requests in its "
        "assets.extra/tf_serving_warmup_requests.",
    )
    enable_batching: bool = option(
        True,
        "Whether rows of different requests may go into one call of the model.",
    )
    batching_parameters_file: str | None = option(
        None, "A text file of BatchingParameters, instead of the next four."
    )
    max_batch_size: int | None = option(
        None, "The most rows that are merged (default: 64)."
    )
    batch_timeout_micros: int | None = option(
        None,
        "How long a request waits for others while a thread is free, in "
        "microseconds (default: 0).",
    )
    max_enqueued_batches: int | None = option(
        None,
        "Full batches that may wait for a signature; requests beyond that are "
        "refused (default: 10).",
    )
    num_batch_threads: int | None = option(
        None, "Calls of models at once (default: one a core)."
    )
    tensorflow_intra_op_parallelism: int = option(
        0, "Threads inside one operator, or LiteRT's; 0 means one a core."
    )
    tensorflow_inter_op_parallelism: int = option(
        0, "Operators at once; 0 means one a core."
    )

    def __post_init__(self) -> None:
        require(
            bool(self.model_base_path) != bool(self.model_config_file),
            "Give either --model_base_path or --model_config_file.",
        )
        require(
            self.model_base_path is not None or self.model_name is None,
            "--model_name is of use with --model_base_path only.",
        )
        require_at_least(self, 0, "file_system_poll_wait_seconds")
        require_at_least(self, 1, "rest_api_timeout_in_ms")
        require_at_least(
            self,
            0,
            "tensorflow_intra_op_parallelism",
            "tensorflow_inter_op_parallelism",
            "batch_timeout_micros",
        )
        require_at_least(self, 1, "max_batch_size", "max_enqueued_batches")
        require_at_least(self, 1, "num_batch_threads")
        self._check_ports()
        self._check_batching()

    def batching(self) -> dict[str, int]:
        """Returns the flags that say how requests are merged."""
        names = (
            "max_batch_size",
            "batch_timeout_micros",
            "max_enqueued_batches",
            "num_batch_threads",
        )
        values = {name: getattr(self, name) for name in names}
        return {name: x for name, x in values.items() if x is not None}

    def _check_ports(self) -> None:
        for name in ("port", "rest_api_port"):
            require(
                0 <= getattr(self, name) < 65536,
                f"--{name} must lie between 0 and 65535. Received: "
                f"{getattr(self, name)}.",
            )
        require(
            self.port != self.rest_api_port,
            "--port and --rest_api_port must differ. Received: both "
            f"{self.port}.",
        )

    def _check_batching(self) -> None:
        flags = list(self.batching())
        if self.batching_parameters_file is not None:
            require(
                not flags,
                f"--{', --'.join(flags)} and --batching_parameters_file say "
                "the same; drop one of the two.",
            )
            flags = ["batching_parameters_file"]
        require(
            self.enable_batching or not flags,
            f"--{', --'.join(flags)} is of use with --enable_batching only.",
        )
