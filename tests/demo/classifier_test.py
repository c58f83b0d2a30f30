"""Tests for bert_tf.demo.classifier; `make demo` tests the whole."""

import csv
import json
import os

import tensorflow as tf

from bert_tf.demo import classifier as demo_classifier
from bert_tf.demo import corpus as demo_corpus
from bert_tf.errors import UserError
from bert_tf.io import files
from tests.support import tiny_model


class DemoClassifierTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    def _write(self, name, text):
        path = os.path.join(self.folder, name)
        files.write_text(path, text)
        return path

    def _write_dev(self):
        libraries = ["numpy", "python", "keras", "python", "numpy", "python"]
        rows = [(f"Sentence {i}.", x) for i, x in enumerate(libraries)]
        return self._write("dev.csv", demo_corpus.to_csv(rows))

    def _write_results(self, step):
        results = {"global_step": step, "dev": {"accuracy": 0.75}}
        self._write("eval_results.json", json.dumps(results))

    def test_majority_is_the_most_common_library(self):
        label, share = demo_classifier.measure_majority(self._write_dev())
        self.assertEqual(label, "python")
        self.assertAllClose(share, 3 / 6)

    def test_classifier_that_only_guesses_fails(self):
        needed = 0.4 + demo_classifier.ACCURACY_MARGIN
        demo_classifier.judge(needed + 0.001, 0.4)
        with self.assertRaisesRegex(UserError, f"accuracy of {needed:.3f}"):
            demo_classifier.judge(needed - 0.001, 0.4)

    def test_is_done_when_the_model_of_the_last_step_exists(self):
        self.assertFalse(demo_classifier.is_done(self.folder))
        self._write_results(7)
        self.assertFalse(demo_classifier.is_done(self.folder))
        model = os.path.join(self.folder, "model")
        tiny_model.write(model)
        task = os.path.join(model, "task.json")
        files.write_json(task, {"kind": "classification", "global_step": 6})
        self.assertFalse(demo_classifier.is_done(self.folder))
        files.write_json(task, {"kind": "classification", "global_step": 7})
        self.assertTrue(demo_classifier.is_done(self.folder))

    def test_inputs_have_the_column_of_the_training_data(self):
        config = demo_classifier.configure("model", "a.csv", "b.csv", "out")
        prediction = demo_classifier.write_inputs(self.folder)
        with open(prediction.input_file, encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(
            rows,
            [{config.text_column: x} for x in demo_classifier.SENTENCES],
        )

    def test_screen_shows_scores_matrix_and_predictions(self):
        self._write_results(7)
        self._write("confusion_matrix.txt", "the\nmatrix\n")
        probabilities = {"keras": 0.25, "numpy": 0.625, "python": 0.125}
        predictions = self._write(
            "sentences.jsonl",
            json.dumps({"probabilities": probabilities})
            + "\n"
            + 3 * '{"probabilities": {"python": 1.0}}\n',
        )
        text = demo_classifier.describe(
            self.folder, self._write_dev(), predictions
        )
        self.assertRegex(text, r"accuracy +0\.750\n +always python +0\.500\n")
        self.assertIn("\n  the\n  matrix\n", text)
        self.assertIn(os.path.join(self.folder, "confusion_matrix.png"), text)
        self.assertIn(
            f"  {demo_classifier.SENTENCES[0]}\n"
            "      numpy 62%, keras 25%, python 12%\n",
            text,
        )


if __name__ == "__main__":
    tf.test.main()
