"""Tests for bert_tf.api.load, building models, and the public names."""

import dataclasses
import os
import pathlib
import subprocess
import sys
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import task_models
from tests.support import stored_models
from tests.support.shared_data import golden

_LABELS = stored_models.LABELS
_POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
# Kind, the class that is built, the names of its head's outputs.
_KINDS = (
    ("encoder", "BertModel", ()),
    (
        "pretraining",
        "BertForPretraining",
        ("masked_lm_logits", "next_sentence_logits"),
    ),
    ("masked_lm", "BertForPretraining", ("masked_lm_logits",)),
    ("next_sentence", "BertForPretraining", ("next_sentence_logits",)),
    ("classification", "BertForClassification", ("logits",)),
    (
        "question_answering",
        "BertForQuestionAnswering",
        ("start_logits", "end_logits"),
    ),
    ("tagging", "BertForTagging", ("logits",)),
    ("multiple_choice", "BertForMultipleChoice", ("logits",)),
)
_BY_KIND = {kind: rest for kind, *rest in _KINDS}


def _values(model):
    named = bert_model.named_variables(model)
    return {name: variable.numpy() for name, variable in named.items()}


class _ModelTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_weights(self, model, expected, new=()):
        values = _values(model)
        self.assertContainsSubset(new, values)
        for name, value in values.items():
            if name not in new:
                self.assertAllEqual(value, expected[name], name)
            elif name in expected:
                self.assertNotAllClose(value, expected[name], msg=name)

    def _write(self, weights_format, stored):
        path = self.create_tempdir().full_path
        formats.module_of(weights_format).write_model(path, stored)
        return path

    def _call(self, model):
        """Returns the model's outputs for two texts of unequal length."""
        inputs = {
            "input_ids": np.array([[2, 6, 9, 3], [2, 7, 3, 0]]),
            "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]]),
        }
        if isinstance(model, task_models.BertForMultipleChoice):
            inputs = {name: x[np.newaxis] for name, x in inputs.items()}
        return model(inputs)


class LoadModelTest(_ModelTest):
    @parameterized.parameters(*_KINDS)
    def test_loads_every_kind_from_every_own_format(self, kind, cls, outputs):
        stored = stored_models.build(kind)
        new = set()
        if kind in ("masked_lm", "next_sentence"):
            new = set(weight_map.shapes(stored.config, "pretraining"))
            new -= set(stored.weights)
        results = []
        for weights_format in ("bert_tf", "tf1"):
            path = self._write(weights_format, stored)
            model = bert_tf.load_model(path)
            self.assertEqual(type(model).__name__, cls)
            self._assert_weights(model, stored.weights, new)
            received = self._call(model)
            self.assertContainsSubset(outputs, received)
            results.append([received[name] for name in outputs])
        tf.nest.map_structure(self.assertAllEqual, *results)

    @parameterized.parameters("question_answering", "tagging", "masked_lm")
    def test_a_pooler_that_no_output_uses_may_be_missing(self, kind):
        stored = stored_models.build(kind)
        path = self._write("huggingface", stored)
        with self.assertNoLogs("absl", "WARNING"):
            model = bert_tf.load_model(path)
        expected = {n: stored.weights[n] for n in stored.weights}
        for name in _POOLER:
            del expected[name]
        new = set(_values(model)) - set(expected)
        self.assertContainsSubset(_POOLER, new)
        self._assert_weights(model, expected, new)
        with self.assertLogs("absl", "WARNING") as logs:
            bert_tf.load_model(path, "encoder")
        self.assertRegex(logs.output[0], "has no bert/pooler: .* randomly")

    def test_paths_may_be_path_objects(self):
        stored = stored_models.build("encoder")
        path = pathlib.Path(self._write("bert_tf", stored))
        model = bert_tf.load_model(path, cache_dir=path / "unused")
        self._assert_weights(model, stored.weights)
        tokenizer = bert_tf.load_tokenizer(path, cache_dir=path / "unused")
        self.assertEqual(tokenizer.vocabulary.tokens, stored.vocabulary.tokens)
        file = path / "model.keras"
        model.save(file)
        self._assert_weights(bert_tf.load_model(file), stored.weights)
        copy = pathlib.Path("~/copy")
        with mock.patch.dict(os.environ, HOME=str(path)):
            bert_tf.save_model(model, copy)
            self._assert_weights(bert_tf.load_model(copy), stored.weights)
        self.assertTrue((path / "copy").exists())

    def test_options_reach_the_model(self):
        path = self._write("bert_tf", stored_models.build("classification"))
        model = bert_tf.load_model(
            path,
            name="judge",
            dtype="mixed_bfloat16",
            head_dropout_prob=0.3,
            return_all_layers=True,
        )
        self.assertEqual(model.name, "judge")
        self.assertEqual(model.head.dropout_prob, 0.3)
        outputs = self._call(model)
        self.assertLen(outputs["encoder_outputs"], 2)
        self.assertEqual(outputs["sequence_output"].dtype, tf.bfloat16)
        self.assertEqual(outputs["logits"].dtype, tf.float32)

    def test_tokenizer_preserves_special_tokens_on_request(self):
        tokenizer = bert_tf.load_tokenizer(golden("model/squad.ckpt.index"))
        (ids,) = tokenizer.tokenize(["THE [MASK]"]).to_list()
        self.assertNotIn(tokenizer.vocabulary.mask_id, ids)
        tokenizer = bert_tf.load_tokenizer(
            golden("model/squad.ckpt.index"), preserve_special_tokens=True
        )
        (ids,) = tokenizer.tokenize(["[MASK]"]).to_list()
        self.assertEqual(ids, [tokenizer.vocabulary.mask_id])

    @parameterized.parameters(
        "https://there/bert", "kaggle://keras/bert", 3, None, b"model", True
    )
    def test_malformed_names_are_refused(self, name):
        for load in (bert_tf.load_model, bert_tf.load_tokenizer):
            with self.assertRaisesRegex(UserError, "^Expected .*Received"):
                load(name)


class OtherKindTest(_ModelTest):
    """Builds models of another kind from a stored model."""

    @parameterized.parameters(
        *(
            (kind, {"labels": ["a", "b"]})
            if kind in ("classification", "tagging")
            else (kind, {})
            for kind, *_ in _KINDS
            if kind != "encoder"
        )
    )
    def test_encoder_gets_a_new_head(self, kind, arguments):
        stored = stored_models.build("encoder")
        with (
            self.assertNoLogs("absl", "WARNING"),
            self.assertLogs("absl", "INFO") as logs,
        ):
            model = checkpoint_loading.build_model(stored, kind, **arguments)
        self.assertEqual(type(model).__name__, _BY_KIND[kind][0])
        self.assertRegex(logs.output[0], "new: .*output_bias")
        heads = [n for n in _values(model) if not n.startswith("bert/")]
        self._assert_weights(model, stored.weights, heads)
        self.assertEqual(
            getattr(model, "labels", None), ("a", "b") if arguments else None
        )

    def test_new_head_replaces_the_old(self):
        stored = stored_models.build("classification")
        head = ("output_weights", "output_bias")
        for arguments, labels, count in (
            ({}, _LABELS, 3),
            ({"labels": ["a", "b"]}, ("a", "b"), 2),
            ({"num_labels": 3}, None, 3),
        ):
            model = checkpoint_loading.build_model(
                stored, new_parts=["head"], **arguments
            )
            self.assertEqual(model.labels, labels)
            self.assertEqual(model.num_labels, count)
            with self.assertRaisesRegex(AttributeError, "no setter"):
                model.labels = _LABELS
            values = _values(model)
            self.assertEqual(values["output_weights"].shape, (count, 16))
            expected = {n: stored.weights[n] for n in stored.weights}
            for name in head:
                del expected[name]
            self._assert_weights(model, expected, head)

    def test_new_pooler_is_initialized_without_warning(self):
        stored = stored_models.build("question_answering")
        with self.assertNoLogs("absl", "WARNING"):
            model = checkpoint_loading.build_model(stored, new_parts=["pooler"])
        self._assert_weights(model, stored.weights, _POOLER)

    def test_stored_labels_apply_to_the_stored_kind_only(self):
        stored = stored_models.build("classification")
        both = {**stored.weights, **stored_models.build("tagging").weights}
        stored = dataclasses.replace(stored, weights=Tensors.from_arrays(both))
        self.assertEqual(checkpoint_loading.build_model(stored).labels, _LABELS)
        model = checkpoint_loading.build_model(stored, "tagging")
        self.assertIsNone(model.labels)
        self._assert_weights(model, both)

    @parameterized.parameters(
        ("encoder", {"kind": "classifier"}, "be one of encoder, .*classifier"),
        ("encoder", {"kind": "tagging"}, "no head for tagging.*its labels"),
        ("encoder", {"num_labels": 2}, "have labels.*labels for 'encoder'"),
        (
            "classification",
            {"kind": "question_answering", "labels": ["a"]},
            "labels for 'question_answering'",
        ),
        ("tagging", {"num_labels": 4}, "has 3 labels. Received: 4; make a new"),
        ("tagging", {"labels": ["a", "b"]}, "has 3 labels. Received: 2"),
        (
            "tagging",
            {"labels": ["a", "b", "c"], "num_labels": 4},
            "num_labels=4.*Received: a, b, c",
        ),
        ("tagging", {"new_parts": ["body"]}, "head and pooler.*'body'"),
        ("tagging", {"new_parts": "head"}, "to be a list of.*'head'"),
    )
    def test_refuses_arguments_that_do_not_fit(self, kind, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            checkpoint_loading.build_model(
                stored_models.build(kind), **arguments
            )


class PublicApiTest(tf.test.TestCase):
    def test_package_has_every_public_name(self):
        expected = {
            "BertConfig",
            "BertForClassification",
            "BertForEmbeddings",
            "BertForMultipleChoice",
            "BertForPretraining",
            "BertForQuestionAnswering",
            "BertForTagging",
            "BertModel",
            "BertTokenizer",
            "build_optimizer",
            "export_savedmodel",
            "export_tflite",
            "load_model",
            "load_tokenizer",
            "pack",
            "preprocess",
            "save_model",
        }
        self.assertEqual(set(bert_tf.__all__), expected)
        for name in expected:
            self.assertEqual(getattr(bert_tf, name).__name__, name)
        # The imports above must not add the names of modules.
        self.assertEqual(set(dir(bert_tf)), expected | {"__version__"})

    def test_hint_for_a_wrong_name_is_given_once(self):
        # When Python prints an uncaught error, it appends its own hint.
        result = subprocess.run(
            [sys.executable, "-c", "import bert_tf; bert_tf.loadmodel"],
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.stderr.lower().count("did you mean"), 1)


if __name__ == "__main__":
    tf.test.main()
