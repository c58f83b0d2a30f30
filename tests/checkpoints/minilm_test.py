"""Tests of a pretrained BERT against stored outputs of transformers."""

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import formats
from tests.support import minilm

_TOLERANCE = 2e-5


class MinilmTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = minilm.directory()
        cls.expected = np.load(minilm.OUTPUTS_FILE)
        cls.tokenizer = bert_tf.load_tokenizer(cls.path)
        cls.ids, cls.segments = minilm.pack(cls.tokenizer, minilm.read_texts())

    def test_reads_the_config_and_every_weight(self):
        stored = formats.read(self.path)
        self.assertEqual(formats.detect(self.path), "huggingface")
        self.assertEqual(stored.config.hidden_act, "gelu_erf")
        self.assertEqual(stored.config.type_vocab_size, 2)
        self.assertEqual(stored.task["kind"], "encoder")
        self.assertEqual(
            stored.report.expected, ("bert.embeddings.position_ids",)
        )
        # Five in the embeddings, sixteen per layer, two in the pooler.
        self.assertLen(stored.report.loaded, 5 + 6 * 16 + 2)
        self.assertEqual(stored.report.unused + stored.report.missing, ())
        self.assertRegex(
            " ".join(stored.report.notes), r'"gelu".*exact \(erf\).*"gelu_erf"'
        )

    def test_ids_match_its_own_tokenizer(self):
        self.assertAllEqual(np.concatenate(self.ids), self.expected["ids"])
        self.assertAllEqual(
            np.concatenate(self.segments), self.expected["segments"]
        )
        self.assertAllEqual([*map(len, self.ids)], self.expected["lengths"])

    @pytest.mark.slow
    def test_outputs_match_transformers(self):
        model = bert_tf.load_model(self.path)
        hidden, pooled = minilm.compute(model, self.ids, self.segments)
        self._check(hidden, pooled)

    def _check(self, hidden, pooled):
        rows = hidden[minilm.chosen_rows(self.expected["lengths"].astype(int))]
        self.assertAllClose(pooled, self.expected["pooled"], 0, _TOLERANCE)
        self.assertAllClose(rows, self.expected["rows"], 0, _TOLERANCE)
        # Errors of 384 summed values mostly cancel out, so tenfold is enough.
        self.assertAllClose(
            minilm.project(hidden),
            self.expected["projections"],
            rtol=0,
            atol=10 * _TOLERANCE,
        )


if __name__ == "__main__":
    tf.test.main()
