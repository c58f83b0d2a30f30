"""Test-case mixin of `fit` and `evaluate`, with rows and labels."""

import tempfile

import keras
import numpy as np

import bert_tf
from tests.support import tiny_model

TEXTS = ["the cat sat on the mat", "dogs sat", "the dog", "cat", "a mat ."]
LABELS = ["good", "bad", "bad", "good", "bad"]
IDS = [1, 0, 0, 1, 0]
QUESTIONS = (
    ["cat ?", "on"],
    ["the dog sat on the mat .", "東 dogs . The cat, the cat"],
)
ANSWERS = (["mat", "dogs"], [19, 2])
SENTENCES = [["the", "cat", "sat", "mats"], ["dogs"]]
CHOICES = [
    {"context": "the cat", "choices": ["sat", "dog"]},
    {"context": "the", "choices": ["cat", "dog", "mat"]},
]
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def scores(model, x, y):
    """Returns the scores of a model by name."""
    return model.evaluate(x, y, verbose=0, return_dict=True)


def softmax_losses(logits, labels):
    logits = np.asarray(logits, np.float64)
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    chosen = np.take_along_axis(probabilities, labels[..., None], -1)
    return -np.log(chosen[..., 0])


def compiled(**values):
    """Returns arguments of `compile`; SGD keeps no state."""
    return {
        "optimizer": "sgd",
        "loss": CROSS_ENTROPY,
        "metrics": ["accuracy"],
    } | values


class FitCase:
    """Mixin of test cases: new models of each kind."""

    config = tiny_model.ONE_LAYER

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(tempfile.mkdtemp(), config=cls.config)

    @classmethod
    def new(cls, kind="classification", compiled=None, **options):
        """Returns the same new model each time; eager unless compiled."""
        keras.utils.set_random_seed(7)
        if kind == "classification" and "num_labels" not in options:
            options.setdefault("labels", ["bad", "good"])
        model = bert_tf.load_model(cls.path, kind, **options)
        if compiled is not None:
            model.compile(run_eagerly=True, **compiled)
        return model
