"""Tests for export.verify.reference: its doubts, and the faults it detects."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.export import artifact as artifacts
from bert_tf.export import heads as serving_heads
from bert_tf.export import savedmodel
from bert_tf.export.heads import pretrained
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify.reference import Reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.serving import model_config
from bert_tf.tasks import confidence
from tests.support import every_head
from tests.support import files_case
from tests.support import tiny_model


def _build(folder, name, tolerance=1e-5, **flags):
    model_dir, values = every_head.write_model(folder, name, tiny_model.CONFIG)
    stored = formats.read(model_dir)
    config = SavedModelConfig(
        model_dir=model_dir, output_dir="x", **values, **flags
    )
    key = serving_heads.choose_head(config.head, stored.task, "")
    length = every_head.MAX_SEQ_LENGTH
    source = Source(stored, config, length, (5, 8, length))
    head = savedmodel.HEADS[key].build(source)
    model = checkpoint_loading.build_model(
        stored, head.model_kind, **reference_lib.OUTPUTS
    )
    return Reference(head, model, tolerance), stored


class ReferenceTest(files_case.FolderCase):
    @pytest.mark.slow
    def test_attention_is_that_of_the_first_window(self):
        reference, _ = _build(self.folder, "tagging", doc_stride=3)
        texts = ["the cat", "the mat dog, " * 5]
        expected = reference.expect_attention([{"text": x} for x in texts])
        tokens = expected.values["tokens"].tolist()
        self.assertEqual(tokens[0][:4], [b"[CLS]", b"the", b"cat", b"[SEP]"])
        self.assertEqual(tokens[1][-2:], [b"mat", b"[SEP]"])
        attention = expected.values["attention"]
        # The shape is [B, layers, heads, T, T].
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

    def test_close_logits_make_the_label_doubtful(self):
        near, apart = [[1.0, 1.001, 0.0], [1.0, 1.05, 0.0]]
        doubtful = self._decide("classification", logits=[near, apart])
        self.assertAllEqual(doubtful["label"], [True, False])
        self.assertNotIn("probabilities", doubtful)

    def test_probabilities_at_the_threshold_are_doubtful(self):
        near, apart = [[3.0, 0.001, -3.0], [3.0, 0.05, -3.0]]
        doubtful = self._decide("multi_label", logits=[near, apart])
        self.assertAllEqual(doubtful["labels"], [True, False])

    @pytest.mark.slow
    def test_close_answers_and_tags_are_doubtful(self):
        """Equal logits make all outputs of an answer and all tags doubtful."""
        text = "the cat sat on the mat. " * 3
        for name, output, row in (
            ("question_answering", "score", {"question": "a", "context": text}),
            ("tagging", "tags", {"text": text}),
        ):
            folder = self.path(name)
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
    """Compares correct exports with their models and with changed ones."""

    def _faults(self, name, change=lambda stored: stored, **settings):
        published = every_head.publish(with_ids=False)[name]
        directory = model_config.find_version(published.output_dir)
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

    @parameterized.parameters(*every_head.NAMES)
    @pytest.mark.slow
    def test_correct_exports_have_no_faults(self, name):
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
    def test_detects_an_export_with_other_settings(
        self, name, change, settings, fault
    ):
        change = change or (lambda stored: stored)
        self.assertIn(fault, self._faults(name, change, **settings))

    @parameterized.parameters(
        (
            "multi_label",
            mock.patch.object(confidence, "THRESHOLD", 0.9),
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
    def test_detects_an_export_by_other_code(self, name, patch, fault):
        """Detects an export by another version of the project."""
        with patch:
            self.assertIn(fault, self._faults(name))


if __name__ == "__main__":
    tf.test.main()
