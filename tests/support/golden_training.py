"""Model, batch and trajectory of the golden for the optimizer."""

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.training import optimizer as optimizers
from tests.support.shared_data import golden


def read_trajectory():
    """Returns learning rate, schedule and the losses before each step."""
    return files.read_json(golden("model/optimizer_trajectory.json"))


def read_batch():
    """Returns the pretraining features of the trajectory's only batch."""
    stored = np.load(golden("model/forward.npz"))
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    batch = {name: np.int32(stored[name]) for name in names}
    return batch | {
        "masked_lm_ids": np.int32(stored["masked_lm_ids"]),
        "masked_lm_weights": np.float32(stored["masked_lm_weights"]),
        "next_sentence_labels": np.int32(
            stored["next_sentence_labels"]
        ).reshape(-1, 1),
    }


def read_checkpoint(name):
    """Returns the tensors of one of the golden checkpoints."""
    return tf1_checkpoint.read(golden("model") + f"/{name}")


def build(fuse=False):
    """Returns the golden model with its initial weights, and the optimizer."""
    config = files.read_bert_config(golden("model/bert_config.json"))
    model = bert_model.BertForPretraining(config, fuse=fuse)
    checkpoint_loading.load_into(model, read_checkpoint("bert_model.ckpt"))
    return model, build_optimizer(model)


def build_optimizer(model):
    """Returns the optimizer of the trajectory."""
    trajectory = read_trajectory()
    optimizer = optimizers.build_optimizer(
        "bert_adam",
        trajectory["learning_rate"],
        trajectory["num_train_steps"],
        trajectory["num_warmup_steps"],
    )
    optimizer.build(model.trainable_variables)
    return optimizer


def assert_same_state(test: tf.test.TestCase, received, expected):
    """Compares all weights, slots and the step with the golden's tolerances."""
    test.assertEqual(set(received), set(expected))
    for name, value in expected.items():
        if "/key/bias/" in name:
            # The gradient of a key bias is 0 but for rounding.
            test.assertLess(np.abs(received[name]).max(), 1e-8, name)
            continue
        test.assertAllClose(
            received[name],
            value,
            rtol=0,
            atol=1e-4 * np.abs(value).max(),
            msg=name,
        )
