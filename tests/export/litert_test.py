"""Tests for exports with --litert: what is written, verified and told."""

import contextlib
import dataclasses
import io
import json
import os
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import litert_module
from bert_tf.export import savedmodel
from bert_tf.export.verify import calls as replay_plan
from bert_tf.export.verify import litert as litert_verification
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.expectation import Expected
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.serving import litert
from tests.support import in_process
from tests.support import tiny_exports

_CALL = Call("serving_default", {"text": np.array([b"the cat", b"a"], object)})


def _few(plan):
    """Leaves out most texts, for haste."""

    def planned(*args):
        found = [
            one
            for one in plan(*args)
            if one.call.signature != replay_plan.TOKENIZE
        ]
        return found[:: max(1, len(found) // 12)]

    return planned


class LitertExportTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = tiny_exports.write(folder, tiny_exports.classification())
        output_dir = os.path.join(folder, "m")
        printed = io.StringIO()
        with (
            in_process.verifying(),
            mock.patch.object(replay_plan, "plan", _few(replay_plan.plan)),
            contextlib.redirect_stdout(printed),
        ):
            savedmodel.run(
                SavedModelConfig(
                    model_dir=model,
                    output_dir=output_dir,
                    buckets=tiny_exports.BUCKETS,
                    litert=True,
                    # Of so few weights none becomes int8.
                    litert_quantization="float16",
                )
            )
        cls.printed = printed.getvalue()
        cls.version = os.path.join(output_dir, "1")
        cls.card = json.loads(
            files.read_bytes(os.path.join(cls.version, artifacts.CARD_FILE))
        )

    def test_card_says_how_far_each_form_is_from_the_model(self):
        found = {one["check"]: one for one in self.card["verification"]}
        exact = found["serving_default by LiteRT (float32)"]
        rounded = found["serving_default by LiteRT (float16)"]
        self.assertLess(exact["largest_difference"], 1e-5)
        self.assertGreater(rounded["largest_difference"], 1e-5)
        self.assertRegex(rounded["detail"], r"%.* choices are the model's")
        self.assertIn("from_ids by LiteRT (float32)", found)
        warmup = found["warm-up by LiteRT (float16)"]
        self.assertIn("one row takes", warmup["detail"])
        self.assertEqual(self.card["export"]["litert"], "float16")
        self.assertContainsSubset(
            {litert.MODEL_FILE, "litert/saved_model.pb"}, self.card["sha256"]
        )

    def test_tells_how_to_serve_it(self):
        self.assertRegex(self.printed, r"run/serve\.py .* --engine=litert")

    def test_the_graph_around_the_model_has_no_weights(self):
        folder = os.path.join(self.version, litert.FOLDER, "variables")
        sizes = [
            os.path.getsize(os.path.join(folder, name))
            for name in os.listdir(folder)
        ]
        self.assertLess(sum(sizes), 10_000)

    def test_what_differs_is_found_and_counted(self):
        client = litert_verification.InLitert("LiteRT", self.version)
        content = files.read_bytes(
            os.path.join(self.version, litert.MODEL_FILE)
        )
        (said,) = client.ask([_CALL])
        other = {
            "probabilities": said.outputs["probabilities"] + 0.01,
            "label": np.array([said.outputs["label"][0], b"other"], object),
        }
        for values, largest, share, num_faults in (
            (said.outputs, 0, "100.00% of 2", 0),
            (other, 0.01, "50.00% of 2", 2),
        ):
            exactly, rounded, warmups = litert_verification.examine(
                self.version,
                "float16",
                [Planned("texts", _CALL, Expected(values))],
                [Planned("one", dataclasses.replace(_CALL, repeats=2), None)],
                content,
            )
            self.assertLen(exactly.faults, num_faults)
            self.assertEmpty(rounded.faults)
            self.assertAllClose(rounded.largest, largest)
            self.assertIn(share, rounded.detail)
            self.assertEmpty(warmups.faults)

    def test_an_empty_batch_has_no_choices(self):
        wanted = {"tags": np.zeros([0, 3], object)}
        given = {"tags": np.zeros([0, 0], object)}
        counts = litert_verification._count_equal(wanted, given)
        self.assertEqual(counts, (0, 0))

    def test_a_fault_is_an_answer(self):
        client = litert_verification.InLitert("LiteRT", self.version)
        ids = {
            name: np.full((1, 3), 99, np.int32)
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        (answer,) = client.ask([Call("from_ids", ids)])
        self.assertIn("INVALID_ARGUMENT", answer.error)
        self.assertIn("`input_ids` must be below", answer.error)


class RowLengthsTest(tf.test.TestCase):
    def test_end_behind_the_last_piece_or_with_the_row(self):
        mask = [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
        for whole, lengths in ((False, [2, 3, 4]), (True, [4, 4, 4])):
            found = litert_module._row_lengths(tf.constant(mask), whole)
            self.assertAllEqual(found, lengths)


class FlagsTest(tf.test.TestCase):
    def test_how_weights_are_kept_is_of_use_with_litert_only(self):
        with self.assertRaisesRegex(UserError, "of use with --litert only"):
            SavedModelConfig(
                model_dir="m", output_dir="o", litert_quantization="float16"
            )


if __name__ == "__main__":
    tf.test.main()
