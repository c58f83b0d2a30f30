"""Tests for bert_tf.modeling.inference: outputs match the model's."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import inference
from tests.support import tiny_layers

_CONFIG = tiny_layers.WIDER


@parameterized.parameters(
    *((name, {}) for name in tiny_layers.WIDER_MODELS),
    ("encoder", {"hidden_act": "gelu_erf"}),
)
class PrepareTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_same(self, name, changes, precision, tolerance):
        model = tiny_layers.wider_model(name, changes)
        prepared = inference.prepare(model, precision)
        self.assertIs(type(prepared), type(model))
        inputs = tiny_layers.wider_inputs(name)
        expected = model(inputs, training=False)
        compute = tf.function(lambda x: prepared(x, training=False))
        traced = compute.get_concrete_function(inputs)
        self._assert_no_gradient_of_its_own(traced.graph)
        received = traced(inputs)
        self.assertEqual(set(received), set(expected))
        for a, b in zip(
            tf.nest.flatten(received), tf.nest.flatten(expected), strict=True
        ):
            self.assertGreater(np.std(b), 1e-5)
            self.assertAllClose(
                tf.cast(a, tf.float32), b, rtol=tolerance, atol=tolerance
            )
        return bert_model.named_variables(prepared)

    def _assert_no_gradient_of_its_own(self, graph):
        """Checks that the graph has no custom gradient, which needs Python."""
        definition = graph.as_graph_def()
        nodes = [*definition.node]
        for function in definition.library.function:
            nodes += function.node_def
        for node in nodes:
            self.assertNotIn("_gradient_op_type", node.attr, node.name)

    def test_float32_outputs_match_with_merged_kernels(self, name, changes):
        named = self._assert_same(name, changes, "float32", 2e-5)
        merged = [x for x in named if x.endswith("/query_key_value/kernel")]
        self.assertLen(merged, _CONFIG.num_hidden_layers)
        self.assertEqual({x.dtype for x in named.values()}, {"float32"})

    @pytest.mark.slow
    def test_only_large_weights_become_bfloat16(self, name, changes):
        named = self._assert_same(name, changes, "bfloat16", 0.15)
        for weight, variable in named.items():
            is_large = weight.startswith(("bert/", "cls/predictions/tr"))
            is_large &= "LayerNorm" not in weight
            self.assertEqual(
                variable.dtype, "bfloat16" if is_large else "float32", weight
            )


class PartsTest(tf.test.TestCase, parameterized.TestCase):
    def test_form_does_not_depend_on_the_model(self):
        model = bert_model.BertModel(_CONFIG, fuse=True, dtype="mixed_bfloat16")
        prepared = inference.prepare(model, "float16")
        self.assertFalse(prepared.fuse)
        self.assertTrue(prepared.for_inference)
        self.assertEqual(prepared.compute_dtype, "float16")
        named = bert_model.named_variables(prepared)
        name = "bert/encoder/layer_1/attention/self/query_key_value/kernel"
        self.assertEqual(named[name].dtype, "float16")

    def test_shared_weights_are_the_models_own(self):
        model = tiny_layers.wider_model("classification")
        prepared = inference.prepare(model, shares_weights=True)
        own = bert_model.named_variables(model)
        for name, variable in bert_model.named_variables(prepared).items():
            if name in own:
                self.assertIs(variable.value, own[name].value, name)
        inputs = tiny_layers.wider_inputs("classification")
        self.assertAllEqual(
            prepared(inputs)["logits"],
            inference.prepare(model)(inputs)["logits"],
        )

    def test_a_head_keeps_its_inputs(self):
        model = tiny_layers.wider_model("classification")
        prepared = inference.prepare(model, has_pooler=False)
        with self.assertRaisesRegex(UserError, "has_pooler=False"):
            prepared(tiny_layers.wider_inputs("classification"))
        for heads in ((), ("masked_lm", "tagger")):
            with self.assertRaisesRegex(UserError, "`heads` must be some of"):
                bert_model.BertForPretraining(_CONFIG, heads=heads)


if __name__ == "__main__":
    tf.test.main()
