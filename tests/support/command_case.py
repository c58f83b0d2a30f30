"""Test cases of commands that write a model and predictions."""

import json
import pathlib

import numpy as np

from bert_tf.commands import finetune_classifier
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.predict import PredictConfig
from bert_tf.inference import predict
from tests.support import files_case
from tests.support import tiny_model

LENGTH = 12


class CommandCase(files_case.FilesCase):
    """A test case with a folder, for a command that writes into `output`."""

    def setUp(self):
        super().setUp()
        self.output = self.folder / "output"

    def read(self, name):
        return (self.output / name).read_text(encoding="utf-8")

    def read_json(self, name):
        return json.loads(self.read(name))

    def lines(self, name):
        """Returns the values of a file of JSON lines."""
        return [json.loads(line) for line in self.read(name).splitlines()]

    def read_scores(self):
        """Returns the numbers in eval_results.txt, by name."""
        lines = self.read("eval_results.txt").splitlines()
        return {k: float(v) for k, v in (x.split(" = ") for x in lines)}

    def predict(self, path):
        """Returns the predictions of the output's model for a file."""
        name = self.path("predictions.jsonl")
        predict.run(
            PredictConfig(
                model_dir=str(self.output / "model"),
                input_file=str(path),
                output_file=name,
            )
        )
        return self.lines(name)


class ClassifierCase(CommandCase):
    """Runs run/finetune_classifier.py in this process."""

    def run_script(self, **flags):
        """Runs the script; returns the numbers in its eval_results.txt."""
        finetune_classifier.main(
            ClassifierConfig(
                **{
                    "output_dir": str(self.output),
                    "max_seq_length": LENGTH,
                    "eval_batch_size": 3,
                }
                | flags
            )
        )
        if pathlib.Path(self.output, "eval_results.txt").exists():
            return self.read_scores()
        return {}

    def write_model(self, task):
        return tiny_model.write_task(
            self.path("model"), task, max_seq_length=LENGTH
        )

    def result_rows(self, name="test_results.tsv"):
        lines = self.read(name).splitlines()
        return np.array([list(map(float, x.split("\t"))) for x in lines])
