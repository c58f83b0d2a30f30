"""Requests and reference outputs of ids exports, for other projects' programs.

A program reads a JSON list of requests. In each, `directory` is a SavedModel,
`inputs` an .npz file with arrays named CALL:INPUT, and `outputs` the .npz file
to write, with arrays named CALL:OUTPUT.
"""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Reference
from bert_tf.serving import model_config
from tests.support import every_head

_TOLERANCE = 1e-5


class IdsRequests:
    """Requests for the exports of every head.

    Args:
      folder: The folder for the files.

    Attributes:
      path: The file of requests.
    """

    def __init__(self, folder):
        self._planned = {}
        self._outputs = {}
        requests = []
        for name, published in every_head.publish().items():
            directory = model_config.find_version(published.ids_dir)
            self._planned[name] = _plan(directory, published.model_dir)
            inputs = os.path.join(folder, f"{name}_inputs.npz")
            arrays = {
                f"{number}:{key}": array
                for number, one in enumerate(self._planned[name])
                for key, array in one.inputs.items()
            }
            np.savez(inputs, **arrays)
            self._outputs[name] = os.path.join(folder, f"{name}_outputs.npz")
            requests.append(
                {
                    "directory": directory,
                    "inputs": inputs,
                    "outputs": self._outputs[name],
                }
            )
        self.path = os.path.join(folder, "requests.json")
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(requests, file)

    def compare(self, name):
        """Compares a program's answers with the reference outputs.

        Args:
          name: The head.

        Returns:
          The largest difference, and the faults.
        """
        answers = [{} for _ in self._planned[name]]
        with np.load(self._outputs[name]) as arrays:
            for key in arrays:
                number, _, output = key.partition(":")
                answers[int(number)][output] = arrays[key]
        scales = verification.measure_scales(
            one.expected for one in self._planned[name]
        )
        found = verification.Comparison(_TOLERANCE, scales)
        for one, outputs in zip(self._planned[name], answers, strict=True):
            found.add(one.description, one.expected, outputs)
        return found.largest, found.faults


class IdsCase(tf.test.TestCase, parameterized.TestCase):
    """Compares a program's outputs; `ask` runs it for a file of requests."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        cls.requests = IdsRequests(folder)
        cls.ask(cls.requests.path)

    def check(self, name):
        """Compares the outputs of a head with the model's."""
        largest, faults = self.requests.compare(name)
        self.assertEmpty(faults)
        # Other programs round differently; 0 would mean that none ran.
        self.assertGreater(largest, 0)


def _plan(directory, model_dir):
    signatures = artifacts.read_signatures(directory)
    stored = checkpoint_loading.read(model_dir, flag="--model_dir")
    artifact = artifacts.read(directory)
    head = savedmodel.restore_head(artifact, stored)
    model = checkpoint_loading.build_model(
        stored, head.model_kind, **reference.OUTPUTS
    )
    expected = Reference(head, model, _TOLERANCE, artifact.ids_only)
    planned = list(expected.plan(signatures))
    if not planned:
        raise ValueError(f"There is no call for {directory}.")
    return planned
