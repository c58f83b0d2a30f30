"""Tests for bert_tf.experiments.needs."""

import os
import pathlib

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.experiments import needs
from bert_tf.experiments import scales
from bert_tf.experiments import task_folders
from bert_tf.flags.experiments import ExperimentsConfig
from tests.support import experiment_inputs


class ChooseTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = self.create_tempdir().full_path
        self._tasks = experiment_inputs.write_tasks(self._folder)

    def _message(self, experiments, **values):
        usual = {"tasks": "pairs,names", "data_dir": self._tasks}
        config = ExperimentsConfig(
            experiments=experiments, output_dir="out", **usual | values
        )
        found = task_folders.find_tasks(config.data_dir)
        with self.assertRaises(UserError) as caught:
            needs.choose(config, scales.read(config.scale), found)
        return str(caught.exception)

    def test_an_unknown_task_names_what_can_run_with_the_others(self):
        message = self._message("table5", tasks="mrpc,pairs", corpus="a.txt")
        self.assertEndsWith(
            message,
            "Found: names, pairs. With --tasks=pairs run "
            "--experiments=table5,table6,table8,figure5,stability.",
        )
        message = self._message("table5", tasks="mrpc", corpus="a.txt")
        self.assertRegex(
            message,
            "names, pairs. With --tasks=names,pairs run .*table6,table7",
        )
        message = self._message("table5", tasks="mrpc", data_dir=None)
        self.assertRegex(message, "no task. No experiment can run without it")

    def test_without_a_corpus_it_names_what_a_model_can_do(self):
        self.assertEqual(
            self._message("table5"),
            "table5 needs --corpus. Without it and with --pretrained_model_dir "
            "run --experiments=table7,stability,table1.",
        )
        self.assertEqual(
            self._message("table5,table7", pretrained_model_dir="model"),
            "table5 needs --corpus. Without it run --experiments=table7.",
        )

    def test_without_a_model_it_names_what_a_corpus_can_do(self):
        self.assertRegex(
            self._message("table1"),
            "table1 needs --pretrained_model_dir. Without it and with --corpus "
            "run --experiments=table5,",
        )

    def test_without_both_no_experiment_can_run(self):
        for names in ("stability", "table1,table5"):
            self.assertRegex(
                self._message(names), "needs --corpus.*No experiment can run"
            )


class DescribeTest(tf.test.TestCase):
    def test_triviaqa_is_listed_with_table2(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        trivia = folder / "triviaqa"
        (trivia / "evidence" / "wikipedia").mkdir(parents=True)
        files = (
            "optional: triviaqa/ with wikipedia-train.json or "
            "qa/wikipedia-train.json, and evidence/wikipedia/: "
        )

        def check(state):
            text = needs.describe(scales.read("small"), {}, str(folder))
            self.assertIn(files + state, text.split("table2")[1].split("\n")[2])

        check("not found")
        self.assertIsNone(needs.find_triviaqa(None))
        for name in ("wikipedia-train.json", "qa/wikipedia-train.json"):
            path = trivia / name
            os.makedirs(path.parent, exist_ok=True)
            path.write_text("{}")
            check("found")
            self.assertEqual(
                needs.find_triviaqa(str(folder)),
                (str(path), str(trivia / "evidence" / "wikipedia")),
            )


if __name__ == "__main__":
    tf.test.main()
