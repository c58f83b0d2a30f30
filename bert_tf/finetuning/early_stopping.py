"""When a run is evaluated on the way, and which of its models is the best."""

from collections.abc import Iterable
from collections.abc import Mapping

from absl import logging

from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.tasks.task import Task

# The metrics of dev, and the `step` they are of.
Evaluation = Mapping[str, float]


class DevSelection:
    """The evaluations of a run on dev, and what follows from them.

    Args:
      config: The flags.
      task: Says by which metric to choose.
      steps_per_epoch: Maybe with a fraction.
      last_step: Where the run ends.

    Attributes:
      evaluations: Those done, in order.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: Task,
        steps_per_epoch: float,
        last_step: int,
    ) -> None:
        self._config = config
        self._task = task
        self._every = config.evaluate_every_steps or steps_per_epoch
        self._last_step = last_step
        self.evaluations: list[Evaluation] = []

    def restore(self, evaluations: Iterable[Evaluation]) -> None:
        """Takes over what a checkpoint holds."""
        self.evaluations = list(evaluations)

    def next_stop(self, done: int) -> int:
        """Returns the step of the next evaluation, or the last step.

        Args:
          done: Steps done.
        """
        if not self._config.selects_evaluation:
            return self._last_step
        number = int(done / self._every) + 1
        # Of an epoch that is no whole number of steps the last one counts.
        while round(number * self._every) <= done:
            number += 1
        return min(round(number * self._every), self._last_step)

    def is_due(self, step: int) -> bool:
        """Whether the model of a step is to be evaluated, and is not yet."""
        if not self._config.selects_evaluation or not step:
            return False
        is_done = any(values["step"] == step for values in self.evaluations)
        return self.next_stop(step - 1) == step and not is_done

    def is_best(self, values: Evaluation) -> bool:
        """Whether an evaluation is better than all before it."""
        return not self.evaluations or (
            self._score(values) > max(map(self._score, self.evaluations))
        )

    @property
    def best_step(self) -> int:
        """The step of the best evaluation, of equals the first."""
        return int(max(self.evaluations, key=self._score)["step"])

    def should_stop(self) -> bool:
        """Whether there were enough evaluations without a better one."""
        patience = self._config.early_stopping_patience
        if not patience or not self.evaluations:
            return False
        steps = [values["step"] for values in self.evaluations]
        since = len(steps) - 1 - steps.index(self.best_step)
        if since >= patience:
            logging.info(
                "Training ends at step %d: %d evaluations were not better than "
                "that of step %d.",
                steps[-1],
                since,
                self.best_step,
            )
        return since >= patience

    def _score(self, values: Evaluation) -> float:
        sign = 1.0 if self._task.more_is_better else -1.0
        return sign * values[self._task.metric]
