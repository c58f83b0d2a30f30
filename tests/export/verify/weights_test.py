"""Tests for export.verify.weights."""

import os
import re

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.export.verify import weights
from tests.support import tiny_model

_SELF = "bert/encoder/layer_1/attention/self"


class WeightsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.values = tiny_model.random_weights()

    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        path = tiny_model.write(os.path.join(self.folder, "model"))
        self.stored = model_directory.read_model(path)

    def _compare(self, values, **options):
        """Compares variables with numbers as names, as in exports."""
        checkpoint = tf.train.Checkpoint(
            weights=[tf.Variable(value) for value in values]
        )
        prefix = os.path.join(self.folder, "1", "variables", "variables")
        checkpoint.write(prefix)
        version = os.path.join(self.folder, "1")
        return weights.check(version, self.stored, **options)

    def test_matches_weights_with_any_names(self):
        found = self._compare(self.values.values())
        self.assertEqual(found.faults, ())
        numbers = re.findall(r"\d+", found.detail.replace(",", ""))
        num_variables, parameter_bytes, file_bytes = map(int, numbers)
        self.assertEqual(num_variables, len(self.values))
        self.assertEqual(
            parameter_bytes, sum(x.nbytes for x in self.values.values())
        )
        self.assertGreater(file_bytes, parameter_bytes)

    def test_matches_merged_and_half_precision_weights(self):
        values = dict(self.values)
        for kind in ("kernel", "bias"):
            parts = [
                values.pop(f"{_SELF}/{name}/{kind}")
                for name in ("query", "key", "value")
            ]
            values[f"merged {kind}"] = np.concatenate(parts, -1)
        short = {
            name: tf.cast(value, tf.bfloat16) if "kernel" in name else value
            for name, value in values.items()
        }
        self.assertEqual(self._compare(short.values()).faults, ())

    def test_heads_may_be_missing_but_layers_may_not(self):
        encoder = {
            name: value
            for name, value in self.values.items()
            if name.startswith("bert/") and "pooler" not in name
        }
        self.assertEqual(self._compare(encoder.values()).faults, ())
        first = {n: x for n, x in encoder.items() if "layer_1" not in n}
        (fault,) = self._compare(first.values()).faults
        self.assertIn("weights are missing: bert/encoder/layer_1/", fault)
        found = self._compare(first.values(), num_layers=1)
        self.assertEqual(found.faults, ())

    def test_detects_a_changed_bit(self):
        name = f"{_SELF}/value/kernel"
        changed = self.values[name].copy()
        changed[-1, -1] = np.nextafter(changed[-1, -1], np.float32(9))
        found = self._compare((self.values | {name: changed}).values())
        self.assertLen(found.faults, 2)
        self.assertIn("1 variables are not weights", found.faults[0])
        self.assertIn(f"missing: {name}", found.faults[1])

    def test_detects_weights_stored_twice(self):
        values = list(self.values.values())
        name = next(iter(self.values))
        (fault,) = self._compare([*values, self.values[name]]).faults
        self.assertEqual(fault, f"weights are stored twice: {name}")

    def test_equal_weights_are_distinct(self):
        zeros = {
            name: np.zeros_like(value) if name.endswith("/bias") else value
            for name, value in self.values.items()
        }
        path = os.path.join(self.folder, "zeros")
        model_directory.write(
            path,
            tiny_model.CONFIG,
            zeros,
            None,
            None,
            {"kind": "pretraining"},
            "# Tiny\n",
        )
        self.stored = model_directory.read_model(path)
        self.assertEqual(self._compare(zeros.values()).faults, ())
        # Zeros in half precision match weights that are zero in float32.
        short = [
            tf.cast(value, tf.bfloat16) if "output/dense" in name else value
            for name, value in zeros.items()
        ]
        self.assertEqual(self._compare(short).faults, ())

    def test_rejects_unreadable_variables(self):
        with self.assertRaisesRegex(UserError, "cannot be read"):
            weights.check(self.folder, self.stored)


if __name__ == "__main__":
    tf.test.main()
