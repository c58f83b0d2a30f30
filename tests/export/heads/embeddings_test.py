"""Tests for export.heads.embeddings."""

import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export.heads.embeddings import Embeddings
from bert_tf.export.heads.head import Rows
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model

_LENGTHS = [1, 4, 6]


def _build(pooling, layer, **changes):
    return Embeddings(
        BertTokenizer(Vocabulary(tiny_model.TOKENS)),
        12,
        (12,),
        dataclasses.replace(tiny_model.CONFIG, **changes),
        pooling,
        layer,
    )


class EmbeddingsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(5)
        self.states = rng.normal(size=[3, 6, 16]).astype(np.float32) - 2
        self.rows = Rows(
            {"input_mask": tf.sequence_mask(_LENGTHS, 6, tf.int32)}
        )

    @parameterized.parameters("mean", "max", "cls", "last")
    def test_pooling_ignores_padding(self, pooling):
        changes = {}
        if pooling == "last":
            pooling, changes = "cls", {"left_to_right": True}
        head = _build(pooling, -1, **changes)
        outputs = {"sequence_output": tf.constant(self.states)}
        pool = {
            "mean": lambda x: x.mean(0),
            "max": lambda x: x.max(0),
            "cls": lambda x: x[-1 if changes else 0],
        }[pooling]
        expected = [
            pool(row[:length])
            for row, length in zip(self.states, _LENGTHS, strict=True)
        ]
        for answer in (
            head.answer(outputs, self.rows),
            head.answer_ids(outputs, self.rows),
        ):
            self.assertEqual(list(answer), ["embedding"])
            self.assertAllClose(answer["embedding"], expected, atol=1e-6)

    @parameterized.parameters("mean", "max", "cls")
    def test_half_precision_returns_float32(self, pooling):
        states = tf.constant(self.states, tf.bfloat16)
        answer = _build(pooling, -1).answer(
            {"sequence_output": states}, self.rows
        )
        self.assertEqual(answer["embedding"].dtype, tf.float32)

    def test_rows_of_padding_return_finite_numbers(self):
        rows = Rows({"input_mask": tf.zeros([3, 6], tf.int32)})
        outputs = {"sequence_output": tf.constant(self.states)}
        for pooling in ("mean", "max", "cls"):
            answer = _build(pooling, -1).answer_ids(outputs, rows)
            self.assertTrue(np.isfinite(answer["embedding"]).all())

    @parameterized.parameters((0, 1), (1, 2), (-1, 2), (-2, 1))
    def test_leaves_out_layers_above_the_chosen_one(self, layer, count):
        values = _build("mean", layer).model_values()
        self.assertEqual(values["config"]["num_hidden_layers"], count)

    @parameterized.parameters(2, -3)
    def test_rejects_a_missing_layer(self, layer):
        with self.assertRaisesRegex(UserError, f"between -2 and 1.* {layer}"):
            _build("mean", layer)


if __name__ == "__main__":
    tf.test.main()
