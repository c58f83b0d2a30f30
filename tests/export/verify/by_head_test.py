"""Tests for export.verify.by_head."""

from unittest import mock

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import formats
from bert_tf.export.artifact import Artifact
from bert_tf.export.verify import by_head
from bert_tf.tasks.tagging.task import TaggingTask
from tests.support import tiny_exports


class TaggingTest(tf.test.TestCase):
    def _build(self):
        task = TaggingTask(
            name="tagging", labels=("O", "B-x", "I-x"), max_seq_length=7
        )
        folder = self.create_tempdir().full_path
        stored = formats.read(tiny_exports.write(folder, task))
        artifact = Artifact(
            model_name="names",
            version=1,
            head="tagging",
            precision="float32",
            ids_only=False,
            max_seq_length=7,
            buckets=(5, 7),
            settings={"doc_stride": 3},
        )
        return by_head.build(stored, artifact, "", 0.02)

    def test_attention_is_that_of_the_first_window(self):
        tagging = self._build()
        texts = ["the cat", "the mat dog, " * 3]
        expected = tagging.expect_attention([{"text": text} for text in texts])
        self.assertEqual(
            expected.values["tokens"].tolist(),
            [
                [b"[CLS]", b"the", b"cat", b"[SEP]", b"", b"", b""],
                [b"[CLS]", b"the", b"mat", b"dog", b",", b"the", b"[SEP]"],
            ],
        )
        attention = expected.values["attention"]
        # [B, layers, heads, T, T]
        self.assertEqual(attention.shape[:1] + attention.shape[3:], (2, 7, 7))
        self.assertAllClose(attention.sum(-1), np.ones(attention.shape[:-1]))
        self.assertAllEqual(attention[0, ..., 4:], 0 * attention[0, ..., 4:])

    def test_texts_with_close_tags_are_doubtful(self):
        tagging = self._build()
        mat = tagging.tokenizer.vocabulary.tokens.index("mat")

        def compute(packed):
            """Marks each "mat" and all continuation tokens as close."""
            ids = packed["input_ids"]
            is_close = (ids == mat) | (ids <= 4)
            scores = np.where(is_close, 0.019, 0.021)
            probs = np.stack([0.5 + scores, 0.5 - scores, 0 * scores], -1)
            with np.errstate(divide="ignore"):
                return {"logits": tf.constant(np.log(probs))}

        texts = ["the cat", "", "cat " * 99 + "mat.", "mat dog", "matting."]
        with mock.patch.object(tagging, "compute", compute):
            expected = tagging.expect([{"text": text} for text in texts])
        self.assertEqual(
            expected.doubtful["tags"].tolist(), [False, False, True, True, True]
        )
        self.assertEqual(expected.values["words"].shape, (5, 101))


if __name__ == "__main__":
    tf.test.main()
