"""Tests for bert_tf.experiments.model_tables, by the plans of flags."""

import json
import os
import pathlib

import tensorflow as tf

from bert_tf.experiments import results
from bert_tf.experiments import run
from bert_tf.experiments import scales
from bert_tf.experiments import task_folders
from bert_tf.flags.experiments import ExperimentsConfig
from tests.support import experiment_inputs

_SEEDS = [12345, 12346, 12347, 12348, 12349]


class ModelTablesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = pathlib.Path(self.create_tempdir().full_path)
        self._out = str(self._folder / "out")
        self._tasks = experiment_inputs.write_tasks(str(self._folder))
        config = scales.read("smoke").config("2_32_2")
        self._write("model/bert_config.json", json.dumps(config))
        self._write("model/vocab.txt", "[PAD]\n")
        pair = "sentence1\tsentence2\tlabel"
        rows = [f"a b\tc d {i}\tentailment" for i in range(3)]
        self._write_official("RTE", [pair, *rows])
        rows = [f"a b {i}\t{i % 2}" for i in range(4)]
        self._write_official("SST-2", ["sentence\tlabel", *rows])
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        rows = [f"{i % 2}\t1\t2\ta b\tc d {i}" for i in range(5)]
        self._write_official("MRPC", [header, *rows])

    def _write(self, name, text):
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _write_official(self, title, lines):
        for split in ("train", "dev"):
            name = os.path.join(self._tasks, title, f"{split}.tsv")
            self._write(name, "\n".join([*lines, ""]))

    def _write_mnli(self):
        row = "gold_label\tsentence1\tsentence2\nneutral\ta b\tc d\n"
        for split in ("train", "dev_matched", "dev_mismatched"):
            path = os.path.join(self._tasks, "MNLI", f"{split}.tsv")
            self._write(path, row)

    def _build(self, experiment, tasks):
        config = ExperimentsConfig(
            experiments=experiment,
            scale="paper",
            data_dir=self._tasks,
            output_dir=self._out,
            pretrained_model_dir=str(self._folder / "model"),
            tasks=tasks,
        )
        found = task_folders.find_tasks(config.data_dir)
        built = run.prepare(config, scales.read(config.scale), found)
        (table,) = built.tables
        return built.plan, table

    def test_new_weights_are_compared_also_with_models_of_others(self):
        path = self._folder / "model" / "bert_config.json"
        stored = json.loads(path.read_text())
        path.rename(path.with_name("config.json"))
        others = {"architectures": ["BertModel"], "torch_dtype": "float32"}
        self._write("model/config.json", json.dumps(stored | others))
        plan, table = self._build("table1", "rte")
        job = plan.jobs[table.cells["new", "rte"][0]]
        flags = job.commands[0].flags
        name = flags["bert_config_file"].replace("{out}", self._out)
        self.assertEqual(json.loads(pathlib.Path(name).read_text()), stored)

    def test_average_of_table1_is_over_tasks_seed_by_seed(self):
        tasks = ("rte", "sst-2", "mrpc")
        plan, table = self._build("table1", ",".join(tasks))
        self.assertEqual([x.name for x in table.rows], ["bert_base", "new"])
        self.assertEqual(
            [(x.name, x.metric) for x in table.columns],
            [
                ("rte", "accuracy"),
                ("sst-2", "accuracy"),
                ("mrpc", "f1"),
                ("average", "average"),
            ],
        )
        for row in ("bert_base", "new"):
            average = [plan.jobs[x] for x in table.cells[row, "average"]]
            self.assertEqual([x.score.seed for x in average], _SEEDS)
            for place, job in enumerate(average):
                parts = tuple(table.cells[row, x][place] for x in tasks)
                self.assertEqual(job.score.mean_of, parts)
                self.assertEqual(job.needs, parts)
                seeds = {plan.jobs[x].score.seed for x in parts}
                self.assertEqual(seeds, {job.score.seed})
        for cell, value in zip(parts, (60.0, 90.0, 87.0), strict=True):
            scored = {"score": value}
            job = plan.jobs[cell]
            results.write(self._out, job, [], "abc1234", 1.0, scored)
        scored = results.score(self._out, average[-1], plan.jobs)
        self.assertEqual(scored["score"], 79.0)

    def test_table1_has_both_dev_files_of_mnli_of_the_same_runs(self):
        self._write_mnli()
        plan, table = self._build("table1", "mnli,rte")
        self.assertEqual(
            [x.paper or x.name for x in table.columns],
            ["mnli_m", "mnli_mm", "rte", "average"],
        )
        matched = table.cells["bert_base", "mnli"][1]
        job = plan.jobs[table.cells["bert_base", "mnli_mm"][1]]
        self.assertEqual((job.commands, job.needs), ((), (matched,)))
        self.assertEqual(job.score.seed, plan.jobs[matched].score.seed)
        average = plan.jobs[table.cells["bert_base", "average"][1]]
        rte = table.cells["bert_base", "rte"][1]
        # As in the paper's average, MNLI counts twice.
        self.assertEqual(average.score.mean_of, (matched, job.id, rte))
        run_folder = pathlib.Path(plan.jobs[matched].here.format(out=self._out))
        run_folder.mkdir(parents=True)
        splits = ("dev_matched", "dev_mismatched")
        scores = ({"accuracy": 0.6}, {"accuracy": 0.7})
        text = json.dumps(dict(zip(splits, scores, strict=True)))
        (run_folder / "eval_results.json").write_text(text)
        found = [
            results.score(self._out, x, plan.jobs)["score"]
            for x in (plan.jobs[matched], job)
        ]
        self.assertAllClose(found, [60.0, 70.0])

    def test_the_paper_claims_nothing_of_models_without_pretraining(self):
        _, table = self._build("table1", "rte")
        self.assertLen(table.rows, 2)
        self.assertEmpty(table.expected)

    def test_stability_has_a_small_task_once(self):
        # The scale has two limits, of 1,000 and 2,500 rows.
        plan, table = self._build("stability", "rte,pairs")
        self.assertEqual([x.name for x in table.columns], ["rte-3", "pairs-60"])
        # Eight settings, five seeds.
        self.assertLen(plan.cells, 2 * 8 * 5)

    def test_stability_scores_pairs_of_sentences_by_accuracy(self):
        plan, table = self._build("stability", "mrpc")
        self.assertEqual([x.metric for x in table.columns], ["accuracy"])
        metrics = {x.score.metric for x in plan.cells}
        self.assertEqual(metrics, {"accuracy"})
        self.assertEqual({x.score.majority for x in plan.cells}, {60.0})


if __name__ == "__main__":
    tf.test.main()
