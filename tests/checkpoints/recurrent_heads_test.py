"""Tests for storing, strictly reading and rebuilding BiLSTM models."""

import dataclasses
import json
import pathlib

import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import task_models
from tests.support import stored_models
from tests.support import tiny_layers
from tests.support import tiny_model

_DEEP = dataclasses.replace(tiny_model.CONFIG, num_hidden_layers=5)
_FEATURE_BASED = {"approach": "feature_based", "lstm_size": 3}
# Class, arguments, and the arguments in task.json.
_MODELS = (
    (
        "classification",
        task_models.BertForClassification,
        {"labels": ["no", "yes"], "head": "bilstm", "lstm_size": 4},
    ),
    (
        "question_answering",
        task_models.BertForQuestionAnswering,
        {"head": "bilstm", "lstm_size": 3},
    ),
    (
        "multiple_choice",
        task_models.BertForMultipleChoice,
        {"head": "bilstm", "lstm_size": 3},
    ),
    (
        "tagging",
        task_models.BertForTagging,
        {"labels": ["O", "B-x", "I-x"], "head": "bilstm", "lstm_size": 3},
    ),
    *(
        (
            "tagging",
            task_models.BertForTagging,
            _FEATURE_BASED | {"labels": ["O", "B-x"], "layer_combination": x},
        )
        for x in (
            *("last_hidden", "concat_last_four_hidden"),
            *("weighted_sum_last_four_hidden", "weighted_sum_all_layers"),
        )
    ),
)
_BILSTM_TAGGER, _FEATURE_TAGGER = _MODELS[3], _MODELS[4]


def _stored(kind, cls, arguments):
    """Returns a stored model in memory, and its weights."""
    model = tiny_layers.randomize(cls(_DEEP, **arguments))
    vocabulary = tiny_model.Vocabulary(tiny_model.TOKENS)
    # task.json may lack the size, because the weights determine it.
    task = {k: x for k, x in arguments.items() if k != "lstm_size"}
    values = {
        name: variable.numpy()
        for name, variable in bert_model.named_variables(model).items()
    }
    stored = stored_models.of_weights(
        values, _DEEP, vocabulary, task={"kind": kind} | task
    )
    return stored, values


class RecurrentHeadsTest(tf.test.TestCase, parameterized.TestCase):
    def _write(self, stored, weights_format="bert_tf"):
        path = self.create_tempdir().full_path
        formats.module_of(weights_format).write_model(path, stored)
        return path

    def _assert_same(self, model, values):
        named = bert_model.named_variables(model)
        self.assertAllClose(named, values, rtol=0, atol=0)

    @parameterized.parameters(*_MODELS)
    def test_model_directory_is_built_again(self, kind, cls, arguments):
        stored, values = _stored(kind, cls, arguments)
        model = bert_tf.load_model(self._write(stored))
        self.assertIsInstance(model, cls)
        self._assert_same(model, values)
        config = model.get_config()
        for name, value in arguments.items():
            self.assertEqual(config[name], value)

    @parameterized.parameters(*_MODELS[:4])
    def test_tf1_keeps_weights_and_head(self, kind, cls, arguments):
        stored, values = _stored(kind, cls, arguments)
        labels = {"labels": arguments.get("labels")}
        if labels["labels"] is None:
            labels = {}
        path = self._write(stored, "tf1")
        # Without this, building the model from task.json would fail.
        self.assertEqual(formats.read(path).task["head"], "bilstm")
        self._assert_same(bert_tf.load_model(path, kind, **labels), values)

    def test_tf1_cannot_keep_a_layer_combination(self):
        stored, _ = _stored(*_FEATURE_TAGGER)
        path = self.create_tempdir().full_path
        with self.assertRaisesRegex(UserError, "feature-based tagger"):
            tf1_checkpoint.write_model(path, stored)
        self.assertEmpty(list(pathlib.Path(path).iterdir()))

    @parameterized.parameters("huggingface", "model_garden", "keras_hub")
    def test_other_formats_have_no_such_models(self, weights_format):
        stored, _ = _stored(*_MODELS[0])
        with self.assertRaisesRegex(UserError, "BiLSTM.*convert it to bert_tf"):
            self._write(stored, weights_format)

    @parameterized.parameters(
        (_BILSTM_TAGGER, {"head": "linear"}, "needs 0 BiLSTMs .* have 1"),
        (
            _FEATURE_TAGGER,
            {"layer_combination": "weighted_sum_all_layers"},
            "needs 2 BiLSTMs and a learned sum .* have 2 and none",
        ),
        (
            _FEATURE_TAGGER,
            {"approach": "fine_tuning", "head": "linear"},
            "layer_combination.*'last_hidden' with approach='fine_tuning'",
        ),
        (_FEATURE_TAGGER, {"layer_combination": None}, "a layer_combi"),
    )
    def test_refuses_a_task_of_another_model(self, entry, changes, message):
        path = self._write(_stored(*entry)[0])
        task_file = pathlib.Path(path, "task.json")
        task = json.loads(task_file.read_text()) | changes
        task_file.write_text(json.dumps(task))
        checksums = pathlib.Path(path, "checksums.json")
        values = json.loads(checksums.read_text())
        values["sha256"]["task.json"] = files.sha256(str(task_file))
        checksums.write_text(json.dumps(values))
        with self.assertRaisesRegex(UserError, message):
            bert_tf.load_model(path)

    def test_another_head_type_gets_a_new_head(self):
        stored, values = _stored(*_BILSTM_TAGGER)
        path = self._write(stored)
        for arguments in (
            {"head": "linear"},
            {"approach": "feature_based"},
            {"lstm_size": 5},
        ):
            with self.assertRaisesRegex(UserError, 'new_parts=."head"'):
                bert_tf.load_model(path, **arguments)
        model = bert_tf.load_model(
            path, new_parts=["head"], labels=["O", "B-y"], **_FEATURE_BASED
        )
        self.assertLen(model.lstms, 2)
        word_embeddings = "bert/embeddings/word_embeddings"
        self.assertAllEqual(
            bert_model.named_variables(model)[word_embeddings],
            values[word_embeddings],
        )


if __name__ == "__main__":
    tf.test.main()
