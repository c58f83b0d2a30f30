"""The tables of docs/scaling.md: what the tools print, of the right models."""

import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import BertConfig
from bert_tf.modeling.bert import BertForPretraining
from tools import memory_table
from tools import scaling_table

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


class ScalingTableTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.page = _PAGE.read_text(encoding="utf-8")

    def test_page_has_what_the_tool_prints(self):
        cluster = scaling_table.published_cluster()
        for name, table in scaling_table.tables(cluster).items():
            self.assertIn(f"\n\n{table}\n", self.page, name)
        for quantity in scaling_table.quantities(cluster):
            self.assertIn(quantity, self.page)

    def test_weights_are_those_of_a_model(self):
        config = BertConfig(
            vocab_size=97,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=40,
            max_position_embeddings=24,
            type_vocab_size=2,
        )
        model = BertForPretraining(config)
        self.assertEqual(
            scaling_table.parameters(config),
            sum(v.shape.num_elements() for v in model.trainable_variables),
        )

    @parameterized.parameters(1, 2, 7)
    def test_operations_are_those_of_matrix_products(self, layers):
        config = BertConfig(
            vocab_size=11,
            hidden_size=6,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=10,
        )
        length, predictions = 5, 2
        shapes = [
            *[(length, 6, 6)] * 4,  # Query, key, value, output.
            *[(length, 6, 10), (length, 10, 6)],
            *[(length, 3, length), (length, length, 3)] * 2,  # Of each head.
        ] * layers
        shapes += [(1, 6, 6), (predictions, 6, 6), (predictions, 6, 11)]
        products = sum(
            rows * inner * columns for rows, inner, columns in shapes
        )
        self.assertEqual(
            scaling_table.operations(config, length, predictions),
            6 * products,
        )

    def test_one_accelerator_loses_nothing_and_idle_ones_count(self):
        cluster = scaling_table.Cluster({"float32": 1e9}, network=1.0)
        config = scaling_table.read_config("base")
        for count, batch, share in ((1, 7, 1.0), (4, 6, 0.75)):
            # Two of four have two of six sequences, and two have one.
            self.assertAllClose(
                cluster.efficiency(config, "float32", count, batch),
                share,
                rtol=2e-2,
            )

    def test_an_all_reduce_in_a_ring(self):
        # 4 devices send 6 of 4 parts in 6 steps; 16 go over the network.
        self.assertAllClose(
            scaling_table.reduce_seconds(4e9, 4, network=1.0),
            6e9 / 232.54e9 + 6e-5,
        )
        self.assertAllClose(
            scaling_table.reduce_seconds(16e9, 16, network=2.0),
            30e9 / 2e9 + 30e-5,
        )


class MemoryTableTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_page_has_what_the_tool_prints(self, remat):
        page = _PAGE.read_text(encoding="utf-8")
        self.assertIn(f"\n\n{memory_table.table(remat)}\n", page)


if __name__ == "__main__":
    tf.test.main()
