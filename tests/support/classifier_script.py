"""Test-case mixin that runs run/finetune_classifier.py in this process."""

import csv
import gzip
import json
import pathlib

import numpy as np

from bert_tf.commands import finetune_classifier
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.errors import UserError
from tests.support import tiny_model

LENGTH = 12


class ClassifierScript:
    """Mixin of test cases: writes files, runs the script, reads its output."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)
        self.output = self.folder / "output"

    def run_script(self, **flags):
        """Runs the script in this process; returns its eval_results.txt."""
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
        path = pathlib.Path(flags.get("output_dir", self.output))
        path /= "eval_results.txt"
        if not path.exists():
            return {}
        lines = path.read_text(encoding="utf-8").splitlines()
        return {k: float(v) for k, v in (x.split(" = ") for x in lines)}

    def assert_refused(self, message, **flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self.run_script(**flags)
        self.assertNotIn("\n", str(caught.exception))

    def write(self, name, contents):
        path = self.folder / name
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wt", encoding="utf-8", newline="") as file:
            file.write(contents)
        return str(path)

    def write_csv(self, name, *rows):
        with open(
            self.folder / name, "w", encoding="utf-8", newline=""
        ) as file:
            csv.writer(file).writerows(rows)
        return str(self.folder / name)

    def write_model(self, task):
        return tiny_model.write_task(
            str(self.folder / "model"), task, max_seq_length=LENGTH
        )

    def lines(self, name):
        return (self.output / name).read_text(encoding="utf-8").splitlines()

    def predictions(self, split):
        return [json.loads(x) for x in self.lines(f"{split}_predictions.jsonl")]

    def result_rows(self, name="test_results.tsv"):
        rows = [list(map(float, x.split("\t"))) for x in self.lines(name)]
        return np.array(rows)
