"""Helpers for fine-tuning tests: short runs, interruptions and their output."""

import json
import os
import shutil
from unittest import mock

from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands import finetune_classifier
from bert_tf.finetuning import run as finetuning
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.training.step import TrainingStep
from tests.support import files_case
from tests.support import killed_process
from tests.support import made_once
from tests.support import tiny_finetuning

# Two epochs of 50 examples in batches of 4.
NUM_STEPS = 25
metrics = killed_process.read_metrics


def run(config, build_task=finetune_classifier.build_task):
    """Fine-tunes a classifier; returns its results."""
    return finetuning.run(config, build_task)


def copy_finished(folder):
    """Copies data and output of a run with the flags of `tiny_finetuning`.

    Returns:
      The results of the run.
    """
    finished = made_once.folder(
        "finetuning", lambda path: run(tiny_finetuning.config(path))
    )
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    results = read_json(os.path.join(folder, "output"), "eval_results.json")
    del results["global_step"]
    return results


def state(output_dir):
    """Returns all tensors of the newest checkpoint, by name."""
    return tf1_checkpoint.read(output_dir)


def change_weights(path, change):
    """Adds a constant to all weights of a model directory."""
    stored = model_directory.read_model(path)
    model_directory.write(
        path,
        stored.config,
        {name: stored.weights[name] + change for name in stored.weights},
        stored.vocabulary,
        stored.tokenizer_settings,
        stored.task,
        "# Another\n",
    )


def weights(path):
    """Returns the weights of a model directory, by name."""
    stored = model_directory.read_model(path)
    return {name: stored.weights[name] for name in stored.weights}


def read_text(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def read_json(folder, name):
    return json.loads(read_text(folder, name))


class Interrupted(Exception):
    """Simulates the death of the process."""


def die_at(step):
    """Interrupts the process after a number of training loop calls."""
    calls = []
    run = TrainingStep.run

    def run_or_die(self, *args):
        calls.append(1)
        if len(calls) > step:
            raise Interrupted
        return run(self, *args)

    return mock.patch.object(TrainingStep, "run", run_or_die)


def die_evaluating():
    """Interrupts the process in its first evaluation."""
    return mock.patch.object(Evaluator, "evaluate", side_effect=Interrupted)


class FinetuningCase(files_case.FolderCase):
    """A base of fine-tuning test cases: short configurations and their runs."""

    def config(self, **values):
        return tiny_finetuning.config(self.folder, **values)

    def tune(self, **values):
        return run(self.config(**values))

    def interrupt(self, config, step):
        with die_at(step), self.assertRaises(Interrupted):
            run(config)

    def read_text(self, name):
        """Returns the text of a file in the output directory."""
        return read_text(self.path("output"), name)

    def read_json(self, name):
        return json.loads(self.read_text(name))

    def copy_finished(self):
        """Copies a finished run into the folder; returns its results."""
        return copy_finished(self.folder)

    def assert_same_state(self, one, other):
        expected, received = state(one), state(other)
        self.assertAllClose(received, expected, rtol=0, atol=0)

    def assert_same_weights(self, one, other):
        """Compares two model directories in the folder."""
        expected = weights(self.path(one))
        for name, value in weights(self.path(other)).items():
            self.assertAllEqual(value, expected[name], name)
