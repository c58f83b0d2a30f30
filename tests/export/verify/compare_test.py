"""Tests for export.verify.compare."""

import numpy as np
import tensorflow as tf

from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify import texts
from bert_tf.export.verify.calls import Answer
from bert_tf.export.verify.calls import Call
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.reference import ReferenceOutputs

_LABELS = ["no", "ümlaut", "no"]
_PROBABILITIES = np.array([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]], np.float32)


def _expected(doubtful=(False, False, False)):
    return ReferenceOutputs(
        {
            "label": texts.to_array(_LABELS, ""),
            "probabilities": _PROBABILITIES,
        },
        {"label": np.array(doubtful)},
    )


def _compare(**changes):
    outputs = dict(_expected().values) | changes
    return comparison.compare(_expected(), outputs, 1e-5, {})


class CompareTest(tf.test.TestCase):
    def test_names_the_first_wrong_number(self):
        changed = _PROBABILITIES.copy()
        changed[1:, 1] += np.float32(0.001)
        (fault,) = _compare(probabilities=changed).faults
        self.assertIn("probabilities is 0.301 in row 1", fault)
        self.assertIn("should be 0.3 (2 of 6", fault)

    def test_numbers_may_differ_in_the_last_bits_of_the_largest(self):
        small = ReferenceOutputs({"score": np.array([0.5], np.float32)})
        large = ReferenceOutputs({"score": np.array([-1e4, 2], np.float32)})
        scales = comparison.measure_scales([small, large, _expected()])
        self.assertEqual(scales, {"score": 1e4, "probabilities": 1.0})
        for expected, place in ((small, 0), (large, 0), (large, 1)):
            for distance, count in ((0.05, 0), (0.2, 1)):
                actual = expected.values["score"].copy()
                actual[place] += distance
                found = comparison.compare(
                    expected, {"score": actual}, 1e-5, scales
                )
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
            found = comparison.compare(
                ReferenceOutputs({name: logits}),
                {name: actual},
                1e-5,
                {name: 1.0},
            )
            self.assertLen(found.faults, count, (name, place, distance))
        for distance, count in ((0.5, 0), (3.0, 1)):  # In half precisions.
            actual = logits.copy()
            actual[0, 1] -= distance
            found = comparison.compare(
                ReferenceOutputs({"logits": logits}),
                {"logits": actual},
                2e-2,
                {},
            )
            self.assertLen(found.faults, count, distance)
        actual[0, 0] = np.nan
        found = comparison.compare(
            ReferenceOutputs({"logits": logits}), {"logits": actual}, 1e-5, {}
        )
        self.assertLen(found.faults, 1)

    def test_rejects_nan(self):
        changed = _PROBABILITIES.copy()
        changed[2, 0] = np.nan
        found = _compare(probabilities=changed)
        self.assertLen(found.faults, 1)
        self.assertEqual(found.largest, np.inf)

    def test_texts_must_be_equal(self):
        changed = texts.to_array(["no", "umlaut", "no"], "")
        (fault,) = _compare(label=changed).faults
        self.assertIn("label is 'umlaut' in row 1", fault)
        self.assertIn("'ümlaut'", fault)

    def test_doubtful_choices_may_differ_only_in_their_rows(self):
        changed = texts.to_array(["no", "ümlaut", "yes"], "")
        outputs = dict(_expected().values) | {"label": changed}
        for doubtful, count in (
            ((False, False, True), 0),
            ((True, True, False), 1),
        ):
            found = comparison.compare(_expected(doubtful), outputs, 1e-5, {})
            self.assertLen(found.faults, count)
            self.assertEqual(found.num_compared, 9 - sum(doubtful))

    def test_names_shapes_and_dtypes_must_match(self):
        values = dict(_expected().values)
        del values["label"]
        found = comparison.compare(_expected(), values, 1e-5, {})
        self.assertIn("returns probabilities instead", found.faults[0])
        for changed, form in (
            (_PROBABILITIES[:2], "<float32>[2, 2]"),
            (_PROBABILITIES.astype(np.float64), "<float64>[3, 2]"),
        ):
            (fault,) = _compare(probabilities=changed).faults
            self.assertIn(form, fault)

    def test_other_axes_of_an_empty_batch_may_differ(self):
        none = ReferenceOutputs({"tokens": np.empty((0, 4), object)})
        for shape, count in (((0, 0), 0), ((1, 4), 1), ((0,), 1)):
            outputs = {"tokens": np.empty(shape, object)}
            found = comparison.compare(none, outputs, 1e-5, {})
            self.assertLen(found.faults, count)


def _judge(expected, outputs):
    planned = [
        Planned(
            f"call {number}", Call("attention", {}), ReferenceOutputs(values)
        )
        for number, values in enumerate(expected)
    ]
    answers = [Answer(outputs=values) for values in outputs]
    (check,) = comparison.check_answers(planned, answers, "a client", 1e-5)
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
