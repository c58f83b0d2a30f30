"""Tests of task heads against golden outputs of the original."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.io import files
from bert_tf.modeling import task_models
from tests.support.shared_data import golden

_INPUTS = ("input_ids", "input_mask", "segment_ids")


class GoldenTaskModelsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        stored = np.load(golden("model/forward.npz"))
        self.inputs = {name: stored[name] for name in _INPUTS}
        self.config = files.read_bert_config(golden("model/bert_config.json"))

    def _load(self, model, name):
        path = golden(f"model/{name}.index")
        tensors = tf1_checkpoint.read(path)
        report = checkpoint_loading.load_into(model, tensors, path)
        self.assertEqual((report.missing, report.unused), ((), ()))
        return model

    def _assert_close(self, received, expected):
        self.assertAllClose(received, expected, rtol=0, atol=1e-5)

    # No part has dropout, so training=True must not change a value.
    @parameterized.product(fuse=(False, True), training=(False, True))
    def test_classifier_equals_the_original(self, fuse, training):
        model = self._load(
            task_models.BertForClassification(
                self.config, num_labels=3, head_dropout_prob=0.0, fuse=fuse
            ),
            "classifier.ckpt",
        )
        logits = model(self.inputs, training=training)["logits"]
        expected = np.load(golden("model/classifier.npz"))
        self._assert_close(logits, expected["logits"])
        self._assert_close(tf.nn.softmax(logits), expected["probabilities"])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            expected["labels"], logits
        )
        self._assert_close(losses, expected["per_example_loss"])
        self._assert_close(tf.reduce_mean(losses), expected["loss"])

    @parameterized.product(fuse=(False, True), training=(False, True))
    def test_question_answering_equals_the_original(self, fuse, training):
        model = self._load(
            task_models.BertForQuestionAnswering(self.config, fuse=fuse),
            "squad.ckpt",
        )
        outputs = model(self.inputs, training=training)
        expected = np.load(golden("model/squad.npz"))
        losses = []
        for end in ("start", "end"):
            logits = outputs[f"{end}_logits"]
            self._assert_close(logits, expected[f"{end}_logits"])
            losses.append(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    expected[f"{end}_positions"], logits
                )
            )
        self._assert_close(tf.reduce_mean(losses), expected["loss"])


if __name__ == "__main__":
    tf.test.main()
