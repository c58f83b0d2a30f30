"""Estimates the memory of a training step; measures free and peak memory.

The estimate counts the tensors that the backward pass needs, and adds a
measured constant for the runtime; docs/results.md compares it with measured
peaks.

Shapes:
  B: examples computed at once.
  S: sequence length.
  P: predictions per sequence.
  H: hidden size.
  I: intermediate size.
  N: attention heads.
  V: vocabulary size.
"""

import contextlib
import dataclasses
import os
import resource
import shutil
import subprocess

import tensorflow as tf

from bert_tf.config import BertConfig

# The usable share of free memory; the rest is for the input pipeline, gaps of
# the allocator and other programs.
_USABLE_SHARE = 0.8
# float32: the weight and the optimizer's two slots, which are always allocated;
# and the gradient.
HELD_BYTES = 4 * 3
_GRADIENT_BYTES = 4
# The logits without and with the bias, their softmax and gradient.
LOGITS_COPIES = 4
# The memory of a device that is not tensors: programs, threads, gaps between
# tensors; and the compiler's memory if XLA compiles the whole step.
_RUNTIME_BYTES = 270_000_000
_STEP_COMPILER_BYTES = 300_000_000
_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
# With more tokens at once a CPU gets no faster, but needs more memory.
_CPU_TOKENS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a step takes in one memory, which devices may share.

    Attributes:
      fixed: Weights, gradients and optimizer state of a device.
      per_example: Bytes per example that a device computes at once.
      summed: Bytes that a device needs to sum gradients over micro-batches or
        devices.
      runtime: Bytes of a device that are not tensors.
      num_devices: Devices that share the memory, as on a CPU.
    """

    fixed: int
    per_example: int
    summed: int = 0
    runtime: int = 0
    num_devices: int = 1

    def total(self, micro_batch_size: int, num_micro_batches: int = 1) -> int:
        """Returns the bytes of a step.

        Args:
          micro_batch_size: Examples that a device computes at once.
          num_micro_batches: Micro-batches of a step.
        """
        device = self.fixed + self.per_example * micro_batch_size + self.runtime
        if num_micro_batches > 1 or self.num_devices > 1:
            device += self.summed
        return device * self.num_devices

    def largest_micro_batch(
        self, num_examples: int, available: int, most: int | None = None
    ) -> int:
        """Returns the largest divisor of `num_examples` that fits, at least 1.

        Args:
          num_examples: Examples of a replica and step.
          available: Bytes.
          most: The largest useful size; None means any.
        """
        usable = available * _USABLE_SHARE
        fitting = [
            size
            for size in range(1, min(num_examples, most or num_examples) + 1)
            if num_examples % size == 0
            and self.total(size, num_examples // size) <= usable
        ]
        return max(fitting, default=1)


def largest_useful_micro_batch(device: str, max_seq_length: int) -> int | None:
    """Returns the examples that keep a device busy; None means no limit.

    Args:
      device: "CPU", "GPU" or "TPU".
      max_seq_length: S.
    """
    if device != "CPU":
        return None
    return max(1, _CPU_TOKENS_AT_ONCE // max_seq_length)


def estimate(
    config: BertConfig,
    num_weights: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
    activation_bytes: int = 4,
    remat: bool = False,
    compiles_step: bool = False,
    num_devices: int = 1,
    logits_copies: int = LOGITS_COPIES,
) -> MemoryEstimate:
    """Estimates the memory of a training step.

    Args:
      config: The model configuration.
      num_weights: The number of parameters.
      max_seq_length: S.
      max_predictions_per_seq: P.
      activation_bytes: Bytes of a number in the encoder: 4, or 2 in half
        precision.
      remat: Whether layers are recomputed in the backward pass.
      compiles_step: Whether XLA compiles the whole step.
      num_devices: Devices that share the memory.
      logits_copies: Arrays of the size of the logits that exist at once.
    """
    tokens = max_seq_length
    hidden, inner = config.hidden_size, config.intermediate_size
    # The fused chains keep query, key, value, context, three products and sums
    # for the backward pass, and recompute the rest.
    rows = tokens * (7 * hidden + 2 * inner)
    # Scores, and probabilities after dropout.
    squares = 2 * config.num_attention_heads * tokens * tokens
    kept = tokens * hidden if remat else rows + squares
    layers = config.num_hidden_layers * kept * activation_bytes
    # Always float32.
    logits = 4 * logits_copies * max_predictions_per_seq * config.vocab_size
    # The gradients of the widest layer, before they are summed; and the one
    # layer that is being recomputed.
    transient = (rows + squares) * activation_bytes * (2 if remat else 1)
    return MemoryEstimate(
        fixed=num_weights * (HELD_BYTES + _GRADIENT_BYTES),
        per_example=layers + logits + transient,
        summed=num_weights * _GRADIENT_BYTES,
        runtime=_RUNTIME_BYTES + (_STEP_COMPILER_BYTES if compiles_step else 0),
        num_devices=num_devices,
    )


def available_bytes(device_type: str) -> int | None:
    """Returns the free bytes of a device, or None if unknown.

    Args:
      device_type: "CPU" or "GPU"; for a TPU the result is None.
    """
    if device_type == "GPU":
        return _free_gpu_bytes()
    return _free_ram_bytes() if device_type == "CPU" else None


def _free_ram_bytes() -> int | None:
    free = []
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free.append(int(line.split()[1]) * 1024)
    except OSError:
        return None
    for limit_file, usage_file in _CGROUP_LIMITS:
        try:
            limit, usage = _read_number(limit_file), _read_number(usage_file)
        except (OSError, ValueError):
            continue  # No limit ("max"), or another version of cgroups.
        free.append(limit - usage + _reclaimable(usage_file))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _read_status("VmSize")
    if limit != resource.RLIM_INFINITY and used is not None:
        free.append(limit - used)  # `ulimit -v`.
    return max(min(free), 0) if free else None


def _reclaimable(usage_file: str) -> int:
    """Returns the bytes of cached files, which the kernel frees on demand."""
    statistics = os.path.join(os.path.dirname(usage_file), "memory.stat")
    try:
        with open(statistics, encoding="utf-8") as file:
            values = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    # In version 1 of cgroups the total includes the groups below.
    name = "total_inactive_file"
    return int(values.get(name, values.get("inactive_file", 0)))


def _read_number(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return int(file.read())


def _free_gpu_bytes() -> int | None:
    """Queries the driver, as TensorFlow does not report free memory."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    answer = subprocess.run(
        [
            command,
            "--query-gpu=memory.free",
            "--format=csv,noheader,nounits",
            *([f"--id={visible}"] if visible else []),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    free = answer.stdout.split()
    # A GPU that shares the memory of the machine reports no number.
    if answer.returncode or not free or not all(map(str.isdecimal, free)):
        return None
    return min(map(int, free)) << 20


class PeakMeter:
    """Measures the peak memory of training from its construction on.

    Args:
      device_type: "CPU", "GPU" or "TPU".
      held: Bytes of weights and slots, which are allocated already.
    """

    def __init__(self, device_type: str, held: int) -> None:
        self._device_type = device_type
        self._held = held
        self._before = 0
        if device_type == "CPU":
            # Resets the peak of the process, where that is allowed.
            with contextlib.suppress(OSError):
                with open("/proc/self/clear_refs", "w", encoding="utf-8") as f:
                    f.write("5")
            self._before = _read_status("VmRSS") or 0

    def peak(self) -> int | None:
        """Returns the peak in bytes, or None if unknown."""
        if self._device_type == "GPU":
            return max(
                tf.config.experimental.get_memory_info(device.name)["peak"]
                for device in tf.config.list_logical_devices("GPU")
            )
        if self._device_type != "CPU":
            return None
        most = _read_status("VmHWM")
        return None if most is None else most - self._before + self._held


def _read_status(name: str) -> int | None:
    """Returns a field of /proc/self/status, in bytes."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return None
    return int(lines[name].split()[0]) * 1024 if name in lines else None
