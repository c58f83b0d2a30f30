"""Tests of training embeddings, and of few-shot classifiers."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special
from sklearn import linear_model
from sklearn import model_selection

import bert_tf
from bert_tf.commands import finetune_classifier
from bert_tf.commands import finetune_embeddings
from bert_tf.commands.finetune_embeddings import EmbeddingsConfig
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import contrastive
from bert_tf.finetuning import run as finetuning
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.task_files import Data
from tests.support import finetuning_case
from tests.support import tiny_finetuning
from tests.support import tiny_model

_TEXTS = ["the cat sat", "dog on the mat", "東 sitting", "the mat ."]


class HeadTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(2, 4)
    def test_head_is_logistic_regression(self, num_labels):
        rng = np.random.default_rng(1)
        labels = np.arange(40) % num_labels
        vectors = rng.normal(size=[40, 6]) + labels[:, np.newaxis]
        head = contrastive.fit_head(vectors, labels, [1.0, 3.0, 1.0, 2.0])
        logits = vectors @ head["output_weights"].T + head["output_bias"]
        expected = linear_model.LogisticRegression(C=10, max_iter=1000).fit(
            vectors, labels, np.take([1.0, 3.0, 1.0, 2.0], labels)
        )
        self.assertAllClose(
            special.softmax(logits, -1),
            expected.predict_proba(vectors),
            rtol=0,
            atol=1e-5,
        )

    @parameterized.parameters(2, 3)
    def test_no_text_is_judged_by_a_head_that_saw_it(self, num_labels):
        rng = np.random.default_rng(2)
        labels = np.arange(8 * num_labels) % num_labels
        vectors = rng.normal(size=[8 * num_labels, 5]) + labels[:, np.newaxis]
        given = [1.0, 3.0, 2.0]
        logits = contrastive.out_of_fold_logits(vectors, labels, given)
        expected = np.zeros([8 * num_labels, num_labels])
        splits = model_selection.StratifiedKFold(
            8,  # Each label has 8 texts.
            shuffle=True,
            random_state=0,
        ).split(vectors, labels)
        for seen, unseen in splits:
            head = linear_model.LogisticRegression(C=10, max_iter=1000)
            head.fit(vectors[seen], labels[seen], np.take(given, labels[seen]))
            expected[unseen] = head.predict_proba(vectors[unseen])
        self.assertAllClose(
            special.softmax(logits, -1), expected, rtol=0, atol=1e-9
        )
        # A repeat must not show a text to the head that judges it.
        again = [*range(8 * num_labels), 0, 1, 0]
        self.assertAllEqual(
            contrastive.out_of_fold_logits(
                vectors[again], labels[again], given
            ),
            logits[again],
        )

    def test_pairs_have_one_label_and_every_text_as_often(self):
        labels = np.array([0, 1, 0, 2, 1, 2, 0], np.int32)
        pairs = contrastive.draw_pairs(labels, 5)
        first, second = pairs.T
        self.assertAllEqual(labels[first], labels[second])
        self.assertTrue(np.all(first != second))
        count = len(pairs) // 7
        for column in (first, second):
            self.assertAllEqual(np.bincount(column), [count] * 7)
        self.assertAllEqual(contrastive.draw_pairs(labels, 5), pairs)
        self.assertNotAllEqual(contrastive.draw_pairs(labels, 6), pairs)


class FewShotCase(finetuning_case.FinetuningCase):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_initialized(self.path("start"), 4)
        # Compiling would take most of the time without changing a result.
        self.enter_context(mock.patch.object(Devices, "fuse", False))

    def few_shot(self, **values):
        config = self.config(
            pretrained_model_dir=self.model, few_shot=True, **values
        )
        finetune_classifier.main(config)
        return finetuning_case.read_json(config.output_dir, "eval_results.json")

    def write(self, name, *rows, columns="text,label"):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(f"{x}\n" for x in (columns, *rows)))
        return path


@pytest.mark.slow
class FewShotTest(FewShotCase):
    def test_head_of_the_model_is_that_of_its_embeddings(self):
        with mock.patch.object(contrastive, "out_of_fold_logits") as fold:
            scores = self.few_shot(num_train_epochs="1")
        fold.assert_not_called()  # Dev replaces the folds.
        self.assertGreater(scores["dev"]["accuracy"], 0.85)
        path = self.path("output/model")
        model = bert_tf.load_model(path)
        self.assertEqual((model.pooling, model.normalize), ("mean", True))
        task = model.preprocessor.task
        self.assertEqual(task.labels, ("feline", "other"))
        # The mean replaces the pooler, so training must not change it.
        before, after = (finetuning_case.weights(x) for x in (self.model, path))
        for name, value in before.items():
            is_same = np.array_equal(value, after[name])
            self.assertEqual(is_same, "pooler" in name, name)
        # The head must be the one that fits the training texts' embeddings.
        lines = finetuning_case.read_text(self.folder, "train.csv")
        rows = [line.split(",")[1:] for line in lines.splitlines()[1:]]
        texts = [text for text, _ in rows]
        embeddings = bert_tf.load_model(path, "embeddings").predict(
            texts, verbose=0
        )
        labels = np.array([task.labels.index(label) for _, label in rows])
        head = contrastive.fit_head(embeddings, labels)
        for name, value in head.items():
            self.assertAllClose(after[name], value, rtol=1e-3, atol=1e-3)
        # Batches of `predict` must not change the probabilities.
        expected = special.softmax(
            embeddings @ after["output_weights"].T + after["output_bias"], -1
        )
        predicted = model.predict(texts, verbose=0)
        self.assertAllClose(
            [list(one["probabilities"].values()) for one in predicted],
            expected,
            rtol=0,
            atol=1e-5,
        )
        model.export(self.path("served"), verbose=0, max_seq_length=12)
        served = tf.saved_model.load(self.path("served/1"))
        answer = served.signatures["serving_default"](text=tf.constant(_TEXTS))
        predicted = model.predict(_TEXTS, verbose=0)
        self.assertAllClose(
            answer["probabilities"],
            [list(one["probabilities"].values()) for one in predicted],
            rtol=0,
            atol=1e-5,
        )
        names = [x.name for x in served.weights]
        self.assertFalse([name for name in names if "pooler" in name])

    def test_probabilities_are_fitted_without_a_dev_set(self):
        values = {}
        for name, flags in {
            "fitted": {},
            "plain": {"calibrate": False},
            # Held-out rows are used to calibrate, though not to evaluate.
            "held": {"dev_file": None, "dev_fraction": 0.2},
        }.items():
            config = self.config(
                pretrained_model_dir=self.model,
                few_shot=True,
                do_eval=False,
                num_train_epochs="0.2",
                output_dir=self.path(name),
                **flags,
            )
            finetune_classifier.main(config)
            values[name] = finetuning_case.read_json(
                self.path(f"{name}/model"), "task.json"
            )
        self.assert_same_weights("fitted/model", "plain/model")
        self.assertNotIn("temperature", values["plain"])
        self.assertIn("temperature", values["held"])
        temperature = values["fitted"]["temperature"]
        self.assertGreater(temperature, 0)
        self.assertNotEqual(temperature, 1.0)
        log = finetuning_case.read_text(self.path("fitted"), "train.log")
        self.assertIn(f"task.json {{'temperature': {temperature}", log)

    def test_resumed_run_equals_an_unbroken_one(self):
        self.few_shot(num_train_epochs="0.2", output_dir=self.path("whole"))
        config = self.config(
            pretrained_model_dir=self.model,
            few_shot=True,
            num_train_epochs="0.2",
            save_checkpoints_steps=3,
        )
        with (
            finetuning_case.die_at(7),
            self.assertRaises(finetuning_case.Interrupted),
        ):
            finetune_classifier.main(config)
        finetune_classifier.main(config)
        self.assert_same_weights("whole/model", "output/model")

    def test_encoder_is_halfway_between_start_and_end_of_training(self):
        self.few_shot(num_train_epochs="0.2")
        with mock.patch.object(contrastive, "average"):
            self.few_shot(num_train_epochs="0.2", output_dir=self.path("end"))
        start, half, end = (
            finetuning_case.weights(x)
            for x in (
                self.model,
                self.path("output/model"),
                self.path("end/model"),
            )
        )
        for name in start:
            mean = (start[name] + end[name]) / 2
            self.assertAllClose(half[name], mean, rtol=1e-6, atol=1e-7)

    def test_micro_batches_change_nothing(self):
        self.few_shot(num_train_epochs="0.1", output_dir=self.path("whole"))
        self.few_shot(num_train_epochs="0.1", micro_batch_size=1)
        whole, parts = (
            finetuning_case.weights(self.path(f"{x}/model"))
            for x in ("whole", "output")
        )
        for name, value in whole.items():
            if "/key/bias" not in name and not name.startswith("output_"):
                self.assertAllClose(
                    parts[name], value, rtol=1e-3, atol=1e-4, msg=name
                )


class BadInputTest(FewShotCase):
    @parameterized.parameters(
        (["cat,a", "dog,b"], "fewer of 'a', 'b'; add texts"),
        (["cat,a", "sat,a", "dog,b"], "fewer of 'b'"),
        # A repeated text counts once, so 'b' still has too few.
        (["cat,a", "sat,a", "dog,b", " dog,b"], "fewer of 'b'"),
        (
            ["cat,a", "sat,a", "dog,b", "cat,b", "mat,b"],
            "/train.csv: line 2 and line 5 are the same text, with the labels "
            "'a' and 'b'",
        ),
        (["cat,a", ",a", "dog,b"], "line 3 has an empty text"),
    )
    def test_unusable_training_rows_are_refused(self, rows, message):
        train = self.write("train.csv", *rows)
        with self.assertRaisesRegex(UserError, message):
            self.few_shot(train_file=train, do_eval=False)

    def test_names_labels_that_dev_lacks(self):
        train = self.write("train.csv", "cat,a", "sat,a", "dog,b", "mat,b")
        dev = self.write("dev.csv", "cat,a")
        with (
            mock.patch.object(contrastive, "train_few_shot"),
            self.assertLogs(level="WARNING") as logs,
        ):
            config = self.config(few_shot=True, train_file=train, dev_file=dev)
            finetune_classifier.main(config)
        self.assertRegex(
            logs.output[-1], "dev.csv has no text of 'b', so its scores"
        )

    def test_report_advises_where_labels_have_few_texts(self):
        def advise(count, **values):
            task = ClassificationTask(
                labels=("a", "b"),
                metric_names=("accuracy",),
                data={"train": Data([None] * count, None)},
            )
            return finetuning._advise(self.config(**values), task)

        self.assertStartsWith(advise(98), "49 texts of each label are few: ")
        self.assertEqual(advise(100), "")
        self.assertEqual(advise(98, few_shot=True), "")


@pytest.mark.slow
class EmbeddingsTest(FewShotCase):
    def _config(self, columns, train, dev, **values):
        paths = {
            f"{name}_file": self.write(
                f"{name}_pairs.csv", *rows, columns=columns
            )
            for name, rows in (("train", train), ("dev", dev))
        }
        common = tiny_finetuning.flags(self.folder)
        names = ("output_dir", "do_train", "do_eval", "learning_rate")
        return EmbeddingsConfig(
            **paths
            | {name: common[name] for name in names}
            | {
                "pretrained_model_dir": self.model,
                "train_batch_size": "4",
                "num_train_epochs": "10",
            }
            | values
        )

    def test_learns_which_texts_belong_together(self):
        words = ["the", "cat", "dog", "sat", "on", "mat", ".", "東"]
        rows = [
            f"{word},{other}"
            for word, other in zip(words, reversed(words), strict=True)
        ]
        config = self._config(
            "anchor,positive", rows, rows, num_train_epochs="20"
        )
        finetune_embeddings.main(config)
        scores = self.read_json("eval_results.json")["dev"]
        self.assertGreater(scores["ndcg@10"], 0.9)
        self.assertGreater(scores["mrr@10"], 0.9)
        model = bert_tf.load_model(self.path("output/model"))
        self.assertIsInstance(model, bert_tf.BertForEmbeddings)
        best = model.similarity(words, words[::-1])
        self.assertGreater(np.trace(best) / len(words), 0.5)
        lines = self.read_text("dev_predictions.jsonl").splitlines()
        self.assertLen(lines, len(rows))
        # Without training, the stored model must have equal scores.
        config = self._config(
            "anchor,positive",
            rows,
            rows,
            do_train=False,
            pretrained_model_dir=None,
        )
        finetune_embeddings.main(config)
        again = self.read_json("eval_results.json")["dev"]
        self.assertAllClose(again["ndcg@10"], scores["ndcg@10"])

    def test_training_on_scores_lowers_the_loss(self):
        words = ["the", "cat", "dog", "sat"]
        rows = [
            f"{one},{other},{float(one < other)}"
            for one in words
            for other in words
        ]
        config = self._config("text_a,text_b,score", rows, rows)
        finetune_embeddings.main(config)
        scores = self.read_json("eval_results.json")["dev"]
        self.assertIn("spearmanr", scores)
        metrics = finetuning_case.metrics(self.path("output"))
        losses = [line["loss"] for line in metrics]
        self.assertLess(np.mean(losses[-10:]), np.mean(losses[:10]))


if __name__ == "__main__":
    tf.test.main()
