"""Tests of a graph's encoder layers, also with rematerialization."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.distill import DistillConfig
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import encoder

# vocab_size, hidden_size, layers, heads and intermediate_size.
_CONFIG = BertConfig(
    20, 8, 2, 2, 12, max_position_embeddings=8, type_vocab_size=2
)


def _compute(
    dtype, config=_CONFIG, shape=(3, 8), in_function=False, **arguments
):
    """Returns outputs, gradients by name, and the count of matrix products."""
    model = bert_model.BertModel(config, dtype=dtype, **arguments)
    model.encoder.shares_graph = in_function
    variables = bert_model.named_variables(model)
    rng = np.random.default_rng(4)
    for variable in variables.values():
        variable.assign(rng.normal(size=variable.shape, scale=0.3))
    ids = rng.integers(0, 20, [3, 8]).astype(np.int32)
    mask = (np.arange(8) < [[8], [5], [1]]).astype(np.int32)
    spec = tf.TensorSpec(shape, tf.int32)

    @tf.function(autograph=False, input_signature=[spec, spec])
    def compute(ids, mask):
        with tf.GradientTape() as tape:
            outputs = model(
                {"input_ids": ids, "input_mask": mask},
                training=True,
                dropout_seeds=tf.constant([7, 8, 9]),
            )
            outputs = tf.nest.flatten(outputs)
            squares = [tf.cast(x, tf.float32) ** 2 for x in outputs]
            loss = tf.add_n([tf.reduce_sum(x) for x in squares])
        gradients = tape.gradient(loss, [v.value for v in variables.values()])
        return outputs, [tf.convert_to_tensor(x) for x in gradients]

    outputs, gradients = compute(ids, mask)
    graph = compute.get_concrete_function().graph
    return (
        outputs,
        dict(zip(variables, gradients, strict=True)),
        _count_products(graph),
    )


def _count_products(graph):
    """Counts matrix products; a function's count once for each call."""
    operations = graph.get_operations()
    counts = {
        function.signature.name: sum(
            "MatMul" in node.op for node in function.node_def
        )
        for function in graph.as_graph_def().library.function
    }
    return sum("MatMul" in op.type for op in operations) + sum(
        counts.get(op.get_attr("f").name, 0)
        for op in operations
        if op.type.endswith("PartitionedCall")
    )


class OneFunctionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        activation=("gelu", "gelu_erf"), shape=([None, None], [3, 8])
    )
    def test_layers_compute_the_same_bits_in_the_graph_itself(
        self, activation, shape
    ):
        config = dataclasses.replace(_CONFIG, hidden_act=activation)
        options = {"config": config, "shape": shape}
        outputs, gradients, products = _compute("float32", **options)
        again, same, more = _compute("float32", in_function=True, **options)
        self.assertEqual(products, more)
        for one, other in zip(outputs, again, strict=True):
            self.assertAllEqual(one, other)
        for name, gradient in gradients.items():
            self.assertAllEqual(same[name], gradient, name)

    def test_predictions_are_the_same_bits(self):
        model = bert_model.BertModel(_CONFIG, for_inference=True)
        inputs = {"input_ids": tf.constant([[1, 2, 3, 4], [5, 6, 7, 0]])}
        expected = tf.function(model, autograph=False)(inputs)
        model.encoder.shares_graph = True
        received = tf.function(model, autograph=False)(inputs)
        for name, value in expected.items():
            self.assertAllEqual(received[name], value, name)


class RematTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_outputs_and_gradients_match_bit_for_bit(self):
        self._compare("float32")

    @pytest.mark.thorough
    def test_bfloat16_matches_bit_for_bit(self):
        self._compare("mixed_bfloat16")

    def _compare(self, dtype):
        outputs, gradients, products = _compute(dtype, fuse=True)
        again, same, more = _compute(dtype, fuse=True, remat=True)
        for one, other in zip(again, outputs, strict=True):
            self.assertAllEqual(one, other)
        for name, gradient in gradients.items():
            self.assertAllEqual(same[name], gradient, name)
            self.assertEqual(same[name].dtype, gradient.dtype)
        # Each of two layers recomputes six projections and two head products.
        self.assertEqual(more - products, 2 * 8)

    def test_refuses_attention_probs(self):
        with self.assertRaisesRegex(UserError, "return_attention_probs"):
            bert_model.BertModel(
                _CONFIG, remat=True, return_attention_probs=True
            )
        with self.assertRaisesRegex(UserError, "--attention_weight"):
            DistillConfig(
                teacher_dir="teacher",
                output_dir="out",
                do_train=True,
                train_file="train.tsv",
                num_hidden_layers=1,
                attention_weight=1.0,
                remat=True,
            )
        with self.assertRaisesRegex(UserError, "--remat cannot be used with"):
            TaggerConfig(
                output_dir="out",
                pretrained_model_dir="model",
                do_train=True,
                data_dir="data",
                approach="feature_based",
                remat=True,
            )

    def test_several_devices_do_not_undo_it(self):
        before = tf.config.optimizer.get_experimental_options()
        self.addCleanup(
            tf.config.optimizer.set_experimental_options,
            {"dependency_optimization": True},
        )
        encoder.keep_recomputation(1)
        self.assertEqual(tf.config.optimizer.get_experimental_options(), before)
        encoder.keep_recomputation(2)
        options = tf.config.optimizer.get_experimental_options()
        self.assertIs(options["dependency_optimization"], False)


if __name__ == "__main__":
    tf.test.main()
