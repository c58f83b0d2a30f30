"""Tests for bert_tf.tasks.predict."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.api import load
from bert_tf.errors import NotFiniteError
from bert_tf.modeling import inference
from bert_tf.modeling.bert import named_variables
from bert_tf.modeling.task_models import BertForClassification
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.squad.task import SquadTask
from tests.support import logical_devices
from tests.support import tiny_exports
from tests.support import tiny_layers
from tests.support import tiny_model

logical_devices.make()

_LENGTHS = np.array([3, 12, 5, 9, 9, 4, 12, 8, 3, 6, 11])
_EIGHTS = (8, 12)


@dataclasses.dataclass
class _Features:
    """Rows of random tokens, each with a random weight and label."""

    lengths: np.ndarray
    is_labeled: bool = True

    def __post_init__(self):
        rng = np.random.default_rng(7)
        count = len(self.lengths)
        self.ids = rng.integers(5, len(tiny_model.TOKENS), [count, 12])
        self.segments = rng.integers(0, 2, [count, 12])
        self.label_ids = rng.integers(0, 3, count).astype(np.int32)
        self.row_weights = rng.uniform(0.5, 2, count).astype(np.float32)

    def __len__(self):
        return len(self.lengths)

    def batch(self, indices, length):
        mask = np.arange(length) < self.lengths[indices][:, np.newaxis]
        batch = {
            "input_ids": self.ids[indices][:, :length] * mask,
            "input_mask": mask,
            "segment_ids": self.segments[indices][:, :length] * mask,
        }
        batch = {name: x.astype(np.int32) for name, x in batch.items()}
        if self.is_labeled:
            batch["label_ids"] = self.label_ids[indices]
            batch["row_weights"] = self.row_weights[indices]
        return batch


class _Task:
    """A task with the methods that prediction uses; records each trace."""

    max_seq_length = 12

    def __init__(self):
        self.batches = []

    def select_outputs(self, outputs):
        self.batches.append(tuple(outputs["logits"].shape))
        return {"logits": outputs["logits"], "mean": outputs["pooled_output"]}

    def losses(self, outputs, batch):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["label_ids"], outputs["logits"]
        )

    def loss_weights(self, batch):
        return batch["row_weights"]


def _classifier():
    model = BertForClassification(
        tiny_model.CONFIG, num_labels=3, return_encoder_outputs=True
    )
    return tiny_layers.randomize(model, seed=5, scale=0.4)


def _one_by_one(model, features, name="logits"):
    """Returns the outputs of single rows, without padding."""
    rows = []
    for index, length in enumerate(features.lengths):
        batch = features.batch(np.array([index]), length)
        inputs = {name: batch[name] for name in task_prediction.MODEL_INPUTS}
        rows.append(model(inputs)[name][0].numpy())
    return rows


def _expected_loss(logits, features):
    logits = np.array(logits, np.float64)
    chosen = logits[np.arange(len(logits)), features.label_ids]
    losses = np.log(np.exp(logits).sum(axis=1)) - chosen
    return np.average(losses, weights=features.row_weights)


class OutputComputerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters((1, (12,)), (4, (4, 7, 12)), (32, (4, 7, 12)))
    def test_batches_give_the_outputs_and_loss_of_single_rows(
        self, batch_size, lengths
    ):
        model, features = _classifier(), _Features(_LENGTHS)
        computed = task_prediction.OutputComputer(
            model, _Task(), batch_size
        ).compute(features, lengths)
        logits = _one_by_one(model, features)
        self.assertAllClose(
            computed.outputs["logits"], logits, atol=1e-5, rtol=1e-5
        )
        self.assertAllClose(
            computed.outputs["mean"],
            _one_by_one(model, features, "pooled_output"),
            atol=1e-5,
            rtol=1e-5,
        )
        self.assertAllClose(
            computed.loss, _expected_loss(logits, features), rtol=1e-5
        )

    # Blank rows fill up batches of an odd size. In batches of 3 for 4 replicas,
    # one replica gets only a blank row.
    @parameterized.parameters((2, 3), (4, 3))
    @pytest.mark.slow
    def test_replicas_share_a_batch(self, count, batch_size):
        features = _Features(_LENGTHS)
        model = _classifier()
        expected = _one_by_one(model, features)
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{number}" for number in range(count)]
        )
        with strategy.scope():
            model = _classifier()
        computed = task_prediction.OutputComputer(
            model, _Task(), batch_size, strategy
        ).compute(features, _EIGHTS)
        self._assert_computed(computed, expected, features)

    def _assert_computed(self, computed, logits, features):
        self.assertAllClose(
            computed.outputs["logits"], logits, atol=1e-5, rtol=1e-5
        )
        self.assertAllClose(
            computed.loss, _expected_loss(logits, features), rtol=1e-5
        )

    @parameterized.parameters(True, False)
    def test_tokens_alone_give_the_same_outputs(self, for_inference):
        model, features = _classifier(), _Features(_LENGTHS)
        logits = _one_by_one(model, features)
        if for_inference:
            model = inference.prepare(model)
        computed = task_prediction.OutputComputer(
            model, _Task(), 4, unpad=True
        ).compute(features, _EIGHTS)
        self._assert_computed(computed, logits, features)

    def test_traces_once_and_sees_new_weights(self):
        model, features, task = _classifier(), _Features(_LENGTHS), _Task()
        computer = task_prediction.OutputComputer(model, task, 4)
        first = computer.compute(features, _EIGHTS)
        named_variables(model)["output_bias"].assign_add([1.0, 2.0, 3.0])
        second = computer.compute(features, (5, 9, 12))
        self.assertLen(task.batches, 1)
        self.assertAllClose(
            second.outputs["logits"],
            np.array(first.outputs["logits"]) + [1.0, 2.0, 3.0],
            atol=1e-5,
            rtol=1e-5,
        )
        self.assertNotAlmostEqual(first.loss, second.loss)

    def test_batches_differ_only_in_length(self):
        seen = []
        features = _Features(_LENGTHS)
        batch_of = features.batch

        def batch(indices, length):
            seen.append((len(indices), length))
            return batch_of(indices, length)

        features.batch = batch
        done = []
        computer = task_prediction.OutputComputer(_classifier(), _Task(), 4)
        computer.compute(features, _EIGHTS, done.append)
        self.assertEqual(seen, [(4, 12), (4, 12), (4, 8)])
        self.assertEqual(done, [4, 4, 3])
        # A batch has at most as many rows as there are.
        del seen[:]
        computer = task_prediction.OutputComputer(_classifier(), _Task(), 32)
        computer.compute(features, _EIGHTS)
        self.assertEqual(seen, [(11, 12)])

    def test_rows_without_labels_have_no_loss(self):
        model = _classifier()
        computer = task_prediction.OutputComputer(model, _Task(), 4)
        features = _Features(_LENGTHS, is_labeled=False)
        computed = computer.compute(features, _EIGHTS)
        self.assertIsNone(computed.loss)
        labelled = computer.compute(_Features(_LENGTHS), _EIGHTS)
        self.assertAllClose(computed.outputs, labelled.outputs)

    def test_refuses_numbers_that_are_not_finite(self):
        model = _classifier()
        bias = named_variables(model)["output_bias"]
        bias.assign([0.0, np.inf, 0.0])
        computer = task_prediction.OutputComputer(model, _Task(), 4)
        with self.assertRaisesRegex(NotFiniteError, "not finite.*--mixed_prec"):
            computer.compute(_Features(_LENGTHS), _EIGHTS)


_TEXTS = ("The cat sat.", "dog", "on the mat, the dogs", "cats sat on dogs .")


class PredictorTest(tf.test.TestCase):
    def test_progress_counts_examples_not_windows(self):
        task = tiny_exports.classification(max_seq_length=10, doc_stride=2)
        path = tiny_model.write_task(self.create_tempdir().full_path, task)
        predictor = task_prediction.Predictor(
            load.load_model(path), task, load.load_tokenizer(path), 2
        )
        texts = [" ".join(_TEXTS), "dog", "the cat"]
        examples = [task.example_from_row(text) for text in texts]
        told = []
        rows = predictor.describe(examples, told.append)
        self.assertLen(rows, 3)
        self.assertEqual(sum(told), 3)
        self.assertGreater(min(told), 0)


class ChunksTest(tf.test.TestCase):
    def test_chunks_end_when_they_have_enough_rows(self):
        task = SquadTask(doc_stride=3)
        # The examples have 1, 2, 1, 5 and 1 windows.
        examples = [
            task.example_from_row(("cat", " ".join(["dog"] * count)))
            for count in (1, 4, 2, 12, 1)
        ]
        with mock.patch.object(task_prediction, "EXAMPLES_PER_CHUNK", 3):
            chunks = list(task_prediction.chunks(task, examples))
        self.assertEqual(chunks, [examples[:2], examples[2:4], examples[4:]])


if __name__ == "__main__":
    tf.test.main()
