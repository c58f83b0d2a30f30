"""Tests answers in text without spaces, character by character."""

import dataclasses
import pathlib
import random
import types

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.heads.question_answering import QuestionAnswering
from bert_tf.export.tflite import build as builds
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import LiteTokenizer
from tests.support.shared_data import golden

_CASES = pathlib.Path(__file__).parents[2] / "testdata/cases"
_LENGTH = 64
_TASK = SquadTask(max_seq_length=_LENGTH, doc_stride=20, max_query_length=9)
_NO_WIDTH = "\u200b\u200d\ufeff"
# Full-width punctuation and white space, a character outside the vocabulary,
# words of letters and a decomposed character.
_MARKS = [*"\uff0c\u3002\uff1a\u300a\u3000\u00a0\U00020000", *_NO_WIDTH]
_MARKS += ["BERT", "cafe\u0301", "2019", "C\u0327a", "\u30ab\u3099"]


def _make_question(rng, number, letters):
    """Returns a question; its answer is in the text two to four times."""

    def text(length):
        # Letters surround each mark, so tokens end there.
        parts = rng.choices(letters, k=length)
        for _ in range(length // 4):
            place = rng.randrange(length)
            parts[place] += rng.choice(marks) + rng.choice(letters)
        return "".join(parts)

    # Some texts have spaces, so they have short words.
    marks = _MARKS + [" ", "\n", "BERT "] * (number % 3)
    answer = text(rng.randint(1, 7)) + rng.choice(("", "\uff09"))
    # Beside a long word, letters without spaces are a small share.
    context = "x" * 2000 + " " if number % 15 == 0 else ""
    context += text(rng.randint(2, 60))
    starts = []
    for _ in range(rng.randint(2, 4)):
        starts.append(len(context))
        context += answer + rng.choice(("", "\u200b", "\u3002"))
        context += text(rng.randint(2, 60))
    answers = [{"text": answer, "answer_start": rng.choice(starts)}]
    question = {"id": str(number), "question": text(4), "answers": answers}
    return {"paragraphs": [{"context": context, "qas": [question]}]}


def _positions(features):
    return np.stack([*features.targets.values()], axis=1)


def _to_logits(positions):
    """Returns logits that point at labels; 0 in windows without an answer."""
    places = positions.T[..., np.newaxis]
    logits = np.where((places > 0) & (places == np.arange(_LENGTH)), 9.0, 0.0)
    names = ("start_logits", "end_logits")
    return dict(zip(names, logits.astype(np.float32), strict=True))


class UnspacedTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = BertTokenizer.from_vocab_file(
            golden("vocab/bert-base-chinese-vocab.txt")
        )
        tokens = cls.tokenizer.vocabulary.tokens
        letters = [x for x in tokens if "\u4e00" <= x <= "\u9fff"]
        rng = random.Random(0)
        data = [_make_question(rng, number, letters) for number in range(200)]
        cls.examples = squad_examples.build_examples(data, True)
        cls.strings, cls.expected = {"question": [], "context": []}, []
        for paragraph in (article["paragraphs"][0] for article in data):
            (question,) = paragraph["qas"]
            cls.strings["question"].append(question["question"])
            cls.strings["context"].append(paragraph["context"])
            text, start = question["answers"][0].values()
            cls.expected.append((text, start, start + len(text)))
        cls.windows = _TASK.featurize(cls.examples, cls.tokenizer)
        features = _TASK.featurize(
            cls.examples, cls.tokenizer, is_training=True
        )
        cls.positions = _positions(features)

    def test_labels_are_the_characters_of_200_answers(self):
        found = {}
        for window, place in zip(
            self.windows.windows, self.positions, strict=True
        ):
            if any(place):
                offsets = window.offsets[place - window.doc_offset]
                span = (offsets[0, 0], offsets[1, 1])
                found.setdefault(window.example_index, set()).add(span)
        self.assertEqual(
            [found[index] for index in range(200)],
            [{(start, end)} for _, start, end in self.expected],
        )

    @parameterized.parameters({}, {"files": {"dev": "squad.json"}})
    def test_library_finds_200_answers(self, **values):
        predictions = dataclasses.replace(_TASK, **values).predict(
            self.examples,
            self.windows,
            _to_logits(self.positions),
            self.tokenizer,
        )
        best = [one.nbest[0] for one in predictions]
        self.assertEqual(
            [(one.text, one.start, one.end) for one in best], self.expected
        )

    def test_saved_model_finds_200_answers(self):
        head = QuestionAnswering(self.tokenizer, _LENGTH, (_LENGTH,), _TASK)
        rows = head.pack(self.strings)
        answer = head.answer(_to_logits(self.positions), rows)
        texts = [x.decode() for x in answer["answer"].numpy()]
        places = (answer[name].numpy().tolist() for name in ("start", "end"))
        self.assertEqual(list(zip(texts, *places, strict=True)), self.expected)

    def test_200_answers_are_tokens_of_the_lite_file(self):
        tokenizer = LiteTokenizer(self.tokenizer)
        head = QuestionAnswering(tokenizer, 512, (512,), _TASK)
        build = types.SimpleNamespace(name="question_answering", head=head)
        strings = {x: tf.constant(y) for x, y in self.strings.items()}
        state = builds.pack(build, strings).state
        for context, starts, ends, (text, *span) in zip(
            self.strings["context"],
            state["starts"].numpy(),
            state["ends"].numpy(),
            self.expected,
            strict=True,
        ):
            start, end = (len(context[:n].encode()) for n in span)
            self.assertIn(start, starts)
            # Characters of no width belong to the token before them.
            answer = context.encode()[start : min(ends[ends >= end])].decode()
            self.assertEqual(answer.rstrip(_NO_WIDTH), text)

    @parameterized.parameters(
        ("squad_unspaced_second_occurrence", [[13, 14]]),
        ("squad_nbsp_answer", [[4, 5]]),
    )
    def test_labels_of_real_files_point_to_their_answers(self, case, expected):
        tokenizer = BertTokenizer.from_vocab_file(f"{_CASES / case}/vocab.txt")
        data = squad_examples.read_dataset(f"{_CASES / case}/train.json")
        read = squad_examples.build_examples(data, is_training=True)
        features = _TASK.featurize(read, tokenizer, is_training=True)
        self.assertAllEqual(
            _positions(features) - features.first_lengths, expected
        )

    @parameterized.parameters((12, 13), (9, 8), (7, 8), (5, 3), (3, 3))
    def test_answer_is_the_occurrence_nearest_to_its_offset(
        self, offset, expected
    ):
        example = squad_examples.make_example(
            "", "?", "\u7532\u4f4f\u5728" + "\u57ce\u91cc\u3002\u4e59\u3000" * 3
        )
        labeled = _TASK.add_label(example, ("\u57ce\u91cc", offset))
        self.assertEqual(labeled.answer_start, expected)

    @parameterized.parameters({}, {"files": {"dev": "squad.json"}})
    def test_zero_width_spaces_do_not_count(self, **values):
        case = f"{_CASES}/squad_unspaced_zero_width"
        tokenizer = BertTokenizer.from_vocab_file(f"{case}/vocab.txt")
        task = dataclasses.replace(_TASK, max_answer_length=3, **values)
        examples = list(task.read_inputs(f"{case}/asked.csv"))
        features = task.featurize(examples, tokenizer)
        logits = np.random.default_rng(0).normal(size=[2, 1, _LENGTH])
        logits = {"start_logits": logits[0], "end_logits": logits[1]}
        (prediction,) = task.predict(examples, features, logits, tokenizer)
        self.assertGreater(len(prediction.nbest), 10)
        for one in prediction.nbest:
            text = examples[0].context[one.start : one.end]
            self.assertEqual(text, one.text)
            self.assertBetween(len(text.replace("\u200b", "")), 1, 3)


if __name__ == "__main__":
    tf.test.main()
