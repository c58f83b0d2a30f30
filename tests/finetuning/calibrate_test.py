"""Tests of --calibrate, --reject_below and --reject_precision in runs."""

import csv
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

import bert_tf
from bert_tf.commands import finetune_classifier
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.errors import UserError
from bert_tf.tasks import confidence
from tests.support import finetuning_case

_OUTSIDE = "none of these"


class _Case(finetuning_case.FinetuningCase):
    def setUp(self):
        super().setUp()
        self.output = pathlib.Path(self.folder, "output")

    def task(self):
        return json.loads((self.output / "model" / "task.json").read_text())

    def lines(self, split):
        path = self.output / f"{split}_predictions.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def add_rows(self, split, *rows):
        self.config()  # Writes the files.
        path = self.path(f"{split}.csv")
        with open(path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        return path


@pytest.mark.slow
class RunTest(_Case):
    def test_temperature_is_that_of_dev(self):
        found = self.tune(do_predict=True, num_train_epochs="4")
        temperature = self.task()["temperature"]
        model = bert_tf.load_model(self.output / "model")
        for split in ("dev", "test"):
            with open(f"{self.folder}/{split}.csv", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            features = model.preprocessor([row["text"] for row in rows])
            logits = np.float64(model(features)["logits"])
            ids = np.array([model.labels.index(x["label"]) for x in rows])
            values = special.softmax(logits / temperature, -1)
            self.assertAllClose(
                [[*x["probabilities"].values()] for x in self.lines(split)],
                values,
                atol=1e-5,
            )
            self.assertAllClose(
                found[split]["expected_calibration_error"],
                confidence.calibration_error(
                    values.max(-1), values.argmax(-1) == ids
                ),
                atol=1e-5,
            )
            self.assertAllClose(
                found[split]["accuracy"], (logits.argmax(-1) == ids).mean()
            )
            if split == "dev":
                grid = np.geomspace(0.05, 20, 8001)
                losses = [
                    -special.log_softmax(logits / x, -1)[
                        range(len(ids)), ids
                    ].mean()
                    for x in grid
                ]
                best = grid[np.argmin(losses)]
                if 0.06 < best < 19:  # Otherwise dev has no optimum.
                    self.assertAllClose(temperature, best, rtol=1e-2)
        for name in ("calibration.png", "test_calibration.txt"):
            self.assertTrue((self.output / name).exists(), name)

    def test_trained_model_is_calibrated_later(self):
        plain = self.tune(calibrate=False)
        self.assertNotIn("temperature", self.task())
        again = self.tune(do_train=False, pretrained_model_dir=None)
        self.assertNotIn("temperature", self.task())
        self.assertAllClose(again["dev"]["loss"], plain["dev"]["loss"])
        flags = {"do_train": False, "pretrained_model_dir": None}
        found = self.tune(calibrate=True, **flags)
        self.assertEqual(found["dev"]["accuracy"], plain["dev"]["accuracy"])
        temperature = self.task()["temperature"]
        # Without --do_eval the stored temperature is used, not fitted again.
        self.tune(do_eval=False, do_predict=True, **flags)
        self.assertEqual(self.task()["temperature"], temperature)
        self.tune(reject_below=0.625, reject_label="unsure", **flags)
        self.assertEqual(self.task()["reject_below"], 0.625)
        self.assertEqual(self.task()["reject_label"], "unsure")
        self.tune(reject_precision=0.9, **flags)
        self.assertNotEqual(self.task()["reject_below"], 0.625)
        self.assertEqual(self.task()["reject_label"], "unsure")
        self.assertEqual(self.task()["temperature"], temperature)

    def test_rejects_answers_below_the_stored_probability(self):
        row = ["x", "mat mat cat dog", _OUTSIDE]
        for split in ("dev", "test"):
            self.add_rows(split, *[row] * 5)
        found = self.tune(
            do_predict=True, reject_precision=0.9, num_train_epochs="1"
        )
        values = self.task()
        self.assertEqual(values["reject_label"], _OUTSIDE)
        self.assertEqual(len(values["labels"]), 2)
        lines = self.lines("test")
        least = values["reject_below"]
        for line in lines:
            stated = max(line["probabilities"].values())
            self.assertAllClose(line["probability"], stated)
            self.assertEqual(line["label"] == _OUTSIDE, stated < least)
        answered = [x for x in lines if x["label"] != _OUTSIDE]
        self.assertAllClose(
            found["test"]["coverage"], len(answered) / len(lines)
        )
        error = found["test"]["expected_calibration_error"]
        table = (self.output / "test_calibration.txt").read_text()
        self.assertIn(f"{len(lines) - 5} answers, calibration", table)
        note = "5 left out, as no label fits"
        self.assertIn(f"error {error:.2%}; {note}\n", table)
        # Texts outside of the labels have no loss, so dev has none.
        self.assertNotIn("loss", found["dev"])

    def test_labels_pass_their_own_thresholds(self):
        self.tune(
            problem_type="multi_label",
            calibrate=True,
            num_train_epochs="1",
        )
        values = self.task()
        self.assertLen(values["thresholds"], 2)
        for line in self.lines("dev"):
            stated = np.float32([*line["probabilities"].values()])
            names = np.array(values["labels"])
            expected = names[stated >= np.float32(values["thresholds"])]
            self.assertEqual(line["labels"], [*expected])


class FlagsTest(_Case):
    def files(self, **flags):
        return finetune_classifier.find_files(self.config(**flags), {})

    @parameterized.parameters(
        ({}, True),
        ({"do_eval": False}, False),
        ({"do_eval": False, "few_shot": True}, True),
        ({"calibrate": False}, False),
    )
    def test_default_is_for_training_with_dev(self, flags, expected):
        self.assertEqual(self.files(**flags).calibrates, expected)

    def test_default_is_off_for_official_tasks(self):
        pathlib.Path(self.folder, "train.tsv").write_text("")
        pathlib.Path(self.folder, "dev.tsv").write_text("")
        config = ClassifierConfig(
            task_name="sst-2",
            data_dir=self.folder,
            output_dir=str(self.output),
            pretrained_model_dir="model",
            do_train=True,
            do_eval=True,
        )
        files = finetune_classifier.find_files(config, {})
        self.assertFalse(files.calibrates)

    @parameterized.parameters(
        ({"calibrate": True, "do_eval": False}, "--calibrate needs --do_eval"),
        (
            {"reject_precision": 0.9, "do_eval": False},
            "--reject_precision needs --do_eval",
        ),
        ({"reject_below": 1.0}, "--reject_below must be above 0 and below 1"),
        ({"reject_label": "x"}, "--reject_label needs --reject_below or"),
        (
            {"reject_below": 0.5, "reject_precision": 0.9},
            "--reject_below cannot be used with --reject_precision",
        ),
        (
            {"reject_below": 0.5, "problem_type": "multi_label"},
            "one label of each text",
        ),
        (
            {"reject_below": 0.5, "reject_label": " feline"},
            "it cannot be a label. Received: 'feline'",
        ),
        (
            {"reject_below": 0.5, "reject_label": "a\nb"},
            r"--reject_label must have its label in one line. .*'a\\nb'",
        ),
    )
    def test_wrong_flags_are_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message) as caught:
            self.files(**flags)
        self.assertNotIn("\n", str(caught.exception))

    def test_other_labels_of_dev_are_refused(self):
        path = self.add_rows("dev", ["x", "the cat", "unheard of"])
        with self.assertRaisesRegex(UserError, "unheard of"):
            self.files(dev_file=path, reject_below=0.5).load()


if __name__ == "__main__":
    tf.test.main()
