"""Tests for exports with --litert: files, verification and instructions."""

import contextlib
import dataclasses
import io
import json
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export import serving_module
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.reference import Reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.serving import litert
from tests.support import tiny_exports

_CALL = Call("serving_default", {"text": np.array([b"the cat", b"a"], object)})


def _few(plan):
    """Verifies only a few texts, to save time."""

    def planned(*args):
        found = [
            one
            for one in plan(*args)
            if one.signature != serving_module.TOKENIZE
        ]
        return found[:: max(1, len(found) // 12)]

    return planned


@pytest.mark.slow
class LitertExportTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = tiny_exports.write(folder, tiny_exports.classification())
        output_dir = os.path.join(folder, "m")
        printed = io.StringIO()
        with (
            mock.patch.object(Reference, "plan", _few(Reference.plan)),
            contextlib.redirect_stdout(printed),
        ):
            savedmodel.run(
                SavedModelConfig(
                    model_dir=model,
                    output_dir=output_dir,
                    buckets=tiny_exports.BUCKETS,
                    litert=True,
                    # With so few weights, none becomes int8.
                    litert_quantization="float16",
                )
            )
        cls.printed = printed.getvalue()
        cls.version = os.path.join(output_dir, "1")
        cls.card = json.loads(
            files.read_bytes(os.path.join(cls.version, artifacts.CARD_FILE))
        )

    def test_card_has_the_difference_of_each_engine(self):
        found = {one["check"]: one for one in self.card["verification"]}
        exact = found["serving_default by LiteRT (float32)"]
        rounded = found["serving_default by LiteRT (float16)"]
        self.assertLess(exact["largest_difference"], 1e-5)
        self.assertGreater(rounded["largest_difference"], 1e-5)
        self.assertRegex(rounded["detail"], r"%.* decisions agree")
        self.assertIn("from_ids by LiteRT (float32)", found)
        warmup = found["warm-up by LiteRT (float16)"]
        self.assertIn("one row takes", warmup["detail"])
        self.assertEqual(self.card["export"]["litert"], "float16")
        self.assertContainsSubset(
            {litert.MODEL_FILE, "litert/saved_model.pb"}, self.card["sha256"]
        )

    def test_prints_how_to_serve_it(self):
        self.assertRegex(self.printed, r"run/serve\.py .* --engine=litert")

    def test_graph_around_the_model_has_no_weights(self):
        folder = os.path.join(self.version, litert.FOLDER, "variables")
        sizes = [
            os.path.getsize(os.path.join(folder, name))
            for name in os.listdir(folder)
        ]
        self.assertLess(sum(sizes), 10_000)

    def test_finds_and_counts_differences(self):
        content = files.read_bytes(
            os.path.join(self.version, litert.MODEL_FILE)
        )
        (answer,) = verification.call_litert(self.version, [_CALL])
        other = {
            "probabilities": answer.outputs["probabilities"] + 0.01,
            "label": np.array([answer.outputs["label"][0], b"other"], object),
        }
        for values, largest, share, num_faults in (
            (answer.outputs, 0, "100.00% of 2", 0),
            (other, 0.01, "50.00% of 2", 2),
        ):
            exactly, rounded, warmups = verification.examine_litert(
                self.version,
                "float16",
                [dataclasses.replace(_CALL, expected=Expected(values))],
                [dataclasses.replace(_CALL, repeats=2)],
                content,
            )
            self.assertLen(exactly.faults, num_faults)
            self.assertEmpty(rounded.faults)
            self.assertAllClose(rounded.largest, largest)
            self.assertIn(share, rounded.detail)
            self.assertEmpty(warmups.faults)

    def test_failed_calls_return_the_error(self):
        ids = {
            name: np.full((1, 3), 99, np.int32)
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        (answer,) = verification.call_litert(
            self.version, [Call("from_ids", ids)]
        )
        self.assertIn("INVALID_ARGUMENT", answer.error)
        self.assertIn("`input_ids` must be less than", answer.error)


class RowLengthsTest(tf.test.TestCase):
    def test_row_lengths_end_with_the_last_token_or_the_row(self):
        mask = [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
        for whole, lengths in ((False, [2, 3, 4]), (True, [4, 4, 4])):
            found = serving_module._row_lengths(tf.constant(mask), whole)
            self.assertAllEqual(found, lengths)


class FlagsTest(tf.test.TestCase):
    def test_litert_quantization_needs_litert(self):
        with self.assertRaisesRegex(UserError, "needs --litert"):
            SavedModelConfig(
                model_dir="m", output_dir="o", litert_quantization="float16"
            )


if __name__ == "__main__":
    tf.test.main()
