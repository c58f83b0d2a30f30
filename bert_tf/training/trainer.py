"""The course of a run: steps, metrics, checkpoints, and what can go wrong."""

import dataclasses
import io
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import NotFiniteError
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.training import metrics as training_metrics
from bert_tf.training.async_checkpoints import AsyncCheckpoints
from bert_tf.training.pacing import Pacer
from bert_tf.training.preemption import Preemption
from bert_tf.training.step import TrainingLoop

_WRITE_ERRORS = (OSError, tf.errors.OpError)


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """Where a run goes.

    Attributes:
      last_step: The step to stop at.
      metrics_every: Steps between metrics lines.
      save_every: Steps between checkpoints.
      examples_per_step: Examples of a step.
      tokens_per_example: Length of a sequence: with padding where all are
        padded alike, else the mean without.
      doing: What the progress bar says is being done.
    """

    last_step: int
    metrics_every: int
    save_every: int
    examples_per_step: int
    tokens_per_example: float
    doing: str = "pretraining"


class Trainer:
    """Trains until the last step.

    All workers train; the chief alone says so, and writes.

    Args:
      loop: The steps.
      course: Where to.
      output_dir: Where metrics and dumped batches go.
      checkpoints: Where checkpoints go.
      coordinator: What all workers do together.
      preemption: Whether to stop early.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        course: TrainerConfig,
        output_dir: str,
        checkpoints: AsyncCheckpoints,
        coordinator: Coordinator,
        preemption: Preemption,
    ):
        self._loop = loop
        self._course = course
        self._output_dir = output_dir
        self._checkpoints = checkpoints
        self._coordinator = coordinator
        self._preemption = preemption
        self._log: training_metrics.MetricsLog | None = None
        self._logged_step = loop.step
        self._compiles = True
        # Since the last metrics line.
        self._seconds = 0.0
        self._steps = 0

    def train(
        self,
        iterator,
        read_batch: Callable[[int], Mapping[str, np.ndarray]],
        stop_at: int | None = None,
    ) -> None:
        """Trains, to the end or for a part of the way.

        Args:
          iterator: The batches from the current step on, for
            `TrainingLoop.run`.
          read_batch: Returns the batch that a step, counted from 0, trains on.
          stop_at: Step to stop at; by default the last one.

        Raises:
          Preempted: If it was asked to stop; a checkpoint of the step it came
            to is written then.
          NotFiniteError: If a loss or gradient is not finite.
        """
        end = self._course.last_step if stop_at is None else stop_at
        self._open_log()
        try:
            with self._preemption.deferred():
                self._run_until(end, iterator, read_batch)
        finally:
            with self._coordinator.finishing():
                self._checkpoints.wait()
        self._close_log()

    def _run_until(
        self, end: int, iterator, read_batch: Callable[[int], Any]
    ) -> None:
        """Trains, call after call into the graph, until a step."""
        course = self._course
        step = self._loop.step
        pacer = Pacer(end, (course.metrics_every, course.save_every))
        with progress.bar(
            course.last_step,
            course.doing,
            "step",
            initial=step,
            hidden=not self._coordinator.is_chief,
        ) as bar:
            while True:
                # Workers must call the graph with the same number of steps.
                count, stop = self._coordinator.next_call(
                    pacer.next_call(step), self._preemption.requested
                )
                if stop:
                    self._stop(step)
                if not count:
                    return
                pacer.start()
                is_finite, metrics = self._loop.run(iterator, count)
                seconds = pacer.stop(count)
                if not is_finite:
                    self._give_up(metrics, read_batch)
                step += count
                self._seconds += seconds
                self._steps += count
                bar.set_postfix_str(training_metrics.describe(metrics), False)
                bar.update(count)
                if step == 1 or step % course.metrics_every == 0:
                    self._write_metrics(step, metrics)
                if step % course.save_every == 0 or step == course.last_step:
                    self._checkpoints.save(step)

    def _stop(self, step: int) -> None:
        """Keeps what is done, and ends the run."""
        if self._checkpoints.step != step:
            self._checkpoints.save(step)
        # No worker ends before the chief has written.
        written = self._coordinator.from_chief(self._checkpoints.wait())
        self._close_log()
        if not written:
            raise UserError(
                f"Stopped at step {step} as asked (SIGTERM), but its "
                "checkpoint could not be written; the same command goes on "
                "from the one before it."
            )
        raise Preempted(
            f"Stopped at step {step} as asked (SIGTERM); its checkpoint is "
            "written, and the same command goes on from there."
        )

    def is_saved(self) -> bool:
        """Returns whether the last checkpoint was written, if one was due."""
        return self._checkpoints.wait()

    def write_summaries(self, group: str, values: Mapping[str, float]) -> None:
        """Writes further TensorBoard summaries at the current step."""
        self._open_log()
        if self._log is not None:
            self._attempt(
                lambda: self._log.write_summaries(
                    group, self._loop.step, values
                )
            )
        self._close_log()

    def _write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a metrics line, and the speed to the log."""
        if not self._coordinator.is_chief:
            return
        steps_per_second = self._steps / self._seconds
        self._seconds, self._steps = 0.0, 0
        examples = steps_per_second * self._course.examples_per_step
        tokens = examples * self._course.tokens_per_example
        left = self._course.last_step - step
        logging.info(
            "Step %d of %d: %.0f tokens/s, %s left%s.",
            step,
            self._course.last_step,
            tokens,
            progress.duration(left / steps_per_second),
            " (with the time of compilation)" if self._compiles else "",
        )
        self._compiles = False
        values = dict(metrics) | {
            "examples_per_second": examples,
            "tokens_per_second": tokens,
        }
        if self._log is None:
            self._open_log()  # The disk may have space again.
        if self._log is not None and self._attempt(
            lambda: self._log.write(step, values)
        ):
            self._logged_step = step

    def _open_log(self) -> None:
        def open_log() -> None:
            self._log = training_metrics.MetricsLog(
                self._output_dir, self._logged_step
            )

        if self._log is None and self._coordinator.is_chief:
            self._attempt(open_log)

    def _close_log(self) -> None:
        if self._log is not None:
            self._attempt(self._log.close)
        self._log = None

    def _attempt(self, write: Callable[[], None]) -> bool:
        """Writes; if the disk is full, training goes on without the metrics."""
        try:
            write()
        except _WRITE_ERRORS as error:
            logging.error(
                "Metrics or a batch could not be written (%s).",
                str(error).splitlines()[0],
            )
            # Opened anew it loses a line that was cut short.
            self._log = None
            return False
        return True

    def _give_up(
        self, metrics: Mapping[str, Any], read_batch: Callable[[int], Any]
    ) -> None:
        """Keeps the batch behind a value that is not finite, and stops."""
        step = self._loop.step
        path = os.path.join(
            self._output_dir, f"not_finite_batch_{step + 1}.npz"
        )
        if self._coordinator.is_chief:
            contents = io.BytesIO()
            np.savez(contents, **read_batch(step))
            if not self._attempt(
                lambda: files.write_bytes(path, contents.getvalue())
            ):
                path = "no file, as the disk is full"
        self._close_log()
        self._coordinator.barrier("a step that is not finite")
        raise NotFiniteError(
            f"Step {step + 1} is not finite (loss {metrics['loss']}, gradient "
            f"norm {metrics['grad_norm']}), so training stops; its batch is in "
            f"{path}, and the last checkpoint is as it was; try a smaller "
            "--learning_rate, a longer warm-up or --mixed_precision=float32."
        )
