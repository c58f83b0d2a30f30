"""Tests for bert_tf.experiments.plan and tables, by the plans of flags."""

import collections
import contextlib
import io
import json
import os
import pathlib
from unittest import mock

import tensorflow as tf

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.experiments import jobs
from bert_tf.experiments import results
from bert_tf.experiments import run
from bert_tf.experiments import scales
from bert_tf.experiments import starts
from bert_tf.experiments import table as tables_lib
from bert_tf.experiments import task_folders
from bert_tf.flags.experiments import PRETRAINING_EXPERIMENTS
from bert_tf.flags.experiments import ExperimentsConfig
from bert_tf.io import locks
from tests.support import experiment_inputs

_ALL = ",".join([*PRETRAINING_EXPERIMENTS, "stability"])


class PlanTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = self.create_tempdir().full_path
        self._corpus = experiment_inputs.write_corpus(self._folder)
        self._tasks = experiment_inputs.write_tasks(self._folder)

    def _config(self, **values):
        usual = {
            "experiments": _ALL,
            "scale": "small",
            "corpus": self._corpus,
            "data_dir": self._tasks,
            "output_dir": os.path.join(self._folder, "out"),
            "tasks": "pairs,names",
        }
        return ExperimentsConfig(**usual | values)

    def _prepare(self, **values):
        config = self._config(**values)
        found = task_folders.find_tasks(config.data_dir)
        return run.prepare(config, scales.read(config.scale), found)

    def _kinds(self, plan):
        return collections.Counter(x.kind for x in plan.jobs.values())

    def test_what_several_cells_need_is_made_once(self):
        kinds = self._kinds(self._prepare(num_seeds=2).plan)
        self.assertEqual(kinds["vocabulary"], 1)
        # 3 of table5, 3 more sizes, 5 more rates.
        self.assertEqual(kinds["pretraining"], 11)
        # Masked, no NSP and left-to-right, each with held-out text; and rates.
        self.assertEqual(kinds["records"], 3 * 2 + 5)
        one = self._kinds(self._prepare(experiments="table5").plan)
        self.assertEqual((one["pretraining"], one["records"]), (3, 6))

    def test_cells_of_several_tables_are_the_same(self):
        built = {x.name: x for x in self._prepare(num_seeds=2).tables}
        bert = built["table5"].cells["bert", "pairs"]
        self.assertLen(bert, 2)
        self.assertEqual(built["table6"].cells["4_128_2", "pairs"], bert)
        self.assertEqual(built["table8"].cells["80_10_10", "pairs"], bert)
        last = built["figure5"].cells["masked_lm", "step_4000"]
        self.assertEqual(last, bert)
        first = built["figure5"].cells["masked_lm", "step_500"]
        self.assertNotEqual(first, bert)

    def test_every_cell_of_a_table_is_planned(self):
        experiments = self._prepare(num_seeds=3)
        cells = {x.id for x in experiments.plan.cells}
        used = set()
        for table in experiments.tables:
            for key, ids in table.cells.items():
                used |= set(ids)
                is_perplexity = key[1] == "perplexity"
                self.assertLen(ids, 1 if is_perplexity else 3)
            self.assertEqual(table.reference_row, table.rows[0].name)
        self.assertEqual(cells, used)

    def test_ids_do_not_depend_on_folders_but_on_contents(self):
        first = self._prepare(experiments="table5")
        moved = self.create_tempdir().full_path
        second = self._prepare(
            experiments="table5",
            corpus=experiment_inputs.write_corpus(moved),
            data_dir=experiment_inputs.write_tasks(moved),
            output_dir=os.path.join(moved, "other"),
        )
        self.assertEqual([*first.plan.jobs], [*second.plan.jobs])
        third = self._prepare(
            experiments="table5",
            corpus=experiment_inputs.write_corpus(moved, first=5),
            output_dir=os.path.join(moved, "third"),
        )
        self.assertEmpty(set(first.plan.jobs) & set(third.plan.jobs))

    def test_needed_jobs_come_first(self):
        seen = set()
        for job in self._prepare().plan.jobs.values():
            self.assertContainsSubset(job.needs, seen)
            seen.add(job.id)

    def test_commands_are_valid_flags_of_existing_files(self):
        experiments = self._prepare(scale="smoke")
        config = self._config()
        for job in experiments.plan.cells:
            places = job.places(config.output_dir)
            for command in job.commands:
                for name in ("train_file", "dev_file"):
                    path = jobs.fill(command.flags[name], places)
                    self.assertTrue(os.path.exists(path), path)

    def test_commands_run_from_any_folder(self):
        command = jobs.Command("run/predict.py", {"input_file": "a b"})
        words = "'--input_file=a b'"
        folder = self.create_tempdir().full_path
        clone = os.path.join(folder, "my clone")
        script = os.path.join(clone, "run", "predict.py")
        os.makedirs(os.path.dirname(script))
        pathlib.Path(script).touch()
        name = os.path.join(clone, "bert_tf", "x", "x.py")
        for module in (jobs, errors):
            module_file = name if module is jobs else os.path.dirname(name)
            self.enter_context(
                mock.patch.object(module, "__file__", module_file)
            )
        for where, path in ((folder, f"'{script}'"), (clone, "run/predict.py")):
            with contextlib.chdir(where):
                self.assertEqual(command.shell({}), f"python {path} {words}")

    def test_an_ensemble_reads_what_its_systems_write_also_with_triviaqa(self):
        data = pathlib.Path(self._folder, "data")
        (data / "squad").mkdir(parents=True)
        (data / "triviaqa" / "evidence" / "wikipedia").mkdir(parents=True)
        (data / "triviaqa" / "wikipedia-train.json").write_text("{}")
        answers = [{"text": "cat", "answer_start": 4}]
        question = {"id": "q", "question": "Who?", "answers": answers}
        paragraph = {"context": "The cat sat.", "qas": [question]}
        squad = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
        for name in ("train-v1.1.json", "dev-v1.1.json"):
            (data / "squad" / name).write_text(json.dumps(squad))
        experiments = self._prepare(
            experiments="table2",
            scale="smoke",
            data_dir=str(data),
            tasks=None,
            pretrained_model_dir=self._folder,
        )
        (table,) = experiments.tables
        self.assertLen(table.rows, 4)
        for end, name in (("", "model"), ("_triviaqa", "triviaqa-evidence")):
            (ensemble,) = table.cells[f"bert_large_ensemble{end}", "f1"]
            job = experiments.plan.jobs[ensemble]
            self.assertLen(job.needs, 2)
            self.assertIn(f"{name}-seed12345", job.needs[0])
            (command,) = job.commands
            read = jobs.fill(
                command.flags["ensemble_nbest_files"], job.places("out")
            )
            self.assertEqual(
                read.split(","),
                [f"out/runs/{x}/nbest_predictions.json" for x in job.needs],
            )

    def test_smoke_has_two_rows_and_one_seed(self):
        experiments = self._prepare(scale="smoke", tasks=None)
        self.assertLen(experiments.tables, 6)
        for table in experiments.tables:
            self.assertLen(table.rows, 2)
            self.assertTrue(all(len(x) == 1 for x in table.cells.values()))
        self.assertLessEqual(len(experiments.plan.cells), 11)

    def test_tables_survive_json(self):
        for table in self._prepare(num_seeds=2).tables:
            text = json.dumps(tables_lib.to_json(table))
            self.assertEqual(tables_lib.from_json(json.loads(text)), table)

    def test_refuses_another_corpus_by_name(self):
        self._prepare(experiments="table5")
        other = experiment_inputs.write_corpus(
            self.create_tempdir().full_path, first=9
        )
        with self.assertRaisesRegex(
            UserError, f"of --corpus={self._corpus}. Received: .*{other}"
        ):
            self._prepare(experiments="table5", corpus=other)

    def test_one_process_at_a_time_prepares(self):
        def prepare(config, *args):
            path = os.path.join(config.output_dir, "data.lock")
            with open(path, encoding="utf-8") as file:
                self.assertFalse(locks.try_lock(file))
            return real(config, *args)

        real = run.prepare
        config = self._config(experiments="table5", dry_run=True)
        with (
            mock.patch.object(run, "prepare", prepare),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            run.run(config)
        self.assertIn("cells and", output.getvalue())

    def test_an_unusable_corpus_is_not_remembered(self):
        corpus = os.path.join(self._folder, "other.txt")
        for text in ("One text.\n", "One text.\n\nAnd another.\n"):
            pathlib.Path(corpus).write_text(text, encoding="utf-8")
            is_one = "another" not in text
            with (
                self.assertRaisesRegex(UserError, "at least two documents")
                if is_one
                else contextlib.nullcontext()
            ):
                self._prepare(experiments="table5", corpus=corpus)

    def test_refuses_another_scale_by_name(self):
        self._prepare(experiments="table5")
        with self.assertRaisesRegex(
            UserError, "of --scale=small. Received: --scale=smoke"
        ):
            self._prepare(experiments="table5", scale="smoke")

    def test_strict_code_refuses_results_of_another_commit(self):
        experiments = self._prepare(experiments="table5")
        config = self._config(experiments="table5", strict_code=True)
        job = next(iter(experiments.plan.jobs.values()))
        results.write(config.output_dir, job, [], "abc1234", 1.0, {})
        with self.assertRaisesRegex(
            UserError, f"--strict_code.*1 results of abc1234, as {job.id}"
        ):
            run.run(config)

    def test_a_broken_link_in_a_model_does_not_change_its_hash(self):
        model = self.create_tempdir()
        model.create_file("vocab.txt", content="[PAD]\n")
        before = starts.contents_hash(model.full_path)
        os.symlink("nowhere", os.path.join(model.full_path, "link"))
        self.assertEqual(starts.contents_hash(model.full_path), before)
        model.create_file("vocab.txt", content="[UNK]\n")
        self.assertNotEqual(starts.contents_hash(model.full_path), before)

    def test_missing_inputs_name_what_can_run(self):
        with self.assertRaisesRegex(
            UserError, "table7 needs a task of tagging.*--experiments=table6"
        ):
            self._prepare(experiments="table6,table7", tasks="pairs")
        with self.assertRaisesRegex(
            UserError, "table7 needs a task of.*Without it run.*=table5,table6"
        ):
            self._prepare(experiments="table7", tasks="pairs")
        with self.assertRaisesRegex(
            UserError, "table5 needs --corpus; table1 needs .*No experiment can"
        ):
            self._prepare(experiments="table5,table1", corpus=None)
        with self.assertRaisesRegex(
            UserError, "--tasks=mrpc.*MRPC/ with train.tsv.*names, pairs"
        ):
            self._prepare(tasks="mrpc")
        with self.assertRaisesRegex(
            UserError, "table5 needs the task qnli in --data_dir .*squad"
        ):
            self._prepare(experiments="table5", tasks=None)


if __name__ == "__main__":
    tf.test.main()
