"""Tests for export.verify.reference: whom it believes, and what it detects."""

import dataclasses
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

from bert_tf.checkpoints import formats
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export.heads import pretrained
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify.reference import Reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.inference import load
from bert_tf.tasks import registry as tasks
from bert_tf.tasks.classification import task as classification_task
from bert_tf.tasks.predict import Predictor
from tests.support import every_head
from tests.support import files_case
from tests.support import tiny_exports
from tests.support import tiny_model

# Heads that decide differently.
_DIFFERENT = ("multi_label", "question_answering", "tagging", "fill_mask")
_CHOICES = ["sat .", "dog", "the mats on the mat"]
# What the library predicts for a text, by head.
_PREDICTED = {
    "classification": lambda text: text,
    "pair": lambda text: (text, "東 DOG cafe\u0301 sitting."),
    "multi_label": lambda text: text,
    "regression": lambda text: (text, "the mats on " * 9),
    "multiple_choice": lambda text: {"context": text, "choices": _CHOICES},
    "question_answering": lambda text: {
        "question": "the cat ?",
        "context": text,
    },
    "tagging": lambda text: text,
}


def _build(folder, name, tolerance=1e-5, **flags):
    """Returns the reference of a head, and its model."""
    model_dir, values = every_head.write_model(folder, name, tiny_model.CONFIG)
    stored = formats.read(model_dir)
    config = SavedModelConfig(
        model_dir=model_dir, output_dir="x", **values, **flags
    )
    key = savedmodel.choose_head(config.head, stored)
    length = every_head.MAX_SEQ_LENGTH
    source = Source(stored, config, length, (5, 8, length))
    head = savedmodel.HEADS[key].build(source)
    model = load.build_model(stored, head.model_kind, **reference_lib.OUTPUTS)
    return Reference(head, model, tolerance), stored


class ReferenceTest(files_case.FolderCase):
    @parameterized.parameters(
        *((name, {}) for name in _PREDICTED),
        ("classification", {"doc_stride": 4}),
        ("multi_label", {"doc_stride": 3}),
        ("tagging", {"doc_stride": 2}),
    )
    @pytest.mark.slow
    def test_believes_what_the_library_predicts(self, name, settings):
        reference, stored = _build(self.folder, name, **settings)
        task = dataclasses.replace(tasks.from_stored(stored), **settings)
        predictor = Predictor(
            load.build_model(stored), task, stored.build_tokenizer()
        )
        texts = [_PREDICTED[name](text) for text in tiny_exports.TEXTS]
        described = predictor.describe(list(map(task.example_from_row, texts)))
        rows = []
        for text in texts:
            values = [text] if isinstance(text, str) else text
            values = values.values() if isinstance(text, dict) else values
            rows.append(dict(zip(reference.head.inputs, values, strict=True)))
        values = reference.expect(rows).values
        for number, expected in enumerate(described):
            self._compare({x: v[number] for x, v in values.items()}, expected)

    def _compare(self, actual, expected):
        """Compares the outputs that predictions have, too."""
        if "offsets" in expected:
            expected["starts"], expected["ends"] = np.transpose(
                expected["offsets"]
            ).tolist()
        names = set(actual) & set(expected)
        self.assertNotEmpty(names)
        for name in names:
            value = expected[name]
            if isinstance(value, dict):
                value = list(value.values())
            found = np.ravel(actual[name]).tolist()
            value = np.ravel(-1 if value is None else value).tolist()
            self.assertLen(set(found[len(value) :]) - {-1, b"", 0}, 0)
            found = found[: len(value)]
            if value and isinstance(value[0], str):
                self.assertEqual([x.decode() for x in found], value, name)
            else:
                self.assertAllClose(found, value, 1e-5, 1e-5, name)

    @pytest.mark.slow
    def test_labels_of_next_sentence_are_in_the_order_of_the_original(self):
        reference, stored = _build(self.folder, "next_sentence")
        rows = [{"text": x, "text_pair": "dog"} for x in tiny_exports.TEXTS]
        packed = reference.pack(rows)
        model = load.build_model(stored)
        logits = model(packed)["next_sentence_logits"].numpy()
        values = reference.expect(rows).values
        self.assertAllClose(
            values["probabilities"], special.softmax(logits, -1), 1e-5, 1e-5
        )
        names = np.array([b"is_next", b"not_next"])
        self.assertAllEqual(values["label"], names[logits.argmax(-1)])

    @pytest.mark.slow
    def test_attention_is_that_of_the_first_window(self):
        reference, _ = _build(self.folder, "tagging", doc_stride=3)
        texts = ["the cat", "the mat dog, " * 5]
        expected = reference.expect_attention([{"text": x} for x in texts])
        tokens = expected.values["tokens"].tolist()
        self.assertEqual(tokens[0][:4], [b"[CLS]", b"the", b"cat", b"[SEP]"])
        self.assertEqual(tokens[1][-2:], [b"mat", b"[SEP]"])
        attention = expected.values["attention"]
        # [B, layers, heads, T, T]
        self.assertEqual(attention.shape[:1] + attention.shape[3:], (2, 12, 12))
        self.assertAllClose(attention.sum(-1), np.ones(attention.shape[:-1]))
        self.assertAllEqual(attention[0, ..., 4:], 0 * attention[0, ..., 4:])


class DoubtTest(files_case.FolderCase):
    """A decision is doubtful if the tolerance may change it."""

    def _decide(self, name, **outputs):
        reference, _ = _build(self.folder, name, 1e-3)
        outputs = {x: tf.constant(value) for x, value in outputs.items()}
        with mock.patch.object(reference, "_compute", lambda _: outputs):
            found = reference.decide(reference.head.answer_ids, Rows({}))
        return found.doubtful

    def test_close_labels(self):
        near, apart = [[1.0, 1.001, 0.0], [1.0, 1.05, 0.0]]
        doubtful = self._decide("classification", logits=[near, apart])
        self.assertAllEqual(doubtful["label"], [True, False])
        self.assertNotIn("probabilities", doubtful)

    def test_probabilities_at_the_threshold(self):
        near, apart = [[3.0, 0.001, -3.0], [3.0, 0.05, -3.0]]
        doubtful = self._decide("multi_label", logits=[near, apart])
        self.assertAllEqual(doubtful["labels"], [True, False])

    def test_scores_are_no_decisions(self):
        self.assertEmpty(self._decide("regression", logits=[[0.0], [1.0]]))

    @pytest.mark.slow
    def test_texts_with_close_answers_or_tags(self):
        """All outputs of a chosen answer are doubtful, and tags of a text."""
        text = "the cat sat on the mat. " * 3
        for name, output, row in (
            ("question_answering", "score", {"question": "a", "context": text}),
            ("tagging", "tags", {"text": text}),
        ):
            folder = os.path.join(self.folder, name)
            reference, _ = _build(folder, name)
            compute = reference._compute

            def equal(inputs, compute=compute):
                return {x: 0 * t for x, t in compute(inputs).items()}

            self.assertFalse(reference.expect([row]).doubtful[output].any())
            with mock.patch.object(reference, "_compute", equal):
                self.assertTrue(reference.expect([row]).doubtful[output].all())


def _reversed_labels(stored):
    task = stored.task | {"labels": stored.task["labels"][::-1]}
    return dataclasses.replace(stored, task=task)


def _threshold(stored):
    task = stored.task | {"null_score_diff_threshold": -1e3}
    return dataclasses.replace(stored, task=task)


class FaultTest(tf.test.TestCase, parameterized.TestCase):
    """Correct exports are right for their model, and wrong for others."""

    def _faults(self, name, change=lambda stored: stored, **settings):
        published = every_head.publish()[name]
        directory = artifacts.find_version(published.output_dir)
        artifact = artifacts.read(directory)
        artifact = dataclasses.replace(
            artifact, settings={**artifact.settings, **settings}
        )
        stored = formats.read(published.model_dir)

        def batches(self, of_all=Reference.batches):
            return of_all(self)[-2:]

        with mock.patch.object(Reference, "batches", batches):
            report = savedmodel.compare(directory, artifact, change(stored))
        return " ".join(report.faults)

    @parameterized.parameters(*_DIFFERENT)
    @pytest.mark.slow
    def test_correct_exports(self, name):
        self.assertEqual(self._faults(name), "")

    @parameterized.parameters(
        ("classification", _reversed_labels, {}, "label is"),
        ("multi_label", _reversed_labels, {}, "labels is"),
        ("tagging", _reversed_labels, {}, "tags is"),
        ("question_answering", _threshold, {}, "answer is"),
        ("question_answering", None, {"max_answer_length": 1}, "score is"),
        ("embeddings", None, {"pooling": "max"}, "embedding is"),
        ("embeddings", None, {"layer": 0}, "embedding is"),
        ("fill_mask", None, {"top_k": 2}, "tokens is"),
    )
    @pytest.mark.slow
    def test_detects_other_settings(self, name, change, settings, fault):
        change = change or (lambda stored: stored)
        self.assertIn(fault, self._faults(name, change, **settings))

    @parameterized.parameters(
        (
            "multi_label",
            mock.patch.object(classification_task, "_THRESHOLD", 0.9),
            "labels is",
        ),
        (
            "next_sentence",
            mock.patch.object(
                pretrained,
                "NEXT_SENTENCE_LABELS",
                pretrained.NEXT_SENTENCE_LABELS[::-1],
            ),
            "label is",
        ),
    )
    @pytest.mark.slow
    def test_detects_other_code(self, name, patch, fault):
        """As of an export by another version of the project."""
        with patch:
            self.assertIn(fault, self._faults(name))


if __name__ == "__main__":
    tf.test.main()
