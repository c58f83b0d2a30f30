"""Tests for ensembles in bert_tf.tasks.squad.predictions."""

import json
import math
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.squad import predictions as squad_predictions
from tests.support import files_case
from tests.support.shared_data import golden


def _entries(**probabilities):
    """Returns the n best of a file; `none` names the empty answer."""
    return [
        {
            "text": "" if name == "none" else name,
            "probability": probability,
            "start_logit": 1.5,
            "end_logit": -2.0,
        }
        for name, probability in probabilities.items()
    ]


class SquadEnsembleTest(files_case.FilesCase):
    def _write(self, *systems):
        return [
            self.write(f"run_{number}.json", json.dumps(system))
            for number, system in enumerate(systems)
        ]

    def test_mean_probabilities(self):
        paths = self._write(
            {"b": _entries(x=0.6, y=0.4), "a": _entries(z=1.0)},
            {"a": _entries(z=0.5, w=0.5), "b": _entries(y=0.8, x=0.2)},
            {"a": _entries(w=0.7, z=0.3), "b": _entries(x=0.6, v=0.4)},
        )
        predictions = squad_predictions.combine(paths)
        self.assertEqual([one.qas_id for one in predictions], ["b", "a"])
        # Two of three systems prefer x.
        self.assertEqual([one.answer() for one in predictions], ["x", "z"])
        first = {one.text: one.probability for one in predictions[0].nbest}
        self.assertEqual(list(first), ["x", "y", "v"])
        self.assertAllClose(list(first.values()), [1.4 / 3, 1.2 / 3, 0.4 / 3])
        self.assertIsNone(predictions[0].null_odds)

    def test_null_odds(self):
        paths = self._write(
            {"a": _entries(x=0.7, none=0.3), "b": _entries(none=1.0)},
            {"a": _entries(none=0.8, y=0.1, x=0.1), "b": _entries(none=1.0)},
        )
        first, second = squad_predictions.combine(
            paths, version_2_with_negative=True
        )
        self.assertEqual([one.text for one in first.nbest], ["", "x", "y"])
        self.assertAlmostEqual(first.null_odds, math.log(0.55 / 0.4))
        self.assertEqual(first.answer(), "")
        self.assertEqual(first.answer(0.5), "x")
        self.assertEqual(second.answer(1e9), "")
        self.assertGreater(second.null_odds, 600.0)

    def test_single_system_is_unchanged(self):
        path = golden("squad/v2_cased.nbest_predictions.json")
        expected = {
            name: json.loads(
                pathlib.Path(golden(f"squad/{name}.json")).read_text("utf-8")
            )
            for name in (
                "v2_cased.null_odds",
                "v2_cased.predictions",
                "v2_cased.threshold-3.0.predictions",
            )
        }
        predictions = squad_predictions.combine([path], True)
        for threshold, name in (
            (0.0, "v2_cased.predictions"),
            (-3.0, "v2_cased.threshold-3.0.predictions"),
        ):
            self.assertEqual(
                {one.qas_id: one.answer(threshold) for one in predictions},
                expected[name],
            )
        for one in predictions:
            self.assertAlmostEqual(
                one.null_odds, expected["v2_cased.null_odds"][one.qas_id]
            )

    def test_rejects_files_with_other_questions(self):
        paths = self._write(
            {"a": _entries(x=1.0), "b": _entries(x=1.0)},
            {"a": _entries(x=1.0), "c": _entries(x=1.0)},
        )
        with self.assertRaisesRegex(UserError, "run_1.json .*: 2 .* as 'b'"):
            squad_predictions.combine(paths)

    def test_rejects_no_files(self):
        with self.assertRaisesRegex(UserError, "needs the n-best file"):
            squad_predictions.combine([])

    @parameterized.parameters(
        ([], "must hold one JSON object.* Received: list"),
        ({"a": []}, r"question 'a' must have a list .* Received: \[\]"),
        ({"a": "x"}, "question 'a' must have a list .* Received: 'x'"),
        ({"a": [{"probability": 1}]}, r"'a'\[0\] must be .*'text', a string"),
        ({"a": [{"text": "x"}]}, r"'a'\[0\] must have a 'probability'.*None"),
        ({"a": _entries(x=1.5)}, "between 0 and 1. Received: 1.5"),
        ({"a": _entries(x=1.0)}, "'a' lacks the empty answer"),
    )
    def test_rejects_invalid_files(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            squad_predictions.combine(self._write(values), True)


if __name__ == "__main__":
    tf.test.main()
