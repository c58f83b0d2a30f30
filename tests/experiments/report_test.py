"""Tests for bert_tf.experiments.report, its text and its plots."""

import itertools
import json
import math
import os
import pathlib
import shutil
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging
from matplotlib import image

from bert_tf.experiments import data
from bert_tf.experiments import plots
from bert_tf.experiments import report
from bert_tf.experiments import report_text
from bert_tf.io import temporaries
from tests.support import full_disk

_ROOT = pathlib.Path(__file__).parents[2]
_COMMITTED = _ROOT / "benchmarks" / "results" / "experiments" / "small"


def _row(name, label):
    return {"name": name, "label": label}


def _column(name, label, metric, paper="", higher_is_better=True):
    others = {"paper": paper, "higher_is_better": higher_is_better}
    return {"name": name, "label": label, "metric": metric, **others}


_ROWS = (
    _row("bert", "BERT"),
    _row("no_nsp", "No | NSP"),
    _row("ltr_no_nsp", "LTR"),
    _row("ltr_bilstm", "LTR + BiLSTM"),
)
_SEEDS = (11, 12, 13)
_CLAIMS = (
    ("ltr_no_nsp", "squad", "below"),
    ("ltr_bilstm", "squad", "above", "ltr_no_nsp"),
    ("no_nsp", "names", "below"),
    ("no_nsp", "perplexity", "above"),
    # Left out, as the table does not have them.
    ("no_nsp", "squad", "below", "missing_row"),
    ("no_nsp", "missing_column", "below"),
)
# By row: scores on SQuAD and names by seed, and a perplexity.
_SCORES = {
    "bert": ((48.0, 49.5, 51.0), (55.0, 57.0, 56.0), 30.5),
    "no_nsp": ((47.5, 50.0, 50.0), (56.0, 58.5, 57.25), 31.0),
    "ltr_no_nsp": ((31.0, 30.5, 32.0), (41.0, 44.0, 41.5), 42.0),
    "ltr_bilstm": ((38.0, 37.0, 39.5), (41.5, 43.5, 42.0), 42.0),
}


def _ids(table, row, column, seeds=_SEEDS):
    return tuple(f"{table}-{row}-{column}-{seed}" for seed in seeds)


def _table(name, title, kind, rows, columns, reference, **others):
    words = {"name": name, "title": title, "question": "Q", "kind": kind}
    cells = [
        [row["name"], column["name"], *_ids(name, row["name"], column["name"])]
        for row in rows
        for column in columns
    ]
    parts = {"rows": rows, "columns": columns, "cells": cells}
    usual = {"reference_row": reference, "expected": [], "scaled_down": ""}
    return {**words, **parts, **usual, **others}


def _table5():
    columns = [
        _column("squad", "SQuAD F1", "f1"),
        _column("names", "Names F1", "f1", "ner"),
        _column("perplexity", "Perplexity", "ppl", higher_is_better=False),
    ]
    table = _table("table5", "Table 5", "table", _ROWS, columns, "bert")
    for cell in table["cells"]:
        if cell[1] == "perplexity":
            del cell[3:]
    words = "Scaled down: two layers."
    return table | {"expected": _CLAIMS, "scaled_down": words}


def _spread():
    rows = (_row("three", "3 epochs"), _row("ten", "10 epochs"))
    columns = [_column("small", "500 rows", "accuracy")]
    return _table("stability", "S", "spread", rows, columns, "three")


def _curve():
    rows = (_row("masked_lm", "Masked LM"), _row("left_to_right", "LTR"))
    columns = [
        _column(f"step_{n}", f"{n}", "accuracy") for n in (100, 200, 400)
    ]
    expected = [["masked_lm", "step_400", "above"]]
    table = _table("figure5", "F", "curve", rows, columns, "left_to_right")
    return table | {"expected": expected}


class ReportTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        os.makedirs(os.path.join(self.folder, "cells"))

    def _path(self, *names):
        return pathlib.Path(self.folder, *names)

    def _put(self, cell, score, seed, **others):
        values = {"id": cell, "score": score, "seed": seed, "seconds": 60.0}
        values |= {"commit": "aaa", **others}
        self._path("cells", f"{cell}.json").write_text(json.dumps(values))

    def _put_table5(self):
        for row, (squad, names, perplexity) in _SCORES.items():
            for column, scores in (("squad", squad), ("names", names)):
                cells = _ids("table5", row, column)
                for cell, score, seed in zip(
                    cells, scores, _SEEDS, strict=True
                ):
                    self._put(cell, score, seed)
            (cell,) = _ids("table5", row, "perplexity", _SEEDS[:1])
            self._put(cell, perplexity, _SEEDS[0])

    def _report(self, *built):
        """Returns the contents and the text of a report, without plots."""
        contents = report.build(built, self.folder)
        return contents, report_text.text(contents)

    def _write(self, *built):
        self._path("tables").mkdir(exist_ok=True)
        for table in built:
            path = self._path("tables", f"{table['name']}.json")
            path.write_text(json.dumps(table))
        report.write(self.folder)
        text = self._path("report.md").read_text("utf-8")
        return json.loads(self._path("report.json").read_text("utf-8")), text


class ReportTest(ReportTestCase):
    def test_a_stranger_recomputes_the_verdicts_from_raw_scores(self):
        self._put_table5()
        found, _ = self._report(_table5())
        (table,) = found["tables"]
        raw = {
            (v["row"], v["column"]): {
                s["seed"]: s["score"] for s in v["scores"]
            }
            for v in table["values"]
        }
        verdicts = []
        for sign in table["signs"]:
            row = raw[sign["row"], sign["column"]]
            other = raw[sign["against"], sign["column"]]
            gaps = [row[seed] - other[seed] for seed in row]
            mean = sum(gaps) / len(gaps)
            self.assertAllClose(sign["difference"], mean)
            verdict = "not distinguishable"
            if len(gaps) > 1:
                squares = sum((gap - mean) ** 2 for gap in gaps)
                error = math.sqrt(squares / (len(gaps) - 1) / len(gaps))
                self.assertAllClose(sign["error"], error)
                if abs(mean) > 2 * error:
                    is_above = sign["expected"] == "above"
                    verdict = (
                        "agrees" if is_above == (mean > 0) else "contradicts"
                    )
            self.assertEqual(sign["verdict"], verdict)
            verdicts.append(verdict)
        self.assertEqual(
            verdicts,
            ["agrees", "agrees", "contradicts", "not distinguishable"],
        )

    def test_missing_failed_and_foreign_cells(self):
        self._put_table5()
        missing, failed, other = _ids("table5", "no_nsp", "squad")
        self._path("cells", f"{missing}.json").unlink()
        self._path("cells", f"{failed}.json").unlink()
        reason = {"command": "x", "log": "a.log", "last_lines": ["disk full"]}
        for cell in (failed, other):  # The last was done again.
            path = self._path("cells", f"{cell}.failed.json")
            path.write_text(json.dumps(reason))
        self._put(_ids("table5", "bert", "squad")[2], 51.0, 99, test_score=50.5)
        self._put("stranger", 1.0, 5)
        for name, contents in (
            ("half.json", '{"score": 1'),
            ("list.json", "[1]"),
            ("none.json", '{"score": NaN}'),
        ):
            self._path("cells", name).write_text(contents)
        found, text = self._report(_table5())
        self.assertEqual([cell["id"] for cell in found["failed"]], [failed])
        self.assertEqual(
            found["unreadable"], ["half.json", "list.json", "none.json"]
        )
        self.assertEqual(found["foreign"], ["stranger"])
        self.assertIn("26 of 28 cells are finished, 1 failed.", text)
        self.assertIn(
            "| No \\| NSP | 50.00 (1 of 3) | +0.50 | – | 87.9 |", text
        )
        self.assertIn("1 not finished, 1 failed.", text)
        self.assertIn("| difference to BERT | test | paper |", text)
        self.assertIn("| – | 50.50 (1) | 88.5 |", text)
        self.assertIn("log `a.log`:\n\n    disk full", text)
        # One seed differs from the reference's.
        self.assertIn("-18.33 ± 0.97 (Welch)", text)

    def test_nothing_is_finished(self):
        os.rmdir(self._path("cells"))
        found, text = self._write(_table5(), _spread(), _curve())
        self.assertEqual(found["num_finished"], 0)
        self.assertIn("| no result yet |", text)
        for name in ("table5", "stability", "figure5"):
            self.assertTrue(self._path(f"{name}.png").exists())


class CommittedTest(ReportTestCase):
    def test_committed_cells_have_the_verdicts_of_the_documentation(self):
        """docs/experiments.md repeats these numbers."""
        for name in ("cells", "tables"):
            shutil.copytree(
                _COMMITTED / name, self._path(name), dirs_exist_ok=True
            )
        built = report.read_tables(self.folder)
        found, text = self._report(*built)
        self.assertEqual(
            (found["num_finished"], found["num_cells"]), (191,) * 2
        )
        for line in (
            "7 agree, 4 contradict, 7 are not distinguishable, 0 have no",
            "| [table5](#table5) | squad f1 |   + BiLSTM above Left-to-right & "
            "no NSP | +4.04 ± 0.88 | +7.1 | **agrees** |",
            "| BERT | 7.74 ± 0.57 (3) | – | 88.5 | – |  |",
            "| No NSP | 8.53 ± 0.68 (3) | +0.79 ± 0.29 | 87.9 | -0.6 | "
            "**contradicts** |",
            "### Masked-LM perplexity (lower is better)",
            "| 370.42 (1) | -23.08 ± 9.67 (held-out text) | **contradicts** |",
            "| Concatenation of the last four | 20.05 ± 0.48 (3) | "
            "+4.23 ± 0.32 | 96.1 | -0.3 | **contradicts** |",
            "| 4,000 | 40.95 ± 5.85 (3) | 43.07 ± 1.21 (3) | -2.12 ± 4.01 | "
            "82.2, 84.4 | -2.2 | not distinguishable |",
            "| original optimizer, 3 epochs, re-initialized | "
            "35.25 ± 3.53 (5) | +0.79 ± 1.42 | 33.50, 41.55 | "
            "4 of 5 (80%); it has 34.20 |",
            "a few thousand rows of each task. Each model was pretrained once",
            "The paper's numbers: Ablation of the pretraining tasks, dev sets.",
            "Standard errors of differences: paired by seed.",
            "By chance, 18% of differences",
            "by 6 commits: 5894ed1ce828 (88), ",
            "Made by commit db4339440598: `snli-masks_0_20_80-seed12345-cbbd",
            "All other cells: commit 9ea9b48f1783.",
        ):
            self.assertIn(line, text)


class PaperTest(tf.test.TestCase):
    def test_every_table_is_complete(self):
        paper = data.read_recipe("paper")["tables"]
        names = [f"table{number}" for number in range(1, 9)] + ["figure5"]
        self.assertEqual(list(paper), names)
        for name, table in paper.items():
            for row in table["rows"].values():
                self.assertContainsSubset(row["values"], table["columns"])
                if name in ("table1", "table5", "table6", "table8", "figure5"):
                    self.assertLen(row["values"], len(table["columns"]))
        for row in paper["table1"]["rows"].values():
            *scores, average = row["values"].values()
            # The server averages unrounded scores.
            self.assertAllClose(sum(scores) / 9, average, atol=0.07)

    def test_values_by_name_and_by_the_column_meant(self):
        def value(table, row, column):
            return report.paper_value(table, row, column)

        table, own = _table5(), _column("wikigold", "", "f1", "ner")
        self.assertEqual(value(table, "ltr_bilstm", table["columns"][0]), 84.9)
        table["name"] = "table7"
        self.assertEqual(value(table, "embeddings", own), 91.0)
        self.assertIsNone(value(table, "own", own))
        self.assertIsNone(value(table, "embeddings", {**own, "paper": ""}))

    def test_curves_are_compared_at_the_same_share_of_steps(self):
        columns = [_column(f"step_{n}", "", "f1") for n in (1, 30, 50, 60)]
        table = _curve() | {"columns": columns}
        values = [report.paper_value(table, "masked_lm", x) for x in columns]
        self.assertIsNone(values[0])  # The paper's curve begins at 3%.
        # At 500k, between 83.2 and 84.0; at 833k and at the end.
        self.assertAllClose(values[1:], [83.6, 84.3, 84.4])


class PretrainingCurvesTest(ReportTestCase):
    def _put_run(self, step, has_finished=True):
        folder = self._path("pretraining", step)
        folder.mkdir(parents=True)
        rows = [
            {
                "step": step,
                "masked_lm_loss": 9.0 - step / 100,
                "masked_lm_accuracy": step / 1000,
            }
            for step in (1, 2, *range(10, 401, 10))
        ]
        rows.insert(3, {"step": 15, "loss": 2.0})  # Nothing was predicted.
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / "train_metrics.jsonl").write_text(lines)
        if has_finished:
            self._path("steps").mkdir(exist_ok=True)
            self._path("steps", f"{step}.json").write_text("{}")

    def test_sizes_are_drawn_over_steps(self):
        self._put_run("pretraining-bert-0a1b2c3d")
        self._put_run("pretraining-bert_2_64_1-0a1b2c3e")
        self._put_run("pretraining-ltr_no_nsp-0a1b2c3f")  # Not a size.
        self._put_run("pretraining-bert_4_64_1-01234567", has_finished=False)
        found, text = self._write()
        curves = found["pretraining"]
        self.assertEqual([x["name"] for x in curves], ["bert", "bert_2_64_1"])
        for curve in curves:
            self.assertEqual((curve["steps"][0], curve["steps"][-1]), (1, 400))
            self.assertAllClose(curve["masked_lm_loss"][0], 8.99)
            self.assertLess(curve["masked_lm_loss"][-1], 5.2)
            self.assertLess(len(curve["steps"]), 43)
        self.assertIn("![Pretraining curves](pretraining.png)", text)
        self.assertTrue(self._path("pretraining.png").exists())


class WriteTest(ReportTestCase):
    def test_plots_are_drawn_where_values_change(self):
        self._put_table5()
        built = (_table5(), _spread())
        with mock.patch.object(plots, "draw", side_effect=plots.draw) as draw:
            self._write(*built)
            self.assertEqual(draw.call_count, 2)
            self._write(*built)
            self.assertEqual(draw.call_count, 2)
            self._put(_ids("stability", "ten", "small")[0], 50.0, 11)
            self._write(*built)
            self.assertEqual(draw.call_count, 3)
            self._path("table5.png").unlink()
            self._write(*built)
            self.assertEqual(draw.call_count, 4)
        pixels = image.imread(self._path("table5.png"))
        self.assertAllEqual(pixels[0, 0], np.ones(4))  # Opaque, for dark pages.
        self.assertGreater(pixels.shape[0], pixels.shape[1])

    def test_a_full_disk_leaves_the_earlier_report(self):
        with full_disk.mount(self, 1) as folder:
            self.folder = folder
            self._path("cells").mkdir()
            _, text = self._write(_spread())
            self._put(_ids("stability", "ten", "small")[0], 50.0, 11)
            with open(self._path("filler"), "wb", buffering=0) as file:
                with self.assertRaises(OSError):
                    for _ in itertools.repeat(None):
                        file.write(bytes(4096))
            with self.assertLogs(logging.get_absl_logger(), "ERROR") as logs:
                report.write(folder)
            self.assertIn("report could not be written", logs.output[0])
            self.assertEqual(self._path("report.md").read_text("utf-8"), text)
            names = {path.name for path in self._path().iterdir()}
            self.assertFalse([x for x in names if temporaries.is_temporary(x)])


if __name__ == "__main__":
    tf.test.main()
