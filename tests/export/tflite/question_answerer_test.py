"""BertQuestionAnswerer of the Task Library finds the answers of the library."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import model_directory
from bert_tf.config import ASCII_LOWER
from tests.support import client_files
from tests.support import client_models


@pytest.mark.environment
class QuestionAnswererTest(tf.test.TestCase, parameterized.TestCase):
    """Tests of BertQuestionAnswerer; see bert_question_answerer.cc."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model_dir = client_models.write_both(
            client_files.folder(), client_models.squad()
        )[ASCII_LOWER]
        paths = {
            name: client_models.export(
                cls.model_dir,
                os.path.join(client_files.folder(), f"squad {name}.tflite"),
                batch_size=1,
                max_seq_length=client_models.QA_LENGTH,
                **values,
            )
            for name, values in {
                "none": {},
                "dynamic": {"quantization": "dynamic", "compatibility": "2.14"},
            }.items()
        }
        cls.questions = client_models.draw_questions()
        cls.questions += client_models.OTHER_QUESTIONS
        requests = [
            {"ask": "answer", "path": path, "texts": cls.questions}
            for path in paths.values()
        ]
        answers = client_files.send(
            "task_library_program.py", client_files.TASK_LIBRARY, requests
        )
        cls.answers = dict(zip(paths, answers, strict=True))

    def test_returns_the_spans_of_the_library(self):
        model = bert_tf.load_model(self.model_dir)
        stored = model_directory.read_model(self.model_dir)
        tokenizer = stored.build_tokenizer()
        for (question, context), actual in zip(
            self.questions, self.answers["none"], strict=True
        ):
            expected = _answers_of_task_library(
                model, tokenizer, question, context
            )
            self.assertLen(actual, len(expected))
            for one, (text, start, end, logit) in zip(
                actual, expected, strict=True
            ):
                self.assertEqual(one["text"], text)
                self.assertEqual((one["start"], one["end"]), (start, end))
                self.assertAllClose(one["logit"], logit, 0, 1e-4)

    def test_returns_the_answers_of_the_library(self):
        rows = [
            {"question": question, "context": context}
            for question, context in client_models.draw_questions()
        ]
        predicted = bert_tf.load_model(self.model_dir).predict(rows)
        self.assertEqual(
            [actual[0]["text"] for actual in self.answers["none"][: len(rows)]],
            [ours["answer"] for ours in predicted],
        )

    def test_reads_int8(self):
        same = [
            (ours[0]["start"], ours[0]["end"])
            == (theirs[0]["start"], theirs[0]["end"])
            for ours, theirs in zip(*self.answers.values(), strict=True)
            if ours and theirs
        ]
        self.assertGreater(len(same), 10)
        self.assertGreater(np.mean(same), 0.5)


def _answers_of_task_library(model, tokenizer, question, context):
    """Returns texts, starts, ends and logits, the best first."""
    vocabulary = tokenizer.vocabulary
    query = tokenizer.tokenize(question).numpy().tolist()[:64]
    words = [word for word in context.split(" ") if word]
    tokens, word_of_piece = [], []
    for number, word in enumerate(words):
        ids = tokenizer.tokenize(word).numpy().tolist()
        tokens += ids
        word_of_piece += [number] * len(ids)
    length = client_models.QA_LENGTH
    first = len(query) + 2
    tokens = tokens[: length - first - 1]
    ids = [vocabulary.cls_id, *query, vocabulary.sep_id]
    ids += [*tokens, vocabulary.sep_id]
    row = np.zeros((1, length), np.int32)
    mask, segments = np.zeros_like(row), np.zeros_like(row)
    row[0, : len(ids)] = ids
    mask[0, : len(ids)] = 1
    segments[0, first : len(ids)] = 1
    outputs = model(
        {"input_ids": row, "input_mask": mask, "segment_ids": segments}
    )
    starts = outputs["start_logits"].numpy()[0]
    ends = outputs["end_logits"].numpy()[0]
    last = first + len(tokens) - 1
    found = [
        (starts[start] + ends[end], start, end)
        for start in np.argsort(-starts, kind="stable")[:5]
        for end in np.argsort(-ends, kind="stable")[:5]
        if first <= start <= end <= last and end - start < 32
    ]
    return [
        (
            " ".join(
                words[
                    word_of_piece[start - first] : word_of_piece[end - first]
                    + 1
                ]
            ),
            start,
            end,
            logit,
        )
        for logit, start, end in sorted(found, key=lambda x: -x[0])[:5]
    ]


if __name__ == "__main__":
    tf.test.main()
