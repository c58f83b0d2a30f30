"""Tests for export.operators and export.graph_file."""

import os

import tensorflow as tf
import tensorflow_text as tf_text
from absl.testing import parameterized
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.errors import UserError
from bert_tf.export import graph_file
from bert_tf.export import operators


def _write(folder, names=(), in_function=(), compiled=False, asset=False):
    """Writes a SavedModel with nodes of some operators; returns its folder."""
    saved_model = saved_model_pb2.SavedModel()
    meta_graph = saved_model.meta_graphs.add()
    for name in names:
        meta_graph.graph_def.node.add(name=name, op=name)
    function = meta_graph.graph_def.library.function.add()
    function.signature.name = "__inference_7"
    function.attr["_XlaMustCompile"].b = compiled
    for name in in_function:
        function.node_def.add(name=name, op=name)
    if asset:
        meta_graph.asset_file_def.add(filename="vocab.txt")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, graph_file.FILE), "wb") as file:
        file.write(saved_model.SerializeToString())
    return folder


class OperatorsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    def test_counts_operators_inside_and_outside_functions(self):
        _write(
            self.folder,
            ["MatMul", "__inference_7"],
            ["MatMul", "FastBertNormalize", "Erf"],
        )
        self.assertEqual(
            dict(operators.read(self.folder)),
            {"Erf": 1, "FastBertNormalize": 1, "MatMul": 2},
        )

    def test_accepts_operators_that_serving_links(self):
        _write(
            self.folder,
            ["MatMul", "Erf", "BatchMatMulV2", "StatefulPartitionedCall"],
            ["FastBertNormalize", "FastWordpieceTokenizeWithOffsets"],
        )
        self.assertEmpty(operators.find_faults(self.folder))
        found = operators.read(self.folder)
        self.assertEqual(operators.oldest_serving(found), "2.12")
        self.assertTrue(operators.has_text_operators(found))
        self.assertFalse(operators.has_text_operators({"MatMul", "Erf"}))

    @parameterized.parameters(
        ("TFText>RoundRobinTrim", "only TensorFlow Serving 2.20 and later"),
        ("TFText>SomethingNew", "not in TEXT_OPERATORS"),
        # In TensorFlow 2.20, but not in 2.12.
        ("RaggedFillEmptyRows", "TensorFlow 2.12 does not have"),
        ("Erfc", "tf2onnx writes files with it that nothing reads"),
        ("Einsum", "readers of other projects refuse it"),
        ("StatelessRandomUniformV2", "it is for training"),
        ("RandomUniform", "it is for training"),
        ("EagerPyFunc", "needs this Python process"),
        ("HashTableV2", "tables need assets"),
        ("LookupTableFindV2", "tables need assets"),
    )
    def test_rejects_operators_inside_and_outside_functions(self, name, reason):
        for place in ("names", "in_function"):
            _write(self.folder, **{place: ["MatMul", name]})
            (fault,) = operators.find_faults(self.folder)
            self.assertIn(f"the operator {name}, ", fault)
            self.assertIn(reason, fault)

    def test_rejects_assets_and_compiled_functions(self):
        _write(self.folder, ["MatMul"], compiled=True)
        self.assertIn("XLA", operators.find_faults(self.folder)[0])
        _write(self.folder, ["MatMul"], asset=True)
        self.assertIn("asset files", operators.find_faults(self.folder)[0])

    def test_rejects_round_robin_trimming(self):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def trim(text):
            tokens = tf_text.WhitespaceTokenizer().tokenize(text)
            (trimmed,) = tf_text.RoundRobinTrimmer(3).trim([tokens])
            return trimmed.to_tensor("")

        module = tf.Module()
        tf.saved_model.save(module, self.folder, {"serving_default": trim})
        faults = operators.find_faults(self.folder)
        self.assertLen(faults, 1)
        self.assertIn("RoundRobin", faults[0])

    def test_lists_every_operator_of_tensorflow_text(self):
        # Fails with a new version, whose operators have to be reviewed.
        from tensorflow.core.framework import op_def_pb2
        from tensorflow.python.client import pywrap_tf_session

        installed = op_def_pb2.OpList()
        installed.ParseFromString(
            pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
        )
        names = {op.name for op in installed.op}
        self.assertContainsSubset(operators.TEXT_OPERATORS, names)
        texts = {name for name in names if name.startswith("TFText>")}
        self.assertContainsSubset(texts, operators.TEXT_OPERATORS)


class GraphFileTest(tf.test.TestCase):
    def test_reads_names_dtypes_and_shapes(self):
        @tf.function(
            input_signature=[tf.TensorSpec([None, 2], tf.int32, name="ids")]
        )
        def double(ids):
            return {"doubled": tf.cast(ids * 2, tf.float32)}

        folder = self.create_tempdir().full_path
        tf.saved_model.save(tf.Module(), folder, {"twice": double})
        (name,) = found = graph_file.read_signatures(folder)
        self.assertEqual(name, "twice")
        spec = found["twice"].inputs["ids"]
        self.assertEqual(spec.dtype, tf.int32)
        self.assertEqual(spec.shape.as_list(), [None, 2])
        spec = found["twice"].outputs["doubled"]
        self.assertEqual(spec.dtype, tf.float32)

    def test_rejects_invalid_saved_models(self):
        folder = self.create_tempdir()
        with self.assertRaisesRegex(UserError, "no such file"):
            graph_file.read(folder.full_path)
        folder.create_file(graph_file.FILE, "text")
        with self.assertRaisesRegex(UserError, "not a SavedModel"):
            graph_file.read(folder.full_path)
        folder.create_file(graph_file.FILE, "")
        with self.assertRaisesRegex(UserError, "one graph"):
            graph_file.read(folder.full_path)


if __name__ == "__main__":
    tf.test.main()
