"""Estimates and measures training memory; explains out-of-memory errors.

The estimate counts the tensors that the backward pass needs, and adds a
measured constant for the runtime; benchmarks/log.md compares it with measured
peaks.

Shapes:
  B: examples computed at once.
  S: sequence length.
  P: predictions per sequence.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from bert_tf.config import BertConfig
from bert_tf.distribute import precision as precisions
from bert_tf.distribute.batches import StepPlan
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.training import available_memory
from bert_tf.training import losses
from bert_tf.training import xla

# The usable share of free memory; the rest is for the input pipeline, gaps of
# the allocator and other programs.
_USABLE_SHARE = 0.8
# float32: the weight and the optimizer's two slots, which are always allocated;
# and the gradient.
_HELD_BYTES = 4 * 3
_GRADIENT_BYTES = 4
# The logits without and with the bias, their softmax and gradient.
_LOGITS_COPIES = 4
# The memory of a device that is not tensors: programs, threads, gaps between
# tensors; and the compiler's memory if XLA compiles the whole step.
_RUNTIME_BYTES = 270_000_000
_STEP_COMPILER_BYTES = 300_000_000
# With more tokens at once a CPU gets no faster, but needs more memory.
_CPU_TOKENS_AT_ONCE = 4096

# Steps after which the peak is logged.
_FIRST_STEPS = 10
_ACTIVATION_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Errors of allocators, also of those that XLA and CUDA call. TensorFlow raises
# the same class for a full disk, and XLA has the same code for a kernel that
# needs more shared memory than the device has.
_MEMORY_ERRORS = (
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnknownError,
)
_OUT_OF_MEMORY = re.compile(
    r"oom when allocating|\w*out[ _]of[ _]memory|"
    "resource_exhausted(?!(?s:.*)(no space left|shared memory))",
    re.IGNORECASE,
)


class OutOfMemoryError(UserError):
    """A device has too little memory for a step."""


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
        """Returns the bytes of a step."""
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
    """Returns the examples that keep a device busy; None means no limit."""
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
    logits_copies: int = _LOGITS_COPIES,
) -> MemoryEstimate:
    """Estimates the memory of a training step.

    `activation_bytes` is 4, or 2 in half precision; `num_devices` share the
    memory; `logits_copies` are the arrays of their size that exist at once.
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
        fixed=num_weights * (_HELD_BYTES + _GRADIENT_BYTES),
        per_example=layers + logits + transient,
        summed=num_weights * _GRADIENT_BYTES,
        runtime=_RUNTIME_BYTES + (_STEP_COMPILER_BYTES if compiles_step else 0),
        num_devices=num_devices,
    )


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """The settings that determine the memory of a step, but the micro-batch.

    Attributes:
      max_seq_length: Tokens of an example, all choices together.
      max_predictions_per_seq: Masked tokens of an example, if any.
      precision: "float32", "bfloat16" or "float16".
      kind: "CPU", "GPU" or "TPU".
      num_devices: Devices of this process.
      compiles_step: Whether XLA compiles the whole step.
    """

    config: BertConfig
    num_weights: int
    max_seq_length: int
    max_predictions_per_seq: int
    precision: str
    kind: str
    num_devices: int
    remat: bool
    compiles_step: bool

    @property
    def sharing(self) -> int:
        """Devices that share one memory."""
        return self.num_devices if self.kind == "CPU" else 1

    @property
    def held(self) -> int:
        """Bytes of weights and slots where devices share one memory."""
        return _HELD_BYTES * self.num_weights * self.sharing

    @property
    def saving(self) -> int:
        """Bytes that writing a checkpoint takes while training continues."""
        # Accelerators copy the values to the memory of their host.
        is_shared = self.kind == "CPU"
        return _HELD_BYTES * self.num_weights if is_shared else 0

    def estimate(self) -> MemoryEstimate:
        """Estimates the memory of a step."""
        return estimate(
            self.config,
            self.num_weights,
            self.max_seq_length,
            self.max_predictions_per_seq,
            _ACTIVATION_BYTES[self.precision],
            remat=self.remat,
            compiles_step=self.compiles_step,
            num_devices=self.sharing,
            logits_copies=self._logits_copies(),
        )

    def _logits_copies(self) -> int:
        if not losses.overwrites_logits():
            return _LOGITS_COPIES
        # The gradient in half precision, and its transpose.
        return 2 if self.precision == "bfloat16" else 1

    def available(self) -> int | None:
        """Returns the bytes for a step, weights and slots included."""
        free = available_memory.available_bytes(self.kind)
        return None if free is None else free + self.held


def sizes_of(
    devices: Devices,
    config: BertConfig,
    num_weights: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
    remat: bool,
) -> StepSizes:
    """Returns the `StepSizes` on the devices of a run."""
    return StepSizes(
        config,
        num_weights,
        max_seq_length,
        max_predictions_per_seq,
        devices.precision.name,
        devices.kind,
        len(devices.strategy.extended.worker_devices),
        remat,
        xla.choose(devices.xla, devices.kind, devices.deterministic)
        == xla.STEP,
    )


class MemoryWatch:
    """Logs the estimated memory before training and the peak after 10 steps.

    Create it after model and optimizer are built.
    """

    def __init__(self, sizes: StepSizes, plan: StepPlan) -> None:
        self._sizes = sizes
        self._plan = plan
        self._estimated = self._total(sizes, plan.micro_batch_size)
        self._available = sizes.available()
        self._meter: PeakMeter | None = None
        self._steps_left = _FIRST_STEPS
        logging.info(
            "Memory of a step: about %s with %d sequences at once on a "
            "device, %d times; %s more while a checkpoint is written; "
            "available: %s.",
            _gigabytes(self._estimated),
            plan.micro_batch_size,
            plan.num_micro_batches,
            _gigabytes(sizes.saving),
            "unknown"
            if self._available is None
            else _gigabytes(self._available),
        )
        needed = self._estimated + sizes.saving
        if self._available is not None and needed > self._available:
            logging.warning("It does not fit; %s", self._advice())

    def before_step(self) -> None:
        """Starts the measurement before the first step."""
        if self._meter is None:
            self._meter = PeakMeter(self._sizes.kind, self._sizes.held)

    def after_steps(self, count: int) -> None:
        """Logs the peak once, after the first steps."""
        if self._steps_left <= 0 or self._meter is None:
            return
        self._steps_left -= count
        peak = self._meter.peak()
        if self._steps_left <= 0 and peak is not None:
            logging.info(
                "Memory: %s at most; estimated %s.",
                _gigabytes(peak),
                _gigabytes(self._estimated),
            )

    def for_plan(self, plan: StepPlan) -> "MemoryWatch":
        """Returns a watch of the same model's steps, split in another way."""
        return MemoryWatch(self._sizes, plan)

    def explain(self, error: Exception) -> OutOfMemoryError | None:
        """Returns the error to raise if memory is exhausted, else None."""
        text = str(error)
        match = _OUT_OF_MEMORY.search(text)
        if isinstance(error, _MEMORY_ERRORS):
            if match is None:
                return None
        elif not isinstance(error, MemoryError):
            return None
        start = match.start() if match else 0
        reason = text[start:].strip().split("\n")[0].strip().rstrip(".")
        free = self._sizes.available()
        available = "" if free is None else f", {_gigabytes(free)} available"
        return OutOfMemoryError(
            f"Out of memory ({reason or 'no memory left'}): a step of "
            f"{self._plan.micro_batch_size} sequences at once on a device was "
            f"estimated to take {_gigabytes(self._estimated)}{available}; "
            f"{self._advice()}"
        )

    def _total(self, sizes: StepSizes, micro_batch_size: int) -> int:
        parts = -(-self._plan.per_replica // micro_batch_size)
        return sizes.estimate().total(micro_batch_size, parts)

    def _advice(self) -> str:
        """Returns flags that save memory, each with the estimate for it."""
        options = [
            f"{flag} ({_gigabytes(total)})"
            for flag, total in self._options()
            if total < self._estimated
        ]
        if not options:
            return "only a smaller model or shorter sequences need less."
        return f"to reduce it: {', '.join(options)}."

    def _options(self) -> Iterator[tuple[str, int]]:
        sizes, size = self._sizes, self._plan.micro_batch_size
        if size > 1:
            smaller = size // 2
            if self._available is not None:
                smaller = sizes.estimate().largest_micro_batch(
                    smaller, self._available
                )
            yield f"--micro_batch_size={smaller}", self._total(sizes, smaller)
        if not sizes.remat:
            other = dataclasses.replace(sizes, remat=True)
            yield "--remat", self._total(other, size)
        half = precisions.resolve_precision("bfloat16", sizes.kind).name
        if sizes.precision == "float32" and half == "bfloat16":
            other = dataclasses.replace(sizes, precision=half)
            yield "--mixed_precision=bfloat16", self._total(other, size)


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"


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
