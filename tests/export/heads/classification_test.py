"""Tests for export.heads.classification."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.export.heads.classification import Classification
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks.classification import glue_tasks
from tests.support import tiny_exports
from tests.support import tiny_model


class ClassificationTest(tf.test.TestCase, parameterized.TestCase):
    def _build(self, task=None, stored_values=None, **flags):
        path = tiny_model.write_task(
            self.create_tempdir().full_path + "/model",
            task or tiny_exports.classification(),
            **(stored_values or {}),
        )
        config = SavedModelConfig(model_dir=path, output_dir="x", **flags)
        source = Source(formats.read(path), config, 12, (5, 8, 12))
        return Classification.build(source)

    @parameterized.parameters(
        ({}, {}, {}, ("text",)),
        ({"pair": True}, {}, {}, ("text", "text_pair")),
        ({"name": "mrpc"}, {}, {}, ("text", "text_pair")),
        ({"name": "sst-2"}, {}, {}, ("text",)),
        # Models of other projects do not store it.
        ({}, {"columns": None}, {}, ("text",)),
        ({}, {"columns": None}, {"pair": True}, ("text", "text_pair")),
        ({"pair": True}, {}, {"pair": False}, ("text",)),
    )
    def test_takes_pairs_if_the_model_does(self, task, stored, flags, inputs):
        if "name" in task:
            task["official"] = glue_tasks.TASKS[task["name"]]
        head = self._build(tiny_exports.classification(**task), stored, **flags)
        self.assertEqual(head.inputs, inputs)
        self.assertEqual(list(head.input_specs()), list(inputs))

    def test_doc_stride_defaults_to_that_of_the_model(self):
        task = tiny_exports.classification(doc_stride=4)
        self.assertEqual(self._build(task).doc_stride, 4)
        self.assertEqual(self._build(task, doc_stride=2).doc_stride, 2)
        self.assertIsNone(self._build().doc_stride)
        self.assertIsNone(self._build().max_rows_at_once)
        self.assertIsNotNone(self._build(task).max_rows_at_once)

    def test_assigned_labels_come_first(self):
        head = self._build(tiny_exports.classification("multi_label"))
        logits = tf.constant(
            [
                [3.0, -1.0, 2.0],
                [-1.0, 0.0, -9.0],
                [-1.0, -2.0, -3.0],
                [1.0, 2.0, 3.0],
            ]
        )
        answer = head.answer({"logits": logits}, Rows({}))
        self.assertAllEqual(
            answer["labels"],
            [
                [b"no", "ümlaut".encode(), b""],
                # The threshold is inclusive.
                [b"yes", b"", b""],
                [b"", b"", b""],
                [b"no", b"yes", "ümlaut".encode()],
            ],
        )
        self.assertAllClose(
            answer["probabilities"], 1 / (1 + np.exp(-logits.numpy()))
        )
        self.assertNotIn("label", answer)

    def test_returns_a_score_per_text(self):
        head = self._build(tiny_exports.classification("regression"))
        self.assertEqual(head.method, "regress")
        logits = tf.constant([[0.25], [-7.5]])
        answer = head.answer({"logits": logits}, Rows({}))
        self.assertEqual(set(answer), {"score", "outputs"})
        for values in answer.values():
            self.assertAllEqual(values, [0.25, -7.5])

    def test_ties_choose_the_first_label(self):
        head = self._build()
        logits = tf.constant([[0.25, 0.375, 0.375]])
        answer = head.answer({"logits": logits}, Rows({}))
        self.assertAllEqual(answer["label"], [b"yes"])
        self.assertAllEqual(
            answer["classes"], [[b"no", b"yes", "ümlaut".encode()]]
        )


if __name__ == "__main__":
    tf.test.main()
