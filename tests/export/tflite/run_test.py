"""Tests for export.tflite.run: from flags to a file."""

import dataclasses
import hashlib
import json
import os
import sys
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import run as tflite_export
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.run import Comparison
from bert_tf.inference.lite_model import LiteModel
from bert_tf.text.tokenizer import BertTokenizer
from tests.support import client_models
from tests.support import tiny_builds


class RunTest(tf.test.TestCase, parameterized.TestCase):
    def _config(self, name="classification", **flags):
        self.folder = self.create_tempdir().full_path
        path = os.path.join(self.folder, "new", "tiny.tflite")
        return dataclasses.replace(
            tiny_builds.config(name), **{"output_file": path} | flags
        )

    @pytest.mark.slow
    def test_writes_a_file_and_its_report_and_prints_its_size(self):
        config = self._config(quantization="dynamic", max_seq_length=8)
        with mock.patch.object(sys.stdout, "write") as write:
            tflite_export.run(config)
        with open(config.output_file, "rb") as file:
            content = file.read()
        with open(config.output_file + ".json", encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["bytes"], len(content))
        self.assertEqual(report["sha256"], hashlib.sha256(content).hexdigest())
        self.assertEqual(report["head"], "classification")
        self.assertEqual(report["labels"], ["no", "yes", "ümlaut"])
        self.assertEqual(report["quantization"], "dynamic")
        self.assertEqual(report["max_seq_length"], 8)
        self.assertIsNone(report["batch_size"])
        self.assertGreater(report["operators"]["FULLY_CONNECTED"], 4)
        self.assertEqual(report["verification"]["num_values"], 24)
        self.assertIn("agreement", report["verification"])
        self.assertStartsWith(report["command"], "python export/tflite.py --m")
        self.assertCountEqual(
            os.listdir(os.path.dirname(config.output_file)),
            ["tiny.tflite", "tiny.tflite.json"],
        )
        (printed,) = [call.args[0] for call in write.call_args_list]
        self.assertIsNone(report["measured"])
        self.assertRegex(printed, r"tiny.tflite \(dynamic\)\n0\.\d MB\n")
        self.assertIn("MediaPipe and the Task Library", printed)

    @parameterized.parameters(
        ({"max_seq_length": 13}, "--max_seq_length must be at most 12"),
        ({"top_k": 7}, "--top_k is for --head=fill_mask.*with the head class"),
        ({"head": "fill_mask"}, "can be exported with --head=classification"),
        ({"model_dir": "nowhere"}, "'nowhere', and there is no such path"),
    )
    def test_invalid_flags_raise_one_sentence(self, flags, message):
        config = self._config(**flags)
        with self.assertRaisesRegex(UserError, message):
            tflite_export.run(config)
        self.assertEmpty(os.listdir(self.folder))

    def test_a_failed_verification_leaves_no_files(self):
        config = self._config()
        run = LiteModel.run

        def wrong(self, inputs):
            # Only rows from the fourth on are wrong, so all must be checked.
            answer = run(self, inputs)
            return {
                name: x + 2e-4 * (np.arange(len(x)) > 2)[:, np.newaxis]
                for name, x in answer.items()
            }

        content = tiny_builds.make("classification").content
        with (
            mock.patch.object(conversion, "convert", lambda *_, **__: content),
            mock.patch.object(tflite_export.LiteModel, "run", wrong),
            self.assertRaisesRegex(
                UserError, "to within 0.0001. Received: .*is .*should be"
            ),
        ):
            tflite_export.run(config)
        self.assertEmpty(os.listdir(self.folder))


def _client_build(head="classification", pair=False, reads="ids", **settings):
    """Returns the parts of a `Build` that `find_warning` reads."""
    tokenizer = BertTokenizer(client_models.VOCABULARY, **settings)
    return types.SimpleNamespace(
        name=head,
        config=types.SimpleNamespace(input=reads),
        head=types.SimpleNamespace(tokenizer=tokenizer, pair=pair),
    )


class WarningTest(tf.test.TestCase, parameterized.TestCase):
    def test_warns_of_letters_that_clients_read_otherwise(self):
        warning = tflite_export.find_warning(_client_build())
        self.assertRegex(warning, "only ASCII.*not ASCII.*=ascii_lower")
        cased = tflite_export.find_warning(_client_build(lower_case=False))
        self.assertRegex(cased, "all ASCII.*cased.*capitals.*=ascii_lower")

    @parameterized.parameters(
        {"normalization": ASCII_LOWER},
        {"reads": "text"},
        {"pair": True},
        {"head": "tagging"},
    )
    def test_does_not_warn_without_differences(self, **values):
        self.assertIsNone(tflite_export.find_warning(_client_build(**values)))


class VerificationTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (None, [[0, 1, 2, 3, 4]]),
        (1, [[0], [1], [2], [3], [4]]),
        (2, [[0, 1], [2, 3], [4, 4]]),
        (7, [[0, 1, 2, 3, 4, 0, 1]]),
    )
    def test_calls_have_the_batch_size_of_the_file(self, size, expected):
        rows = {"ids": np.arange(5), "mask": 10 + np.arange(5)}
        calls = list(tflite_export.split(rows, size))
        self.assertEqual([x["ids"].tolist() for x in calls], expected)
        for call in calls:
            self.assertAllEqual(call["mask"], call["ids"] + 10)


class AgreementTest(tf.test.TestCase):
    def _count(self, name, expected, actual, head="classification", **task):
        """Returns the share of equal decisions in an output, if it has any."""
        task = types.SimpleNamespace(**task)
        build = types.SimpleNamespace(
            name=head, head=types.SimpleNamespace(task=task)
        )
        found = Comparison(None, {}, tflite_export._decisions(build))
        for first, second in zip(expected, actual, strict=True):
            outputs = {name: np.array(second)}
            found.add("a call", Expected({name: np.array(first)}), outputs)
        if name not in found.equal:
            return None
        equal, count = found.equal[name]
        return equal / count

    def test_agreement_is_over_all_calls(self):
        share = self._count(
            "probabilities",
            [[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3]], [[0.2, 0.8]]],
            [[[0.6, 0.4], [0.5, 0.4]], [[0.9, 0.1]], [[0.1, 0.9]]],
        )
        self.assertEqual(share, 0.75)

    def test_positions_are_chosen_from_each_row(self):
        share = self._count("start_logits", [[[1, 5, 2]]], [[[1, 2, 5]]])
        self.assertEqual(share, 0.0)

    def test_independent_labels_are_counted_separately(self):
        share = self._count(
            "probabilities",
            [[[0.9, 0.6, 0.1, 0.2]]],
            [[[0.6, 0.4, 0.3, 0.5]]],
            problem_type="multi_label",
            assigned_from=0.5,
        )
        self.assertEqual(share, 0.5)

    def test_only_first_candidates_count(self):
        # Two rows with two masks (one is padding) and two candidates each.
        expected = [[[[4, 5], [6, 7]], [[8, 9], [-1, -1]]]]
        actual = [[[[4, 6], [7, 6]], [[8, 9], [-1, -1]]]]
        share = self._count("token_ids", expected, actual, head="fill_mask")
        self.assertEqual(share, 0.75)

    def test_embeddings_have_a_lowest_cosine(self):
        found = tflite_export._least_cosine(
            np.array([[1.0, 0.0], [0.0, 2.0]]),
            np.array([[3.0, 0.0], [2.0, 2.0]]),
        )
        self.assertAllClose(found, 0.5**0.5)

    def test_scores_have_no_agreement(self):
        self.assertIsNone(self._count("score", [[1.0]], [[2.0]]))


if __name__ == "__main__":
    tf.test.main()
