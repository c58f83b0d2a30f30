"""Tests for export.heads.question_answering."""

import dataclasses
import random

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.export.heads.head import Source
from bert_tf.export.heads.question_answering import QuestionAnswering
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.task import SquadTask
from tests.support import squad_goldens
from tests.support import tiny_exports
from tests.support import tiny_model

_LENGTH = 12
_TASK = SquadTask(
    max_seq_length=_LENGTH,
    doc_stride=3,
    max_query_length=4,
    version_2_with_negative=True,
    null_score_diff_threshold=-0.5,
)
_ROWS = (
    ("the cat?", "The  cat\tsat on\u202fthe mats. " * 4),
    ("dog", "東 dog  sat"),
    ("mat mat mat mat mat mat", "the \U0001f642 C\u0301ats. "),
    ("東", "cat"),
    ("the " * 9, " \t\u200b \x00"),  # No tokens.
    ("cat", "cat\u200b \u200b\u200dcat \x00 c\0at\0 \ufdd0\uffff cat"),
    ("cat", "\u00e1cat a\u0301cat cat\u00a0cat CAT \u0130cats \uac00cat"),
    ("cat", "\U0001f642cat[UNK]cat [MASK] cat\u1b4ecat \U0001f642"),
    ("cat", "\u6771\u6771cat\u3002\u4e2d\u6771\u6771\u6771\u3002\u6771"),
)
_INPUTS = ("input_ids", "input_mask", "segment_ids")


_TOKENIZERS = (
    {},
    {"strip_accents": False},
    {"lower_case": False, "preserve_special_tokens": True},
    {"normalization": ASCII_LOWER},
)


def _texts(count, seed):
    """Returns pairs of questions and paragraphs of unequal lengths."""
    rng = random.Random(seed)
    words = [*"the cat dog sat on mats matting . , 東".split(), "\u00e9", "x y"]
    words += ["cat-dog", "東東", "the\u200b", "\nsat"]

    def text(most):
        chosen = rng.choices(words, k=rng.randint(1, most))
        return "".join(x + rng.choice(("", " ", "  ")) for x in chosen)

    return [(text(6), text(rng.choice((3, 30)))) for _ in range(count)]


def _logits(shape, seed, are_whole):
    """Returns random logits, with ties if they are whole numbers."""
    logits = np.random.default_rng(seed).normal(size=(2, *shape), scale=2)
    starts, ends = np.float32(np.round(logits) if are_whole else logits)
    return {"start_logits": starts, "end_logits": ends}


def _strings(rows):
    questions, contexts = zip(*rows, strict=True) if rows else ((), ())
    return {
        "question": tf.constant(questions, tf.string),
        "context": tf.constant(contexts, tf.string),
    }


def _head(task=_TASK, lengths=(_LENGTH,), **settings):
    tokenizer = tiny_model.tokenizer(**settings)
    return QuestionAnswering(tokenizer, _LENGTH, lengths, task)


def _predict(head, texts, logits):
    """Returns the examples and the library's predictions for them."""
    examples = [squad_examples.make_example("", *row) for row in texts]
    features = head.task.featurize(examples, head.tokenizer)
    outputs = {name: list(x) for name, x in logits.items()}
    return examples, head.task.predict(
        examples, features, outputs, head.tokenizer
    )


def _describe(answer):
    """Returns the answers in the form of `SquadTask.prediction_to_json`."""
    names = ("answer", "start", "end", "score", "no_answer_score")
    columns = [answer[name].numpy().tolist() for name in names]
    rows = [
        dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
    ]
    for row in rows:
        row["answer"] = row["answer"].decode()
        row |= {x: None for x in ("start", "end") if row[x] < 0}
    return rows


class WindowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("v1_uncased", "v2_cased")
    def test_cuts_the_windows_of_the_original(self, name):
        config, expected = squad_goldens.read_features(name)
        head = squad_goldens.build_head(config)
        strings = squad_goldens.read_questions(config)
        rows = head.pack({x: tf.constant(y) for x, y in strings.items()})
        for key in _INPUTS:
            self.assertAllEqual(rows.inputs[key], [x[key] for x in expected])
        is_max_context = np.zeros(rows.inputs["input_ids"].shape, bool)
        for row, window in enumerate(expected):
            for place, value in window["token_is_max_context"].items():
                is_max_context[row, int(place)] = value
        self.assertAllEqual(rows.state["is_max_context"], is_max_context)


class QuestionAnsweringTest(tf.test.TestCase, parameterized.TestCase):
    def _compare(self, answers, expected):
        self.assertLen(answers, len(expected))
        for answer, one in zip(answers, expected, strict=True):
            one = {**one, "no_answer_score": one["no_answer_score"] or 0.0}
            numbers = ("score", "no_answer_score")
            self.assertAllClose(
                [answer.pop(name) for name in numbers],
                [one.pop(name) for name in numbers],
                rtol=0,
                atol=1e-6,
            )
            one.pop("id")
            self.assertEqual(answer, one)

    @parameterized.parameters(
        ("v1_uncased", None, "v1_uncased"),
        ("v2_cased", 0.0, "v2_cased"),
        ("v2_cased", -3.0, "v2_cased.threshold-3.0"),
    )
    def test_chooses_the_answers_of_the_original(
        self, name, threshold, expected
    ):
        config, _ = squad_goldens.read_features(name)
        head = squad_goldens.build_head(
            config, null_score_diff_threshold=threshold
        )
        strings = squad_goldens.read_questions(config)
        rows = head.pack({x: tf.constant(y) for x, y in strings.items()})
        answers = _describe(head.answer(squad_goldens.read_logits(name), rows))
        predictions = squad_goldens.read_json(f"{expected}.predictions.json")
        n_best = squad_goldens.read_json(f"{expected}.nbest_predictions.json")
        self.assertEqual(
            [answer["answer"] for answer in answers], list(predictions.values())
        )
        for answer, context, entries in zip(
            answers, strings["context"], n_best.values(), strict=True
        ):
            probs = {x["text"]: x["probability"] for x in entries}
            # A few n-best texts of the original differ, so compare only two.
            self.assertAllClose(
                [answer["score"], answer["no_answer_score"]],
                [probs[answer["answer"]], probs.get("", 0.0)],
                atol=1e-4,
            )
            self.assertEqual(
                context[answer["start"] or 0 : answer["end"] or 0],
                answer["answer"],
            )

    @parameterized.parameters(
        {"n_best_size": 1},
        {"n_best_size": 1, "version_2_with_negative": False},
        {"n_best_size": 3, "max_answer_length": 2},
        {"n_best_size": 20},
        {"version_2_with_negative": False, "doc_stride": 1},
    )
    def test_random_logits_give_the_answers_of_the_library(self, **values):
        task = dataclasses.replace(_TASK, **values)
        num_answers = set()
        for seed, settings in enumerate(_TOKENIZERS):
            head = _head(task, (5, 8, _LENGTH), **settings)
            texts = [*_ROWS, *_texts(60, seed)]
            rows = head.pack(_strings(texts))
            shape = rows.inputs["input_ids"].shape
            logits = _logits(shape, seed, are_whole=seed % 2 == 0)
            examples, predictions = _predict(head, texts, logits)
            expected = list(map(task.prediction_to_json, examples, predictions))
            self._compare(_describe(head.answer(logits, rows)), expected)
            num_answers |= {one["answer"] for one in expected}
        self.assertGreater(len(num_answers), 20)

    def test_equal_long_tokens_count_as_distinct(self):
        # Texts over 1,024 bytes are not compared, so both tokens count.
        head = _head()
        context = f"cat {'x' * 2000} dog {'x' * 2000} cat"
        rows = head.pack(_strings([("cat", context)]))
        logits = np.zeros([1, _LENGTH], np.float32)
        logits[0, [4, 6]] = 3, 2
        answer = head.answer(
            {"start_logits": logits, "end_logits": logits}, rows
        )
        self.assertEqual(answer["answer"].numpy()[0].decode(), "x" * 2000)
        self.assertEqual(answer["start"].numpy()[0], 4)
        scores = np.exp(np.add.outer(logits[0, 3:8], logits[0, 3:8]))
        # The two "cat" count as one span, but "no answer" adds a score of 1,
        # too, so the sum is the same as over all spans.
        self.assertAllClose(
            answer["score"].numpy()[0],
            scores[1, 1] / scores[np.triu_indices(5)].sum(),
            rtol=1e-5,
        )

    def test_ignores_invalid_utf8(self):
        head = _head()
        texts = [
            (b"the\xff cat", b"\xe6\x9d the \xe6\x9d\xb1\xc0 \xffmat \xff")
        ]
        valid = [tuple(x.decode("utf-8", "ignore") for x in texts[0])]
        answers = []
        for rows in (texts, valid):
            packed = head.pack(_strings(rows))
            logits = _logits(packed.inputs["input_ids"].shape, 1, False)
            answers.append(_describe(head.answer(logits, packed)))
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0][0]["answer"], "")

    def test_squad_1_answer_without_spans_is_empty(self):
        task = dataclasses.replace(_TASK, version_2_with_negative=False)
        head = _head(task)
        rows = head.pack(_strings([("the cat", " "), ("cat", "dog")]))
        self.assertEqual(rows.inputs["input_ids"].shape, [1, _LENGTH])
        logits = _logits(rows.inputs["input_ids"].shape, 0, False)
        answers = _describe(head.answer(logits, rows))
        nothing = {"answer": "", "start": None, "end": None}
        scores = {"score": 0.0, "no_answer_score": 0.0}
        self.assertEqual(answers[0], nothing | scores)
        self.assertEqual(answers[1]["answer"], "dog")

    def test_flags_override_the_settings_of_the_model(self):
        path = tiny_exports.write(self.create_tempdir().full_path, _TASK)
        config = SavedModelConfig(
            model_dir=path,
            output_dir="x",
            doc_stride=2,
            max_query_length=3,
            n_best_size=4,
            max_answer_length=5,
        )
        stored = formats.read(path)
        head = QuestionAnswering.build(Source(stored, config, 11, (5, 11)))
        self.assertEqual(head.max_seq_length, 11)
        self.assertEqual(
            head.settings(),
            {name: getattr(config, name) for name in head.flags},
        )
        self.assertEqual(head.task.null_score_diff_threshold, -0.5)
        with self.assertRaisesRegex(UserError, "at least 7.*=3.* Received: 6"):
            QuestionAnswering.build(Source(stored, config, 6, (6,)))


if __name__ == "__main__":
    tf.test.main()
