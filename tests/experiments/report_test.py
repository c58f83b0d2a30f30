"""Tests for bert_tf.experiments.report: comparisons, text and plots."""

import json
import pathlib
import shutil

import numpy as np
import tensorflow as tf
from matplotlib import image

from bert_tf.experiments import data
from bert_tf.experiments import report
from tests.support import files_case
from tests.support.repository import ROOT

_COMMITTED = ROOT / "benchmarks" / "results" / "experiments"
_SEEDS = (11, 12, 13)
# Row to its scores on SQuAD and on names by seed, and its perplexity.
_SCORES = {
    "bert": ((48.0, 49.5, 51.0), (55.0, 57.0, 56.0), (30.5,)),
    "no_nsp": ((47.5, 50.0, 50.0), (56.0, 58.5, 57.25), (31.0,)),
    "ltr_no_nsp": ((31.0, 30.5, 32.0), (41.0, 44.0, 41.5), (42.0,)),
    "ltr_bilstm": ((38.0, 37.0, 39.5), (41.5, 43.5, 42.0), (42.0,)),
}
_LABELS = ("BERT", "No | NSP", "LTR", "LTR + BiLSTM")
_CLAIMS = (
    ("ltr_no_nsp", "squad", "below"),
    ("ltr_bilstm", "squad", "above", "ltr_no_nsp"),
    ("no_nsp", "names", "below"),
    ("no_nsp", "perplexity", "above"),
    # The table lacks this row and this column, so the claims are left out.
    ("no_nsp", "squad", "below", "missing_row"),
    ("no_nsp", "missing_column", "below"),
)


def _column(name, label="", metric="f1", paper="", higher_is_better=True):
    others = {"paper": paper, "higher_is_better": higher_is_better}
    return {"name": name, "label": label, "metric": metric, **others}


def _table(name, kind, rows, columns, **others):
    shown = [{"name": x, "label": y} for x, y in rows]
    words = {"name": name, "title": name, "question": "Q", "kind": kind}
    cells = [
        [x, y["name"], *(f"{name}-{x}-{y['name']}-{seed}" for seed in _SEEDS)]
        for x, _ in rows
        for y in columns
    ]
    parts = {"rows": shown, "columns": columns, "cells": cells, "expected": []}
    parts |= {"reference_row": rows[0][0], "scaled_down": "Two layers."}
    return {**words, **parts, **others}


def _table5():
    columns = [
        _column("squad", "SQuAD F1"),
        _column("names", "Names F1", paper="ner"),
        _column("perplexity", "Perplexity", higher_is_better=False),
    ]
    rows = [*zip(_SCORES, _LABELS, strict=True)]
    table = _table("table5", "table", rows, columns, expected=_CLAIMS)
    for cell in table["cells"]:
        if cell[1] == "perplexity":
            del cell[3:]
    return table


def _spread():
    rows = (("three", "3 epochs"), ("ten", "10 epochs"))
    return _table("stability", "spread", rows, [_column("small", "500 rows")])


def _curve(steps=(100, 200, 400)):
    rows = (("left_to_right", "LTR"), ("masked_lm", "Masked LM"))
    columns = [_column(f"step_{x}", f"{x} steps") for x in steps]
    return _table("figure5", "curve", rows, columns)


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
            # The server averages unrounded scores, so allow for rounding.
            self.assertAllClose(sum(scores) / 9, average, atol=0.07)


class ReportTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self._path("cells").mkdir()

    def _path(self, *names):
        return pathlib.Path(self.folder, *names)

    def _put(self, cell, score, seed, **others):
        values = {"score": score, "seed": seed, "seconds": 60.0, **others}
        self._path("cells", f"{cell}.json").write_text(json.dumps(values))

    def _put_table5(self):
        for row, columns in _SCORES.items():
            names = ("squad", "names", "perplexity")
            for name, scores in zip(names, columns, strict=True):
                for seed, score in zip(_SEEDS, scores, strict=False):
                    self._put(f"table5-{row}-{name}-{seed}", score, seed)

    def _write(self, *built):
        self._path("tables").mkdir(exist_ok=True)
        for table in built:
            path = self._path("tables", f"{table['name']}.json")
            path.write_text(json.dumps(table))
        report.write(self.folder)
        found = json.loads(self._path("report.json").read_text("utf-8"))
        return found, self._path("report.md").read_text("utf-8")

    def test_lists_missing_and_failed_cells_and_files_without_a_score(self):
        self._put_table5()
        missing, failed, other = (f"table5-no_nsp-squad-{x}" for x in _SEEDS)
        self._path("cells", f"{missing}.json").unlink()
        self._path("cells", f"{failed}.json").unlink()
        for cell in (failed, other):  # `other` succeeded later.
            path = self._path("cells", f"{cell}.failed.json")
            path.write_text(json.dumps({"command": "x", "log": "a.log"}))
        self._put("table5-bert-squad-13", 51.0, 99, test_score=50.5)
        self._put("stranger", 1.0, 5)
        self._path("cells", "half.json").write_text('{"score": 1')
        self._path("cells", "none.json").write_text('{"score": NaN}')
        found, text = self._write(_table5())
        self.assertEqual([cell["id"] for cell in found["failed"]], [failed])
        for part in (
            "26 of 28 cells are finished, 1 failed.",
            "| No \\| NSP | 50.00 (1 of 3) | +0.50 | – | 87.9 |",
            "1 not finished, 1 failed.",
            "| difference to BERT | test | paper |",
            "| – | 50.50 (1) | 88.5 |",
            f"- `{failed}`, log `a.log`\n",
            "without a score: half.json, none.json.",
            # One seed differs from the reference's, so no seeds are paired.
            "-18.33 ± 0.97 (Welch)",
        ):
            self.assertIn(part, text)

    def test_tables_and_pictures_change_with_the_finished_part(self):
        found, text = self._write(_table5(), _spread(), _curve())
        self.assertEqual(found["num_finished"], 0)
        self.assertIn("| no result yet |", text)
        names = ("table5.png", "stability.png", "figure5.png")
        empty = {x: self._path(x).read_bytes() for x in names}
        pixels = image.imread(self._path("table5.png"))
        self.assertAllEqual(pixels[0, 0], np.ones(4))  # Opaque, for dark pages.
        self._put("stability-ten-small-11", 50.0, 11, majority=50.0)
        self._put("stability-ten-small-12", 60.0, 12, majority=50.0)
        self._put("figure5-masked_lm-step_200-11", 60.0, 11)
        self._put_table5()
        _, text = self._write()
        self.assertIn("| 50.00, 60.00 | 1 of 2 (50%); it has 50.00 |", text)
        for name, picture in empty.items():
            self.assertNotEqual(self._path(name).read_bytes(), picture)

    def test_committed_cells_have_the_verdicts_of_the_documentation(self):
        """Checks the numbers that docs/experiments.md repeats."""
        for name in ("cells", "tables"):
            shutil.copytree(
                _COMMITTED / "small" / name,
                self._path(name),
                dirs_exist_ok=True,
            )
        found, text = self._write()
        self.assertEqual(found["num_finished"], 115)
        self.assertLen([*self._path().glob("*.png")], 6)
        for line in (
            "9 agree, 4 contradict, 4 are not distinguishable, 1 have no",
            "no NSP below BERT | +0.45 ± 0.17 | -10.7 | **contradicts** |",
            "BERT | -1.74 ± 0.99 | – | not distinguishable |",
            "+ BiLSTM above Left-to-right & no NSP | +7.59 ± 1.37 | – | "
            "**agrees** |",
            "| 36.63 (1) | -11.41 ± 0.93 (held-out text) | **contradicts** |",
            "| 148.90 (1) | +100.87 ± 2.30 (held-out text) | **agrees** |",
            "above L=4, H=64, A=1 | +30.60 ± 3.57 (held-out text) |",
            "below Fine-tuning | +3.28 ± 1.05 | -5.4 | **contradicts** |",
            "below Last hidden | +2.62 ± 0.32 | -3.9 | **contradicts** |",
            "sum of the last four | -1.26 ± 0.26 | -4.9 | **agrees** |",
            "100% MASK, 0% same, 0% random | 0.00 ± 0.00 (3) | -27.30 ± 0.31 |",
            "0% MASK, 0% same, 100% random | 0.00 ± 0.00 (3) | -27.30 ± 0.31 |",
            "(masked LM) | -1.67 ± 6.41 | -2.2 | not distinguishable |",
            "33.50, 34.40 | 2 of 3 (67%); it has 34.20 |",
            "33.50, 41.80 | 1 of 3 (33%); it has 34.20 |",
            "Their commits: dab69afac0df (37), ",
        ):
            self.assertIn(line, text)

    def test_limit_is_two_standard_errors(self):
        for value, error, verdict in (
            (2.1, 1.0, report.AGREES),
            (-2.1, 1.0, report.CONTRADICTS),
            (2.0, 1.0, report.NOT_DISTINGUISHABLE),
            # 0.1 + 0.2 - 0.3 is a rounding error, so it shows no difference.
            (5.6e-17, 0.0, report.NOT_DISTINGUISHABLE),
        ):
            self.assertEqual(report.judge(value, error, "above"), verdict)


if __name__ == "__main__":
    tf.test.main()
