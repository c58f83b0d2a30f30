"""Tests of raw rows, their labels, `preprocess` and calling a tokenizer."""

import tempfile
from unittest import mock

import numpy as np
import pandas as pd
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.api import raw_rows
from bert_tf.errors import UserError
from tests.support import fit_case
from tests.support import tiny_model


class LabelsTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (fit_case.TEXTS, fit_case.LABELS),
        (np.array(fit_case.TEXTS), np.array(fit_case.IDS)),
        (
            pd.Series(fit_case.TEXTS),
            pd.Series(fit_case.LABELS, dtype="category"),
        ),
        (pd.DataFrame({"x": fit_case.TEXTS}), np.float32(fit_case.IDS)),
        (tf.constant(fit_case.TEXTS), tf.constant(fit_case.LABELS)),
    )
    def test_single_labels(self, x, y):
        features, labels = self.new().preprocessor(x, y)
        self.assertAllEqual(labels, np.int32(fit_case.IDS))
        self.assertEqual(features["input_ids"].shape, (5, 8))
        self.assertAllEqual(features["input_mask"].sum(-1), [8, 5, 4, 3, 5])
        self.assertAllEqual(features["input_ids"][2], [2, 5, 7, 3, 0, 0, 0, 0])

    @parameterized.parameters(
        ([["a"], [], ["c", "a"]],),
        (np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1]]),),
        ([{0}, set(), {"a", 2}],),
    )
    def test_several_labels(self, y):
        model = self.new(labels=["a", "b", "c"])
        _, labels = model.preprocessor(fit_case.TEXTS[:3], y)
        self.assertAllEqual(labels, [[1, 0, 0], [0, 0, 0], [1, 0, 1]])
        self.assertEqual(
            model.preprocessor.task_values["problem_type"], "multi_label"
        )
        scores = fit_case.scores(model, fit_case.TEXTS[:3], y)
        logits = model(model.preprocessor(fit_case.TEXTS[:3]))["logits"].numpy()
        terms = np.logaddexp(0, logits) - labels * logits
        self.assertAllClose(scores["loss"], terms.mean(), rtol=1e-5)
        self.assertAllClose(scores["accuracy"], np.mean((logits > 0) == labels))
        self.assertIn("labels", model.predict(["cat"], verbose=0)[0])

    def test_scores(self):
        model = self.new(num_labels=1)
        y = [0.5, 1, 2.0, 3, -1]
        scores = fit_case.scores(model, fit_case.TEXTS, y)
        values = model(model.preprocessor(fit_case.TEXTS))["logits"].numpy()[
            :, 0
        ]
        self.assertAllClose(scores["loss"], np.mean((values - y) ** 2))
        self.assertAllClose(
            scores["mean_absolute_error"], np.mean(np.abs(values - y))
        )

    def test_weights_of_rows_and_classes(self):
        model = self.new()
        logits = model(model.preprocessor(fit_case.TEXTS))["logits"]
        losses = fit_case.softmax_losses(logits, np.array(fit_case.IDS))
        weights = np.float32([1, 2, 0, 4, 0.5])
        loss = model.evaluate(
            fit_case.TEXTS,
            fit_case.LABELS,
            sample_weight=weights,
            verbose=0,
            return_dict=True,
        )["loss"]
        # As Keras, which divides by the number of rows.
        self.assertAllClose(loss, np.mean(losses * weights), rtol=1e-5)
        self.assertEqual(
            model.preprocessor.class_weight({"good": 2.0, 0: 1.0}),
            {1: 2.0, 0: 1.0},
        )
        with self.assertRaisesRegex(UserError, "are bad, good.*'best'"):
            model.fit(
                fit_case.TEXTS, fit_case.LABELS, class_weight={"best": 1.0}
            )

    def test_answers_in_windows(self):
        model = self.new("question_answering")
        features, y, weights = model.preprocessor(
            fit_case.QUESTIONS, fit_case.ANSWERS, [2.0, 3.0]
        )
        ids = features["input_ids"]
        first = [one for one in range(len(ids)) if y["start_positions"][one]]
        found = [
            ids[one, y["start_positions"][one] : y["end_positions"][one] + 1]
            for one in first
        ]
        tokenizer = model.preprocessor.tokenizer
        self.assertAllEqual(found[0], tokenizer.tokenize(["mat"]).to_list()[0])
        self.assertAllEqual(found[1], tokenizer.tokenize(["dogs"]).to_list()[0])
        self.assertGreater(len(ids), 2)
        self.assertEqual(weights.tolist(), [2.0] + [3.0] * (len(ids) - 1))
        _, none = model.preprocessor(fit_case.QUESTIONS, [("", 0), ("dogs", 2)])
        self.assertEqual(none["start_positions"][0], 0)

    def test_choices(self):
        model = self.new("multiple_choice")
        features, y = model.preprocessor(fit_case.CHOICES, [1, 2])
        self.assertEqual(features["input_ids"].shape, (2, 3, 8))
        self.assertAllEqual(y, [1, 2])
        loss = fit_case.scores(model, fit_case.CHOICES, [1, 2])
        logits = model(features)["logits"].numpy()
        logits[0, 2] = -1e9
        losses = fit_case.softmax_losses(logits, y)
        self.assertAllClose(loss["loss"], losses.mean(), rtol=1e-5)

    @parameterized.parameters(
        ("classification", ["cat", "dog"], ["bad", "fine"], "Row 1.*'fine'"),
        ("classification", ["cat", "dog"], [0, 2], "Row 1.*from 0 to 1.*2"),
        ("classification", ["cat", "dog"], [0], "each of 2 rows.*: 1"),
        ("classification", ["cat", None], [0, 1], "Row 1.*None"),
        ("tagging", [["cat"], ["a", "dog"]], [["O"], ["O"]], "Row 1.*2 tags"),
        (
            "question_answering",
            fit_case.QUESTIONS,
            (["mat", "東"], [19, 5]),
            "Row 1",
        ),
        (
            "question_answering",
            fit_case.QUESTIONS,
            ["mat", "dogs"],
            "Row 0.*'mat'",
        ),
        ("multiple_choice", fit_case.CHOICES, [0, 3], "Row 1.*from 0 to 2"),
    )
    def test_wrong_labels(self, kind, x, y, message):
        options = {"labels": ["O", "X"]} if kind == "tagging" else {}
        with self.assertRaisesRegex(UserError, message):
            self.new(kind, **options).fit(x, y)

    def test_columns_of_polars_may_be_texts(self):
        for values, expected in ((["a"], True), ([1.0], False)):
            # Its dtype has no `kind`.
            column = mock.Mock(spec=["dtype", "to_numpy"], dtype=object())
            column.to_numpy.return_value = np.array(values)
            self.assertEqual(raw_rows.is_text(column), expected)


_TEXTS = ["the cat sat on the mat", "dogs"]


class PreprocessTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(
            tempfile.mkdtemp(), config=tiny_model.ONE_LAYER
        )
        cls.tokenizer = bert_tf.load_tokenizer(cls.path)

    def test_calling_a_tokenizer_packs(self):
        tokens = self.tokenizer.tokenize(_TEXTS)
        second = self.tokenizer.tokenize(["cat cat", ""])
        packed = bert_tf.pack(tokens, second, 16, self.tokenizer.vocabulary)
        received = self.tokenizer(_TEXTS, ["cat cat", None])
        for name, value in packed.items():
            self.assertAllEqual(received[name], value)
        graph = tf.function(self.tokenizer.__call__)(tf.constant(_TEXTS))
        self.assertAllEqual(
            graph["input_ids"], self.tokenizer(_TEXTS)["input_ids"]
        )
        self.assertEqual(graph["input_ids"].shape, (2, 8))
        short = self.tokenizer(_TEXTS, max_seq_length=4)["input_ids"]
        self.assertAllEqual(short[0], [2, 5, 6, 3])

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(UserError, "knows no labels"):
            bert_tf.preprocess(self.tokenizer, _TEXTS, [0, 1])
        own = bert_tf.BertModel(tiny_model.ONE_LAYER)
        with self.assertRaisesRegex(UserError, "Received: BertModel"):
            bert_tf.preprocess(own, _TEXTS)
        with self.assertRaisesRegex(UserError, "list of texts.*'the cat"):
            self.tokenizer(_TEXTS[0])


if __name__ == "__main__":
    tf.test.main()
