"""Tests for bert_tf.experiments.plan, by the plans of flags."""

import collections
import json
import os

import tensorflow as tf
from absl import flags as absl_flags
from absl.testing import parameterized

from bert_tf.commands.experiments import ExperimentsConfig
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.finetune_multiple_choice import MultipleChoiceConfig
from bert_tf.commands.finetune_squad import SquadConfig
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.errors import UserError
from bert_tf.experiments import PRETRAINING_EXPERIMENTS
from bert_tf.experiments import data
from bert_tf.experiments import report
from bert_tf.experiments import run
from bert_tf.flags import cli
from bert_tf.flags import flag_files
from tests.support import experiment_inputs
from tests.support import files_case

_ALL = ",".join([*PRETRAINING_EXPERIMENTS, "stability"])
_SEEDS = [12345, 12346, 12347, 12348, 12349]
_CONFIGS = {
    "classifier": ClassifierConfig,
    "multiple_choice": MultipleChoiceConfig,
    "squad": SquadConfig,
    "tagger": TaggerConfig,
}


def _cells(table):
    return {(row, column): ids for row, column, *ids in table["cells"]}


def _parse(script, words):
    values = absl_flags.FlagValues()
    name = script.removeprefix("run/finetune_").removesuffix(".py")
    read_config = cli.define_flags(_CONFIGS[name], values)
    values(["program", *flag_files.expand(words)])
    return read_config()


class TablesTestCase(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.out = self.path("out")
        self.corpus = experiment_inputs.write_corpus(str(self.folder))
        self.tasks = experiment_inputs.write_tasks(str(self.folder))

    def plan(self, **values):
        usual = {
            "experiments": _ALL,
            "corpus": self.corpus,
            "data_dir": self.tasks,
            "output_dir": self.out,
            "tasks": "pairs,names",
        }
        config = ExperimentsConfig(**usual | values)
        return run.make_plan(config, config.output_dir)


class OwnModelsTest(TablesTestCase):
    def test_what_several_cells_need_is_made_once(self):
        steps = self.plan(num_seeds=2)[0].steps.values()
        kinds = collections.Counter(x.kind for x in steps)
        self.assertEqual(kinds["vocabulary"], 1)
        # 3 of table5, 3 more sizes, 5 more rates.
        self.assertEqual(kinds["pretraining"], 11)
        # Masked, no NSP and left-to-right, each with held-out text; and rates.
        self.assertEqual(kinds["records"], 3 * 2 + 5)
        seen = set()
        for step in steps:
            self.assertContainsSubset(step.needs, seen)
            seen.add(step.id)

    def test_cells_of_several_tables_are_the_same(self):
        built = {x["name"]: _cells(x) for x in self.plan(num_seeds=2)[1]}
        bert = built["table5"]["bert", "pairs"]
        self.assertLen(bert, 2)
        self.assertEqual(built["table6"]["4_128_2", "pairs"], bert)
        self.assertEqual(built["table8"]["80_10_10", "pairs"], bert)
        self.assertEqual(built["figure5"]["masked_lm", "step_4000"], bert)
        self.assertNotEqual(built["figure5"]["masked_lm", "step_500"], bert)

    def test_every_cell_of_a_table_is_planned_with_valid_flags(self):
        plan, built = self.plan(num_seeds=3)
        used = set()
        for table in built:
            names = [[x["name"] for x in table[y]] for y in ("rows", "columns")]
            cells = _cells(table)
            self.assertLen(cells, len(names[0]) * len(names[1]))
            for (row, column), ids in cells.items():
                self.assertIn(row, names[0])
                self.assertIn(column, names[1])
                self.assertLen(ids, 1 if column == "perplexity" else 3)
                used.update(ids)
            self.assertEqual(table["reference_row"], names[0][0])
        self.assertEqual({*plan.cells}, used)
        runner = run.Runner(self.out, plan)
        for step in map(plan.steps.get, plan.cells):
            for script, flags in step.commands:
                words = runner._words(step, (script, flags))
                parsed = _parse(script, words)
                self.assertTrue(os.path.exists(parsed.train_file))
                self.assertTrue(os.path.exists(parsed.dev_file))

    def test_ids_depend_on_contents_and_not_on_folders(self):
        first, _ = self.plan(experiments="table5")
        moved = self.create_tempdir().full_path
        second, _ = self.plan(
            experiments="table5",
            corpus=experiment_inputs.write_corpus(moved),
            data_dir=experiment_inputs.write_tasks(moved),
            output_dir=os.path.join(moved, "other"),
        )
        self.assertEqual([*first.steps], [*second.steps])
        third, _ = self.plan(
            experiments="table5",
            corpus=experiment_inputs.write_corpus(moved, first=5),
            output_dir=os.path.join(moved, "third"),
        )
        self.assertEmpty({*first.steps} & {*third.steps})
        ids = []
        for epochs in (3, 4):
            path = self.write("a.flags", f"--num_train_epochs={epochs}")
            command = ("run/x.py", {"flagfile": path})
            ids.append(first._add("runs", "x", [command]).id)
        self.assertNotEqual(*ids)

    def test_expected_signs_are_those_of_the_papers_numbers(self):
        _, built = self.plan()
        counts = collections.Counter()
        sizes = []
        for table in report.build(built, self.out)["tables"]:
            for sign in table["signs"]:
                if (papers := sign.get("paper_difference")) is not None:
                    is_above = sign["expected"] == "above"
                    self.assertEqual(papers > 0, is_above, sign)
                    counts[table["name"]] += 1
                if table["name"] == "table6":
                    sizes.append((sign["row"], sign["against"]))
        # The sizes are others, and Table 5 has no column of names.
        self.assertEqual(counts, {"table7": 6, "table8": 2, "figure5": 1})
        # The smaller size first: its perplexity should be above the other's.
        largest, *others = "4_128_2", "2_128_2", "4_64_1", "2_64_1"
        pairs = [(others[1], others[0]), (others[2], others[1])]
        pairs += [(x, largest) for x in others]
        self.assertCountEqual(sizes, pairs)


class StoredModelTest(TablesTestCase):
    def setUp(self):
        super().setUp()
        self.write("model/vocab.txt", "[PAD]\n")
        pair = "sentence1\tsentence2\tlabel"
        rows = [f"a b\tc d {i}\tentailment" for i in range(3)]
        self._write_official("RTE", [pair, *rows])
        rows = [f"a b {i}\t{i % 2}" for i in range(4)]
        self._write_official("SST-2", ["sentence\tlabel", *rows])
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        rows = [f"{i % 2}\t1\t2\ta b\tc d {i}" for i in range(5)]
        self._write_official("MRPC", [header, *rows])

    def _write_official(self, title, lines):
        for split in ("train", "dev"):
            self.write(f"tasks/{title}/{split}.tsv", "\n".join([*lines, ""]))

    def _plan(self, experiment, tasks, **values):
        plan, (table,) = self.plan(
            experiments=experiment,
            corpus=None,
            pretrained_model_dir=self.path("model"),
            tasks=tasks,
            **{"scale": "paper"} | values,
        )
        return plan, table

    def test_average_of_table1_is_over_tasks_seed_by_seed(self):
        tasks = ("rte", "sst-2", "mrpc")
        plan, table = self._plan("table1", ",".join(tasks))
        self.assertEqual(
            [(x["name"], x["metric"]) for x in table["columns"]],
            [
                ("rte", "accuracy"),
                ("sst-2", "accuracy"),
                ("mrpc", "f1"),
                ("average", "average"),
            ],
        )
        self.assertEqual(self._average(plan, table), [])
        cells = _cells(table)
        for task, score in zip(tasks, (60.0, 90.0, 87.0), strict=True):
            for place, seed in enumerate(_SEEDS):
                if (task, place) != ("mrpc", 1):  # Not finished.
                    values = {"score": score + place, "seed": seed}
                    name = cells["bert_base", task][place]
                    self.write(f"out/cells/{name}.json", json.dumps(values))
        averages = [(x, 79.0 + i) for i, x in enumerate(_SEEDS) if i != 1]
        self.assertEqual(self._average(plan, table), averages)

    def _average(self, plan, table):
        """Returns the seeds and the scores of the report's average."""
        (built,) = report.build([table], self.out)["tables"]
        (row,) = (x for x in built["values"] if x["column"] == "average")
        return [(x["seed"], x["score"]) for x in row["scores"]]

    def test_table1_has_both_dev_files_of_mnli_of_the_same_runs(self):
        row = "gold_label\tsentence1\tsentence2\nneutral\ta b\tc d\n"
        for split in ("train", "dev_matched", "dev_mismatched"):
            self.write(f"tasks/MNLI/{split}.tsv", row)
        plan, table = self._plan("table1", "mnli,rte")
        papers = [x["paper"] for x in table["columns"]]
        self.assertEqual(papers, ["mnli_m", "mnli_mm", "rte", "average"])
        cells = _cells(table)
        matched, other, rte = (
            plan.steps[cells["bert_base", x][1]]
            for x in ("mnli", "mnli_mm", "rte")
        )
        self.assertEqual((other.commands, other.needs), ((), (matched.id,)))
        self.assertEqual(other.score.seed, matched.score.seed)
        splits = {
            "dev_matched": {"accuracy": 0.6},
            "dev_mismatched": {"accuracy": 0.7},
            "test": {"accuracy": 0.25},
        }
        name = matched.here.replace("{out}/", "out/")
        self.write(f"{name}/eval_results.json", json.dumps(splits))
        runner = run.Runner(self.out, plan)
        found = [runner._score(x) for x in (matched, other)]
        self.assertAllClose([x["score"] for x in found], [60.0, 70.0])
        self.assertEqual(found[0]["test_score"], 25.0)
        # As in the paper's average, MNLI counts twice.
        found.append({"score": 80.0, "seed": rte.score.seed})
        for step, values in zip((matched, other, rte), found, strict=True):
            self.write(f"out/cells/{step.id}.json", json.dumps(values))
        self.assertAllClose(self._average(plan, table), [(_SEEDS[1], 70.0)])

    def test_stability_has_a_small_task_once_and_scores_by_accuracy(self):
        # The scale has two limits, of 1,000 and 2,500 rows.
        plan, table = self._plan("stability", "mrpc,pairs")
        columns = [(x["name"], x["metric"]) for x in table["columns"]]
        expected = [("mrpc-5", "accuracy"), ("pairs-60", "accuracy")]
        self.assertEqual(columns, expected)
        # Eight settings, five seeds.
        self.assertLen(plan.cells, 2 * 8 * 5)
        majorities = {plan.steps[x].score.majority for x in plan.cells}
        self.assertLen(majorities, 2)
        self.assertIn(60.0, majorities)

    def test_an_ensemble_reads_what_its_systems_write_also_with_triviaqa(self):
        question = {"id": "q", "question": "Who?"}
        question["answers"] = [{"text": "cat", "answer_start": 4}]
        paragraph = {"context": "The cat sat.", "qas": [question]}
        squad = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
        for name in ("train-v1.1.json", "dev-v1.1.json"):
            self.write(f"tasks/squad/{name}", json.dumps(squad))
        self.write("tasks/triviaqa/qa/wikipedia-train.json", "{}")
        self.write("tasks/triviaqa/evidence/wikipedia/a.txt", "x")
        plan, table = self._plan("table2", None, scale="smoke")
        self.assertLen(table["rows"], 4)
        cells = _cells(table)
        for end, name in (("", "model"), ("_triviaqa", "triviaqa-evidence")):
            (ensemble,) = cells[f"bert_large_ensemble{end}", "f1"]
            step = plan.steps[ensemble]
            self.assertLen(step.needs, 2)
            self.assertIn(f"{name}-seed12345", step.needs[0])
            ((_, flags),) = step.commands
            self.assertEqual(
                flags["ensemble_nbest_files"].split(","),
                [
                    f"{{out}}/runs/{x}/nbest_predictions.json"
                    for x in step.needs
                ],
            )


class InputsTest(TablesTestCase):
    @parameterized.parameters(
        (
            {"experiments": "table5,table1", "corpus": None},
            "table5 needs --corpus; --list",
        ),
        (
            {"experiments": "table6,table7", "tasks": "pairs"},
            "^table7 needs a task of tagging in --tasks; --list",
        ),
        (
            {"experiments": "table7", "corpus": None},
            "table7 needs --corpus or --pretrained_model_dir; --list",
        ),
        ({"tasks": "mrpc"}, "--tasks=mrpc must be in .*names, pairs"),
        (
            {"experiments": "table5", "tasks": None},
            "table5 needs qnli in --data_dir and squad in --data_dir",
        ),
        ({"corpus": "missing/*.txt"}, "--corpus matches no file"),
    )
    def test_missing_inputs_are_named(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            self.plan(**values)


class ScalesTest(TablesTestCase):
    # Sections 4.1 to 4.4 of the paper: batch, epochs, learning rates.
    @parameterized.parameters(
        ("classification", [32], [3], [5e-5, 4e-5, 3e-5, 2e-5]),
        ("multiple_choice", [16], [3], [2e-5]),
        ("squad", [32], [3], [5e-5]),
        ("squad2", [48], [2], [5e-5]),
        # Appendix A.3.
        ("tagging", [16, 32], [2, 3, 4], [5e-5, 3e-5, 2e-5]),
    )
    def test_flag_file_has_the_papers_values(self, kind, sizes, epochs, rates):
        flags = data.read_recipe("scales/paper")["finetuning"][kind]
        words = [f"--flagfile={flags['flagfile']}", "--output_dir=out"]
        words.append("--pretrained_model_dir=bert-base-uncased")
        if kind.startswith("squad"):
            words += ["--train_file=a.json", "--predict_file=b.json"]
        else:
            words.append("--data_dir=x")
        names = {"classification": "mrpc", "multiple_choice": "swag"}
        words += [f"--task_name={names[x]}" for x in [kind] if x in names]
        parsed = _parse(data.KINDS[kind]["script"], words)
        trials = parsed.trials()
        for name, expected in (
            ("train_batch_size", sizes),
            ("num_train_epochs", epochs),
            ("learning_rate", rates),
        ):
            self.assertEqual({getattr(x, name) for x in trials}, {*expected})
        self.assertLen(trials, len(sizes) * len(epochs) * len(rates))
        self.assertTrue(parsed.do_train and parsed.do_eval)
        is_second = getattr(parsed, "version_2_with_negative", False)
        self.assertEqual(is_second, kind == "squad2")


if __name__ == "__main__":
    tf.test.main()
