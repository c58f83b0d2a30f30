"""Early stopping and model selection by evaluations on dev."""

from collections.abc import Iterable
from collections.abc import Mapping

from absl import logging

from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.tasks.task import Task

# The metrics of dev at a `step`.
Evaluation = Mapping[str, float]


class DevSelection:
    """Schedules the evaluations of a trial on dev and selects the best one.

    Without --keep_best and --early_stopping_patience they are only recorded.

    Args:
      task: Its metric selects the best evaluation.
      steps_per_epoch: May be fractional.

    Attributes:
      evaluations: The evaluations so far, in order.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: Task,
        steps_per_epoch: float,
        last_step: int,
    ) -> None:
        self._config = config
        self._evaluates = config.do_eval or config.selects_evaluation
        self._task = task
        self._every = config.evaluate_every_steps or steps_per_epoch
        self._last_step = last_step
        self.evaluations: list[Evaluation] = []

    def restore(self, evaluations: Iterable[Evaluation]) -> None:
        """Restores the evaluations of a checkpoint."""
        self.evaluations = list(evaluations)

    def next_stop(self, done: int) -> int:
        """Returns the step of the next evaluation, or the last step."""
        if not self._evaluates:
            return self._last_step
        number = int(done / self._every) + 1
        # Evaluate at the step closest to each epoch boundary.
        while round(number * self._every) <= done:
            number += 1
        return min(round(number * self._every), self._last_step)

    def is_due(self, step: int) -> bool:
        """Returns whether the model of a step has yet to be evaluated."""
        if not self._evaluates or not step:
            return False
        # The last model, if it is the one to keep, is evaluated anyway.
        if step == self._last_step and not self._config.selects_evaluation:
            return False
        is_done = any(values["step"] == step for values in self.evaluations)
        return self.next_stop(step - 1) == step and not is_done

    def is_best(self, values: Evaluation) -> bool:
        """Returns whether an evaluation is better than all earlier ones."""
        return not self.evaluations or (
            self._score(values) > max(map(self._score, self.evaluations))
        )

    @property
    def best_step(self) -> int:
        """The step of the best evaluation, the first if several are equal."""
        return int(max(self.evaluations, key=self._score)["step"])

    def should_stop(self) -> bool:
        """Returns whether --early_stopping_patience is exhausted."""
        patience = self._config.early_stopping_patience
        if not patience or not self.evaluations:
            return False
        steps = [values["step"] for values in self.evaluations]
        since = len(steps) - 1 - steps.index(self.best_step)
        if since >= patience:
            logging.info(
                "Early stopping at step %d: %d evaluations were not better "
                "than the one at step %d.",
                steps[-1],
                since,
                self.best_step,
            )
        return since >= patience

    def _score(self, values: Evaluation) -> float:
        sign = 1.0 if self._task.more_is_better else -1.0
        return sign * values[self._task.metric]
