"""Files for clients on phones and in browsers, and programs that run them."""

import functools
import json
import os
import pathlib
import re
import tempfile

import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import model_directory
from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL
from bert_tf.text import packing
from tests.support import client_models
from tests.support import environments
from tests.support import tiny_builds
from tests.support.client_models import ASCII_TEXTS
from tests.support.client_models import OTHER_TEXTS

_HERE = pathlib.Path(__file__).parent
# Requirements of each client, which runs in its own environment.
MEDIAPIPE = ("mediapipe==1.2.2",)
OLD_MEDIAPIPE = ("mediapipe==0.10.21",)
TASK_LIBRARY = ("tflite-support==0.4.4", "libusb-package==1.0.30.0")
OLD_RUNTIME = ("tflite-runtime==2.14.0", "numpy==1.26.4")
TOLERANCE = 1e-5

folder = tiny_builds.folder

# The normalizations of the models, and the flags of the export.
FIXED = {"batch_size": 1, "max_seq_length": client_models.LENGTH}
FILES = {
    "fixed": (ASCII_LOWER, FIXED),
    "free": (ASCII_LOWER, {"dynamic_shapes": True}),
    "original": (ORIGINAL, FIXED),
    "float16": (ASCII_LOWER, {**FIXED, "quantization": "float16"}),
    "int8": (ASCII_LOWER, {**FIXED, "quantization": "dynamic"}),
    "old int8": (
        ASCII_LOWER,
        {**FIXED, "quantization": "dynamic", "compatibility": "2.14"},
    ),
}
TOLERANCES = {"float16": 5e-3, "int8": 0.05, "old int8": 0.05}
# Old runtimes cannot read files for newer ones, so OLD_CASES is shorter.
NEW_CASES = ("fixed", "free", "original", "float16", "int8", "old int8")
OLD_CASES = ("fixed", "free", "original", "float16", "old int8")


@functools.cache
def models():
    """Returns the directories of classifiers by normalization."""
    return client_models.write_both(folder(), client_models.classification())


@functools.cache
def path_of(case):
    normalization, values = FILES[case]
    path = os.path.join(folder(), f"{case}.tflite")
    return client_models.export(models()[normalization], path, **values)


def texts(case):
    """Returns texts that a file's model and its clients tokenize alike."""
    normalization, _ = FILES[case]
    if normalization == ORIGINAL:
        return list(ASCII_TEXTS)
    return [*ASCII_TEXTS, *OTHER_TEXTS]


@functools.cache
def compute(case):
    """Returns the probabilities of each text, <float32>[texts, labels]."""
    normalization, values = FILES[case]
    # Files with dynamic shapes do not truncate, so all texts must fit.
    length = values.get("max_seq_length", client_models.QA_LENGTH)
    return probabilities(models()[normalization], texts(case), length)


def probabilities(path, texts, length=client_models.LENGTH):
    """Returns the probabilities of texts from the model in a directory."""
    tokenizer = model_directory.read_model(path).build_tokenizer()
    packed = packing.pack(
        tokenizer.tokenize(texts), None, length, tokenizer.vocabulary
    )
    logits = bert_tf.load_model(path)(packed)["logits"]
    return tf.nn.softmax(logits).numpy()


def environment_name(packages):
    """Returns the name of a client's environment."""
    return re.sub("[^a-z0-9]+", "_", packages[0])


def send(program, packages, requests):
    """Runs a program in an environment; returns its answers."""
    path = tempfile.mkdtemp(dir=folder())
    paths = [os.path.join(path, x) for x in ("requests", "answers")]
    pathlib.Path(paths[0]).write_text(json.dumps(requests))
    python = environments.make(environment_name(packages), *packages)
    environments.run(*(python, str(_HERE / program), *paths))
    return json.loads(pathlib.Path(paths[1]).read_text("utf-8"))


def check(test, case, answers):
    """Compares the answers of a client to `texts(case)` with the model.

    Args:
      test: A test case.
      case: A key of `FILES`.
      answers: Scores by label, for each text.
    """
    expected = compute(case)
    for scores in answers:
        test.assertCountEqual(scores, client_models.LABELS)
    actual = [
        [scores[label] for label in client_models.LABELS] for scores in answers
    ]
    test.assertAllClose(
        actual, expected, rtol=0, atol=TOLERANCES.get(case, TOLERANCE)
    )
