"""Tests for bert_tf.modeling.inference: outputs match the model's."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.modeling import bert as models
from bert_tf.modeling import inference
from bert_tf.modeling import task_models
from tests.support import tiny_layers

_CONFIG = tiny_layers.WIDER
_LABELS = ["a", "b", "c"]


def _config(**values):
    return BertConfig.from_dict(_CONFIG.to_dict() | values)


_MODELS = {
    "encoder": lambda: models.BertModel(
        _CONFIG,
        return_all_layers=True,
        return_embeddings=True,
        return_attention_probs=True,
    ),
    "pretraining": lambda: models.BertForPretraining(_CONFIG),
    "exact_gelu": lambda: models.BertModel(_config(hidden_act="gelu_erf")),
    "left_to_right": lambda: task_models.BertForClassification(
        _config(left_to_right=True), labels=_LABELS
    ),
    "classification": lambda: task_models.BertForClassification(
        _CONFIG, labels=_LABELS
    ),
    "bilstm": lambda: task_models.BertForClassification(
        _CONFIG, labels=_LABELS, head="bilstm", lstm_size=5
    ),
    "question_answering": lambda: task_models.BertForQuestionAnswering(_CONFIG),
    "tagging": lambda: task_models.BertForTagging(_CONFIG, labels=_LABELS),
    "feature_based": lambda: task_models.BertForTagging(
        _CONFIG,
        labels=_LABELS,
        approach="feature_based",
        layer_combination="weighted_sum_all_layers",
        lstm_size=5,
    ),
    "multiple_choice": lambda: task_models.BertForMultipleChoice(_CONFIG),
}


def _inputs(name):
    rng = np.random.default_rng(4)
    shape = (3, 2, 9) if name == "multiple_choice" else (3, 9)
    lengths = rng.integers(4, 10, (*shape[:-1], 1))
    mask = (np.arange(9) < lengths).astype(np.int32)
    inputs = {
        "input_ids": rng.integers(1, 31, shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(9) >= 3).astype(np.int32) * mask,
    }
    if name == "pretraining":
        inputs["masked_lm_positions"] = np.array([[1, 3], [2, 0], [1, 2]])
    return inputs


def _build(name):
    """Returns a model whose weights differ everywhere."""
    model = _MODELS[name]()
    rng = np.random.default_rng(5)
    for variable in models.named_variables(model).values():
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    return model


@parameterized.parameters(*_MODELS)
class PrepareTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_same(self, name, precision, tolerance):
        model = _build(name)
        prepared = inference.prepare(model, precision)
        self.assertIs(type(prepared), type(model))
        inputs = tf.nest.map_structure(tf.constant, _inputs(name))
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
        return models.named_variables(prepared)

    def _assert_no_gradient_of_its_own(self, graph):
        """Checks that SavedModels hold nothing that needs Python's code."""
        definition = graph.as_graph_def()
        nodes = [*definition.node]
        for function in definition.library.function:
            nodes += function.node_def
        for node in nodes:
            self.assertNotIn("_gradient_op_type", node.attr, node.name)

    def test_float32(self, name):
        named = self._assert_same(name, "float32", 2e-5)
        merged = [x for x in named if x.endswith("/query_key_value/kernel")]
        self.assertLen(merged, _CONFIG.num_hidden_layers)
        self.assertEqual({x.dtype for x in named.values()}, {"float32"})

    @pytest.mark.slow
    def test_bfloat16(self, name):
        named = self._assert_same(name, "bfloat16", 0.15)
        for weight, variable in named.items():
            is_large = weight.startswith(("bert/", "cls/predictions/tr"))
            is_large &= "LayerNorm" not in weight
            self.assertEqual(
                variable.dtype, "bfloat16" if is_large else "float32", weight
            )


class PartsTest(tf.test.TestCase, parameterized.TestCase):
    def test_form_does_not_depend_on_the_model(self):
        model = models.BertModel(_CONFIG, fuse=True, dtype="mixed_bfloat16")
        prepared = inference.prepare(model, "float16")
        self.assertFalse(prepared.fuse)
        self.assertTrue(prepared.for_inference)
        self.assertEqual(prepared.compute_dtype, "float16")
        named = models.named_variables(prepared)
        name = "bert/encoder/layer_1/attention/self/query_key_value/kernel"
        self.assertEqual(named[name].dtype, "float16")

    def test_a_head_keeps_its_inputs(self):
        model = _build("classification")
        prepared = inference.prepare(model, has_pooler=False)
        with self.assertRaisesRegex(UserError, "has_pooler=False"):
            prepared(_inputs("classification"))
        for heads in ((), ("masked_lm", "tagger")):
            with self.assertRaisesRegex(UserError, "`heads` must be some of"):
                models.BertForPretraining(_CONFIG, heads=heads)


if __name__ == "__main__":
    tf.test.main()
