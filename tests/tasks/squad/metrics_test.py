"""Tests for bert_tf.tasks.squad.metrics."""

import gzip
import json
import pathlib
import random

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from official.nlp.tools import squad_evaluate_v1_1
from official.nlp.tools import squad_evaluate_v2_0

from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.tasks.squad.predictions import NbestPrediction
from bert_tf.tasks.squad.predictions import SquadPrediction
from tests.support.shared_data import golden


def _dataset(**answers):
    """Returns questions with their answers."""
    questions = [
        {"id": id, "question": "?", "answers": [{"text": x} for x in texts]}
        for id, texts in answers.items()
    ]
    return [{"paragraphs": [{"context": "", "qas": questions}]}]


def _predictions(**best):
    """Returns predictions with the best text and the null odds."""
    return [
        SquadPrediction(
            id,
            (NbestPrediction("", 0.5), NbestPrediction(text, 0.4))
            if text
            else (NbestPrediction("", 1.0),),
            null_odds,
        )
        for id, (text, null_odds) in best.items()
    ]


def _evaluate(dataset, *arguments):
    examples = squad_examples.build_examples(dataset, False)
    return squad_metrics.evaluate(examples, *arguments)


def _find_best_threshold(dataset, predictions):
    examples = squad_examples.build_examples(dataset, False)
    return squad_metrics.find_best_threshold(examples, predictions)


class SquadMetricsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        "v1.1_bert_ensemble",
        "v1.1_logistic_regression",
        "v2.0_bert_single",
        "v2.0_nlnet_single",
    )
    def test_published_systems_have_their_published_scores(self, name):
        version = name[1:4]
        dataset = squad_examples.read_dataset(
            golden(f"squad_dev/dev-v{version}.json.gz")
        )
        path = pathlib.Path(golden(f"squad_metrics/{name}.predictions.json.gz"))
        answers = json.loads(gzip.decompress(path.read_bytes()))
        path = pathlib.Path(golden("squad_metrics/expected.json"))
        expected = json.loads(path.read_text(encoding="utf-8"))[name]
        # A system of 1.1 left a question out, which scores 0.
        examples = squad_examples.build_examples(dataset, False)
        answers = dict.fromkeys((x.qas_id for x in examples), "") | answers
        scores = squad_metrics.evaluate(examples, answers, version == "2.0")
        self.assertEqual(list(scores), list(expected))
        for key, value in expected.items():
            self.assertAlmostEqual(scores[key], value, 9)

    def test_scores_equal_those_of_the_official_evaluators(self):
        rng = random.Random(4)
        words = ["", "The", "a-fox", "fox.", "Red", "red", "an", "!", "é", "ox"]
        for _ in range(200):
            texts = [
                [" ".join(rng.choices(words, k=rng.randint(0, 5)))]
                * rng.randint(0, 2)
                + [" ".join(rng.choices(words, k=rng.randint(0, 5)))]
                for _ in range(5)
            ]
            answers = {
                name: rng.choice([" ".join(rng.choices(words, k=4)), *x])
                for name, x in zip("abcde", texts, strict=True)
            }
            dataset = _dataset(**dict(zip("abcde", texts, strict=True)))
            expected = squad_evaluate_v1_1.evaluate(dataset, answers)
            self.assertEqual(
                _evaluate(dataset, answers),
                {
                    "exact_match": 100 * expected["exact_match"],
                    "f1": 100 * expected["final_f1"],
                },
            )
            unanswerable = _dataset(f=[], g=[])
            answers |= {"f": rng.choice(words), "g": ""}
            expected = squad_evaluate_v2_0.evaluate(
                dataset + unanswerable, answers
            )
            scores = _evaluate(dataset + unanswerable, answers, True)
            self.assertLen(scores, 9)
            for name, score in scores.items():
                self.assertEqual(score, expected[name], name)

    def test_equal_odds_are_not_separated(self):
        dataset = _dataset(a=["red"], b=[], c=["blue"])
        predictions = _predictions(
            a=("red", -1.0), b=("wrong", -1.0), c=("blue", 0.5)
        )
        f1, threshold = _find_best_threshold(dataset, predictions)
        # No threshold separates a and b.
        self.assertAlmostEqual(f1, 100 * 2 / 3)
        self.assertEqual(threshold, 0.5)

    def test_question_without_candidates_is_never_answered(self):
        dataset = _dataset(a=[], b=["blue"])
        predictions = _predictions(a=("", -9.0), b=("blue", 3.0))
        f1, threshold = _find_best_threshold(dataset, predictions)
        self.assertEqual(f1, 100.0)
        self.assertEqual(threshold, 3.0)

    def test_search_equals_the_official_one_for_distinct_odds(self):
        rng = np.random.default_rng(0)
        dataset = squad_examples.read_dataset(
            golden("squad_dev/dev-v2.0.json.gz")
        )[:2]
        predictions = []
        for article in dataset:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    words = paragraph["context"].split()[:2]
                    answers = [one["text"] for one in question["answers"]]
                    text = rng.choice([*answers, " ".join(words)])
                    odds = rng.normal() - 2 * bool(answers)
                    predictions += _predictions(
                        **{question["id"]: (str(text), odds)}
                    )
        f1, threshold = _find_best_threshold(dataset, predictions)
        official = squad_evaluate_v2_0.evaluate(
            dataset,
            {one.qas_id: one.best_non_null.text for one in predictions},
            {one.qas_id: one.null_odds for one in predictions},
        )
        self.assertAlmostEqual(f1, official["final_f1"])
        self.assertEqual(threshold, official["final_f1_thresh"])


if __name__ == "__main__":
    tf.test.main()
