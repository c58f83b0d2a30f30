"""Tests for bert_tf.finetuning.task_model: which stored heads fit a task."""

import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.distribute import devices
from bert_tf.errors import UserError
from bert_tf.finetuning import task_model
from bert_tf.flags.devices import DeviceConfig
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from tests.support import tiny_model
from tests.support.shared_data import golden

# More than a message shows.
_LABELS = tuple("abcdefgh")


def _task(labels=_LABELS, **values):
    return ClassificationTask(
        name="custom", labels=labels, metric_names=("accuracy",), **values
    )


def _regression():
    return _task(None, problem_type="regression")


class HasHeadTest(tf.test.TestCase, parameterized.TestCase):
    def stored(self, task, **values):
        path = f"{self.create_tempdir().full_path}/model"
        tiny_model.write_task(path, task)
        stored = formats.read(path)
        task = {
            n: x for n, x in (stored.task | values).items() if x is not None
        }
        return dataclasses.replace(stored, task=task)

    def assert_head(self, expected, stored, task):
        self.assertEqual(
            task_model.has_head_for(stored, task), expected, stored.task
        )

    def test_labels(self):
        stored = self.stored(_task())
        self.assert_head(True, stored, _task())
        self.assert_head(False, stored, _task((*"abcdefg", "x")))
        self.assert_head(True, stored, _task((*"abcdef", "h", "g")))
        self.assert_head(False, stored, _task(tuple("abcdefg")))

    @parameterized.parameters(
        (_task(("a", "b", "c")), _task(("c", "a", "b"))),
        (
            TaggingTask(name="tagging", labels=("O", "I-x", "B-x")),
            TaggingTask(name="tagging", labels=("B-x", "O", "I-x")),
        ),
    )
    def test_labels_in_another_order(self, task, other):
        stored = self.stored(task)
        inputs = {
            "input_ids": np.array([[2, 5, 6, 3], [2, 9, 3, 0]], np.int32),
            "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
            "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], np.int32),
        }
        logits = [
            np.array(
                task_model.build_model(
                    stored, one, devices.prepare(DeviceConfig())
                )(inputs)["logits"]
            )
            for one in (task, other)
        ]
        self.assertGreater(np.ptp(logits[0], axis=-1).min(), 0.01)
        self.assertAllEqual(logits[1], logits[0][..., [2, 0, 1]])

    def test_heads_of_another_form(self):
        stored = self.stored(_task())
        self.assert_head(False, stored, SquadTask())
        self.assert_head(False, stored, _task(problem_type="multi_label"))
        self.assert_head(False, stored, _task(head="bilstm"))
        self.assert_head(False, stored, _regression())
        self.assert_head(True, self.stored(SquadTask()), SquadTask())
        self.assert_head(False, self.stored(SquadTask()), _task())

    def test_another_task_has_not_the_labels_of_the_model(self):
        tagging = TaggingTask(name="tagging", labels=("O", "B-x"))
        stored = self.stored(tagging)
        with self.assertRaisesRegex(
            UserError,
            r"for this task \(custom: classification\)\. Received: tagging; "
            r"2 labels: O, B-x; add --do_train",
        ):
            task_model.build_model(
                stored, _task(("O", "B-x")), devices=None, keep_head=True
            )
        with self.assertRaisesRegex(
            UserError, r"\(custom: classification; 8 labels:"
        ):
            task_model.build_model(
                self.stored(_task(("a", "b"))),
                _task(),
                devices=None,
                keep_head=True,
            )

    def test_scores(self):
        stored = self.stored(_regression())
        self.assert_head(True, stored, _regression())
        self.assert_head(False, stored, _task())
        # As Hugging Face has it.
        stored = self.stored(
            _regression(), labels=["LABEL_0"], problem_type=None
        )
        self.assert_head(True, stored, _regression())

    def test_models_that_do_not_name_their_labels(self):
        stored = self.stored(_task(), labels=None, problem_type=None)
        self.assert_head(True, stored, _task())
        self.assert_head(False, stored, _task(("a", "b")))
        self.assert_head(False, stored, _regression())

    def test_checkpoints_of_the_original(self):
        path = golden("model/classifier.ckpt.index").removesuffix(".index")
        stored = checkpoint_loading.read(path)
        self.assert_head(True, stored, _task(("no", "maybe", "yes")))
        self.assert_head(False, stored, _task(("no", "yes")))
        self.assertEqual(np.shape(stored.weights["output_bias"]), (3,))


if __name__ == "__main__":
    tf.test.main()
