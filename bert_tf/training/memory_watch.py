"""Logs estimated and peak training memory; explains out-of-memory errors."""

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
from bert_tf.training import losses
from bert_tf.training import memory
from bert_tf.training import xla

# Steps after which the peak is logged.
_FIRST_STEPS = 10

_ACTIVATION_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Errors of allocators; TensorFlow raises the same class for a full disk.
_OUT_OF_MEMORY = re.compile("oom when allocating|out of memory", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """The settings that determine the memory of a step, but the micro-batch.

    Attributes:
      config: The model configuration.
      num_weights: The number of parameters.
      max_seq_length: Tokens of an example, all choices together.
      max_predictions_per_seq: Masked tokens of an example, if any.
      precision: "float32", "bfloat16" or "float16".
      kind: "CPU", "GPU" or "TPU".
      num_devices: Devices of this process.
      remat: `--remat`.
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
        return memory.HELD_BYTES * self.num_weights * self.sharing

    @property
    def saving(self) -> int:
        """Bytes that writing a checkpoint takes while training continues."""
        # Accelerators copy the values to the memory of their host.
        is_shared = self.kind == "CPU"
        return memory.HELD_BYTES * self.num_weights if is_shared else 0

    def estimate(self) -> memory.MemoryEstimate:
        """Estimates the memory of a step."""
        return memory.estimate(
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
            return memory.LOGITS_COPIES
        # The gradient in half precision, and its transpose.
        return 2 if self.precision == "bfloat16" else 1

    def available(self) -> int | None:
        """Returns the bytes for a step, weights and slots included."""
        free = memory.available_bytes(self.kind)
        return None if free is None else free + self.held


def sizes_of(
    devices: Devices,
    config: BertConfig,
    num_weights: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
    remat: bool,
) -> StepSizes:
    """Returns the `StepSizes` on the devices of a run.

    Args:
      devices: The devices of the run.
      config: The model configuration.
      num_weights: The number of parameters.
      max_seq_length: See `StepSizes`.
      max_predictions_per_seq: See `StepSizes`.
      remat: `--remat`.
    """
    return StepSizes(
        config,
        num_weights,
        max_seq_length,
        max_predictions_per_seq,
        devices.precision.name,
        devices.kind,
        len(devices.strategy.extended.worker_devices),
        remat,
        xla.choose(devices.xla, devices.kind) == xla.STEP,
    )


class MemoryWatch:
    """Logs the estimated memory before training and the peak after 10 steps.

    Create it after model and optimizer are built.

    Args:
      sizes: The settings that determine the memory.
      plan: How a step is split.
    """

    def __init__(self, sizes: StepSizes, plan: StepPlan) -> None:
        self._sizes = sizes
        self._plan = plan
        self._estimated = self._total(sizes, plan.micro_batch_size)
        self._available = sizes.available()
        self._meter: memory.PeakMeter | None = None
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
            self._meter = memory.PeakMeter(self._sizes.kind, self._sizes.held)

    def after_steps(self, count: int) -> None:
        """Logs the peak once, after the first steps.

        Args:
          count: Steps done since the last call.
        """
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

    def explain(self, error: Exception) -> UserError | None:
        """Returns the error to raise if memory is exhausted, else None.

        Args:
          error: The exception that training raised.
        """
        text = str(error)
        match = _OUT_OF_MEMORY.search(text)
        if isinstance(error, tf.errors.ResourceExhaustedError):
            if match is None:
                return None
        elif not isinstance(error, MemoryError):
            return None
        start = match.start() if match else 0
        reason = text[start:].strip().split("\n")[0].strip().rstrip(".")
        free = self._sizes.available()
        available = "" if free is None else f", {_gigabytes(free)} available"
        return UserError(
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
                fitting = sizes.estimate().largest_micro_batch(
                    smaller, self._available
                )
                smaller = fitting or smaller
            yield f"--micro_batch_size={smaller}", self._total(sizes, smaller)
        if not sizes.remat:
            other = dataclasses.replace(sizes, remat=True)
            yield "--remat", self._total(other, size)
        half = precisions.resolve("bfloat16", sizes.kind).name
        if sizes.precision == "float32" and half == "bfloat16":
            other = dataclasses.replace(sizes, precision=half)
            yield "--mixed_precision=bfloat16", self._total(other, size)


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
