"""Tests for bert_tf.experiments.paper."""

import tensorflow as tf

from bert_tf.experiments import paper
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Row
from bert_tf.experiments.table import Table


def _table(name, kind, *columns):
    rows = tuple(Row(row, row) for row in paper.read()["tables"][name]["rows"])
    return Table(name, "", "", kind, rows, columns, rows[0].name, {}, (), "")


class PaperTest(tf.test.TestCase):
    def test_every_table_is_complete(self):
        tables = paper.read()["tables"]
        names = [f"table{number}" for number in range(1, 9)] + ["figure5"]
        self.assertEqual(list(tables), names)
        for name, table in tables.items():
            for row in table["rows"].values():
                self.assertContainsSubset(row["values"], table["columns"])
                if name in ("table1", "table5", "table6", "table8", "figure5"):
                    self.assertLen(row["values"], len(table["columns"]))

    def test_average_of_table_1(self):
        for row in paper.read()["tables"]["table1"]["rows"].values():
            *scores, average = row["values"].values()
            # The server averages unrounded scores.
            self.assertAllClose(sum(scores) / 9, average, atol=0.07)

    def test_values_by_name_and_by_the_column_meant(self):
        squad = Column("squad", "SQuAD", "f1")
        table = _table("table5", "table", squad)
        self.assertEqual(paper.value(table, "ltr_bilstm", squad), 84.9)
        names = Column("wikigold", "WikiGold F1", "f1", paper="ner")
        table = _table("table7", "table", names)
        self.assertEqual(paper.value(table, "embeddings", names), 91.0)
        self.assertIsNone(paper.value(table, "own", names))
        other = Column("wikigold", "WikiGold F1", "f1")
        self.assertIsNone(paper.value(table, "embeddings", other))

    def test_curves_are_compared_at_the_same_share_of_steps(self):
        columns = [Column(f"step_{n}", "", "accuracy") for n in (1, 30, 50, 60)]
        table = _table("figure5", "curve", *columns)
        values = [paper.value(table, "masked_lm", each) for each in columns]
        self.assertIsNone(values[0])  # The paper's curve begins at 3%.
        # At 500k, between 83.2 and 84.0; at 833k and at the end.
        self.assertAllClose(values[1:], [83.6, 84.3, 84.4])


if __name__ == "__main__":
    tf.test.main()
