"""Groups of flags that commands share: models, devices, training, Beam."""

import dataclasses
import importlib.util
import os
from typing import Any

from bert_tf.flags import options

PRECISIONS = ("float32", "bfloat16", "float16", "auto")
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored")
# Values of --unpad, which skips the computation of padding.
UNPAD_MODES = ("auto", "on", "off")
# Checkpoints are read and written in `FORMATS`; `TF_HUB` is only read.
FORMATS = ("tf1", "huggingface", "keras_hub", "model_garden", "bert_tf")
TF_HUB = "tf_hub"
RUNNERS = ("DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner")
OPTIMIZERS = ("bert_adam", "adamw", "lamb")
# Values of --xla, which selects the parts of a training step to compile.
XLA_MODES = ("auto", "on", "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSourceConfig(options.Flags):
    """Flags of all scripts that read a model by path or by name.

    The flags set environment variables, which child processes inherit.
    """

    cache_dir: str | None = options.model(
        "Directory for models that are fetched by a short name or https:// "
        "(default: BERT_TF_CACHE, else ~/.cache/bert_tf); hf:// and kaggle:// "
        "use HF_HOME and KAGGLEHUB_CACHE.",
        affects="place",
    )
    offline: bool = options.model(
        "Use fetched models, but fetch none.", False, affects="place"
    )

    def set_environment(self) -> None:
        """Sets the variables that `checkpoints.names` reads."""
        if self.cache_dir:
            os.environ["BERT_TF_CACHE"] = self.cache_dir
        if self.offline:
            os.environ["BERT_TF_OFFLINE"] = "1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig(options.Flags):
    """Flags of all scripts that choose devices and precision."""

    use_tpu: bool = options.devices(
        "Same as --distribution_strategy=tpu.", False
    )
    tpu_name: str | None = options.devices(
        "Same as --tpu; ignored without --use_tpu, as in the original."
    )
    tpu: str | None = options.devices(
        "Address of the TPU.", needs=("use_tpu", "distribution_strategy=tpu")
    )
    distribution_strategy: str = options.devices(
        "tf.distribute strategy. auto uses all GPUs of all workers, or the "
        "CPU.",
        "auto",
        choices=(*STRATEGIES, "tpu", "parameter_server"),
    )
    num_gpus: int = options.devices(
        "Number of GPUs (or logical CPUs) to use per machine; 0 means all.", 0
    )
    worker_hosts: str | None = options.devices(
        "Workers of --distribution_strategy=multi_worker_mirrored, as "
        "host:port, separated by commas, the same list on each worker; "
        "replaces TF_CONFIG."
    )
    task_index: int | None = options.devices(
        "Index of this worker in --worker_hosts, from 0.", needs="worker_hosts"
    )
    unpad: str = options.speed(
        "Skip padding: on computes only tokens, off also computes padding, "
        "auto chooses the faster way. Results differ by rounding. A resumed "
        "run keeps the choice.",
        "auto",
        choices=UNPAD_MODES,
    )
    mixed_precision: str = options.hardware(
        "Compute precision. auto uses bfloat16 where the hardware supports "
        "it; weights stay float32.",
        "float32",
        choices=PRECISIONS,
    )
    deterministic: bool | None = options.devices(
        "Use only operations that repeat their results bit for bit (default: "
        "true on CPUs and TPUs, false on GPUs, where they are slower)."
    )
    tensor_float_32: bool | None = options.devices(
        "Compute float32 products in TF32, with 10 bits after the point, as "
        "TensorFlow does by default on GPUs since Ampere."
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.distribution_strategy != "parameter_server",
            "--distribution_strategy=parameter_server is not supported: Keras "
            "3 keeps no variables on parameter servers "
            "(https://github.com/keras-team/keras/issues/18624); use "
            "multi_worker_mirrored.",
        )
        if self.worker_hosts is None:
            return
        num_hosts = len(self.worker_hosts.split(","))
        options.require(
            self.task_index is not None and self.task_index < num_hosts,
            f"--task_index must be at least 0 and below {num_hosts}, the "
            f"number of --worker_hosts. Received: {self.task_index}.",
        )
        options.require(
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
    """Flags of all training scripts: devices, checkpoints, optimizer.

    The original's flags for Cloud TPUs are accepted and ignored.
    """

    tpu_zone: str | None = options.ignored()
    gcp_project: str | None = options.ignored()
    master: str | None = options.ignored()
    num_tpu_cores: int | None = options.ignored()
    xla: str = options.devices(
        "XLA compilation of the training step: on compiles all of it, off "
        "compiles nothing, auto compiles what suits the device: on GPUs all "
        "of it unless --deterministic. The log reports what was compiled.",
        "auto",
        choices=XLA_MODES,
    )
    all_reduce_dtype: str = options.devices(
        "Dtype in which devices exchange gradients; bfloat16 halves the bytes.",
        "float32",
        choices=("float32", "bfloat16"),
    )
    do_train: bool = options.training("Train.", False, affects="nothing")
    save_checkpoints_steps: int = options.reporting(
        "Steps between checkpoints.", 1000, at_least=1
    )
    save_checkpoints_secs: int = options.reporting(
        "Also save a checkpoint after this many seconds; 0 saves only by "
        "--save_checkpoints_steps.",
        120,
    )
    optimizer: str = options.training(
        "Optimizer. bert_adam is the original's: AdamW without bias "
        "correction.",
        "bert_adam",
        choices=OPTIMIZERS,
    )
    weight_decay_rate: float = options.training("Decoupled weight decay.", 0.01)
    left_to_right: bool | None = options.model(
        "Attention to the left only, Table 5 (default: the configuration's)."
    )
    remat: bool = options.speed(
        "Recompute activations in the backward pass to save memory; steps "
        "take about a third longer.",
        False,
        not_with="approach=feature_based",
    )
    overwrite_output_dir: bool = options.reporting(
        "Remove the checkpoints, the model and the results of an earlier run "
        "in --output_dir, and train from the start; other files stay. Drop it "
        "to resume.",
        False,
        needs="do_train",
    )
    allow_changed_data: bool = options.reporting(
        "Resume although the data or options changed.", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionConfig(DeviceConfig, ModelSourceConfig):
    """Flags of all scripts that predict with fine-tuned models."""

    batch_size: int = options.hardware("Rows computed at once.", 32, at_least=1)
    num_length_buckets: int = options.length_buckets(
        "the model's max_seq_length"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamConfig(options.Flags):
    """Flags of the scripts that can run on Apache Beam.

    Without Beam, --num_processes processes do the work. Each script declares
    --num_processes itself, to keep the order of flags in manifests.
    """

    runner: str | None = options.speed(
        "Apache Beam runner to use; the result is the same (default: "
        "processes on this machine, without Beam).",
        choices=RUNNERS,
        not_with="generator=original",
    )
    beam_options: str = options.speed(
        "Further options for Apache Beam, quoted as for a shell.",
        "",
        needs="runner",
    )

    def require_beam(self) -> None:
        """Raises `UserError` if Apache Beam is needed but not installed."""
        options.require(
            self.runner is None
            or importlib.util.find_spec("apache_beam") is not None,
            f"--runner={self.runner} needs Apache Beam, which is not "
            "installed; make an environment for it with `python -m venv "
            ".venv-beam && .venv-beam/bin/pip install -r requirements-beam.txt`"
            " and run this script with .venv-beam/bin/python, or drop "
            '--runner. Without a clone: `pip install "bert_tf[beam]"`.',
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormalizationConfig(options.Flags):
    """Flags of the scripts that tokenize text or learn a vocabulary."""

    do_lower_case: bool = options.data("Lower-case the text.", True)
    strip_accents: bool | None = options.data(
        "Strip accents (default: as --do_lower_case)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig(NormalizationConfig, BeamConfig):
    """Flags of the scripts that read text to pretrain on."""

    replace_invalid_utf8: bool = options.data(
        "Replace bytes that are not UTF-8 with U+FFFD.", False
    )
    sample: float = options.data(
        "Share of the documents to use, for trials; chosen by a hash of their "
        "text.",
        1.0,
        above=0,
        at_most=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionConfig(ModelSourceConfig):
    """Flags of the scripts that convert a model into another model."""

    overwrite: bool = options.output("Replace --output if it exists.", False)
    do_lower_case: bool | None = options.model(
        "The model reads lower-cased text; for formats that do not store "
        "this (default: detected from the vocabulary)."
    )
