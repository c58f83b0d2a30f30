"""Runs training: steps, metrics, checkpoints, preemption, failed steps."""

import abc
import contextlib
import dataclasses
import io
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf.distribute.devices import Devices
from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import terminal
from bert_tf.modeling import bert as bert_model
from bert_tf.training import metrics as training_metrics
from bert_tf.training import resume as resume_checks
from bert_tf.training import state as training_state
from bert_tf.training.checkpoints import AsyncCheckpoints
from bert_tf.training.checkpoints import Checkpoint
from bert_tf.training.checkpoints import CheckpointStore
from bert_tf.training.checkpoints import State
from bert_tf.training.preemption import Preemption
from bert_tf.training.step import OutOfMemoryError
from bert_tf.training.step import TrainingStep


class Pacer:
    """Decides how many steps one call into the graph runs.

    A call ends where a metrics line or checkpoint is due, at the multiples of
    the `intervals`. It takes under 10 seconds, so that the progress bar moves.
    """

    # Plan calls of 7 s, so that they take under 10 s even if steps get slower.
    _BUDGET = 0.7 * 10.0
    _GROWTH = 4

    def __init__(self, last_step: int, intervals: tuple[int, ...]):
        self._last_step = last_step
        self._intervals = intervals
        self._max_steps = 1
        self._begin = 0.0

    def next_call(self, step: int) -> int:
        """Returns the number of steps of the next call; 0 at the end."""
        if step == 0:
            # The first step gets a metrics line, so run only this step.
            return min(1, self._last_step)
        ends = [(step // every + 1) * every for every in self._intervals]
        return min(self._max_steps, min(ends) - step, self._last_step - step)

    def start(self) -> None:
        self._begin = time.monotonic()

    def stop(self, num_steps: int) -> float:
        """Records and returns the seconds that a call of `num_steps` took."""
        seconds = max(time.monotonic() - self._begin, 1e-6)
        affordable = int(self._BUDGET * num_steps / seconds)
        self._max_steps = max(
            1, min(affordable, self._max_steps * self._GROWTH)
        )
        return seconds


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """Length, intervals and throughput units of a run.

    Attributes:
      examples_per_step: Number of examples in a step.
      tokens_per_example: The padded length of sequences if it is constant, else
        their mean length without padding.
      description: The label of the progress bar.
    """

    last_step: int
    metrics_every: int
    examples_per_step: int
    tokens_per_example: float
    description: str = "pretraining"


class Trainer(abc.ABC):
    """Trains a model until the last step, from its last checkpoint if any.

    All workers train; only the chief logs, and writes checkpoints, metrics and
    dumped batches to `output_dir`. There are subclasses for pretraining and for
    the trials of fine-tuning and distillation. Call `restore_or_initialize`
    first.
    """

    identity: Mapping[str, Any]
    training_step: TrainingStep
    variables: Mapping[str, keras.Variable]
    checkpoints: AsyncCheckpoints
    _config: TrainerConfig

    def __init__(
        self,
        config: Any,
        output_dir: str,
        devices: Devices,
        preemption: Preemption,
    ) -> None:
        self._flags = config
        self.output_dir = output_dir
        self.devices = devices
        self.coordinator = devices.coordinator
        self.store = CheckpointStore(
            output_dir, config.keep_checkpoint_max, self.coordinator.is_chief
        )
        self._preemption = preemption
        self._iterator: Iterator[dict[str, tf.Tensor]] | None = None
        self._log: training_metrics.MetricsLog | None = None
        self._logged_step = 0
        self._compiles = True
        self._bar: progress.Bar | None = None
        # The log shows its next line at this time; 0 means after the next call.
        self._line_due = 0.0
        self._dev_score = ""
        self._saved_at = 0.0
        # Totals for the next metrics line.
        self._seconds = 0.0
        self._steps = 0
        self._means = training_metrics.Means()
        # Means for the next logged line; `_means` is for the metrics file.
        self._shown = training_metrics.Means()
        self._rate = progress.Rate()

    @abc.abstractmethod
    def identify(self) -> Mapping[str, Any]:
        """Returns the JSON values that `check_resume` compares."""

    @abc.abstractmethod
    def check_resume(self, checkpoint: Checkpoint | None) -> None:
        """Raises `UserError` if workers or checkpoint belong to another run."""

    @abc.abstractmethod
    def build(
        self, checkpoint: Checkpoint | None
    ) -> tuple[TrainingStep, TrainerConfig]:
        """Builds model, optimizer and step, with initial weights."""

    @abc.abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores."""

    def restore_or_initialize(self) -> None:
        """Builds the model and restores the last checkpoint, if any."""
        self.identity = self.identify()
        checkpoint = self.store.restore_latest()
        self.check_resume(checkpoint)
        if checkpoint is not None and self._flags.do_train:
            resume_checks.log_devices(
                checkpoint.metadata.get("devices", {}),
                resume_checks.describe_devices(self.devices),
                checkpoint.step,
            )
        self.checkpoints = AsyncCheckpoints(
            self.store, self._read_state, checkpoint and checkpoint.step
        )
        self.training_step, self._config = self.build(checkpoint)
        self.variables = bert_model.named_variables(self.model) | dict(
            self.training_step.objective.variables
        )
        if checkpoint is not None:
            self.restore(checkpoint)
        self._logged_step = self.step

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores weights, slots, step count and `TrainingStep.state`."""
        training_state.assign(
            self.variables,
            self.training_step.optimizer,
            checkpoint.tensors,
            checkpoint.prefix,
        )
        self.training_step.restore(checkpoint.metadata)
        self._means.restore(checkpoint.metadata.get("metrics_since_line", {}))

    def _read_state(self) -> State:
        metadata = self.metadata() | self.training_step.state()
        metadata["metrics_since_line"] = self._means.state()
        tensors = training_state.snapshot(
            self.variables, self.training_step.optimizer
        )
        return tensors, metadata

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self.training_step.global_step

    @property
    def last_step(self) -> int:
        """The step to stop at."""
        return self._config.last_step

    @property
    def model(self) -> keras.Model:
        return self.training_step.model

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the weights of the model by canonical name."""
        variables = bert_model.named_variables(self.model)
        return {name: v.numpy() for name, v in variables.items()}

    def run_steps(
        self,
        read_from: Callable[[int], Iterator[dict[str, tf.Tensor]]],
        read_batch: Callable[[int], Mapping[str, np.ndarray]],
        stop_at: int | None = None,
    ) -> None:
        """Trains until the last step or until an earlier one.

        Args:
          read_from: Returns an iterator over batches, given the first step.
            Later calls of `run_steps` continue with the same iterator.
          read_batch: Returns the batch of a given step; steps count from 0.
          stop_at: The step to stop at, by default the last one.

        Raises:
          Preempted: On SIGTERM or Ctrl-C, after a checkpoint of the current
            step was written.
          NotFiniteError: If a loss or gradient is not finite.
        """
        end = self.last_step if stop_at is None else stop_at
        self._open_log()
        self._saved_at = time.monotonic()
        try:
            with self._preemption.deferred():
                self._run_until(end, read_from, read_batch)
        except BaseException:
            self.close_bar()
            self._iterator = None
            raise
        finally:
            with self.coordinator.finishing():
                self.checkpoints.wait()
        if self.step == self.last_step:
            self.close_bar()
            self._iterator = None
        self._close_log()

    def _run_until(
        self,
        end: int,
        read_from: Callable[[int], Any],
        read_batch: Callable[[int], Any],
    ) -> None:
        """Calls the graph until the step `end` is done."""
        config, step = self._config, self.step
        intervals = config.metrics_every, self._flags.save_checkpoints_steps
        pacer = Pacer(end, intervals)
        if self._bar is None:
            self._open_bar()
        while True:
            # Workers must run equally many steps, or they would hang.
            count, stop = self.coordinator.next_call(
                pacer.next_call(step), self._preemption.requested
            )
            if stop:
                self._stop(step)
            if not count:
                return
            if self._iterator is None:
                self._iterator = read_from(step)
            pacer.start()
            try:
                results = self.training_step.run(self._iterator, count)
            except (OutOfMemoryError, tf.errors.OpError) as error:
                if not self.training_step.recover(error):
                    raise
                step, self._iterator = self.step, None
                continue
            is_finite, metrics, sums = results
            seconds = pacer.stop(count)
            if not is_finite:
                self._give_up(metrics, read_batch)
            step += count
            self._seconds += seconds
            self._steps += count
            self._rate.add(count, seconds)
            for means in (self._means, self._shown):
                means.add(count, metrics, sums)
            self._show(step, metrics)
            if step == 1 or step % config.metrics_every == 0:
                self._write_metrics(step, self._means.take())
            if self._checkpoint_is_due(step):
                self._saved_at = time.monotonic()
                self.checkpoints.save(step)
            self.after_call(step, count, sums)

    def after_call(
        self, step: int, num_steps: int, sums: Mapping[str, float]
    ) -> None:
        """Hook for subclasses, given the sums of a call that has ended."""
        del step, num_steps, sums

    def describe_progress(self, step: int) -> dict[str, float]:
        """Hook for subclasses that add values to a metrics line."""
        del step
        return {}

    def _checkpoint_is_due(self, step: int) -> bool:
        """Returns whether to save. Only the chief's answer has an effect."""
        every = self._flags.save_checkpoints_steps
        limit = self._flags.save_checkpoints_secs
        if step % every == 0 or step == self._config.last_step:
            return True
        seconds = time.monotonic() - self._saved_at
        # During a write, another save would make training wait for the disk.
        return 0 < limit <= seconds and not self.checkpoints.is_writing

    def _open_bar(self) -> None:
        config, step = self._config, self.step
        is_chief = self.coordinator.is_chief
        if is_chief:
            logging.info(
                "%s: step %d to %d, of %d examples each; the first takes "
                "longer, as it is compiled.",
                config.description.capitalize(),
                step + 1,
                config.last_step,
                config.examples_per_step,
            )
        self._bar = progress.bar(
            config.last_step,
            config.description,
            "step",
            initial=step,
            hidden=not (is_chief and sys.stderr.isatty()),
        )
        self._line_due = 0.0

    def close_bar(self) -> None:
        """Ends the progress bar, which stays open during evaluations."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def _show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Moves the progress bar, and logs the step at intervals."""
        notes = training_metrics.summarize(metrics), self._dev_score
        self._bar.set_postfix_str(", ".join(filter(None, notes)), False)
        rate = self._rate.value
        self._bar.move_to(step, rate)
        last_step, now = self._config.last_step, time.monotonic()
        is_end = step in (1, last_step)
        if not self.coordinator.is_chief or not (
            is_end
            or step % self._config.metrics_every == 0
            or now >= self._line_due
        ):
            return
        self._line_due = now + terminal.SECONDS_BETWEEN_LINES
        speed = self._steps / self._seconds
        examples = speed * self._config.examples_per_step
        logging.info(
            "Step %d of %d: %s, %.0f tokens/s, %s%s.",
            step,
            last_step,
            training_metrics.describe(
                self._shown.take() | self.describe_progress(step)
            ),
            examples * self._config.tokens_per_example,
            progress.time_left(last_step - step, rate),
            " (compilation included)" if self._compiles else "",
            extra={terminal.SHOWN: "always" if is_end else "sometimes"},
        )

    def _stop(self, step: int) -> None:
        """Writes a checkpoint and ends the run."""
        if self.checkpoints.step != step:
            self.checkpoints.save(step)
        # The workers wait here until the chief has written the checkpoint.
        written = self.coordinator.from_chief(self.checkpoints.wait())
        self._close_log()
        if not written:
            raise UserError(
                f"Stopped at step {step} on {self._preemption.cause}, but its "
                "checkpoint could not be written; rerun the same command to "
                "resume from the checkpoint before it."
            )
        raise self._preemption.stopped(step)

    def write_summaries(self, group: str, values: Mapping[str, float]) -> None:
        """Writes TensorBoard summaries of a group at the current step."""
        self._open_log()
        if self._log is not None:
            with self._attempting():
                self._log.write_summaries(group, self.step, values)
        self._close_log()

    def write_line(
        self, step: int, values: Mapping[str, float], prefix: str = ""
    ) -> None:
        self._open_log()  # The disk may have space again.
        if self._log is not None:
            with self._attempting():
                self._log.write(step, values, prefix)
                self._logged_step = step

    def _write_metrics(self, step: int, means: Mapping[str, float]) -> None:
        if not self.coordinator.is_chief:
            return
        examples = self._steps / self._seconds * self._config.examples_per_step
        self._seconds, self._steps = 0.0, 0
        self._compiles = False
        values = dict(means) | self.describe_progress(step)
        values |= {
            "examples_per_second": examples,
            "tokens_per_second": examples * self._config.tokens_per_example,
        }
        self.write_line(step, values)

    def _open_log(self) -> None:
        if self._log is None and self.coordinator.is_chief:
            with self._attempting():
                self._log = training_metrics.MetricsLog(
                    self.output_dir, self._logged_step
                )

    def _close_log(self) -> None:
        if self._log is not None:
            with self._attempting():
                self._log.close()
        self._log = None

    @contextlib.contextmanager
    def _attempting(self) -> Iterator[None]:
        """Logs an error if the block cannot write, as on a full disk."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            logging.error(
                "Metrics or a batch could not be written (%s).",
                errors.first_line(error),
            )
            # When the log is opened again, it removes an incomplete line.
            self._log = None

    def _give_up(
        self, metrics: Mapping[str, Any], read_batch: Callable[[int], Any]
    ) -> None:
        """Dumps the batch of a step that is not finite, and stops."""
        step = self.step
        path = os.path.join(self.output_dir, f"not_finite_batch_{step + 1}.npz")
        if self.coordinator.is_chief:
            contents, target = io.BytesIO(), path
            np.savez(contents, **read_batch(step))
            path = "no file, as the disk is full"
            with self._attempting():
                files.write_bytes(target, contents.getvalue())
                path = target
        self._close_log()
        self.coordinator.barrier("a step that is not finite")
        raise NotFiniteError(
            f"Step {step + 1} is not finite (loss {metrics['loss']}, gradient "
            f"norm {metrics['grad_norm']}), so training stops. Its batch is in "
            f"{path}; the last checkpoint is unchanged. Try a smaller "
            "--learning_rate, a longer warm-up or --mixed_precision=float32."
        )
