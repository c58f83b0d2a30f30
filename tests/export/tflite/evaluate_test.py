"""Tests for export.tflite.evaluate: scores, --max_drop, calibration rows."""

import dataclasses
import functools
import json
import os
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export.tflite import evaluate as evaluation
from bert_tf.export.tflite import run as tflite_export
from bert_tf.export.tflite.evaluate import Scores
from bert_tf.inference.lite_model import LiteModel
from bert_tf.tasks.predict import Predictor
from tests.support import eval_files

_FIXED = {"batch_size": 4, "max_seq_length": 10}


@functools.cache
def _score(name, **flags):
    build = eval_files.prepare(name, **flags)
    rows = evaluation.read_eval_set(build)
    return evaluation.evaluate(eval_files.make(name, **flags), build, rows)


class _RowsCase(tf.test.TestCase, parameterized.TestCase):
    def _write(self, text, ending=".tsv"):
        name = f"rows{ending}"
        return self.create_tempfile(name, content=text).full_path


class ScoresTest(_RowsCase):
    @parameterized.parameters(
        "classification",
        "multi_label",
        "regression",
        "question_answering",
        "multiple_choice",
        "tagging",
    )
    @pytest.mark.slow
    def test_a_file_scores_like_its_model(self, name):
        found = _score(name)
        self.assertAllClose(found.score, found.model_score, atol=1e-3)
        self.assertAllClose(found.drop, 0.0, atol=1e-2)
        self.assertEqual(found.num_examples, 9)
        self.assertGreater(found.milliseconds, 0.0)
        if name not in ("tagging", "regression", "multi_label"):
            # Percentages exceed 1; tagging finds nothing in these rows.
            self.assertBetween(found.score, 1.1, 100.0)

    @parameterized.named_parameters(
        ("free", "pair", {}), ("fixed", "classification", _FIXED)
    )
    def test_a_file_with_strings_scores_like_its_model(self, name, flags):
        found = _score(name, input="text", **flags)
        self.assertAllClose(found.score, found.model_score, atol=1e-3)
        self.assertGreater(found.score, 1.0)

    def test_strings_are_for_classification(self):
        for name in ("question_answering", "tagging", "multiple_choice"):
            with self.assertRaisesRegex(UserError, "is for classification"):
                evaluation.read_eval_set(eval_files.prepare(name, input="text"))

    @parameterized.parameters("classification", "multi_label")
    @pytest.mark.slow
    def test_windows_of_a_text_count_once(self, name):
        build = eval_files.prepare(name)
        rows = evaluation.read_eval_set(build)
        task = dataclasses.replace(rows.task, max_seq_length=6, doc_stride=2)
        features = task.featurize(rows.examples, rows.tokenizer)
        self.assertGreater(len(features), len(rows.examples))
        rows = dataclasses.replace(rows, task=task, features=features)
        file = LiteModel(eval_files.make(name))
        predictor = Predictor(build.model, task, rows.tokenizer)
        self.assertAllClose(
            np.stack(evaluation.predict(file, rows)),
            np.stack(predictor.predict(rows.examples)),
            atol=1e-4,
        )

    @parameterized.parameters(
        ("classification", "text\nthe cat\n", ".tsv", "no column 'label'"),
        ("classification", "text\tlabel\n", ".tsv", "no rows"),
        ("classification", "text\tlabel\na\tx\n", ".tsv", "label 'x', which"),
        ("pair", "text\tlabel\na\tno\n", ".tsv", "no column 'text_pair'"),
        ("question_answering", "[1]", ".json", "must be an object with 'data'"),
        ("fill_mask", "text\tlabel\na\tno\n", ".tsv", "fine-tuned for a task"),
    )
    def test_rejects_rows_of_another_task(self, name, text, end, message):
        build = eval_files.prepare(name, eval_file=self._write(text, end))
        with self.assertRaisesRegex(UserError, message):
            evaluation.read_eval_set(build)


class GateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("dynamic", "try --quantization=float16"),
        ("none", "the model's outputs are"),
    )
    def test_rejects_a_drop_above_max_drop(self, quantization, advice):
        scores = Scores("dev.tsv", 9, "accuracy", 20.0, 22.5, 2.5, 1.0)
        config = eval_files.config("classification", quantization=quantization)
        scores.require(dataclasses.replace(config, max_drop=2.5))
        with self.assertRaisesRegex(
            UserError,
            r"accuracy .* at most --max_drop=1 points .* 22.50 on dev.tsv"
            rf".* Received: 20.00 with --quantization={quantization}, 2.50 "
            rf"worse; {advice}",
        ):
            scores.require(config)
        nan = dataclasses.replace(scores, drop=float("nan"))
        with self.assertRaisesRegex(UserError, "nan worse"):
            nan.require(dataclasses.replace(config, max_drop=100.0))

    @pytest.mark.slow
    def test_writes_a_file_that_passes_and_no_other(self):
        folder = self.create_tempdir().full_path
        config = eval_files.config(
            "classification",
            quantization="dynamic",
            max_drop=100.0,
            output_file=os.path.join(folder, "tiny.tflite"),
            **_FIXED,
        )
        with mock.patch.object(sys.stdout, "write") as write:
            tflite_export.run(config)
        printed = "".join(call.args[0] for call in write.call_args_list)
        self.assertRegex(printed, r"(?m)^ +MB +accuracy +ms per row$")
        self.assertRegex(printed, r"(?m)^model +\d+\.\d\d$")
        self.assertRegex(printed, r"(?m)^dynamic +0\.\d +\d+\.\d\d +\d+\.")
        with open(f"{config.output_file}.json", encoding="utf-8") as file:
            measured = json.load(file)["measured"]
        self.assertEqual(measured["num_examples"], 9)
        self.assertEqual(measured["metric"], "accuracy")
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        worse = Scores("dev.tsv", 9, "accuracy", 0.0, 100.1, 100.1, 1.0)
        with (
            mock.patch.object(evaluation, "evaluate", lambda *_: worse),
            self.assertRaisesRegex(UserError, "at most --max_drop=100 points"),
        ):
            tflite_export.run(config)
        self.assertEmpty(os.listdir(folder))


class CalibrationDataTest(_RowsCase):
    def _build(self, name, path, **flags):
        return eval_files.prepare(
            name, quantization="full_int8", representative_file=path, **flags
        )

    @parameterized.parameters(
        "pair", "question_answering", "multiple_choice", "tagging"
    )
    def test_each_row_has_its_own_length(self, name):
        build = self._build(name, eval_files.write(name))
        found = list(evaluation.read_calibration_set(build)())
        features = evaluation.read_eval_set(build).features
        lengths = [x["input_ids"].shape[-1] for x in found]
        self.assertEqual(lengths, features.lengths.tolist())
        for inputs in found:
            self.assertEqual(inputs["input_ids"].shape[0], 1)
            self.assertEqual(
                sorted(inputs), ["input_ids", "input_mask", "segment_ids"]
            )

    def test_batches_have_the_fixed_shape(self):
        path = eval_files.write("classification")
        build = self._build(
            "classification", path, batch_size=4, max_seq_length=11
        )
        found = list(evaluation.read_calibration_set(build)())
        self.assertEqual([x["input_ids"].shape for x in found], [(4, 11)] * 3)

    def test_samples_rows_evenly(self):
        rows = ["the " * (1 + i // 100) for i in range(900)]
        path = self._write("\n".join(rows) + "\n", ".txt")
        found = list(
            evaluation.read_calibration_set(self._build("fill_mask", path))()
        )
        self.assertLen(found, evaluation.MAX_CALIBRATION_ROWS)
        lengths = {x["input_ids"].shape[-1] for x in found}
        self.assertEqual(lengths, set(range(3, 12)))

    @parameterized.parameters(
        ("classification", "text\n", "has no rows"),
        ("pair", "text\nthe cat\n", "no column 'text_pair'"),
    )
    def test_rejects_empty_files_and_other_columns(self, name, text, message):
        build = self._build(name, self._write(text), eval_file=None)
        with self.assertRaisesRegex(UserError, message):
            evaluation.read_calibration_set(build)


if __name__ == "__main__":
    tf.test.main()
