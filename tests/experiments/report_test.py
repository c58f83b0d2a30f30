"""Tests for bert_tf.experiments.report, its text and its plots."""

import itertools
import json
import math
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging
from matplotlib import image

from bert_tf.experiments import plots
from bert_tf.experiments import report
from bert_tf.experiments import report_text
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Row
from bert_tf.experiments.table import Table
from bert_tf.io import temporaries
from tests.support import full_disk

_ROWS = (
    Row("bert", "BERT"),
    Row("no_nsp", "No | NSP"),
    Row("ltr_no_nsp", "LTR"),
    Row("ltr_bilstm", "LTR + BiLSTM"),
)
_SQUAD = Column("squad", "SQuAD F1", "f1")
_NAMES = Column("names", "Names F1", "f1", paper="ner")
_PERPLEXITY = Column("perplexity", "Perplexity", "ppl", higher_is_better=False)
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


def _table5():
    cells = {
        (row.name, column.name): _ids("table5", row.name, column.name)
        for row in _ROWS
        for column in (_SQUAD, _NAMES)
    }
    for row in _ROWS:
        key = row.name, "perplexity"
        cells[key] = _ids("table5", *key, _SEEDS[:1])
    columns = (_SQUAD, _NAMES, _PERPLEXITY)
    return Table(
        "table5",
        "Table 5",
        "Does next sentence prediction help?",
        "table",
        _ROWS,
        columns,
        "bert",
        cells,
        _CLAIMS,
        "Scaled down: two layers.",
    )


def _spread():
    rows = (Row("three", "3 epochs"), Row("ten", "10 epochs"))
    column = Column("small", "500 rows", "accuracy")
    cells = {(r.name, "small"): _ids("spread", r.name, "small") for r in rows}
    return Table(
        "stability", "S", "Q", "spread", rows, (column,), "three", cells, (), ""
    )


def _curve():
    rows = (Row("masked_lm", "Masked LM"), Row("left_to_right", "LTR"))
    columns = tuple(
        Column(f"step_{n}", f"{n}", "accuracy") for n in (100, 200, 400)
    )
    cells = {
        (row.name, column.name): _ids("figure5", row.name, column.name)
        for row in rows
        for column in columns
    }
    claims = (("masked_lm", "step_400", "above"),)
    return Table(
        "figure5", "F", "Q", "curve", rows, columns, rows[1].name, cells,
        claims, "Scaled down: 400 steps.",
    )  # fmt: skip


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

    def _report(self, *tables):
        """Returns the contents and the text of a report, without plots."""
        contents = report.build(tables, self.folder)
        return contents, report_text.text(contents)

    def _write(self, *tables):
        report.write(tables, self.folder)
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

    def test_text_has_scores_differences_and_the_papers(self):
        self._put_table5()
        _, text = self._report(_table5())
        self.assertIn("28 of 28 cells are finished.", text)
        for line in (
            "| BERT | 49.50 ± 1.50 (3) | – | 88.5 | – |  |",
            "| No \\| NSP | 49.17 ± 1.44 (3) | -0.33 ± 0.44 | 87.9 | -0.6 | "
            "not distinguishable |",
            "| LTR | 31.17 ± 0.76 (3) | -18.33 ± 0.67 | 77.8 | -10.7 | "
            "**agrees** |",
            "| [table5](#table5) | SQuAD F1 | LTR + BiLSTM above LTR | "
            "+7.00 ± 0.29 | +7.1 | **agrees** |",
            "| 57.25 ± 1.25 (3) | +1.25 ± 0.14 | **contradicts** |",
            "| 31.00 (1) | +0.50 | not distinguishable (one seed) |",
            "### Perplexity (lower is better)",
        ):
            self.assertIn(line, text)
        for sentence in (
            "Scaled down: two layers. Each model was pretrained once",
            "The paper's numbers: Ablation of the pretraining tasks, dev sets.",
            "Standard errors of differences: paired by seed.",
            "By chance, 18% of differences",
        ):
            self.assertIn(sentence, text)

    def test_perplexities_have_the_error_of_the_text(self):
        for row, error in (("bert", 0.3), ("no_nsp", 0.4)):
            (cell,) = _ids("table5", row, "perplexity", _SEEDS[:1])
            scores = {"ppl": 30.0, "ppl_error": error}
            score = _SCORES[row][2] + 2 * (row == "no_nsp")
            self._put(cell, score, 11, metric="ppl", scores=scores)
        found, text = self._report(_table5())
        self.assertIn("| 33.00 (1) | +2.50 ± 0.50 | **agrees** |", text)
        self.assertIn("Standard errors of differences: held-out text.", text)
        self.assertEqual(found["tables"][0]["signs"][3]["error"], 0.5)

    def test_missing_failed_and_foreign_cells(self):
        self._put_table5()
        missing, failed, other = _ids("table5", "no_nsp", "squad")
        self._path("cells", f"{missing}.json").unlink()
        self._path("cells", f"{failed}.json").unlink()
        reason = {"command": "x", "log": "a.log", "last_lines": ["disk full"]}
        for cell in (failed, other):  # The last was done again.
            path = self._path("cells", f"{cell}.failed.json")
            path.write_text(json.dumps(reason))
        self._put(_ids("table5", "bert", "squad")[2], 51.0, 99)
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
        self.assertIn("| 50.00 (1 of 3) | +0.50 | 87.9 |", text)
        self.assertIn("1 not finished, 1 failed.", text)
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

    def test_cells_of_several_commits_are_named(self):
        self._put_table5()
        cells = _ids("table5", "bert", "names")[1:]
        for cell in cells:
            self._put(cell, 56.0, 12, commit="bbb")
        _, text = self._report(_table5())
        self.assertIn("2 commits: aaa (26), bbb (2).", text)
        names = ", ".join(f"`{cell}`" for cell in cells)
        self.assertIn(
            f"Made by commit bbb: {names}. All other cells: commit aaa.", text
        )

    def test_share_of_failed_runs(self):
        scores = {"three": (50.0, 50.0, 61.0), "ten": (49.5, 62.0, 63.0)}
        for row, values in scores.items():
            cells = _ids("spread", row, "small")
            for cell, score, seed in zip(cells, values, _SEEDS, strict=True):
                self._put(cell, score, seed, majority=50.0, test_score=score)
        found, text = self._report(_spread())
        self.assertIn("| 50.00, 61.00 | 2 of 3 (67%); it has 50.00 |", text)
        self.assertIn("| 58.17 ± 7.52 (3) | 49.50, 63.00 | 1 of 3", text)
        self.assertEqual(found["tables"][0]["signs"], [])
        plots.draw(str(self._path("stability.png")), found["tables"][0])

    def test_curves_are_compared_step_by_step(self):
        for row, means in (
            ("masked_lm", (50.0, 52.0, 60.0)),
            ("left_to_right", (53.0, 53.0, 54.0)),
        ):
            for step, mean in zip((100, 200, 400), means, strict=True):
                cells = _ids("figure5", row, f"step_{step}")
                for cell, seed in zip(cells, _SEEDS, strict=True):
                    wave = (seed - 12) * (1 + (row == "masked_lm"))
                    self._put(cell, mean + wave, seed)
        found, text = self._report(_curve())
        self.assertIn(
            "| 200 | 52.00 ± 2.00 (3) | 53.00 ± 1.00 (3) | -1.00", text
        )
        self.assertIn("| +6.00 ± 0.58 | 84.4, 82.2 | +2.2 | **agrees** |", text)
        plots.draw(str(self._path("figure5.png")), found["tables"][0])


class PretrainingCurvesTest(ReportTestCase):
    def _put_run(self, job, batch_size=16, has_finished=True):
        folder = self._path("pretraining", job)
        folder.mkdir(parents=True)
        rows = [
            {
                "step": step,
                "masked_lm_loss": 9.0 - step / 100,
                "masked_lm_accuracy": step / 1000,
                "examples_per_second": 5.0,
                "tokens_per_second": 500.0,
            }
            for step in (1, 2, *range(10, 401, 10))
        ]
        rows.insert(3, {"step": 15, "loss": 2.0})  # Nothing was predicted.
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / "train_metrics.jsonl").write_text(lines)
        if has_finished:
            self._path("steps").mkdir(exist_ok=True)
            command = f"python run/pretrain.py --train_batch_size={batch_size}"
            path = self._path("steps", f"{job}.json")
            path.write_text(json.dumps({"commands": [command]}))

    def test_sizes_are_drawn_over_tokens(self):
        self._put_run("pretraining-bert-0a1b2c3d", batch_size=32)
        self._put_run("pretraining-bert_2_64_1-0a1b2c3e")
        self._put_run("pretraining-ltr_no_nsp-0a1b2c3f")  # Not a size.
        self._put_run("pretraining-bert_4_64_1-01234567", has_finished=False)
        found, text = self._write()
        curves = found["pretraining"]
        self.assertEqual([x["name"] for x in curves], ["bert", "bert_2_64_1"])
        for curve, batch_size in zip(curves, (32, 16), strict=True):
            # Of 100 tokens an example, as 500 / 5.
            self.assertEqual(curve["tokens"][0], 100 * batch_size)
            self.assertEqual(curve["tokens"][-1], 400 * 100 * batch_size)
            self.assertAllClose(curve["masked_lm_loss"][0], 8.99)
            self.assertLess(curve["masked_lm_loss"][-1], 5.2)
            self.assertLess(len(curve["tokens"]), 43)
        self.assertIn("![Pretraining curves](pretraining.png)", text)
        self.assertTrue(self._path("pretraining.png").exists())


class WriteTest(ReportTestCase):
    def test_plots_are_drawn_where_values_change(self):
        self._put_table5()
        tables = (_table5(), _spread())
        with mock.patch.object(plots, "draw", side_effect=plots.draw) as draw:
            self._write(*tables)
            self.assertEqual(draw.call_count, 2)
            self._write(*tables)
            self.assertEqual(draw.call_count, 2)
            self._put(_ids("spread", "ten", "small")[0], 50.0, 11)
            self._write(*tables)
            self.assertEqual(draw.call_count, 3)
            self._path("table5.png").unlink()
            self._write(*tables)
            self.assertEqual(draw.call_count, 4)
        pixels = image.imread(self._path("table5.png"))
        self.assertAllEqual(pixels[0, 0], np.ones(4))  # Opaque, for dark pages.
        self.assertGreater(pixels.shape[0], pixels.shape[1])

    def test_a_cell_finished_meanwhile_is_in_the_report(self):
        self._put_table5()
        first, second, _ = _ids("spread", "ten", "small")
        others = iter((first, second))

        def draw(path, table):
            plots_draw(path, table)
            if (cell := next(others, None)) is not None:
                self._put(cell, 50.0, 11)

        plots_draw = plots.draw
        with mock.patch.object(plots, "draw", draw):
            found, _ = self._write(_spread())
        self.assertEqual(found["num_finished"], 2)

    def test_a_full_disk_leaves_the_earlier_report(self):
        with full_disk.mount(self, 1) as folder:
            self.folder = folder
            self._path("cells").mkdir()
            _, text = self._write(_spread())
            self._put(_ids("spread", "ten", "small")[0], 50.0, 11)
            with open(self._path("filler"), "wb", buffering=0) as file:
                with self.assertRaises(OSError):
                    for _ in itertools.repeat(None):
                        file.write(bytes(4096))
            with self.assertLogs(logging.get_absl_logger(), "ERROR") as logs:
                report.write((_spread(),), folder)
            self.assertIn("report could not be written", logs.output[0])
            self.assertEqual(self._path("report.md").read_text("utf-8"), text)
            names = {path.name for path in self._path().iterdir()}
            self.assertFalse([x for x in names if temporaries.is_temporary(x)])


if __name__ == "__main__":
    tf.test.main()
