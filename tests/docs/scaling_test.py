"""The tables of docs/scaling.md: what the tools print, of the right models."""

import contextlib
import pathlib

import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.config import BertConfig
from bert_tf.flags import cli
from bert_tf.flags import flag_files
from tools import scaling_table

_DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_PAGE = _DOCS / "scaling.md"
# Has the tables that the page leaves out.
_LOG = _DOCS.parent / "benchmarks" / "log.md"


class ScalingTableTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.page = _PAGE.read_text(encoding="utf-8")

    def test_page_has_what_the_tool_prints(self):
        cluster = scaling_table.published_cluster()
        both = self.page + _LOG.read_text(encoding="utf-8")
        for name, table in scaling_table.tables(cluster).items():
            self.assertIn(f"\n\n{table}\n", both, name)
        for quantity in scaling_table.quantities(cluster):
            self.assertIn(quantity, self.page)

    def test_pretraining_page_has_the_costs(self):
        cluster = scaling_table.published_cluster()
        page = (_DOCS / "pretraining.md").read_text(encoding="utf-8")
        self.assertIn(f"\n\n{scaling_table.cost_table(cluster)}\n", page)

    @parameterized.parameters("base", "lamb")
    def test_costs_are_of_the_flag_files(self, name):
        first, second = scaling_table._RECIPES[f"{name}.flags"]
        steps = 0
        for file, phase in (("", first), ("_phase2", second)):
            values = flags.FlagValues()
            read_config = cli.define_flags(PretrainConfig, values)
            with contextlib.chdir(_DOCS.parent):
                words = [f"--flagfile={name}{file}.flags"]
                values(["pretrain.py", *flag_files.expand(words)])
            config = read_config()
            self.assertEqual(
                phase,
                (
                    config.stop_at_step - steps,
                    config.train_batch_size,
                    config.max_seq_length,
                    config.max_predictions_per_seq,
                ),
            )
            steps = config.stop_at_step

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


if __name__ == "__main__":
    tf.test.main()
