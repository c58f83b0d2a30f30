"""Tests of verification: wrong exports, and how answers are compared."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export import serving_module
from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.run import Answer
from bert_tf.export.verify.run import Comparison
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.serving import model_config
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_exports
from tests.support import tiny_model

_EMBEDDINGS = "bert/embeddings/word_embeddings"
_PAIRS = (
    ("the cat", "東 DOG cafe\u0301 sitting."),
    ("the mats on " * 9, ""),
    ("", "dog , mats " * 9),
)
_ROWS = [{"text": first, "text_pair": second} for first, second in _PAIRS]


def setUpModule():
    # These batches are enough to find the faults made here. The tests of other
    # programs send all batches of the exporter.
    mock.patch.object(
        Reference, "batches", lambda self: [_ROWS[:1], _ROWS]
    ).start()


def tearDownModule():
    mock.patch.stopall()


def _export(folder):
    """Exports a classifier of pairs; returns model and version directory."""
    model = tiny_exports.write(folder, tiny_exports.classification(pair=True))
    version = tiny_exports.export(model, os.path.join(folder, "pairs"))
    export = savedmodel.prepare(
        SavedModelConfig(
            model_dir=model,
            output_dir=os.path.join(folder, "pairs"),
            buckets=tiny_exports.BUCKETS,
        )
    )
    savedmodel.complete(version, tiny_exports.artifact(), export)
    return model, version


@pytest.mark.slow
class VerifyTest(files_case.FolderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model, cls.version = _export(os.path.join(cls.root, "right"))

    def _copy(self):
        """Returns a copy of the version directory to modify."""
        path = self.path("1")
        shutil.copytree(self.version, path)
        return path

    def _faults(self, version, model=None):
        artifact = artifacts.read(version)
        stored = checkpoint_loading.read(model or self.model)
        report = savedmodel.compare(version, artifact, stored)
        with self.assertRaisesRegex(UserError, "differs from"):
            report.require_correct()
        return {
            check.name.partition(" by ")[0]: check.faults
            for check in report.checks
            if check.faults
        }

    def test_accepts_a_correct_export(self):
        report = savedmodel.verify(self.version, self.model)
        self.assertEmpty(report.faults)
        names = [check.name.partition(" by ")[0] for check in report.checks]
        self.assertContainsSubset(
            (
                "vocabulary",
                "serving_default",
                "from_ids",
                "from_examples",
                "tokenize",
                "classify",
                "attention",
                "warm-up",
                "files",
            ),
            names,
        )
        numbers = [check.largest for check in report.checks if check.largest]
        self.assertNotEmpty(numbers)
        self.assertLess(max(numbers), verification.TOLERANCES["float32"])
        self.assertNotIn("WRONG", report.text())

    def test_detects_a_changed_weight(self):
        version = self._copy()
        _change_checkpoint(version, checkpoint_loading.read(self.model))
        faults = self._faults(version)
        self.assertContainsSubset(
            ("serving_default", "from_ids", "attention"), faults
        )
        self.assertNotIn("tokenize", faults)

    def test_variables_that_cannot_be_read_raise_one_sentence(self):
        version = self._copy()
        os.remove(os.path.join(version, "variables", "variables.index"))
        with self.assertRaisesRegex(UserError, "that TensorFlow can load"):
            savedmodel.verify(version, self.model)

    def test_detects_another_vocabulary(self):
        # Two ids are swapped, so equal words get other ids.
        tokens = list(tiny_model.TOKENS)
        first, second = tokens.index("cat"), tokens.index("mat")
        tokens[first], tokens[second] = tokens[second], tokens[first]
        stored = checkpoint_loading.read(self.model)
        other = self.path("other")
        weights = dict(stored.weights)
        tiny_model.write_weights(
            other, stored.config, weights, stored.task, Vocabulary(tokens)
        )
        faults = self._faults(self._copy(), other)
        self.assertIn("not the vocabulary", faults["vocabulary"][0])
        self.assertIn("input_ids is ", faults["tokenize"][0])
        self.assertIn("serving_default", faults)
        # Calls with ids read no vocabulary, so they have no faults.
        self.assertNotIn("from_ids", faults)

    def test_detects_a_missing_signature(self):
        version = self._copy()
        with _edited(version) as meta_graph:
            del meta_graph.signature_def["from_ids"]
        faults = self._faults(version)
        self.assertEqual(faults["signatures"], ("there is no from_ids",))

    def test_detects_a_failing_warm_up_request(self):
        version = self._copy()
        inputs = {"body": np.array([b"the cat"], object)}
        call = Call("serving_default", inputs)
        path = os.path.join(version, artifacts.WARMUP_FILE)
        reference.write_requests(path, "pairs", [call])
        with mock.patch.object(Reference, "plan", lambda *_: []):
            faults = self._faults(version)
        self.assertIn("request 0 fails", faults["warm-up"][0])

    def test_detects_changed_files(self):
        version = self._copy()
        with open(os.path.join(version, "batching_params.pbtxt"), "a") as file:
            file.write("# more\n")
        os.remove(os.path.join(version, artifacts.LABELS_FILE))
        check = verification.check_files(version)
        self.assertCountEqual(
            check.faults,
            [
                f"{artifacts.LABELS_FILE} is missing",
                "batching_params.pbtxt was changed after the export",
            ],
        )

    def test_invalid_exports_raise_one_sentence(self):
        for path in (self.folder, self.path("nothing")):
            with self.assertRaisesRegex(UserError, "--export_dir must be"):
                savedmodel.verify(path, self.model)
        version = self._copy()
        self.assertEqual(model_config.find_version(self.folder), version)
        os.remove(os.path.join(version, artifacts.CARD_FILE))
        with self.assertRaisesRegex(UserError, "model_card.json"):
            savedmodel.verify(self.folder, self.model)

    def test_exporter_does_not_publish_a_wrong_export(self):
        output = self.path("out")
        config = SavedModelConfig(
            model_dir=self.model, output_dir=output, buckets="8"
        )

        def plan(*arguments):
            (first, *_) = of_export(*arguments)
            wrong = {n: x[::-1] for n, x in first.expected.values.items()}
            expected = dataclasses.replace(first.expected, values=wrong)
            # The reverse of one row is the row itself, so change its label.
            wrong["label"] = np.array([b"never"], object)
            return [dataclasses.replace(first, expected=expected)]

        of_export = Reference.plan
        with (
            mock.patch.object(Reference, "plan", plan),
            self.assertRaisesRegex(UserError, "label is .*should be 'never'"),
        ):
            savedmodel.run(config)
        self.assertFalse(os.path.exists(output))


def _change_checkpoint(version, stored):
    prefix = os.path.join(version, "variables", "variables")
    reader = tf.train.load_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
    values = {name: reader.get_tensor(name) for name in names}
    (embeddings,) = (
        name
        for name, value in values.items()
        if np.array_equal(value, stored.weights[_EMBEDDINGS])
    )
    values[embeddings] = values[embeddings].copy()
    values[embeddings][tiny_model.TOKENS.index("cat"), 0] += 0.1
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(values[name]) for name in names],
    )


@contextlib.contextmanager
def _edited(version):
    path = os.path.join(version, serving_module.FILE)
    saved_model = saved_model_pb2.SavedModel.FromString(files.read_bytes(path))
    yield saved_model.meta_graphs[0]
    files.write_bytes(path, saved_model.SerializeToString())


_LABELS = ["no", "ümlaut", "no"]
_PROBABILITIES = np.array([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]], np.float32)


def _expected(doubtful=(False, False, False)):
    return Expected(
        {"label": reference.to_array(_LABELS), "probabilities": _PROBABILITIES},
        {"label": np.array(doubtful)},
    )


def _find(expected, outputs, tolerance=1e-5, others=()):
    scales = verification.measure_scales([expected, *others])
    found = Comparison(tolerance, scales)
    found.add("a call", expected, outputs)
    return found


def _compare(**changes):
    return _find(_expected(), dict(_expected().values) | changes)


class CompareTest(tf.test.TestCase):
    def test_names_the_first_wrong_number(self):
        changed = _PROBABILITIES.copy()
        changed[1:, 1] += np.float32(0.001)
        (fault,) = _compare(probabilities=changed).faults
        self.assertIn("probabilities is 0.301 in row 1", fault)
        self.assertIn("should be 0.3 (2 of 6", fault)

    def test_numbers_may_differ_in_the_last_bits_of_the_largest(self):
        small = Expected({"score": np.array([0.5], np.float32)})
        large = Expected({"score": np.array([-1e4, 2], np.float32)})
        scales = verification.measure_scales([small, large, _expected()])
        self.assertEqual(scales, {"score": 1e4, "probabilities": 1.0})
        for expected, place in ((small, 0), (large, 0), (large, 1)):
            for distance, count in ((0.05, 0), (0.2, 1)):
                actual = expected.values["score"].copy()
                actual[place] += distance
                found = _find(expected, {"score": actual}, others=[large])
                self.assertLen(found.faults, count)
                self.assertAllClose(found.largest, distance / 1e4, atol=1e-7)

    def test_logits_may_differ_more_than_probabilities(self):
        logits = np.array([[9.0, -2.0, 1.0], [0.5, 0.25, 0.0]], np.float32)
        for name, place, distance, count in (
            ("start_logits", (0, 1), 5e-5, 0),  # Almost no probability.
            ("start_logits", (0, 1), 5e-4, 1),  # Too far in any case.
            ("start_logits", (1, 1), 5e-5, 1),  # A probability of 1/3.
            ("score", (0, 1), 5e-5, 1),  # Not a logit.
        ):
            actual = logits.copy()
            actual[place] += distance
            found = Comparison(1e-5, {name: 1.0})
            found.add("a call", Expected({name: logits}), {name: actual})
            self.assertLen(found.faults, count, (name, place, distance))
        for distance, count in ((0.5, 0), (3.0, 1)):  # In half precision.
            actual = logits.copy()
            actual[0, 1] -= distance
            found = _find(
                Expected({"logits": logits}), {"logits": actual}, 2e-2
            )
            self.assertLen(found.faults, count, distance)
        actual[0, 0] = np.nan
        found = _find(Expected({"logits": logits}), {"logits": actual})
        self.assertLen(found.faults, 1)

    def test_nan_counts_as_a_fault(self):
        changed = _PROBABILITIES.copy()
        changed[2, 0] = np.nan
        found = _compare(probabilities=changed)
        self.assertLen(found.faults, 1)
        self.assertEqual(found.largest, np.inf)

    def test_texts_must_be_equal(self):
        changed = reference.to_array(["no", "umlaut", "no"])
        (fault,) = _compare(label=changed).faults
        self.assertIn("label is 'umlaut' in row 1", fault)
        self.assertIn("'ümlaut'", fault)

    def test_doubtful_choices_may_differ_only_in_their_rows(self):
        changed = reference.to_array(["no", "ümlaut", "yes"])
        outputs = dict(_expected().values) | {"label": changed}
        for doubtful, count in (
            ((False, False, True), 0),
            ((True, True, False), 1),
        ):
            found = _find(_expected(doubtful), outputs)
            self.assertLen(found.faults, count)
            self.assertEqual(found.num_compared, 9 - sum(doubtful))

    def test_names_shapes_and_dtypes_must_match(self):
        values = dict(_expected().values)
        del values["label"]
        found = _find(_expected(), values)
        self.assertIn("returns probabilities instead", found.faults[0])
        for changed, form in (
            (_PROBABILITIES[:2], "<float32>[2, 2]"),
            (_PROBABILITIES.astype(np.float64), "<float64>[3, 2]"),
        ):
            (fault,) = _compare(probabilities=changed).faults
            self.assertIn(form, fault)

    def test_other_axes_of_an_empty_batch_may_differ(self):
        none = Expected({"tokens": np.empty((0, 4), object)})
        for shape, count in (((0, 0), 0), ((1, 4), 1), ((0,), 1)):
            outputs = {"tokens": np.empty(shape, object)}
            found = _find(none, outputs)
            self.assertLen(found.faults, count)


class CountTest(tf.test.TestCase):
    def _count(self, name, expected, actual):
        """Returns the numbers of equal decisions, and of all decisions."""
        outputs = {name: np.array(actual)}
        found = _find(Expected({name: np.array(expected)}), outputs, None)
        self.assertEmpty(found.faults)
        counts = found.equal.get(name)
        return counts if counts is None else counts.tolist()

    def test_padding_and_numbers_are_no_decisions(self):
        tags = np.array([[b"O", b"B"], [b"O", b""]], object)
        other = np.array([[b"O", b"I"], [b"O", b""]], object)
        self.assertEqual(self._count("tags", tags, other), [2, 3])
        self.assertEqual(self._count("index", [1, 2], [1, 0]), [1, 2])
        self.assertIsNone(self._count("score", [0.5], [0.7]))

    def test_an_empty_batch_has_no_choices(self):
        shapes = [np.zeros([0, x], object) for x in (3, 0)]
        self.assertIsNone(self._count("tags", *shapes))

    def test_numbers_in_other_places_and_nan_are_faults(self):
        expected = Expected({"score": np.array([0.5], np.float32)})
        for actual in (np.array([np.nan], np.float32), np.zeros([2])):
            self.assertLen(_find(expected, {"score": actual}, None).faults, 1)


def _judge(expected, outputs):
    calls = [
        Call("attention", {}, f"call {number}", Expected(values))
        for number, values in enumerate(expected)
    ]
    answers = [Answer(outputs=values) for values in outputs]
    (check,) = verification.check_answers(calls, answers, "a client", 1e-5)
    return check


class CheckAnswersTest(tf.test.TestCase):
    def test_equal_answers_have_no_faults(self):
        values = {"score": np.array([0.25, 0.5], np.float32)}
        check = _judge([values], [values])
        self.assertEqual(check.faults, ())
        self.assertIn("2 values", check.detail)

    def test_comparing_nothing_is_a_fault(self):
        check = _judge([{}], [{}])
        self.assertEqual(check.faults, ("nothing was compared",))


if __name__ == "__main__":
    tf.test.main()
