"""Tests of generators, `PyDataset`s and single batches of raw rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.errors import UserError
from tests.support import fit_case

_TEXTS = fit_case.TEXTS
_LABELS = fit_case.LABELS
_TAGS = [["X", "O", "X", "O"], ["O"]]
# Rows and labels, by kind.
_BATCHES = {
    "classification": (_TEXTS, _LABELS),
    "question_answering": (fit_case.QUESTIONS, fit_case.ANSWERS),
    "tagging": (fit_case.SENTENCES, _TAGS),
    "multiple_choice": (fit_case.CHOICES, [1, 2]),
    "masked_lm": (_TEXTS,),
}
_OPTIONS = {
    "question_answering": {"max_seq_length": 10},
    "tagging": {"labels": ["O", "X"]},
}


class _Batches(keras.utils.PyDataset):
    """Batches of two of five rows, which counts ends of epochs."""

    def __init__(self, x, y, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x, y
        self.num_ends = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(2 * index, 2 * index + 2)
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        self.num_ends += 1


def _generate(*batch, size=2, stop=None):
    """Yields batches of `size` rows, without an end unless `stop` is given."""
    while stop is None or stop:
        for start in range(0, len(batch[0]), size):
            yield tuple(part[start : start + size] for part in batch)
        stop = stop and stop - 1


class RowStreamsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    def _fit(self, x, **options):
        model = self.new(
            compiled={
                "optimizer": bert_tf.build_optimizer(
                    learning_rate=1e-2, num_train_steps=6, num_warmup_steps=1
                ),
                "metrics": ["accuracy"],
            }
        )
        history = model.fit(x, epochs=2, verbose=0, shuffle=False, **options)
        return model, history.history

    def _assert_same_weights(self, first, second):
        for one, other in zip(first.weights, second.weights, strict=True):
            self.assertAllEqual(one, other)

    def test_streams_train_as_data_sets(self):
        data = tf.data.Dataset.from_tensor_slices((_TEXTS, _LABELS)).batch(2)
        expected, history = self._fit(data)
        stream = _Batches(np.array(_TEXTS), _LABELS, workers=2)
        model, mine = self._fit(stream)
        self.assertEqual(mine, history)
        self._assert_same_weights(model, expected)
        self.assertEqual(
            model.preprocessor.count_steps(stream, None, 0.0, None, 2), 6
        )
        self.assertGreaterEqual(stream.num_ends, 2)
        model, mine = self._fit(_generate(_TEXTS, _LABELS), steps_per_epoch=3)
        self.assertEqual(mine, history)
        self._assert_same_weights(model, expected)

    @parameterized.parameters(*_BATCHES)
    def test_every_kind_of_model_reads_them(self, kind):
        batch = _BATCHES[kind]
        model = self.new(
            kind, compiled={"optimizer": "sgd"}, **_OPTIONS.get(kind, {})
        )
        expected = model.evaluate(*batch, verbose=0)
        self.assertAllClose(
            model.evaluate((batch for _ in range(1)), steps=1, verbose=0),
            expected,
        )
        self.assertAllClose(model.test_on_batch(*batch), expected)
        before = [one.numpy() for one in model.trainable_weights]
        loss = model.train_on_batch(*batch, return_dict=True)["loss"]
        self.assertTrue(np.isfinite(loss))
        changes = [
            np.abs(now.numpy() - old).max()
            for now, old in zip(model.trainable_weights, before, strict=True)
        ]
        self.assertGreater(max(changes), 0)

    def test_predictions(self):
        model = self.new()
        expected = model.predict(_TEXTS, verbose=0)
        self.assertEqual(model.predict_on_batch(_TEXTS), expected)
        logits = model(_TEXTS)["logits"]
        self.assertAllClose(
            tf.nn.softmax(logits)[:, 1],
            [row["probabilities"]["good"] for row in expected],
        )
        self.assertAllEqual(model(np.array(_TEXTS))["logits"], logits)
        for stream in (
            _Batches(_TEXTS, _LABELS),
            _generate(_TEXTS, _LABELS, stop=1),
        ):
            outputs = model.predict(stream, verbose=0)
            self.assertAllClose(outputs["logits"], logits)
        tagger = self.new("tagging", labels=["O", "X"])
        self.assertEqual(
            tagger.predict((one,) for one in (fit_case.SENTENCES,)),
            tagger.predict(fit_case.SENTENCES),
        )

    def test_encoders_read_texts(self):
        encoder = self.new("encoder")
        features = encoder.preprocessor(_TEXTS)
        self.assertAllEqual(
            encoder(_TEXTS)["pooled_output"], encoder(features)["pooled_output"]
        )

    @pytest.mark.slow
    def test_batches_after_fit_have_a_constant_rate(self):
        model = self.new()
        model.fit(_TEXTS, _LABELS, verbose=0)
        self.assertEqual(float(model.optimizer.learning_rate), 0)
        for step in (1, 2):
            model.train_on_batch(_TEXTS, _LABELS)
            self.assertEqual(int(model.optimizer.iterations), step)
        self.assertAllClose(model.optimizer.learning_rate, 5e-5)

    def test_mistakes_are_one_sentence(self):
        model = self.new(compiled={"optimizer": "sgd"})
        wrong = _generate(_TEXTS, ["good", "fine"] * 3)
        with self.assertRaisesRegex(UserError, "Row 1 .*: 'fine'"):
            model.fit(wrong, steps_per_epoch=1, verbose=0)
        with self.assertRaisesRegex(UserError, "threads. Received: use_multi"):
            model.fit(
                _Batches(_TEXTS, _LABELS, use_multiprocessing=True), verbose=0
            )
        with self.assertRaisesRegex(UserError, "Received: symbolic texts"):
            model(keras.Input((), dtype="string"))
        bare = bert_tf.BertForClassification(model.bert_config, num_labels=2)
        with self.assertRaisesRegex(UserError, "load_model returned reads raw"):
            bare(_TEXTS)


if __name__ == "__main__":
    tf.test.main()
