"""Runs the task that docs/adding_a_task.md shows."""

import csv
import importlib.util
import json
import pathlib
import random
import re
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.commands.predict import PredictConfig
from bert_tf.errors import UserError
from bert_tf.export import savedmodel
from bert_tf.export.tflite import run as tflite_export
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig
from bert_tf.inference import predict
from bert_tf.inference.lite_model import LiteModel
from bert_tf.tasks import registry
from bert_tf.tasks.predict import Predictor
from tests.support import files_case
from tests.support import tiny_model
from tests.support import toy_models

_DOCUMENTS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_WORDS = ("the", "dog", "on", "mat", "sitting", "東")


def _write_reviews(path, count, seed):
    """Writes reviews with one star, and one more for each "cat"."""
    rng = random.Random(seed)
    stars = [rng.randint(1, 5) for _ in range(count)]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "stars"])
        for number in stars:
            words = rng.choices(_WORDS, k=rng.randint(1, 4))
            words += ["cat"] * (number - 1)
            rng.shuffle(words)
            writer.writerow([" ".join(words), number])
    return stars


class AddingATaskTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        text = (_DOCUMENTS / "adding_a_task.md").read_text(encoding="utf-8")
        task, script = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.module = self._load("bert_tf.tasks.stars", task)
        self.script = self._load("finetune_stars", script)
        self.enter_context(
            mock.patch.dict(registry.TASKS, stars=self.module.StarsTask)
        )

    def _load(self, name, source):
        path = self.path(f"{name}.py")
        pathlib.Path(path).write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        self.enter_context(mock.patch.dict(sys.modules, {name: module}))
        spec.loader.exec_module(module)
        return module

    @pytest.mark.thorough
    def test_trains_and_predicts(self):
        _write_reviews(self.path("train.csv"), 96, 0)
        stars = _write_reviews(self.path("dev.csv"), 37, 1)
        config = self.script.StarsConfig(
            train_file=self.path("train.csv"),
            dev_file=self.path("dev.csv"),
            pretrained_model_dir=tiny_model.write(
                self.path("pretrained"), kind="encoder"
            ),
            output_dir=self.path("output"),
            do_train=True,
            do_eval=True,
            max_seq_length=12,
            train_batch_size="8",
            learning_rate="0.001",
            num_train_epochs="20",
            num_length_buckets=1,
        )
        self.script.main(config)

        text = pathlib.Path(self.path("output/eval_results.json")).read_text()
        error = json.loads(text)["dev"]["mean_absolute_error"]
        guesses = np.abs(np.mean(stars) - stars).mean()
        self.assertLess(error, 0.7 * guesses)

        predictions = self._predict()
        received = [prediction["stars"] for prediction in predictions]
        self.assertAllClose(np.abs(np.subtract(received, stars)).mean(), error)

        task = registry.from_stored(formats.read(self.path("output/model")))
        self.assertEqual(task, self.module.StarsTask(max_seq_length=12))
        self.assertEqual(
            task.example_from_row({"review": "the cat"}).text_a, "the cat"
        )

    def _predict(self):
        predict.run(
            PredictConfig(
                model_dir=self.path("output/model"),
                input_file=self.path("dev.csv"),
                output_file=self.path("stars.jsonl"),
            )
        )
        text = pathlib.Path(self.path("stars.jsonl")).read_text()
        return [json.loads(line) for line in text.splitlines()]

    @pytest.mark.slow
    def test_exports_and_the_server_predict_as_the_library(self):
        path = tiny_model.write_task(
            self.path("model"), self.module.StarsTask(max_seq_length=12)
        )
        texts = ["the cat", "a dog on the mat", "東"]
        model = bert_tf.load_model(path)
        model.compile(optimizer="adam")
        history = model.fit(texts, ["1", "5", "2"], verbose=0)
        self.assertTrue(np.isfinite(history.history["loss"]).all())

        stored = formats.read(path)
        task = registry.from_stored(stored)
        self.assertEqual(
            task.example_to_json(
                task.add_label(task.example_from_row("a"), "4")
            ),
            {"text": "a", "gold_label": "4"},
        )
        predictor = Predictor(
            checkpoint_loading.build_model(stored),
            task,
            stored.build_tokenizer(),
        )
        expected = predictor.predict(list(map(task.example_from_row, texts)))
        self.assertLen(set(expected), 3)

        savedmodel.run(
            SavedModelConfig(
                model_dir=path, output_dir=self.path("served"), version=1
            )
        )
        _, config = self.enter_context(
            toy_models.serving(self.path("served"), model_name="stars")
        )
        status, answer = toy_models.ask(
            config.rest_api_port,
            "POST",
            "/v1/models/stars:predict",
            {"instances": texts},
        )
        self.assertEqual(status, 200, answer)
        self.assertAllClose(answer["predictions"], expected, 1e-4)

        for kind in ("ids", "text"):
            file = self.path(f"{kind}.tflite")
            tflite_export.run(
                TfliteConfig(model_dir=path, output_file=file, input=kind)
            )
        lite = LiteModel(pathlib.Path(file).read_bytes(), text_operators=True)
        inputs = {"text": np.array([x.encode() for x in texts], object)}
        self.assertAllClose(lite.run(inputs)["stars"], expected, 1e-4)

    def test_losses_match_and_wrong_labels_are_refused(self):
        task = self.module.StarsTask(files={"dev": self.path("bad.csv")})
        losses = task.losses(
            {
                "logits": tf.math.log(
                    [[0.1, 0.2, 0.3, 0.2, 0.2], [0.5, 0, 0, 0, 0.5]]
                )
            },
            {"label_ids": tf.constant([4, 0])},
        )
        self.assertAllClose(losses, [(5 - 3.2) ** 2, (1 - 3) ** 2], rtol=1e-5)
        pathlib.Path(self.path("bad.csv")).write_text("review,stars\na,6\n")
        with self.assertRaisesRegex(UserError, "line 2 has the label '6'"):
            task.read("dev")


if __name__ == "__main__":
    tf.test.main()
