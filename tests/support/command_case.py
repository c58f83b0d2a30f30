"""Test-case mixin of commands that write a model and predictions."""

import json
import pathlib

from bert_tf.commands.predict import PredictConfig
from bert_tf.inference import predict


class CommandCase:
    """Mixin of test cases: a folder, and what a command wrote into `output`."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)
        self.output = self.folder / "output"

    def read(self, name):
        return (self.output / name).read_text(encoding="utf-8")

    def read_json(self, name):
        return json.loads(self.read(name))

    def lines(self, name):
        """Returns the values of a file of JSON lines."""
        return [json.loads(line) for line in self.read(name).splitlines()]

    def predict(self, path):
        """Returns what the model of the output says of a file."""
        name = str(self.folder / "predictions.jsonl")
        predict.run(
            PredictConfig(
                model_dir=str(self.output / "model"),
                input_file=str(path),
                output_file=name,
            )
        )
        return self.lines(name)
