"""Tests for bert_tf.export.served_model."""

import importlib.metadata
import os
import shutil
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import names
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.export import savedmodel
from bert_tf.export import served_model
from bert_tf.flags.serve import ServeConfig
from tests.support import files_case
from tests.support import tiny_exports


class ServedModelTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.cache = self.path("cache")
        self.enter_context(
            mock.patch.dict(os.environ, {"BERT_TF_CACHE": self.cache})
        )

    def _prepare(self, path, **flags):
        return served_model.prepare(ServeConfig(model_base_path=path, **flags))

    def _make(self, *names):
        os.makedirs(self.path("base"))
        for name in names:
            path = self.path("base", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").close()
        return self.path("base")

    @pytest.mark.slow
    def test_exports_a_model_once_for_each_content(self):
        run = self.path("topics")
        model = tiny_exports.write(run, tiny_exports.classification())
        with tiny_exports.graph_alone():
            first = self._prepare(model)
            with self.assertLogs(level="INFO") as logs:
                self.assertEqual(self._prepare(model), first)
        self.assertIn("Serving the export of", logs.output[0])
        self.assertEqual(first.model_name, "topics")
        self.assertEqual(os.listdir(first.model_base_path), ["1"])
        self.assertStartsWith(first.model_base_path, self.cache)
        version = os.path.join(first.model_base_path, "1", "saved_model.pb")
        self.assertTrue(os.path.exists(version))
        # The key must depend on name, engine, version and each model file.
        keys = {os.path.basename(first.model_base_path)}
        keys.add(served_model._key(model, "topics", "litert"))
        keys.add(served_model._key(model, "other", "savedmodel"))
        with open(os.path.join(model, "README.md"), "a") as file:
            file.write("More.")
        keys.add(served_model._key(model, "topics", "savedmodel"))
        os.rename(
            os.path.join(model, "README.md"), os.path.join(model, "notes.md")
        )
        keys.add(served_model._key(model, "topics", "savedmodel"))
        with mock.patch.object(
            importlib.metadata, "version", return_value="9.9.9"
        ):
            keys.add(served_model._key(model, "topics", "savedmodel"))
        self.assertLen(keys, 6)
        copied = shutil.copytree(model, self.path("copy"))
        self.assertIn(served_model._key(copied, "topics", "savedmodel"), keys)

    @parameterized.parameters(
        (),
        ("1/saved_model.pb", "config.json"),
        ("2.tmp-7-0a/saved_model.pb", "models.config", ".lock"),
        ("saved_model.pb", "assets.extra/model_card.json"),
    )
    def test_leaves_folders_to_the_server(self, *names):
        config = ServeConfig(model_base_path=self._make(*names))
        self.assertIs(served_model.prepare(config), config)

    @parameterized.parameters(("a.txt",), ("export/1/saved_model.pb",))
    def test_refuses_folders_without_versions(self, *names):
        with self.assertRaisesRegex(
            UserError, "must be a folder with versions.*Received: .*base', a d"
        ):
            self._prepare(self._make(*names))

    @parameterized.parameters((["avx512_bf16"], "bfloat16"), ([], "float32"))
    def test_the_export_is_what_the_flags_serve(self, units, precision):
        run = self.path("topics")
        model = tiny_exports.write(run, tiny_exports.classification())
        self.enter_context(
            mock.patch.object(
                packed_weights, "bfloat16_flags", return_value=units
            )
        )
        with mock.patch.object(savedmodel, "write") as write:
            for name, engine in ((None, "savedmodel"), ("mine", "litert")):
                flags = self._prepare(model, model_name=name, engine=engine)
                ((config,), _) = write.call_args
                self.assertEqual(config.model_name, name or "topics")
                self.assertEqual(flags.model_name, name or "topics")
                self.assertEqual(config.litert, engine == "litert")
                # litert/ has its own precision, so this one stays float32.
                expected = "float32" if config.litert else precision
                self.assertEqual(config.precision, expected)
                self.assertEqual(config.output_dir, flags.model_base_path)

    def test_fetches_a_model_by_name(self):
        run = self.path("0123")
        model = tiny_exports.write(run, tiny_exports.classification())
        for source, name in (
            ("hf://owner/tiny", "tiny"),
            ("bert-base-uncased", "bert-base-uncased"),
        ):
            with (
                mock.patch.object(savedmodel, "write") as write,
                mock.patch.object(names, "resolve", return_value=model) as find,
            ):
                flags = self._prepare(source, search_file="x.txt")
            find.assert_called_once_with(source)
            ((config,), _) = write.call_args
            self.assertEqual(config.model_dir, model)
            self.assertEqual(config.head, "embeddings")
            self.assertEqual(flags.model_name, name)


if __name__ == "__main__":
    tf.test.main()
