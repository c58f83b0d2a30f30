"""Tests that exports use only operators that TensorFlow Serving 2.12 links."""

import os
import pathlib
import re

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import serving_module
from tests.support import every_head

_CORE_FILE = pathlib.Path(__file__).with_name("tensorflow_2_12_operators.txt")
# Stock images link these operators of TensorFlow Text 2.12; see
# `SUPPORTED_TENSORFLOW_OPS` in model_servers/BUILD.
_TEXT = {
    "FastBertNormalize",
    "FastWordpieceTokenizeWithOffsets",
    "RegexSplitWithOffsets",
    "TFText>ByteSplitByOffsets",
    "WhitespaceTokenizeWithOffsets",
    "WordpieceTokenizeWithOffsets",
}
# Nothing reads the Erfc that tf2onnx writes, and other projects refuse Einsum.
# Random numbers are for training, Python functions need this process, and
# tables need assets.
_REFUSED = re.compile(
    "Erfc|Einsum|.*(Random|Multinomial|Dropout|TruncatedNormal).*|"
    "(Eager)?PyFunc(Stateless)?|.*HashTable.*|(Lookup|Initialize)Table.*"
)


class OperatorsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*every_head.NAMES)
    @pytest.mark.thorough
    def test_tensorflow_2_12_links_them(self, name):
        lines = _CORE_FILE.read_text(encoding="utf-8").splitlines()
        core = {line for line in lines if not line.startswith("#")}
        published = every_head.publish()[name]
        for folder, text in (
            (published.output_dir, _TEXT),
            (published.ids_dir, set()),
        ):
            version = os.path.join(folder, "1")
            found = artifacts.count_operators(version)
            self.assertContainsSubset(found, core | text)
            self.assertIn("MatMul", {x.removeprefix("Batch") for x in found})
            self.assertEmpty([x for x in found if _REFUSED.fullmatch(x)])
            graph = artifacts.read_graph(version)
            self.assertEmpty(graph.asset_file_def)
            for function in graph.graph_def.library.function:
                # Few servers link XLA, so the others could not run this.
                self.assertFalse(function.attr["_XlaMustCompile"].b)


class SavedModelFileTest(tf.test.TestCase):
    def test_rejects_invalid_saved_models(self):
        folder = self.create_tempdir()
        with self.assertRaisesRegex(UserError, "no such file"):
            artifacts.read_graph(folder.full_path)
        folder.create_file(serving_module.FILE, "text")
        with self.assertRaisesRegex(UserError, "not a SavedModel"):
            artifacts.read_graph(folder.full_path)
        folder.create_file(serving_module.FILE, "")
        with self.assertRaisesRegex(UserError, "one graph"):
            artifacts.read_graph(folder.full_path)


if __name__ == "__main__":
    tf.test.main()
