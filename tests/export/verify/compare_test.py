"""Tests for export.verify.run: how answers are compared."""

import numpy as np
import tensorflow as tf

from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.run import Answer
from bert_tf.export.verify.run import Comparison

_LABELS = ["no", "ümlaut", "no"]
_PROBABILITIES = np.array([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]], np.float32)


def _expected(doubtful=(False, False, False)):
    return Expected(
        {
            "label": reference.to_array(_LABELS),
            "probabilities": _PROBABILITIES,
        },
        {"label": np.array(doubtful)},
    )


def _find(expected, outputs, tolerance=1e-5, others=()):
    """Returns the comparison of a call, one of several."""
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
            ("start_logits", (0, 1), 5e-5, 0),  # Of next to no probability.
            ("start_logits", (0, 1), 5e-4, 1),  # Too far, whatever it means.
            ("start_logits", (1, 1), 5e-5, 1),  # Of one third.
            ("score", (0, 1), 5e-5, 1),  # Not a logit.
        ):
            actual = logits.copy()
            actual[place] += distance
            found = Comparison(1e-5, {name: 1.0})
            found.add("a call", Expected({name: logits}), {name: actual})
            self.assertLen(found.faults, count, (name, place, distance))
        for distance, count in ((0.5, 0), (3.0, 1)):  # In half precisions.
            actual = logits.copy()
            actual[0, 1] -= distance
            found = _find(
                Expected({"logits": logits}), {"logits": actual}, 2e-2
            )
            self.assertLen(found.faults, count, distance)
        actual[0, 0] = np.nan
        found = _find(Expected({"logits": logits}), {"logits": actual})
        self.assertLen(found.faults, 1)

    def test_rejects_nan(self):
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
