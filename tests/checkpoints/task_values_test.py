"""Tests for bert_tf.checkpoints.task_values, through loading a model."""

import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.tasks import registry
from tests.support import tiny_exports
from tests.support import tiny_model

_CLASSIFIER = tiny_exports.classification()
_CHOICE = tiny_exports.multiple_choice()
_SQUAD = tiny_exports.squad()
_TAGGING = tiny_exports.tagging()


class TaskValuesTest(tf.test.TestCase, parameterized.TestCase):
    def change(self, task, name, **values):
        """Writes a model with changed values and matching checksums."""
        path = os.path.join(self.create_tempdir().full_path, "model")
        tiny_model.write_task(path, task, config=tiny_model.ONE_LAYER)
        for file in (name, "checksums.json"):
            full = os.path.join(path, file)
            stored = files.read_json(full)
            if file == name:
                stored |= values
            else:
                stored["sha256"][name] = files.sha256(os.path.join(path, name))
            files.write_json(full, stored)
        return path

    @parameterized.parameters(
        (_CLASSIFIER, "labels", "abc"),
        (_CLASSIFIER, "labels", ["no", "yes", "yes"]),
        (_CLASSIFIER, "labels", [1, 2, 3]),
        (_CLASSIFIER, "labels", [float("nan"), "a", "b"]),
        (_CLASSIFIER, "labels", 4),
        (_CLASSIFIER, "labels", [{"a": 1}, "b", "c"]),
        (_CLASSIFIER, "max_seq_length", "64"),
        (_CLASSIFIER, "max_seq_length", 10**400),
        (_CLASSIFIER, "problem_type", "x"),
        (_CLASSIFIER, "class_weights", [1, float("inf"), 2]),
        (_CLASSIFIER, "columns", {}),
        (_CLASSIFIER, "columns", {"text": "a", "texts": "b"}),
        (_CLASSIFIER, "metrics", "accuracy"),
        (_CLASSIFIER, "head", "gru"),
        (_CHOICE, "columns", {"choices": []}),
        (_SQUAD, "version_2_with_negative", "false"),
        (_SQUAD, "null_score_diff_threshold", float("nan")),
        (_SQUAD, "doc_stride", 0),
        (_TAGGING, "context", "page"),
        (_TAGGING, "lstm_size", True),
        (_TAGGING, "results", []),
    )
    def test_refuses_wrong_values_of_the_task(self, task, key, value):
        path = self.change(task, "task.json", **{key: value})
        with self.assertRaisesRegex(UserError, f"task.json: '{key}' must"):
            formats.read(path)

    @parameterized.parameters(
        ("lower_case", "false"),
        ("strip_accents", 1),
        ("preserve_special_tokens", None),
    )
    def test_refuses_wrong_values_of_the_tokenizer(self, key, value):
        path = self.change(_CLASSIFIER, "tokenizer.json", **{key: value})
        with self.assertRaisesRegex(UserError, f"tokenizer.json: '{key}' must"):
            formats.read(path)

    def test_other_values_are_kept(self):
        path = self.change(_CLASSIFIER, "task.json", labels=None, mine=[0])
        self.assertEqual(formats.read(path).task["mine"], [0])

    @parameterized.parameters(_CLASSIFIER, _CHOICE, _SQUAD, _TAGGING)
    def test_null_is_the_default(self, task):
        path = self.change(task, "task.json", max_seq_length=None, head=None)
        built = registry.from_stored(formats.read(path))
        self.assertEqual(
            (built.max_seq_length, built.head),
            (tiny_model.ONE_LAYER.max_position_embeddings, "linear"),
        )

    def test_files_outside_are_not_hashed(self):
        path = self.change(_CLASSIFIER, "task.json")
        file = os.path.join(path, "checksums.json")
        checksums = files.read_json(file)
        for name in ("../x", "/dev/zero", "a/b", ".."):
            checksums["sha256"] |= {name: "0"}
            files.write_json(file, checksums)
            with self.assertRaisesRegex(UserError, "files in this folder"):
                formats.read(path)
            del checksums["sha256"][name]


if __name__ == "__main__":
    tf.test.main()
