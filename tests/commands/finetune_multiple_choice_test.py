"""Tests for run/finetune_multiple_choice.py, from the flags to predictions."""

import csv
import json
import os
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.commands import finetune_multiple_choice
from bert_tf.commands.finetune_multiple_choice import MultipleChoiceConfig
from tests.support import command_case
from tests.support import tiny_model

_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_HEADER = (
    *("", "video-id", "fold-ind", "startphrase", "sent1", "sent2"),
    *("gold-source", *_ENDINGS),
)
_WORDS = ("the", "dog", "sat", "on", "mat", "sitting", "東")


def _write_swag(path, count, seed, with_labels=True):
    """Writes SWAG's layout; only the correct ending has a cat."""
    rng = random.Random(seed)
    labels = []
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*_HEADER, "label") if with_labels else _HEADER)
        for number in range(count):
            endings = [
                rng.choices(_WORDS, k=rng.randint(1, 3)) for _ in _ENDINGS
            ]
            labels.append(rng.randrange(4))
            endings[labels[-1]].append("cat")
            row = [
                *(number, "x", number, "The dog sat. The", "The dog sat."),
                *("The", "gold", *map(" ".join, endings)),
            ]
            writer.writerow([*row, labels[-1]] if with_labels else row)
    return labels


class FinetuneMultipleChoiceTest(command_case.CommandCase):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write(self.path("pretrained"), kind="encoder")

    def _run(self, **flags):
        flags = {
            "task_name": "swag",
            "data_dir": str(self.folder),
            "pretrained_model_dir": self.model,
            "output_dir": str(self.output),
            "max_seq_length": 12,
            "train_batch_size": "8",
            "learning_rate": "0.001",
            "num_train_epochs": "20",
            "num_length_buckets": 1,
            "do_eval": True,
        } | flags
        finetune_multiple_choice.main(MultipleChoiceConfig(**flags))

    @pytest.mark.slow
    def test_learns_swag_and_predicts(self):
        _write_swag(self.folder / "train.csv", 64, 0)
        dev_labels = _write_swag(self.folder / "val.csv", 31, 1)
        test_labels = _write_swag(self.folder / "test.csv", 9, 2, False)
        self._run(do_train=True, do_predict=True)

        dev = self.lines("dev_predictions.jsonl")
        accuracy = np.mean(
            [p["index"] == y for p, y in zip(dev, dev_labels, strict=True)]
        )
        self.assertGreater(accuracy, 0.85)
        results = self.read_json("eval_results.json")
        self.assertAllClose(results["dev"]["accuracy"], accuracy)
        text = self.read("confusion_matrix.txt")
        self.assertStartsWith(text, f"31 examples, {31 * accuracy:.0f} correct")
        self.assertTrue((self.output / "confusion_matrix.png").exists())
        test = self.lines("test_predictions.jsonl")
        right = [
            p["label"] == f"ending{label}"
            for p, label in zip(test, test_labels, strict=True)
        ]
        self.assertGreater(np.mean(right), 0.7)
        self.assertFalse((self.output / "test_confusion_matrix.txt").exists())
        self.assertFalse((self.output / "test_results.tsv").exists())

        # The stored model must predict the same from the file.
        again = self.predict(self.folder / "val.csv")
        for one, other in zip(again, dev, strict=True):
            self.assertEqual(one["index"], other["index"])
            self.assertAllClose(
                list(one["probabilities"].values()),
                list(other["probabilities"].values()),
                atol=1e-5,
            )
        self._check_evaluation_of_own_files()

    def _check_evaluation_of_own_files(self):
        """Evaluates rows of 2 and 5 choices; the model trained on 4."""
        path = self.folder / "own.jsonl"
        rows = [
            {"q": "The dog", "c": ["sat on", "the cat"], "y": 1},
            {"q": "The", "c": ["mat", "dog", "sat", "cat", "on"], "y": 3},
        ]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        output = self.folder / "own"
        self._run(
            task_name="custom",
            data_dir=None,
            dev_file=str(path),
            context_column="q",
            choice_columns="c",
            label_column="y",
            pretrained_model_dir=str(self.output / "model"),
            output_dir=str(output),
        )
        predictions = self.lines(output / "dev_predictions.jsonl")
        self.assertEqual([len(p["probabilities"]) for p in predictions], [2, 5])
        self.assertFalse(os.path.exists(output / "model"))


if __name__ == "__main__":
    tf.test.main()
