"""Tests that all formats have equal probabilities and rejections."""

import dataclasses
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

import bert_tf
from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.inference.lite_model import LiteModel
from tests.support import files_case
from tests.support import tiny_exports
from tests.support import tiny_model

_TEMPERATURE = 2.5
_TEXTS = ["the cat sat", "dog 東 . on the mat", "the dog sitting on the mats"]


class _Case(files_case.FilesCase):
    def write_model(self, name="model", **values):
        task = tiny_exports.classification(**values)
        return tiny_model.write_task(self.path(name), task)

    def plain_logits(self, path):
        """Returns the model's logits, not divided by the temperature."""
        model = bert_tf.load_model(path)
        return np.float64(model(model.preprocessor(_TEXTS))["logits"])

    def serve(self, path, **flags):
        """Returns the answer of an export to the texts, by name."""
        served = self.path("served")
        bert_tf.export_savedmodel(bert_tf.load_model(path), served, **flags)
        loaded = tf.saved_model.load(os.path.join(served, "1"))
        answer = loaded.signatures["serving_default"](text=tf.constant(_TEXTS))
        return {name: x.numpy() for name, x in answer.items()}


def _of_json(rows):
    return [[*row["probabilities"].values()] for row in rows]


@pytest.mark.slow
class TemperatureTest(_Case):
    def test_own_formats_keep_the_temperature(self):
        path = self.write_model(temperature=_TEMPERATURE)
        expected = special.softmax(self.plain_logits(path) / _TEMPERATURE, -1)
        model = bert_tf.load_model(path)
        self.assertAllClose(_of_json(model.predict(_TEXTS)), expected)
        bert_tf.save_model(model, self.folder / "saved")
        model.save(self.folder / "model.keras")
        for name in ("saved", "model.keras"):
            other = bert_tf.load_model(self.folder / name)
            self.assertEqual(other.preprocessor.task.temperature, _TEMPERATURE)
            self.assertAllClose(_of_json(other.predict(_TEXTS)), expected)

    @parameterized.parameters(False, True)
    def test_served_probabilities_use_the_temperature(self, litert):
        path = self.write_model(temperature=_TEMPERATURE)
        logits = self.plain_logits(path) / _TEMPERATURE
        answer = self.serve(path, litert=litert)
        expected = special.softmax(logits, -1)
        self.assertAllClose(answer["probabilities"], expected)
        loaded = tf.saved_model.load(self.path("served", "1"))
        features = bert_tf.load_model(path).preprocessor(_TEXTS)
        answer = loaded.signatures["from_ids"](
            **{name: tf.constant(x) for name, x in features.items()}
        )
        self.assertAllClose(answer["logits"], logits, atol=1e-5)
        self.assertAllClose(answer["probabilities"], expected)

    @parameterized.parameters(("none", 1e-5), ("dynamic", 0.05))
    def test_tflite_probabilities_use_the_temperature(self, quantization, atol):
        path = self.write_model(temperature=_TEMPERATURE)
        expected = special.softmax(self.plain_logits(path) / _TEMPERATURE, -1)
        model = bert_tf.load_model(path)
        file = self.folder / "model.tflite"
        bert_tf.export_tflite(model, file, quantization=quantization)
        lite = LiteModel(file.read_bytes())
        for text, row in zip(_TEXTS, expected, strict=True):
            features = model.preprocessor([text], length=12)
            found = lite.run({x: features[x] for x in lite.inputs})
            self.assertAllClose(found["probabilities"][0], row, atol=atol)

    @parameterized.parameters("huggingface", "tf1", "model_garden")
    def test_other_formats_scale_logits_by_the_temperature(self, target):
        path = self.write_model(temperature=_TEMPERATURE)
        logits = self.plain_logits(path)
        converted = self.path(target)
        conversion.run(
            ConvertCheckpointConfig(
                input=path, output=converted, target_format=target
            )
        )
        self.assertNotIn("temperature", formats.read(converted).task)
        self.assertAllClose(
            self.plain_logits(converted), logits / _TEMPERATURE, atol=1e-5
        )

    def test_several_labels_use_temperature_and_thresholds(self):
        thresholds = (0.1, 0.9, 0.5)
        path = self.write_model(
            problem_type="multi_label",
            temperature=_TEMPERATURE,
            thresholds=thresholds,
        )
        logits = self.plain_logits(path) / _TEMPERATURE
        expected = special.expit(logits)
        names = np.array(tiny_exports.LABELS)
        assigned = [[*names[row]] for row in expected >= thresholds]
        rows = bert_tf.load_model(path).predict(_TEXTS)
        self.assertEqual([row["labels"] for row in rows], assigned)
        answer = self.serve(path)
        self.assertAllClose(answer["probabilities"], expected)
        self.assertEqual(
            [[x.decode() for x in row if x] for row in answer["labels"]],
            assigned,
        )

    def test_thresholds_follow_the_order_of_labels(self):
        path = self.write_model(
            problem_type="multi_label", thresholds=(0.1, 0.9, 0.5)
        )
        moved = formats.read(path).with_labels(["yes", "no", "ümlaut"])
        self.assertEqual(moved.task["thresholds"], [0.9, 0.1, 0.5])


@pytest.mark.slow
class RejectionTest(_Case):
    def test_every_output_has_the_reject_label(self):
        plain = self.write_model()
        values = special.softmax(self.plain_logits(plain), -1)
        stated = np.sort(values.max(-1))
        least = float(stated[:2].mean())  # One of the texts is below.
        path = self.write_model(
            "rejecting", reject_below=least, reject_label="none of these"
        )
        labels = [
            tiny_exports.LABELS[row.argmax()]
            if row.max() >= least
            else "none of these"
            for row in values
        ]
        self.assertEqual(labels.count("none of these"), 1)
        rows = bert_tf.load_model(path).predict(_TEXTS)
        self.assertEqual([row["label"] for row in rows], labels)
        self.assertAllClose([x["probability"] for x in rows], values.max(-1))
        answer = self.serve(path, litert=True)
        self.assertEqual([x.decode() for x in answer["label"]], labels)
        self.assertAllClose(answer["probabilities"], values)
        # Programs on phones compare the probability, so the report has it.
        file = self.folder / "model.tflite"
        bert_tf.export_tflite(bert_tf.load_model(path), file)
        report = json.loads((self.folder / "model.tflite.json").read_text())
        self.assertEqual(report["confidence"]["reject_label"], "none of these")
        self.assertAllClose(report["confidence"]["reject_below"], least)


class TaskTest(tf.test.TestCase):
    def test_tasks_without_a_temperature_decode_by_softmax(self):
        task = tiny_exports.classification()
        self.assertNotIn("temperature", task.to_json())
        logits = tf.constant([[1.0, 2.0, 0.5]])
        self.assertAllEqual(
            task.decode({"logits": logits})["probabilities"],
            tf.nn.softmax(logits),
        )

    def test_windows_are_averaged_at_the_temperature(self):
        task = tiny_exports.classification(temperature=4.0)
        logits = np.float32([[1, 2, 3], [5, 0, 0], [1, 0, 7]])
        found = task.decode({"logits": tf.constant(logits)}, [0, 0, 1])
        rows = special.softmax(logits / 4, -1)
        self.assertAllClose(found["probabilities"], [rows[:2].mean(0), rows[2]])
        self.assertEqual(
            dataclasses.replace(task, temperature=None).to_json()["labels"],
            task.to_json()["labels"],
        )


if __name__ == "__main__":
    tf.test.main()
