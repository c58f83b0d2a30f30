"""Scores and predicts splits, writes the results, and stops training early."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from bert_tf.data import length_buckets
from bert_tf.distribute.devices import Devices
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TRAIN
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.training import output as training_output
from bert_tf.training import unpad as unpadding

EVAL_RESULTS_FILE = "eval_results.txt"
RESULTS_FILE = "eval_results.json"

Metrics = dict[str, float]

# Dev metrics by name; the key `step` has the training step of the model.
Evaluation = Mapping[str, float]


class DevSelection:
    """Schedules the evaluations of a trial on dev and selects the best one.

    The task's metric selects it. Without --keep_best and
    --early_stopping_patience, evaluations are only recorded. With --keep_best,
    2.4 steps per epoch and 5 steps in all, the evaluations are at steps 2 and
    5. The attribute `evaluations` has all evaluations so far, in order.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: Task,
        steps_per_epoch: float,
        last_step: int,
    ) -> None:
        self._patience = config.early_stopping_patience
        self._task = task
        self._last_step = last_step
        self.evaluations: list[Evaluation] = []
        # Evaluate at the step closest to each epoch boundary.
        every = config.evaluate_every_steps or steps_per_epoch
        numbers = range(1, math.ceil(last_step / every) + 1)
        self._steps = {min(round(x * every), last_step) for x in numbers} - {0}
        if not config.selects_evaluation:
            # Skip the last step, because it is evaluated after training anyway.
            self._steps = self._steps - {last_step} if config.do_eval else set()

    def next_stop(self, done: int) -> int:
        """Returns the step of the next evaluation, or the last step."""
        later = [step for step in self._steps if step > done]
        return min(later, default=self._last_step)

    def is_due(self, step: int) -> bool:
        """Returns whether the model of a step has yet to be evaluated."""
        done = {values["step"] for values in self.evaluations}
        return step in self._steps - done

    def is_best(self, values: Evaluation) -> bool:
        """Returns whether an evaluation is better than all earlier ones."""
        return not self.evaluations or (
            self._score(values) > max(map(self._score, self.evaluations))
        )

    @property
    def best_step(self) -> int:
        """The step of the best evaluation; the first step on a tie."""
        return int(max(self.evaluations, key=self._score)["step"])

    def should_stop(self) -> bool:
        """Returns whether --early_stopping_patience is exhausted."""
        if not self._patience or not self.evaluations:
            return False
        steps = [values["step"] for values in self.evaluations]
        since = len(steps) - 1 - steps.index(self.best_step)
        if since >= self._patience:
            logging.info(
                "Early stopping at step %d: %d evaluations were not better "
                "than the one at step %d.",
                steps[-1],
                since,
                self.best_step,
            )
        return since >= self._patience

    def _score(self, values: Evaluation) -> float:
        sign = 1.0 if self._task.more_is_better else -1.0
        return sign * values[self._task.metric]


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The predictions and metrics of a model on a split.

    Attributes:
      task: The task, with the threshold selected on the split if requested.
      metrics: The task's metrics and `loss`; empty if the split has no labels.
    """

    task: Task
    split: str
    examples: Sequence[Any]
    predictions: Sequence[Any]
    metrics: Metrics


class SplitReader:
    """Reads and featurizes each split once, for all trials."""

    def __init__(self, task: Task, tokenizer: BertTokenizer) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self._read: dict[str, tuple[Sequence[Any], Features]] = {}

    def read(self, split: str) -> tuple[Sequence[Any], Features]:
        """Returns the examples of a split and their features."""
        if split not in self._read:
            self.task = self.task.load(split)
            examples = self.task.data[split].examples
            features = self.task.featurize(
                examples, self.tokenizer, split.startswith(TRAIN)
            )
            logging.info(
                "%s: %d examples, %d rows, %.1f tokens per row.",
                self.task.files[split],
                len(examples),
                len(features),
                features.lengths.mean() if len(features) else 0.0,
            )
            self._read[split] = examples, features
        return self._read[split]


class Evaluator:
    """Evaluates one model on any number of splits."""

    def __init__(
        self,
        model: keras.Model,
        reader: SplitReader,
        config: FinetuneConfig,
        devices: Devices,
    ) -> None:
        self.config = config
        self.devices = devices
        self._reader = reader
        self._width = model.bert_config.hidden_size
        self._computer = functools.cache(
            lambda batch_size: task_prediction.OutputComputer(
                model, reader.task, batch_size, devices.strategy
            )
        )

    def evaluate(
        self, split: str, task: Task, select_threshold: bool = False
    ) -> Evaluated:
        """Predicts a split with the task's threshold, and scores it if labeled.

        With `select_threshold`, the threshold is selected on the split.
        """
        examples, features = self._reader.read(split)
        lengths = task_prediction.allowed_lengths(
            features.lengths,
            task.max_seq_length,
            self.config.num_length_buckets,
        )
        doing = "evaluating"
        batch_size = self.config.eval_batch_size
        if split.startswith(TEST):
            doing = "predicting"
            batch_size = self.config.predict_batch_size
        computer = self._computer(batch_size)
        computer.unpad = unpadding.choose(
            self.config.unpad,
            self.devices.kind,
            lambda: unpadding.pays(
                length_buckets.share_of_tokens(features.lengths, lengths),
                batch_size * self._width * lengths[-1],
            ),
            reads_padding=task.reads_padding,
        )
        with progress.bar(
            len(features),
            doing,
            "row",
            hidden=not self.devices.coordinator.is_chief,
            leave=False,
        ) as bar:
            computed = computer.compute(features, lengths, bar.update)

        def predict(task: Task) -> list[Any]:
            return task.predict(
                examples, features, computed.outputs, self._reader.tokenizer
            )

        predictions = predict(task)
        if not task.is_labeled(examples):
            return Evaluated(task, split, examples, predictions, {})
        if select_threshold:
            tuned = task.select_threshold(
                examples, lambda x: predictions if x is task else predict(x)
            )
            if tuned != task:
                task, predictions = tuned, predict(tuned)
        metrics = task.score(examples, predictions)
        if computed.loss is not None:
            metrics["loss"] = computed.loss
        logging.info("%s: %s", split, describe(metrics))
        return Evaluated(task, split, examples, predictions, metrics)


def describe(metrics: Mapping[str, float]) -> str:
    """Returns metrics in one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def write_predictions(output_dir: str, evaluated: Evaluated) -> None:
    """Writes <split>_predictions.jsonl and the task's own reports.

    On dev, the lines also have the texts and the gold labels.
    """
    is_dev = evaluated.split.startswith(DEV)
    lines = [
        json.dumps(
            evaluated.task.prediction_to_json(example, predicted)
            | (evaluated.task.example_to_json(example) if is_dev else {}),
            ensure_ascii=False,
        )
        for example, predicted in zip(
            evaluated.examples, evaluated.predictions, strict=True
        )
    ]
    with training_output.writing("The predictions", output_dir):
        files.write_text(
            os.path.join(output_dir, f"{evaluated.split}_predictions.jsonl"),
            "".join(f"{line}\n" for line in lines),
        )
        evaluated.task.write_report(
            output_dir,
            evaluated.split,
            evaluated.examples,
            evaluated.predictions,
        )


def read_results(output_dir: str, global_step: int) -> dict[str, Metrics]:
    """Returns the results that `write_results` wrote for this step, or {}."""
    path = os.path.join(output_dir, RESULTS_FILE)
    if not files.exists(path):
        return {}
    results = files.read_json_object(path)
    return results if results.pop("global_step", None) == global_step else {}


def write_results(
    output_dir: str, global_step: int, results: Mapping[str, Metrics]
) -> None:
    """Writes eval_results.json, and eval_results.txt in the original's format.

    In the text file, an accuracy is named eval_accuracy for the first dev
    split, as in the original, eval_accuracy_mismatched for dev_mismatched, and
    test_accuracy for test.
    """
    lines: dict[str, float | int] = {"global_step": global_step}
    first = next((x for x in results if x.startswith(DEV)), "")
    for split, metrics in results.items():
        start, end = f"{split}_", ""
        if split.startswith(DEV):
            start = "eval_"
            end = "" if split == first else split.removeprefix(DEV)
        lines |= {f"{start}{x}{end}": value for x, value in metrics.items()}
    if "loss" in results.get(first, {}):
        # Write the loss again under the name `loss`, as the original does.
        lines["loss"] = results[first]["loss"]
    with training_output.writing("The results", output_dir):
        files.write_json(
            os.path.join(output_dir, RESULTS_FILE),
            {"global_step": global_step} | results,
        )
        training_output.write_results(
            os.path.join(output_dir, EVAL_RESULTS_FILE), lines
        )
