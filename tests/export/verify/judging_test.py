"""Tests for export.judging."""

import numpy as np
import tensorflow as tf

from bert_tf.export.verify import judging
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Answer
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.clients import FreshProcess
from bert_tf.export.verify.expectation import Expected


def _judge(expected, outputs):
    planned = [
        Planned(f"call {number}", Call("attention", {}), Expected(values))
        for number, values in enumerate(expected)
    ]
    answers = [Answer(outputs=values) for values in outputs]
    client = FreshProcess("1", has_text_operators=True)
    (check,) = judging.judge(planned, answers, client, 1e-5)
    return check


class JudgingTest(tf.test.TestCase):
    def test_what_is_equal_is_right(self):
        values = {"score": np.array([0.25, 0.5], np.float32)}
        check = _judge([values], [values])
        self.assertEqual(check.faults, ())
        self.assertIn("2 values", check.detail)

    def test_a_fault_names_its_call(self):
        values = {"score": np.array([0.25, 0.5], np.float32)}
        others = {"score": np.array([0.25, 0.75], np.float32)}
        check = _judge([values, values], [values, others])
        self.assertLen(check.faults, 1)
        self.assertStartsWith(check.faults[0], "call 1: ")
        self.assertAlmostEqual(check.largest, 0.25)

    def test_comparing_nothing_is_a_fault(self):
        check = _judge([{}], [{}])
        self.assertEqual(check.faults, ("nothing was compared",))


if __name__ == "__main__":
    tf.test.main()
