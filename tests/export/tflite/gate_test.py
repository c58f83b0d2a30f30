"""Tests of --max_drop, the accuracy gate for published files."""

import json
import os
import sys
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export.tflite import accuracy
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import costs
from bert_tf.export.tflite import datasets
from bert_tf.export.tflite import run as tflite_export
from tests.support import eval_files

_convert = conversion.convert
_converted = {}


def _convert_once(function, specs, quantization, *args, **kwargs):
    """Converts each model only once for all tests."""
    if quantization not in _converted:
        _converted[quantization] = _convert(
            function, specs, quantization, *args, **kwargs
        )
    return _converted[quantization]


class GateTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.enter_context(mock.patch.object(costs, "_ROUNDS", 1))
        self.enter_context(
            mock.patch.object(conversion, "convert", _convert_once)
        )

    def _run(self, **flags):
        """Runs the exporter; returns its output."""
        config = eval_files.config(
            "classification",
            output_file=os.path.join(self.folder, "tiny.tflite"),
            batch_size=3,
            max_seq_length=12,
            **flags,
        )
        with mock.patch.object(sys.stdout, "write") as write:
            tflite_export.run(config)
        return "".join(call.args[0] for call in write.call_args_list)

    def _perfect_model(self):
        """Labels the rows with the predictions of the model."""
        perfect = datasets.Evaluation({"accuracy": 1.0}, [None] * 9)
        return mock.patch.object(
            datasets.EvalSet, "evaluate_model", lambda *_: perfect
        )

    @pytest.mark.slow
    def test_writes_all_files_and_a_table(self):
        rows = eval_files.write("classification")
        printed = self._run(
            quantization="all", representative_file=rows, max_drop=100.0
        )
        names = ("none", "float16", "dynamic", "full_int8")
        files = [f"tiny.{name}.tflite" for name in names]
        self.assertCountEqual(
            os.listdir(self.folder),
            [
                *files,
                *(f"{name}.json" for name in files),
                "tiny.ladder.json",
                "tiny.ladder.txt",
                "tiny.ladder.png",
            ],
        )
        with open(os.path.join(self.folder, files[1] + ".json")) as file:
            report = json.load(file)
        self.assertIn("--quantization=float16", report["command"])
        self.assertNotIn("representative", report["command"])
        self.assertIn("accuracy", json.dumps(report))
        for name in ("model", *names):
            self.assertRegex(printed, rf"(?m)^{name} ")

    @pytest.mark.slow
    def test_a_file_that_loses_too_much_is_not_written(self):
        with self._perfect_model():
            with self.assertRaisesRegex(
                UserError, "at most --max_drop=1 points below the model's"
            ):
                self._run(quantization="none")
            self.assertEmpty(os.listdir(self.folder))

    @pytest.mark.slow
    def test_writes_the_files_that_pass(self):
        def is_good_enough(report, _):
            return report.quantization != "float16"

        with mock.patch.object(accuracy, "is_good_enough", is_good_enough):
            printed = self._run(quantization="all")
        self.assertRegex(printed, r"(?m)^float16 \(refused\) ")
        self.assertCountEqual(
            [x for x in os.listdir(self.folder) if x.endswith(".tflite")],
            ["tiny.none.tflite", "tiny.dynamic.tflite"],
        )

    @pytest.mark.slow
    def test_writes_only_the_comparison_if_all_fail(self):
        with self._perfect_model():
            with self.assertRaisesRegex(UserError, "At least one file must be"):
                self._run(quantization="all")
        self.assertCountEqual(
            os.listdir(self.folder),
            ["tiny.ladder.json", "tiny.ladder.txt", "tiny.ladder.png"],
        )
        with open(os.path.join(self.folder, "tiny.ladder.txt")) as file:
            self.assertIn("dynamic (refused)", file.read())


if __name__ == "__main__":
    tf.test.main()
