"""Tests for export.savedmodel."""

import os
import pathlib

import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.export import heads as serving_heads
from bert_tf.export import savedmodel
from bert_tf.flags import export
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks import registry
from tests.support import files_case
from tests.support import tiny_exports
from tests.support import tiny_model


def _variables(files):
    """Returns the names of the variables in saved_model.pb, in its order."""
    saved = saved_model_pb2.SavedModel.FromString(files["saved_model.pb"])
    nodes = saved.meta_graphs[0].object_graph_def.nodes
    return [x.variable.name for x in nodes if x.HasField("variable")]


class SavedModelTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.output_dir = self.path("served")

    def _write(self, task=None):
        return tiny_exports.write(
            self.folder, task or tiny_exports.classification()
        )

    def _assert_refused(self, message, model_dir, **flags):
        with self.assertRaisesRegex(UserError, message):
            tiny_exports.export(model_dir, self.output_dir, **flags)
        self.assertFalse(
            os.path.isdir(self.output_dir) and os.listdir(self.output_dir)
        )

    def test_rejects_a_head_that_the_model_lacks(self):
        self._assert_refused(
            "is of kind='classification' and can be exported with "
            "--head=classification or embeddings. Received: --head=fill_mask",
            self._write(),
            head="fill_mask",
        )

    def test_rejects_a_model_without_vocabulary(self):
        path = self.path("model")
        tiny_model.write(path, with_vocabulary=False)
        self._assert_refused("has no vocab.txt", path)

    @parameterized.parameters(
        ({"pooling": "max"}, "--pooling is for --head=embeddings"),
        ({"layer": 1}, "--layer is for --head=embeddings"),
        ({"top_k": 3}, "--top_k is for --head=fill_mask"),
        ({"n_best_size": 3}, "--n_best_size is for --head=question_answering"),
    )
    def test_rejects_flags_of_other_heads(self, flags, message):
        self._assert_refused(message, self._write(), **flags)

    @parameterized.named_parameters(
        (
            "rows_longer_than_the_positions",
            "--max_seq_length must be at most 12, .* Received: 13",
            {"max_seq_length": 13},
        ),
        (
            "buckets_longer_than_rows",
            "Received: '4,10'",
            {"max_seq_length": 9, "buckets": "4,10"},
        ),
        (
            "a_missing_layer",
            "--layer must lie between -1 and 0, .* Received: 1",
            {"layer": 1},
            "encoder",
        ),
    )
    def test_export_is_refused_for(self, message, flags, task=None):
        self._assert_refused(message, self._write(task), **flags)

    def test_rejects_an_output_directory_that_is_a_file(self):
        with open(self.output_dir, "w", encoding="utf-8"):
            pass
        self._assert_refused("is not a writable folder", self._write())

    @pytest.mark.slow
    def test_two_exports_have_the_same_bytes(self):
        model_dir = self._write()
        contents = []
        for parent in ("a", "b"):
            folder = self.path(parent, "served")
            version = os.path.join(folder, "1")
            tiny_exports.export(model_dir, folder)
            contents.append(
                {
                    os.path.relpath(path, version): path.read_bytes()
                    for path in pathlib.Path(version).rglob("*")
                    if path.is_file()
                }
            )
        first, second = contents
        self.assertEqual(first.keys(), second.keys())
        # One has a random number; one counts the functions of this process.
        different = {"fingerprint.pb", "saved_model.pb"}
        self.assertEqual(
            {name for name in first if first[name] != second[name]}, different
        )
        self.assertEqual(*map(_variables, contents))

    def test_commands_name_no_temporary_folder(self):
        config = SavedModelConfig(model_dir="models/m", output_dir="served")
        for origin, name in (
            (None, "models/m"),
            ("a Keras model", "MODEL_DIR"),
        ):
            line = savedmodel.command_line("x.py", config, origin)
            self.assertEndsWith(
                line, f" --model_dir={name} --output_dir=served"
            )


class HeadsTest(tf.test.TestCase):
    def test_default_head_is_that_of_the_task(self):
        for kind, head in (
            ("pretraining", "fill_mask"),
            ("encoder", "embeddings"),
        ):
            path = self.create_tempdir().full_path + "/model"
            stored = formats.read(tiny_model.write(path, kind=kind))
            task = stored.task
            self.assertEqual(serving_heads.choose_head("auto", task, ""), head)
            with self.assertRaisesRegex(
                UserError, f"kind='{kind}' .*--head={head}"
            ):
                serving_heads.choose_head("tagging", task, "")

    def test_custom_tasks_export_their_encoder(self):
        task = {"kind": "classification", "variant": "stars"}
        choose = serving_heads.choose_head
        tasks = registry.TASKS
        self.assertEqual(choose("embeddings", task, "", tasks), "embeddings")
        for head in ("auto", "classification"):
            with self.assertRaisesRegex(UserError, "--head=embeddings"):
                choose(head, task, "", tasks)
            # Users may have added the task to the registry.
            self.assertEqual(choose(head, task, ""), "classification")

    def test_every_kind_of_model_has_a_head(self):
        self.assertEqual(set(savedmodel.HEADS), set(export.HEADS))
        heads = {export.heads_of(kind)[0] for kind in weight_map.HEADS}
        self.assertEqual(heads, set(savedmodel.HEADS))


if __name__ == "__main__":
    tf.test.main()
