"""Tests of early stopping and of the choice of the best evaluation."""

import types

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.finetuning.evaluate import DevSelection


def _selection(more_is_better=True, last_step=25, **flags):
    config = ClassifierConfig(
        task_name="custom",
        train_file="train.csv",
        dev_file="dev.csv",
        pretrained_model_dir="model",
        output_dir="output",
        do_train=True,
        **{"do_eval": True} | flags,
    )
    task = types.SimpleNamespace(metric="m", more_is_better=more_is_better)
    return DevSelection(config, task, 12.5, last_step)


def _stops(selection, last_step=25):
    """Returns the steps where a new trial stops."""
    stops = [0]
    while stops[-1] < last_step:
        stops.append(selection.next_stop(stops[-1]))
    return stops[1:]


class DevSelectionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({}, [12, 25]),
        ({"do_eval": False}, [25]),
        ({"keep_best": True}, [12, 25]),
        ({"keep_best": True, "evaluate_every_steps": 10}, [10, 20, 25]),
        ({"early_stopping_patience": 3, "evaluate_every_steps": 30}, [25]),
    )
    def test_stops_where_evaluations_are_due(self, flags, stops):
        selection = _selection(**flags)
        self.assertEqual(_stops(selection), stops)
        due = [step for step in range(26) if selection.is_due(step)]
        # If the last model is kept anyway, the end of the run evaluates it.
        selects = "do_eval" not in flags and flags
        self.assertEqual(due, stops if selects else stops[:-1])

    def test_finished_evaluations_are_not_due(self):
        # A trial that stopped while evaluating resumes with the evaluation.
        selection = _selection(keep_best=True, evaluate_every_steps=10)
        selection.evaluations = [{"step": 10, "m": 0.5}]
        self.assertFalse(selection.is_due(10))
        self.assertFalse(selection.is_due(15))
        self.assertTrue(selection.is_due(20))

    @parameterized.parameters(
        (True, [0.5, 0.7, 0.7, 0.6, 0.9], [1, 1, 0, 0, 1], 5),
        (False, [0.5, 0.7, 0.4, 0.4, 0.6], [1, 0, 1, 0, 0], 3),
    )
    def test_first_of_equal_evaluations_is_best(
        self, more, scores, is_best, best
    ):
        selection = _selection(more, keep_best=True)
        for step, (score, expected) in enumerate(
            zip(scores, is_best, strict=True), start=1
        ):
            values = {"step": step, "m": score}
            self.assertEqual(selection.is_best(values), bool(expected))
            selection.evaluations.append(values)
        self.assertEqual(selection.best_step, best)

    def test_patience_counts_evaluations_without_progress(self):
        selection = _selection(early_stopping_patience=2)
        stops = []
        for step, score in enumerate([0.5, 0.6, 0.6, 0.4], start=1):
            selection.evaluations.append({"step": step, "m": score})
            stops.append(selection.should_stop())
        self.assertEqual(stops, [False, False, False, True])
        never = _selection(keep_best=True)
        never.evaluations = selection.evaluations
        self.assertFalse(never.should_stop())


if __name__ == "__main__":
    tf.test.main()
