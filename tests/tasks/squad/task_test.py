"""Tests of the SQuAD task and of ensembles; goldens have their own."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.tasks.squad.predictions import NbestPrediction
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support.shared_data import golden
from tests.support.squad_files import logits_at

_PIECES = ("who", "?", "ann", "of", "bob", "met", "him")


def _tokenizer():
    return BertTokenizer(Vocabulary([*SPECIAL_TOKENS, *_PIECES]))


def _task(**values):
    lengths = {"max_seq_length": 9, "max_query_length": 2, "doc_stride": 3}
    return SquadTask(**lengths | values)


def _question(id, *answers, question="who?", **values):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": question, "answers": answers, **values}


class SquadTaskTest(files_case.FilesCase):
    def _write(self, *paragraphs):
        """Writes a SQuAD file with contexts and their questions."""
        paragraphs = [
            {"context": context, "qas": list(questions)}
            for context, *questions in paragraphs
        ]
        values = {"data": [{"paragraphs": paragraphs}]}
        return self.write("squad.json", json.dumps(values))

    def _read(self, *paragraphs, split="dev", **values):
        path = self._write(*paragraphs)
        return _task(files={split: path}, **values).read(split)

    def test_refuses_files_with_nothing_to_train_on(self):
        with self.assertRaisesRegex(UserError, "squad.json has nothing to"):
            self._read(("ann", _question("q", ("bob", 0))), split="train")

    def test_questions_without_an_answer_need_version_2(self):
        paragraph = ("ann", _question("a", ("ann", 0)), _question("b"))
        with self.assertRaisesRegex(UserError, "set --version_2_.* is 'b'"):
            self._read(paragraph)
        examples = self._read(paragraph, version_2_with_negative=True)
        self.assertEqual([one.answers for one in examples], [("ann",), ()])
        self.assertTrue(_task().is_labeled(examples))

    def test_logs_questions_without_references(self):
        unknown = {"id": "b", "question": "who?"}
        paragraph = ("ann", _question("a", ("ann", 0)), unknown)
        with self.assertLogs(level="WARNING") as logs:
            examples = self._read(paragraph)
        self.assertRegex("".join(logs.output), "1 of its 2 questions have no")
        self.assertFalse(_task().is_labeled(examples))

    @parameterized.parameters(False, True)
    def test_losses_skip_padding_if_masked(self, mask_padding):
        rng = np.random.default_rng(1)
        outputs = {
            name: rng.normal(size=[2, 5]).astype(np.float32)
            for name in ("start_logits", "end_logits", "pooled_output")
        }
        batch = {
            "input_mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]),
            "start_positions": np.array([1, 0], np.int32),
            "end_positions": np.array([2, 3], np.int32),
        }
        expected = np.zeros([2])
        for row, length in enumerate([3, 4] if mask_padding else [5, 5]):
            for end in ("start", "end"):
                logits = outputs[f"{end}_logits"][row, :length]
                exponentials = np.exp(logits - logits.max())
                probabilities = exponentials / exponentials.sum()
                position = batch[f"{end}_positions"][row]
                expected[row] -= np.log(probabilities[position]) / 2
        task = _task(mask_padding=mask_padding)
        with tf.GradientTape(persistent=True) as tape:
            tensors = tf.nest.map_structure(tf.constant, outputs)
            tape.watch(tensors)
            losses = task.losses(
                tensors, tf.nest.map_structure(tf.constant, batch)
            )
        self.assertAllClose(losses, expected)
        for name in ("start_logits", "end_logits"):
            gradient = tape.gradient(losses, tensors)[name].numpy()
            self.assertEqual(np.any(gradient[0, 3:]), not mask_padding)
            self.assertTrue(np.all(gradient[0, :3]))
            self.assertAllClose(gradient.sum(-1), [0, 0])

    def test_padding_is_not_among_the_n_best(self):
        examples = self._read(("ann met bob", _question("q", ("bob", 8))))
        # [CLS] who ? [SEP] ann met bob [SEP], and two positions of padding.
        logits = logits_at(10, _8=7, _9=6, _6=5, _4=4)
        outputs = {"start_logits": [logits], "end_logits": [logits]}
        answers = []
        for mask_padding in (True, False):
            task = _task(n_best_size=2, mask_padding=mask_padding)
            features = task.featurize(examples, _tokenizer())
            (prediction,) = task.predict(
                examples, features, outputs, _tokenizer()
            )
            answers.append([one.text for one in prediction.nbest])
        self.assertEqual(answers, [["bob", "ann met bob"], ["empty"]])

    def test_json_has_the_answer_its_place_and_scores(self):
        task = _task(version_2_with_negative=True)
        example = task.example_from_row(("who?", "ann met bob"))
        nbest = (
            NbestPrediction("bob", 0.5, 3.0, 2.0, 8, 11),
            NbestPrediction("", 0.3, 2.5, 2.0),
            NbestPrediction("ann", 0.2, 1.5, 2.0, 0, 3),
        )
        prediction = SquadPrediction("", nbest, null_odds=-0.5)
        answer = {
            "id": None,
            "answer": "bob",
            "start": 8,
            "end": 11,
            "score": 0.5,
            "no_answer_score": 0.3,
        }
        self.assertEqual(task.prediction_to_json(example, prediction), answer)
        strict = dataclasses.replace(task, null_score_diff_threshold=-1.0)
        self.assertEqual(
            strict.prediction_to_json(example, prediction),
            answer | {"answer": "", "start": None, "end": None, "score": 0.3},
        )

    def test_json_without_a_candidate_has_an_empty_answer(self):
        task = _task()
        example = task.example_from_row(
            {"id": 7, "question": "who?", "context": "."}
        )
        prediction = SquadPrediction(
            "7", (NbestPrediction("empty", 1.0, 0.0, 0.0),)
        )
        self.assertEqual(
            task.prediction_to_json(example, prediction),
            {
                "id": "7",
                "answer": "",
                "start": None,
                "end": None,
                "score": 0.0,
                "no_answer_score": None,
            },
        )

    def test_threshold_is_chosen_used_and_stored(self):
        """The threshold is selected on dev, used, and stored with the model."""
        examples = self._read(
            (
                "ann met bob",
                _question("a", ("ann", 0)),
                _question("b", ("bob", 8)),
                _question("c"),
            ),
            version_2_with_negative=True,
        )
        predictions = [
            SquadPrediction(
                id,
                (
                    NbestPrediction(text, 0.6, 1.0, 1.0, start, start + 3),
                    NbestPrediction("", 0.4, 1.0, odds - 1.0),
                ),
                null_odds=odds,
            )
            for id, text, start, odds in (
                ("a", "ann", 0, -4.0),
                ("b", "bob", 8, -2.5),
                ("c", "met", 4, -1.0),
            )
        ]
        task = _task(version_2_with_negative=True)
        scores = task.score(examples, predictions)
        self.assertAllClose(scores[task.metric], 200 / 3)
        self.assertAllClose(scores["NoAns_f1"], 0)
        with self.assertLogs(level="INFO") as logs:
            tuned = task.select_threshold(examples, lambda _: predictions)
        self.assertEqual(tuned.null_score_diff_threshold, -2.5)
        self.assertIn("best F1, 100.00, on 3 questions", "".join(logs.output))
        self.assertEqual(tuned.score(examples, predictions)["f1"], 100)

        folder = pathlib.Path(self.create_tempdir().full_path)
        tuned = dataclasses.replace(tuned, files={"test": "t", "dev": "d"})
        tuned.write_report(str(folder), "dev", examples, predictions)
        self.assertEqual(
            json.loads((folder / "predictions.json").read_text()),
            {"a": "ann", "b": "bob", "c": ""},
        )
        tuned.write_report(str(folder), "test", examples, predictions)
        self.assertCountEqual(
            [path.name for path in folder.iterdir()],
            [
                f"{prefix}{name}.json"
                for prefix in ("", "test_")
                for name in ("predictions", "nbest_predictions", "null_odds")
            ],
        )

        given = dataclasses.replace(task, null_score_diff_threshold=-9.0)
        self.assertIs(given.select_threshold(examples, len), given)
        first = _task()
        self.assertIs(first.select_threshold(examples, len), first)

        stored = json.loads(
            json.dumps(dataclasses.replace(tuned, head="bilstm").to_json())
        )
        self.assertEqual(
            dataclasses.replace(SquadTask.from_json(stored), files=tuned.files),
            dataclasses.replace(tuned, head="bilstm"),
        )


def _entries(**probabilities):
    """Returns the n-best entries of a file; `none` is the empty answer."""
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

    def test_ensemble_ranks_by_mean_probability(self):
        paths = self._write(
            {"b": _entries(x=0.6, y=0.4), "a": _entries(z=1.0)},
            {"a": _entries(z=0.5, w=0.5), "b": _entries(y=0.8, x=0.2)},
            {"a": _entries(w=0.7, z=0.3), "b": _entries(x=0.6, v=0.4)},
        )
        predictions = squad_predictions.combine(paths)
        self.assertEqual([one.qas_id for one in predictions], ["b", "a"])
        # Two of three systems prefer x, and its mean is higher than y's.
        self.assertEqual([one.answer() for one in predictions], ["x", "z"])
        first = {one.text: one.probability for one in predictions[0].nbest}
        self.assertEqual(list(first), ["x", "y", "v"])
        self.assertAllClose(list(first.values()), [1.4 / 3, 1.2 / 3, 0.4 / 3])
        self.assertIsNone(predictions[0].null_odds)

    def test_null_odds_come_from_mean_probabilities(self):
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
