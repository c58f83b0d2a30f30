"""BertQuestionAnswerer of the Task Library finds the answers of the library."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
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


if __name__ == "__main__":
    tf.test.main()
