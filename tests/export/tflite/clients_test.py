"""Tests .tflite files in MediaPipe, the Task Library and old runtimes."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import model_directory
from bert_tf.config import ASCII_LOWER
from bert_tf.inference.lite_model import LiteModel
from bert_tf.text import packing
from tests.support import client_files
from tests.support import client_models


def _classify(program, packages, cases):
    """Returns the scores of each text by case."""
    requests = [
        {
            "ask": "classify",
            "path": client_files.path_of(case),
            "texts": client_files.texts(case),
        }
        for case in cases
    ]
    answers = client_files.send(program, packages, requests)
    return dict(zip(cases, answers, strict=True))


@pytest.mark.environment
class MediaPipeTest(tf.test.TestCase, parameterized.TestCase):
    packages = client_files.MEDIAPIPE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.answers = _classify(
            "mediapipe_program.py", cls.packages, client_files.NEW_CASES
        )

    @parameterized.parameters(*client_files.NEW_CASES)
    def test_scores_equal_those_of_the_model(self, case):
        client_files.check(self, case, self.answers[case])


@pytest.mark.environment
class OldMediaPipeTest(MediaPipeTest):
    packages = client_files.OLD_MEDIAPIPE


@pytest.mark.environment
class TaskLibraryTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.answers = _classify(
            "task_library_program.py",
            client_files.TASK_LIBRARY,
            client_files.OLD_CASES,
        )

    @parameterized.parameters(*client_files.OLD_CASES)
    def test_scores_equal_those_of_the_model(self, case):
        client_files.check(self, case, self.answers[case])


@pytest.mark.environment
class MetadataTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        request = {
            "ask": "describe",
            "path": client_files.path_of("fixed"),
            "texts": [],
        }
        (cls.found,) = client_files.send(
            "task_library_program.py", client_files.TASK_LIBRARY, [request]
        )

    def test_reads_all_metadata(self):
        values = self.found["json"]
        self.assertEqual(values["name"], "fixed")
        self.assertRegex(
            values["description"], "2 layers of 32.*ASCII in lower"
        )
        (graph,) = values["subgraph_metadata"]
        self.assertCountEqual(
            [tensor["name"] for tensor in graph["input_tensor_metadata"]],
            ["ids", "mask", "segment_ids"],
        )
        (output,) = graph["output_tensor_metadata"]
        self.assertEqual(output["name"], "probability")
        self.assertEqual(output["stats"], {"max": [1.0], "min": [0.0]})
        (labels,) = output["associated_files"]
        self.assertEqual(labels["type"], "TENSOR_AXIS_LABELS")
        (unit,) = graph["input_process_units"]
        self.assertEqual(unit["options_type"], "BertTokenizerOptions")
        (vocabulary,) = unit["options"]["vocab_file"]
        self.assertEqual(vocabulary["type"], "VOCABULARY")
        self.assertEqual(
            self.found["files"],
            {
                "vocab.txt": client_models.VOCABULARY.to_text(),
                "labels.txt": "".join(f"{x}\n" for x in client_models.LABELS),
            },
        )


@pytest.mark.environment
class EmbedderTest(tf.test.TestCase):
    def test_embeddings_are_normalized_token_means(self):
        path = os.path.join(client_files.folder(), "embeddings.tflite")
        model_dir = client_files.models()[ASCII_LOWER]
        client_models.export(
            model_dir, path, head="embeddings", **client_files.FIXED
        )
        texts = client_files.texts("fixed")
        request = {"ask": "embed", "path": path, "texts": texts}
        (actual,) = client_files.send(
            "mediapipe_program.py", client_files.MEDIAPIPE, [request]
        )
        stored = model_directory.read_model(model_dir)
        tokenizer = stored.build_tokenizer()
        packed = packing.pack(
            tokenizer.tokenize(texts),
            None,
            client_models.LENGTH,
            tokenizer.vocabulary,
        )
        encoder = bert_tf.load_model(model_dir, "encoder")
        states = encoder(packed)["sequence_output"].numpy()
        mask = packed["input_mask"].numpy()[..., np.newaxis]
        expected = (states * mask).sum(1)
        expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
        self.assertAllClose(
            actual, expected, rtol=0, atol=client_files.TOLERANCE
        )


@pytest.mark.environment
class OldRuntimeTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rng = np.random.default_rng(2)
        shape = (1, client_models.LENGTH)
        cls.rows = {
            "input_ids": rng.integers(0, 60, shape).astype(np.int32),
            "input_mask": (np.arange(shape[1])[np.newaxis] < 20).astype(
                np.int32
            ),
            "segment_ids": rng.integers(0, 2, shape).astype(np.int32),
        }
        rows = {name: x.tolist() for name, x in cls.rows.items()}
        requests = [
            {"path": client_files.path_of(case), "rows": [rows]}
            for case in client_files.NEW_CASES
        ]
        answers = client_files.send(
            "tflite_runtime_program.py", client_files.OLD_RUNTIME, requests
        )
        cls.answers = dict(zip(client_files.NEW_CASES, answers, strict=True))

    @parameterized.parameters(*client_files.OLD_CASES)
    def test_outputs_equal_those_of_litert(self, case):
        with open(client_files.path_of(case), "rb") as file:
            expected = LiteModel(file.read()).run(self.rows)
        (actual,) = self.answers[case]
        self.assertEqual(actual.keys(), expected.keys())
        for name, values in expected.items():
            self.assertAllClose(
                actual[name],
                values,
                rtol=0,
                atol=1e-3 if case == "old int8" else client_files.TOLERANCE,
            )

    def test_rejects_files_without_compatibility(self):
        # If the old runtime read this file, no one would need the flag.
        self.assertIn("FULLY_CONNECTED", self.answers["int8"])


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

    def test_int8_answers_mostly_equal_float_answers(self):
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
