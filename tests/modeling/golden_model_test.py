"""Tests of the model against golden outputs of the original."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from tests.support.shared_data import golden

_INPUTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
_NO_WEIGHT = 1e-5  # The original adds it to the denominator of the loss.


def _build(fuse):
    config = files.read_bert_config(golden("model/bert_config.json"))
    model = bert_model.BertForPretraining(
        config, fuse=fuse, return_all_layers=True, return_embeddings=True
    )
    path = golden("model/bert_model.ckpt.index")
    tensors = tf1_checkpoint.read(path)
    report = checkpoint_loading.load_into(model, tensors, path)
    assert not report.missing and not report.unused
    return model


def _negative_log(logits, labels):
    """Returns log probabilities, [rows, classes], and losses, [rows]."""
    log_probs = tf.nn.log_softmax(tf.reshape(logits, [-1, logits.shape[-1]]))
    labels = tf.reshape(labels, [-1])
    return log_probs, -tf.gather(log_probs, labels, batch_dims=1)


def _compute_losses(outputs, stored):
    """Computes the original's losses, by their names in the golden file."""
    values = {}
    values["masked_lm_log_probs"], losses = _negative_log(
        outputs["masked_lm_logits"], stored["masked_lm_ids"]
    )
    weights = stored["masked_lm_weights"].ravel()
    values["masked_lm_example_loss"] = losses
    values["masked_lm_loss"] = tf.reduce_sum(losses * weights) / (
        tf.reduce_sum(weights) + _NO_WEIGHT
    )
    log_probs, losses = _negative_log(
        outputs["next_sentence_logits"], stored["next_sentence_labels"]
    )
    values["next_sentence_log_probs"] = log_probs
    values["next_sentence_example_loss"] = losses
    values["next_sentence_loss"] = tf.reduce_mean(losses)
    total = values["masked_lm_loss"] + values["next_sentence_loss"]
    return values | {"total_loss": total}


class GoldenModelTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.stored = dict(np.load(golden("model/forward.npz")))

    @parameterized.product(fuse=(False, True), graph=(False, True))
    def test_activations_and_losses_equal_the_original(self, fuse, graph):
        model = _build(fuse)
        call = tf.function(model.__call__) if graph else model
        outputs = call({name: self.stored[name] for name in _INPUTS})
        received = _compute_losses(outputs, self.stored) | {
            "all_encoder_layers": tf.stack(outputs["encoder_outputs"]),
            "embedding_output": outputs["embedding_output"],
            "sequence_output": outputs["sequence_output"],
            "pooled_output": outputs["pooled_output"],
        }
        labels = {"masked_lm_ids", "masked_lm_weights", "next_sentence_labels"}
        self.assertEqual(
            set(received), set(self.stored) - set(_INPUTS) - labels
        )
        for name, value in received.items():
            self.assertAllClose(
                value, self.stored[name], rtol=0, atol=1e-5, msg=name
            )

    @parameterized.product(fuse=(False, True), training=(False, True))
    def test_gradients_equal_those_of_the_original(self, fuse, training):
        # All dropout rates are 0, so training=True must not change anything.
        model = _build(fuse)
        variables = bert_model.named_variables(model)

        @tf.function
        def compute():
            with tf.GradientTape() as tape:
                outputs = model(
                    {name: self.stored[name] for name in _INPUTS},
                    training=training,
                )
                loss = _compute_losses(outputs, self.stored)["total_loss"]
            values = [variable.value for variable in variables.values()]
            return tape.gradient(loss, values)

        gradients = np.load(golden("model/gradients.npz"))
        names = [name.replace("|", "/") for name in gradients.files]
        self.assertCountEqual(names, variables)
        for name, received in zip(variables, compute(), strict=True):
            self.assertIsInstance(received, tf.Tensor)
            expected = gradients[name.replace("/", "|")]
            if name.endswith("key/bias"):
                self.assertLess(np.abs(received).max(), 1e-8, name)
                continue
            atol = 1e-5 * np.abs(expected).max()
            self.assertAllClose(received, expected, rtol=0, atol=atol, msg=name)


if __name__ == "__main__":
    tf.test.main()
