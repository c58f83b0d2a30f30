"""Tests for run/finetune_squad.py, on a tiny model."""

import json

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.commands import finetune_squad
from bert_tf.commands import finetune_squad as script
from bert_tf.commands.finetune_squad import SquadConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.tasks import registry
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import metrics as squad_metrics
from tests.support import command_case
from tests.support import squad_files
from tests.support import tiny_model

# Contexts with words of `tiny_model`, and answers in them.
_TRAIN = (
    ("the cat sat on the mat, the dog sat.", "the cat"),
    ("dog, cat.", "dog"),
    ("on mats the cat sat. the dog sat on it, the cat sat", "mats"),
    ("the dog sat on cats.", "cats"),
    ("sat", "sat"),
)
_DEV = (
    ("cat", "cat"),
    ("the mat sat on the dog, the cat, the mat. the cat sat.", "dog"),
    ("dogs sat", "dogs"),
    ("the cat sat on the mat.", None),
    ("on dogs the cats sat.", "cats"),
)


def _dataset(paragraphs, labelled=True):
    """Returns a question about each paragraph; None means no answer."""
    rows = [
        (context, "cat sat on"[: number + 4], answer)
        for number, (context, answer) in enumerate(paragraphs)
    ]
    return squad_files.dataset(rows, labelled)


class _Case(command_case.CommandCase):
    def setUp(self):
        super().setUp()
        tiny_model.write(
            str(self.folder / "tiny"),
            kind="encoder",
            config=tiny_model.ONE_LAYER,
        )

    def write(self, name, dataset):
        return squad_files.write(self.folder / name, dataset)

    def config(self, **values):
        """Returns flags that train on five questions and predict three."""
        defaults = {
            "pretrained_model_dir": str(self.folder / "tiny"),
            "output_dir": str(self.output),
            "do_train": True,
            "do_predict": True,
            "train_file": self.write("train.json", _dataset(_TRAIN)),
            "predict_file": self.write("dev.json", _dataset(_DEV[:3])),
            "max_seq_length": 12,
            "doc_stride": 2,
            "max_query_length": 3,
            "train_batch_size": "4",
            "num_train_epochs": "2",
            "learning_rate": "1e-2",
        }
        return SquadConfig(**defaults | values)

    def run_script(self, **values):
        """Runs the script; returns its log."""
        with self.assertLogs(level="INFO") as logs:
            script.main(self.config(**values))
        return "\n".join(logs.output)


class FinetuneSquadTest(_Case):
    @pytest.mark.slow
    def test_squad_1_run_writes_scored_answers(self):
        log = self.run_script()
        # Some paragraphs have several windows, so there are 10 rows or more.
        self.assertRegex(log, r"train.json: 5 examples, \d\d rows")
        answers = self.read_json("predictions.json")
        self.assertEqual(list(answers), ["q0", "q1", "q2"])
        data = squad_examples.read_dataset(str(self.folder / "dev.json"))
        examples = squad_examples.build_examples(data, False)
        scores = self.read_json("eval_results.json")["dev"]
        self.assertEqual(scores, squad_metrics.evaluate(examples, answers))
        results = (self.output / "eval_results.txt").read_text()
        self.assertRegex(results, rf"eval_f1 = {scores['f1']:.4f}")
        self.assertFalse((self.output / "null_odds.json").exists())
        nbest = self.read_json("nbest_predictions.json")
        self.assertEqual(
            answers, {id: entries[0]["text"] for id, entries in nbest.items()}
        )

        with self.subTest("the model directory predicts the same"):
            stored = formats.read(str(self.output / "model"))
            model = checkpoint_loading.build_model(stored)
            task = registry.from_stored(stored)
            self.assertEqual(task.max_query_length, 3)
            predictor = Predictor(model, task, stored.build_tokenizer())
            examples = list(task.read_inputs(str(self.folder / "dev.json")))
            described = predictor.describe(examples)
            self.assertEqual(
                {one["id"]: one["answer"] for one in described}, answers
            )
            for one, (context, _) in zip(described, _DEV, strict=False):
                self.assertEqual(
                    context[one["start"] : one["end"]], one["answer"]
                )
            # A zero-width space is no token, so the answer must be empty.
            (nothing,) = predictor.describe(
                [task.example_from_row(("cat", "\u200b"))]
            )
            self.assertEqual(nothing["answer"], "")
            written = self.lines("dev_predictions.jsonl")
            self.assertEqual(
                [one["start"] for one in written],
                [one["start"] for one in described],
            )

        with self.subTest("what is shown may change"):
            log = self.run_script(verbose_logging=True)
            self.assertIn("Resumed at step", log)

        with self.subTest("windows that the model cannot read"):
            with self.assertRaisesRegex(UserError, "at most 12, .*: 13"):
                self.run_script(
                    do_train=False, pretrained_model_dir=None, max_seq_length=13
                )

        with self.subTest("predicting only, a file without answers"):
            path = self.write("test.json", _dataset(_DEV[:3], labelled=False))
            output = self.folder / "again"
            self.run_script(
                do_train=False,
                predict_file=path,
                pretrained_model_dir=str(self.output / "model"),
                output_dir=str(output),
            )
            self.assertEqual(
                json.loads((output / "predictions.json").read_text()), answers
            )
            self.assertFalse((output / "eval_results.txt").exists())

    @pytest.mark.slow
    def test_squad_2_run_chooses_the_best_threshold(self):
        dev = self.write("dev2.json", _dataset(_DEV))
        values = {
            "version_2_with_negative": True,
            "predict_file": dev,
            "train_file": self.write(
                "train2.json", _dataset(_TRAIN + _DEV[3:])
            ),
        }
        log = self.run_script(**values)
        self.assertIn("is the one with the best F1", log)
        threshold = self.read_json("model/task.json")[
            "null_score_diff_threshold"
        ]
        answers = self.read_json("predictions.json")
        null_odds = self.read_json("null_odds.json")
        self.assertEqual(
            {id for id, text in answers.items() if not text},
            {id for id, odds in null_odds.items() if odds > threshold},
        )
        scores = self.read_json("eval_results.json")["dev"]
        data = squad_examples.read_dataset(dev)
        examples = squad_examples.build_examples(data, False)
        self.assertEqual(
            scores, squad_metrics.evaluate(examples, answers, True)
        )
        # No other threshold may score better: these leave none, some or all
        # answers empty.
        nbest = self.read_json("nbest_predictions.json")
        best = {
            id: next(one["text"] for one in entries if one["text"])
            for id, entries in nbest.items()
        }
        for other in (min(null_odds.values()) - 1, *null_odds.values()):
            changed = {
                id: "" if odds > other else best[id]
                for id, odds in null_odds.items()
            }
            worse = squad_metrics.evaluate(examples, changed, True)
            self.assertLessEqual(worse["f1"], scores["f1"])

        with self.subTest("later the threshold is that of the model"):
            later = values | {"do_train": False, "pretrained_model_dir": None}
            log = self.run_script(**later)
            self.assertIn(f"{threshold:.6g} is from the model", log)
            self.assertEqual(self.read_json("predictions.json"), answers)
        with self.subTest("unless another one is given"):
            log = self.run_script(**later, null_score_diff_threshold=-1e4)
            self.assertIn("-10000 is from --null_score_diff", log)
            self.assertEqual(
                set(self.read_json("predictions.json").values()), {""}
            )
        with self.subTest("a model that is done keeps what is not asked for"):
            self.run_script(**values | {"do_predict": False})
            task = self.read_json("model/task.json")
            self.assertEqual(task["null_score_diff_threshold"], threshold)
            self.assertEqual(task["results"]["dev"], scores)

    @pytest.mark.slow
    def test_threshold_is_tuned_in_a_later_run(self):
        values = {
            "version_2_with_negative": True,
            "predict_file": self.write("dev2.json", _dataset(_DEV)),
        }
        self.run_script(**values, do_predict=False)
        task = self.read_json("model/task.json")
        self.assertIsNone(task["null_score_diff_threshold"])
        later = values | {"do_train": False}
        elsewhere = later | {
            "pretrained_model_dir": str(self.output / "model"),
            "output_dir": str(self.folder / "elsewhere"),
        }
        self.assertIn("is not stored in", self.run_script(**elsewhere))
        self.assertEqual(self.read_json("model/task.json"), task)
        log = self.run_script(**later, pretrained_model_dir=None)
        chosen = self.read_json("model/task.json")
        self.assertIsNotNone(chosen["null_score_diff_threshold"])
        self.assertIn("null_score_diff_threshold", log)
        self.assertEqual(chosen | {"null_score_diff_threshold": None}, task)
        stored = formats.read(str(self.output / "model"))
        predictor = Predictor(
            checkpoint_loading.build_model(stored),
            registry.from_stored(stored),
            stored.build_tokenizer(),
        )
        examples = list(predictor.task.read_inputs(values["predict_file"]))
        self.assertEqual(
            {x["id"]: x["answer"] for x in predictor.describe(examples)},
            self.read_json("predictions.json"),
        )

    def test_predicts_with_a_fine_tuned_model(self):
        stored = {"head": "bilstm", "doc_stride": 9, "max_answer_length": 30}
        with self.assertLogs(level="WARNING") as logs:
            task = finetune_squad.build_task(
                self.config(do_train=False), stored
            )
        self.assertEqual(task.head, "bilstm")
        self.assertEqual(task.doc_stride, 2)
        (message,) = logs.output
        self.assertIn("trained with --doc_stride=9 and is used with 2", message)

    def test_one_length_bucket_does_not_mask_padding(self):
        for buckets, masked in ((0, True), (1, False), (2, True)):
            task = finetune_squad.build_task(
                self.config(num_length_buckets=buckets), None
            )
            self.assertEqual(task.mask_padding, masked)

    def test_checks_predict_file_before_training(self):
        dev = self.write("dev2.json", _dataset(_DEV))
        with self.assertRaisesRegex(UserError, "--version_2_with_negative"):
            self.run_script(predict_file=dev)
        test = self.write("test.json", _dataset(_DEV, labelled=False))
        with self.assertRaisesRegex(UserError, "test.json cannot be scored"):
            self.run_script(predict_file=test, do_eval=True)
        for values in ({"keep_best": True}, {"num_restarts": 2}):
            with self.assertRaisesRegex(UserError, "test.json cannot be score"):
                self.run_script(predict_file=test, **values)
        self.assertFalse(self.output.exists())

    @parameterized.parameters(
        ({"train_file": None}, "--do_train needs --train_file"),
        ({"predict_file": None}, "--do_predict .* need --predict_file"),
        ({"max_seq_length": 6}, "--max_query_length [+] 3 = 6. Received: 6"),
        (
            {"num_restarts": 2, "do_predict": False},
            "Several trials.* need --do_eval",
        ),
        ({"doc_stride": 0}, "--doc_stride must be at least 1"),
        (
            {"triviaqa_file": "t.json"},
            "--triviaqa_file needs --triviaqa_evidence_dir",
        ),
        (
            {
                "triviaqa_file": "t.json",
                "triviaqa_evidence_dir": "t",
                "do_train": False,
            },
            "--triviaqa_file needs --do_train",
        ),
        (
            {
                "triviaqa_file": "t.json",
                "triviaqa_evidence_dir": "t",
                "learning_rate": "1e-4,1e-5",
                "do_eval": True,
            },
            "one value each",
        ),
        ({"ensemble_nbest_files": "a.json"}, "cannot be used with --do_train"),
        ({"new_pooler": True}, "--new_pooler has no effect on this task"),
    )
    def test_refuses_conflicting_flags(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            self.config(**values)


class TriviaQaTest(_Case):
    def _write_triviaqa(self):
        evidence = self.folder / "evidence"
        evidence.mkdir()
        for name, text in (
            ("Cat.txt", "The cat sat on the mat.\n\nThe dog sat."),
            ("Dog.txt", "The dog sat on cats."),
        ):
            (evidence / name).write_text(text)
        pages = [{"Filename": f"{x}.txt"} for x in ("Cat", "Dog", "Missing")]
        questions = [
            {
                "QuestionId": f"t{number}",
                "Question": "dog sat",
                "Answer": {"Value": x, "Aliases": [], "NormalizedAliases": []},
                "EntityPages": pages,
            }
            for number, x in enumerate(("mat", "Dog"))
        ]
        path = self.folder / "wikipedia-train.json"
        path.write_text(json.dumps({"Data": questions}))
        return {
            "triviaqa_file": str(path),
            "triviaqa_evidence_dir": str(evidence),
            "train_batch_size": "2",
            "num_train_epochs": "1",
        }

    @pytest.mark.thorough
    def test_fine_tunes_on_triviaqa_then_squad(self):
        values = self._write_triviaqa()
        log = self.run_script(**values)
        self.assertIn(
            "2 questions with 6 documents; 1 have no answer near their start "
            "and 2 are missing",
            log,
        )
        converted = self.read_json("triviaqa/train.json")
        self.assertLen(converted["data"], 3)
        first = str(self.output / "triviaqa" / "model")
        self.assertIn(f"The head is from {first}", log)
        self.assertFalse((self.output / "triviaqa/predictions.json").exists())
        answers = self.read_json("predictions.json")
        self.assertLen(answers, 3)
        weights = formats.read(str(self.output / "model")).weights
        before = formats.read(first).weights
        name = "cls/squad/output_weights"
        self.assertNotAllClose(weights[name], before[name])

        with self.subTest("what is done is not done again"):
            files_before = (self.output / "triviaqa/model/README.md").stat()
            log = self.run_script(**values)
            self.assertIn("The fine-tuning on TriviaQA is done", log)
            self.assertNotIn("documents; ", log)
            self.assertEqual(
                (self.output / "triviaqa/model/README.md").stat(), files_before
            )
            self.assertEqual(self.read_json("predictions.json"), answers)


class EnsembleTest(_Case):
    def _write_nbest(self, **systems):
        """Writes a file for each system: question to answer to probability."""
        for name, questions in systems.items():
            files.write_json(
                str(self.folder / f"{name}.nbest.json"),
                {
                    id: [
                        {"text": text, "probability": probability}
                        for text, probability in answers.items()
                    ]
                    for id, answers in questions.items()
                },
            )
        return str(self.folder / "*.nbest.json")

    def _config(self, **values):
        return {
            "do_train": False,
            "train_file": None,
            "pretrained_model_dir": None,
        } | values

    def test_squad_2_ensemble_chooses_the_best_threshold(self):
        paths = self._write_nbest(
            one={
                f"q{number}": {"cat": 1 - null, "": null}
                for number, null in enumerate((0.7, 0.9, 0.9, 0.8, 0.9))
            }
        )
        dev = self.write("dev2.json", _dataset(_DEV))
        log = self.run_script(
            **self._config(
                ensemble_nbest_files=paths,
                predict_file=dev,
                version_2_with_negative=True,
            )
        )
        self.assertIn("is the one with the best F1, 40.00", log)
        answers = self.read_json("predictions.json")
        self.assertEqual([answers["q0"], answers["q3"]], ["cat", ""])

    def test_nbest_of_other_questions_is_refused(self):
        paths = self._write_nbest(one={"q0": {"cat": 1.0}})
        with self.assertRaisesRegex(
            UserError, "about the questions of .*dev.json.*: 2 .* as 'q1'"
        ):
            self.run_script(**self._config(ensemble_nbest_files=paths))


if __name__ == "__main__":
    tf.test.main()
