"""Requests of ovmsclient, a client of another project, to run/serve.py."""

import json
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  # Operators of exports.
from absl import flags
from absl.testing import parameterized

from tests.support import environments
from tests.support import every_head
from tests.support import live_server

_PROGRAM = os.path.join("tests", "support", "ovmsclient_program.py")
_PACKAGES = ("ovmsclient==2023.1",)
_TEXTS = ["the cat sat", "", '東 caf\u00e9 \U0001f642 the "dog"\'s mat.']
_INPUTS = {
    "classification": {"text": _TEXTS},
    "pair": {"text": _TEXTS, "text_pair": _TEXTS[::-1]},
    "regression": {"text": _TEXTS, "text_pair": _TEXTS[::-1]},
    "question_answering": {
        "question": ["the cat", "東", "dog"],
        "context": _TEXTS,
    },
    "multiple_choice": {
        "text": _TEXTS,
        "choices": [["dog", "the mat ."], ["東", ""], ["on", "cat"]],
    },
    "tagging": {"text": _TEXTS},
    "fill_mask": {"text": [f"{text} [MASK] mat" for text in _TEXTS]},
    "embeddings": {"text": _TEXTS},
}
_MODEL = {"model_name": "pair", "model_version": 1}
_CALLS = {
    "status": ("get_model_status", _MODEL),
    "no_model": (
        "predict",
        {"inputs": {"text": ["a"]}, "model_name": "x", "model_version": 1},
    ),
    "no_version": (
        "predict",
        {"inputs": {"text": ["a"]}, "model_name": "pair", "model_version": 7},
    ),
    "wrong_name": ("predict", {"inputs": {"words": ["a"]}, **_MODEL}),
    "wrong_type": (
        "predict",
        {"inputs": {"text": [1], "text_pair": [2]}, **_MODEL},
    ),
    "unequal": (
        "predict",
        {"inputs": {"text": ["a", "b"], "text_pair": ["a"] * 3}, **_MODEL},
    ),
}


@pytest.mark.environment
class OvmsclientTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        cls.published = every_head.publish()
        calls = {
            name: (
                "predict",
                {"inputs": inputs, "model_name": name, "model_version": 1},
            )
            for name, inputs in _INPUTS.items()
        }
        calls |= _CALLS
        requests = os.path.join(folder, "requests.json")
        answers = os.path.join(folder, "answers.json")
        with open(requests, "w", encoding="utf-8") as file:
            json.dump(
                [
                    {"call": call, "arguments": arguments}
                    for call, arguments in calls.values()
                ],
                file,
            )
        python = environments.make("ovmsclient", *_PACKAGES)
        models = {x: one.output_dir for x, one in cls.published.items()}
        with live_server.serve(folder, models) as (grpc, rest):
            environments.run(*(python, _PROGRAM, grpc, rest, requests, answers))
        with open(answers, encoding="utf-8") as file:
            cls.answers = dict(zip(calls, json.load(file), strict=True))

    @parameterized.parameters(*_INPUTS)
    def test_predict_returns_the_outputs_of_the_file(self, name):
        path = os.path.join(self.published[name].output_dir, "1")
        loaded = tf.saved_model.load(path)
        inputs = {x: tf.constant(texts) for x, texts in _INPUTS[name].items()}
        expected = loaded.signatures["serving_default"](**inputs)
        for answer in self.answers[name]:
            # Both clients drop the name of a single output, so restore it.
            if len(expected) == 1:
                answer = dict.fromkeys(expected, answer)
            self.assertEqual(set(answer), set(expected))
            for output, value in expected.items():
                if value.dtype == tf.string:
                    value = np.char.decode(value.numpy().astype(bytes))
                    self.assertAllEqual(answer[output], value)
                else:
                    self.assertAllClose(answer[output], value, 0, 1e-6)

    def test_status_is_available_over_both_protocols(self):
        over_grpc, over_rest = self.answers["status"]
        expected = {"state": "AVAILABLE", "error_code": 0, "error_message": ""}
        self.assertEqual(over_grpc, {"1": expected})
        self.assertEqual(over_rest, {"1": expected})

    @parameterized.parameters(
        ("no_model", "ModelNotFoundError"),
        ("no_version", "ModelNotFoundError"),
        ("wrong_name", "InvalidInputError"),
        ("wrong_type", "InvalidInputError"),
        ("unequal", "InvalidInputError"),
    )
    def test_errors_have_their_class(self, name, expected):
        for answer in self.answers[name]:
            self.assertEqual(answer["error"], expected, answer["message"])


if __name__ == "__main__":
    tf.test.main()
