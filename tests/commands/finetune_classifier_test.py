"""Tests for run/finetune_classifier.py, end to end."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

from bert_tf.api import load
from bert_tf.tasks import metrics
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.task import ClassificationTask
from tests.support import glue_layouts
from tests.support import tiny_exports
from tests.support import tiny_model
from tests.support.command_case import LENGTH
from tests.support.command_case import ClassifierCase
from tests.support.shared_data import golden

_WORDS = ("the", "cat", "dog", "sat", "on", "mat", ".", ",", "東")


def _texts(rng, is_pair):
    """Returns two texts (or one and None) of unequal lengths."""
    texts = [
        " ".join(rng.choices(_WORDS, k=rng.randint(1, 4))) for _ in range(2)
    ]
    return (texts[0], texts[1] if is_pair else None)


def _pack(texts, tokens=tiny_model.TOKENS):
    """Returns ids and segments of words that are single tokens."""
    ids, segments = [tokens.index("[CLS]")], [0]
    for segment, text in enumerate(text for text in texts if text):
        word_ids = [tokens.index(word) for word in text.split()]
        ids += [*word_ids, tokens.index("[SEP]")]
        segments += [segment] * (len(word_ids) + 1)
    return ids, segments


@functools.lru_cache(maxsize=1)
def _load(model_dir):
    return load.load_model(model_dir, "classification")


def _logits(model_dir, rows):
    """Returns a model's outputs for packed rows: <float64>[rows, labels]."""
    model = _load(model_dir)
    ids, segments, mask = (
        np.zeros([len(rows), LENGTH], np.int32) for _ in range(3)
    )
    for number, (row_ids, row_segments) in enumerate(rows):
        ids[number, : len(row_ids)] = row_ids
        segments[number, : len(row_ids)] = row_segments
        mask[number, : len(row_ids)] = 1
    inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return np.float64(model(inputs)["logits"])


@pytest.mark.slow
class OfficialFilesTest(ClassifierCase):
    """Predicts files in the official layouts with a model of each task."""

    def _write_split(self, official, split, seed):
        rng = random.Random(seed)
        labels = official.labels or (0.0, 1.25, 5.0)
        rows = [
            (*_texts(rng, official.is_pair), labels[number % len(labels)])
            for number in range(7)
        ]
        glue_layouts.write(str(self.folder), official.name, split, rows)
        return rows

    def _expect(self, official, model, rows):
        logits = _logits(model, [_pack(row[:2]) for row in rows])
        if official.labels is None:
            return logits, logits[:, 0]
        return special.softmax(logits, axis=-1), logits.argmax(-1)

    # Tasks with one text, with two files of each split, with scores, and
    # without labels. tests/tasks/classification/examples_test.py has the rest.
    @parameterized.parameters("cola", "mnli", "sts-b", "ax")
    def test_scores_and_predictions_are_those_of_the_model(self, name):
        official = glue_tasks.get_task(name)
        # The diagnostic set has no training data, so MNLI's model predicts it.
        trained = tiny_exports.official("mnli" if name == "ax" else name)
        model = self.write_model(trained)
        rows = {
            split: self._write_split(official, split, seed)
            for seed, split in enumerate(official.stems)
            if split != "train"
        }
        results = self.run_script(
            task_name=name,
            data_dir=str(self.folder),
            pretrained_model_dir=model,
            do_eval=bool(official.splits("dev")),
            do_predict=True,
        )
        first_dev = (*official.splits("dev"), None)[0]
        for split in rows:
            values, ids = self._expect(official, model, rows[split])
            described = self.lines(f"{split}_predictions.jsonl")
            if official.labels is None:
                received = [row["score"] for row in described]
                self.assertAllClose(received, ids, atol=1e-4)
            else:
                self.assertEqual(
                    [row["label"] for row in described],
                    [official.labels[i] for i in ids],
                )
            if split.startswith("dev"):
                suffix = "" if split == first_dev else split[len("dev") :]
                right = [row[2] for row in rows[split]]
                if official.labels is not None:
                    right = [official.labels.index(x) for x in right]
                scores = metrics.compute_metrics(official.metrics, right, ids)
                received = {x: results[f"eval_{x}{suffix}"] for x in scores}
                self.assertAllClose(received, scores, atol=1e-4)
                kind = (
                    "confusion_matrix" if official.labels else "score_scatter"
                )
                prefix = "" if split == "dev" else f"{split}_"
                for ending in (".png", ".txt"):
                    path = self.output / f"{prefix}{kind}{ending}"
                    self.assertTrue(path.exists(), path)
        tests = official.splits("test")
        for split in tests:
            name = "test" if split == tests[0] else split
            expected, _ = self._expect(official, model, rows[split])
            self.assertAllClose(
                self.result_rows(f"{name}_results.tsv"), expected, atol=1e-4
            )


@pytest.mark.slow
class OwnFilesTest(ClassifierCase):
    """Training on a user's own files; checks the loss of the first step."""

    def test_messy_files_with_class_weights_and_windows(self):
        model = self.write_model(
            ClassificationTask(
                name="custom", labels=("no", "yes"), metric_names=("accuracy",)
            )
        )
        # A byte order mark, CRLF, quotation marks, a line end in a field, an
        # unused column, spaces or a blank line must not change the rows.
        train = self.write(
            "train.csv",
            "\ufeffid, kind ,body\r\n"
            '1,yes,"the cat sat\r\non the mat , the dog sat on the mat ."\r\n'
            '2," no ","the ""cat"" ,"\r\n\r\n'
            "3,yes,東\r\n",
        )
        dev = self.write(
            "dev.tsv", 'body\tkind\n"the cat\tno\ndog dog\tyes\ncat\tno\n'
        )
        test = self.write(
            "test.jsonl.gz",
            '{"body": "the dog sat on the mat . the cat sat on the dog"}\n'
            '{"body": "mat"}\n',
        )
        flags = {
            "train_file": train,
            "dev_file": dev,
            "test_file": test,
            "text_column": "body",
            "label_column": "kind",
            "doc_stride": 4,
        }
        # One step over all rows without dropout has the loss computed below.
        results = self.run_script(
            **flags,
            task_name="custom",
            pretrained_model_dir=model,
            do_train=True,
            num_train_epochs="1",
            warmup_proportion=0.0,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            head_dropout_prob=0.0,
            iterations_per_loop=1,
            # 14 tokens are two windows, tokens 1 to 10 and 5 to 14: 4 rows.
            train_batch_size="4",
            class_weights="no:2.5",
            do_eval=True,
            do_predict=True,
        )
        rows = [
            "the cat sat on the mat , the dog sat",
            "the mat , the dog sat on the mat .",
            "the [UNK] cat [UNK] ,",
            "東",
        ]
        logits = _logits(model, [_pack([row, None]) for row in rows])
        losses = -special.log_softmax(logits, -1)[range(4), [1, 1, 0, 1]]
        self.assertAllClose(
            self.lines("train_metrics.jsonl")[0]["loss"],
            np.average(losses, weights=[1, 1, 2.5, 1]),
            atol=1e-4,
        )
        self.assertContainsSubset(
            {"eval_accuracy", "eval_macro_f1", "eval_loss", "global_step"},
            results,
        )
        self._check_trained(flags)

    def _check_trained(self, flags):
        """Compares the written predictions with the stored model's outputs."""
        trained = str(self.output / "model")
        stored = self.read_json("model/task.json")
        self.assertEqual(stored["labels"], ["no", "yes"])
        self.assertEqual(stored["columns"]["text"], "body")
        windows = [
            "the dog sat on the mat . the cat sat",
            "the mat . the cat sat on the dog",
            "mat",
        ]
        logits = _logits(trained, [_pack([row, None]) for row in windows])
        values = special.softmax(logits / stored["temperature"], axis=-1)
        expected = [values[:2].mean(0), values[2]]
        self.assertAllClose(self.result_rows(), expected, atol=1e-4)
        before = self.lines("test_predictions.jsonl")
        self.assertNotIn("test_accuracy", self.read("eval_results.txt"))
        # task.json has the columns, labels and windows, so flags can omit them.
        self.run_script(
            task_name="custom", test_file=flags["test_file"], do_predict=True
        )
        self.assertEqual(self.lines("test_predictions.jsonl"), before)


@pytest.mark.slow
class OriginalsFlagsTest(ClassifierCase):
    def test_accepts_command_lines_of_the_original(self):
        """Trains, then predicts with the checkpoint that training wrote."""
        rng = random.Random(5)
        words = ("the", "of", "and", "in", "was")
        for split, count in (("train", 8), ("dev", 5), ("test", 3)):
            rows = [
                (
                    " ".join(rng.choices(words, k=rng.randint(1, 6))),
                    " ".join(rng.choices(words, k=rng.randint(1, 6))),
                    str(number % 2),
                )
                for number in range(count)
            ]
            glue_layouts.write(str(self.folder), "mrpc", split, rows)
        flags = {
            "task_name": "MRPC",
            "data_dir": str(self.folder),
            "vocab_file": golden("model/vocab.txt"),
            "bert_config_file": golden("model/bert_config.json"),
            "max_seq_length": 16,
        }
        results = self.run_script(
            **flags,
            do_train=True,
            do_eval=True,
            init_checkpoint=golden("model/bert_model.ckpt.index").removesuffix(
                ".index"
            ),
            train_batch_size="4",
            learning_rate="2e-5",
            num_train_epochs="1.0",
        )
        self.assertContainsSubset(
            {"eval_accuracy", "eval_f1", "eval_loss", "global_step", "loss"},
            results,
        )
        self.assertEqual(results["global_step"], 2)
        self.run_script(**flags, do_predict=True)
        expected = self.result_rows()
        self.assertEqual(expected.shape, (3, 2))
        self.assertAllClose(expected.sum(-1), [1, 1, 1], atol=1e-6)
        checkpoint = str(self.output / "model.ckpt-2")
        self.output = self.folder / "predicted"
        self.run_script(**flags, do_predict=True, init_checkpoint=checkpoint)
        self.assertAllClose(self.result_rows(), expected, atol=1e-6)


if __name__ == "__main__":
    tf.test.main()
