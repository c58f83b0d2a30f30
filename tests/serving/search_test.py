"""Tests of --search_file: texts, answers, the cache and the page."""

import gzip
import os
import pathlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.errors import UserError
from bert_tf.export import savedmodel
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.serving import preflight
from bert_tf.serving import search
from tests.support import files_case
from tests.support import tiny_exports
from tests.support import tiny_model
from tests.support import toy_models

_TEXTS = ["the cat sat", "dog", "the dogs on the mat .", "東", "mats , cat"]


def _read(pattern):
    return preflight.read_texts(pattern, files.expand_globs(pattern))


class TextsTest(files_case.FilesCase):
    def test_reads_lines_and_tables(self):
        self.write("a.txt", "cat\ndog\n")
        self.write("b.csv", "id,text\n1,mat\n2,\n3,東\n")
        self.assertEqual(
            _read(f"{self.folder}/*.*"),
            [
                {"text": "cat", "place": "a.txt:1"},
                {"text": "dog", "place": "a.txt:2"},
                {"text": "mat", "place": "b.csv:2"},
                {"text": "東", "place": "b.csv:4"},
            ],
        )

    def test_joins_the_short_lines_of_a_paragraph(self):
        lines = ["It was a dark", " and stormy night;", "", "", "the rain"]
        wrapped = self.write("a.txt", "\r\n".join(lines))
        self.assertEqual(
            _read(wrapped),
            [
                {"text": "It was a dark and stormy night;", "place": "a.txt:1"},
                {"text": "the rain", "place": "a.txt:5"},
            ],
        )
        with gzip.open(f"{wrapped}.gz", "wt") as file:
            file.write("\n".join(lines))
        self.assertLen(_read(f"{wrapped}.gz"), 2)
        # Lines are whole texts if one is long, or if blank lines are rare.
        cases = (["rain " * 21], 4), (["rain"] * 17, 2), (["rain"] * 18, 21)
        for more, count in cases:
            path = self.write("b.txt", "\n".join([*lines, *more]))
            self.assertLen(_read(path), count)

    @parameterized.parameters(
        ("a.csv", "id,text\n1,\n2, \n", "has no text"),
        ("a.jsonl", '{"text": 3}\n', "line 1 must have a string"),
    )
    def test_refuses_files_without_texts(self, name, contents, message):
        path = self.write(name, contents)
        with self.assertRaisesRegex(UserError, message):
            _read(path)


@pytest.mark.slow
class SearchTest(toy_models.ToyCase, files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.texts = self.write("texts.txt", "\n".join(_TEXTS))
        cache = {"BERT_TF_CACHE": f"{self.folder}/cache"}
        self.enterContext(mock.patch.dict(os.environ, cache))

    def test_returns_the_nearest_texts_and_keeps_embeddings(self):
        path = tiny_model.write_initialized(f"{self.folder}/model", 4)
        with tiny_exports.graph_alone():
            savedmodel.run(
                SavedModelConfig(
                    model_dir=path, output_dir=f"{self.folder}/tiny"
                )
            )
        model = bert_tf.load_model(path, "embeddings")
        (cosines,) = model.similarity(["the dog"], _TEXTS)
        self._check(cosines)
        (cache,) = pathlib.Path(self.folder, "cache", "searched").iterdir()
        before = np.load(cache)
        self._check(cosines)
        self.assertAllEqual(np.load(cache), before)
        # Embeddings of another model with this name are computed again.
        np.save(cache, before[::-1])
        self._check(cosines)
        self.assertAllClose(np.load(cache), before, atol=1e-6)
        # So are embeddings that differ only in the longest text.
        changed = before.copy()
        changed[np.argmax([len(x) for x in _TEXTS])] *= -1
        np.save(cache, changed)
        with mock.patch.object(search, "_TEXTS_PER_CALL", 1):
            self._check(cosines)
        self.assertAllClose(np.load(cache), before, atol=1e-6)

    def _check(self, cosines):
        order = np.argsort(-cosines, kind="stable")[:3]
        with toy_models.serving(
            f"{self.folder}/tiny", search_file=self.texts
        ) as (_, config):
            port = config.rest_api_port
            for body, message in (
                ({"query": " "}, "`query` must be a text"),
                ({"query": ["a"]}, "`query` must be a text"),
                ({"query": "a", "count": 0}, "`count` must be 1 to"),
            ):
                status, answer = toy_models.ask(port, "POST", "/search", body)
                self.assertEqual(status, 400)
                self.assertIn(message, answer["error"])
            status, page = toy_models.ask_raw(port, "GET", "/search")
            self.assertEqual(status, 200)
            self.assertIn(b"/page/search.js", page)
            body = {"query": "the dog", "count": 3}
            status, answer = toy_models.ask(port, "POST", "/search", body)
        self.assertEqual(status, 200)
        found = answer["results"]
        self.assertEqual([x["text"] for x in found], [_TEXTS[x] for x in order])
        scores = [x["score"] for x in found]
        self.assertAllClose(scores, cosines[order], atol=1e-5)
        self.assertEqual(found[0]["place"], f"texts.txt:{order[0] + 1}")

    def test_refuses_models_without_embeddings(self):
        with self.assertRaisesRegex(UserError, "needs a model for embeddings"):
            self.enterContext(
                toy_models.serving(
                    os.path.dirname(self.version), search_file=self.texts
                )
            )


if __name__ == "__main__":
    tf.test.main()
