"""Tests for bert_tf.finetuning.grid_search: a grid of short runs."""

import dataclasses
import os
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.finetuning import grid_search
from bert_tf.finetuning.trial import Trial
from bert_tf.io import files
from bert_tf.io import run_folder
from tests.support import finetuning_case
from tests.support import tiny_finetuning


class GridSearchTest(finetuning_case.FinetuningCase):
    @pytest.mark.thorough
    def test_grid_keeps_the_best_trial_after_interruption(self):
        config = self.config(
            learning_rate="0.003,1e-9",
            num_restarts=2,
            num_train_epochs="3",
            do_predict=True,
        )
        # The process dies in the second trial, so the rerun has the rest.
        self.interrupt(config, 60)
        results = finetuning_case.run(config)
        folders = sorted(os.listdir(self.path("output/runs")))
        self.assertLen(folders, 4)
        self.assertIn("rate_0.003_batch_4_epochs_3_seed_12346", folders)
        scores, test_scores = {}, {}
        for folder in folders:
            path = self.path(f"output/runs/{folder}")
            values = finetuning_case.read_json(path, "eval_results.json")
            scores[folder] = values["dev"]["accuracy"]
            test_scores[folder] = values["test"]["accuracy"]
            # A checkpoint is three times the model's size, so none may stay.
            self.assertFalse([n for n in os.listdir(path) if "ckpt" in n])
        best = max(scores.values())
        self.assertEqual(results["dev"]["accuracy"], best)
        self.assertGreater(best, min(scores.values()))
        winner = [
            row.split()
            for row in self.read_text("runs.txt").splitlines()
            if row.endswith("best")
        ]
        self.assertLen(winner, 1)
        rate, size, epochs, seed, value, test_value, _ = winner[0]
        folder = f"rate_{rate}_batch_{size}_epochs_{epochs}_seed_{seed}"
        self.assertEqual(f"{scores[folder]:.4f}", value)
        self.assertEqual(f"{test_scores[folder]:.4f}", test_value)
        for name in ("eval_results.txt", "test_results.tsv"):
            self.assertEqual(
                self.read_text(name),
                finetuning_case.read_text(
                    self.path(f"output/runs/{folder}"), name
                ),
            )
        self.assert_same_weights(f"output/runs/{folder}/model", "output/model")
        # All trials have finished, so a rerun must not train.
        with finetuning_case.die_at(0):
            self.assertEqual(finetuning_case.run(config), results)

    @pytest.mark.thorough
    def test_finished_trials_are_evaluated_on_new_data(self):
        runs = {"num_restarts": 2, "num_train_epochs": "0.5"}
        first = self.tune(**runs)
        folders = [
            self.path(f"output/runs/{name}")
            for name in os.listdir(self.path("output/runs"))
        ]
        weights = [
            finetuning_case.weights(os.path.join(x, "model")) for x in folders
        ]
        # A process killed while writing leaves this folder; ignore it.
        os.makedirs(os.path.join(folders[0], "model.tmp-123-0a1b2c3d"))
        with finetuning_case.die_at(0):
            again = self.tune(do_predict=True, **runs)
        self.assertEqual(again["dev"], first["dev"])
        for folder in (self.path("output"), *folders):
            lines = finetuning_case.read_text(
                folder, "test_predictions.jsonl"
            ).splitlines()
            self.assertLen(lines, 9)
        self.assertNotIn(
            "model.tmp-123-0a1b2c3d", os.listdir(self.path("output"))
        )
        tiny_finetuning.write_rows(self.path("dev.csv"), 17, seed=7)
        with finetuning_case.die_at(0):
            other = self.tune(**runs)
        scores = []
        for folder, before in zip(folders, weights, strict=True):
            path = os.path.join(folder, "model")
            for name, value in finetuning_case.weights(path).items():
                self.assertAllEqual(value, before[name], name)
            task = finetuning_case.read_json(path, "task.json")
            scores.append(task["results"]["dev"])
        best = max(scores, key=lambda values: values["accuracy"])
        self.assertEqual(other["dev"]["accuracy"], best["accuracy"])
        self.assertNotEqual(other["dev"]["loss"], first["dev"]["loss"])
        alone = self.config(
            do_train=False,
            pretrained_model_dir=path,
            output_dir=self.path("alone"),
        )
        self.assertEqual(finetuning_case.run(alone)["dev"], scores[-1])

    @pytest.mark.thorough
    def test_files_of_an_earlier_best_trial_are_removed(self):
        flags = {"num_train_epochs": "2"}
        self.tune(learning_rate="1e-9,1e-8", do_predict=True, **flags)
        self.assertTrue(os.path.exists(self.path("output/test_results.tsv")))
        own = self.path("output/notes.txt")
        with open(own, "w", encoding="utf-8"):
            pass
        self.tune(learning_rate="1e-9,1e-8,0.003", **flags)
        best = self.path("output/runs/rate_0.003_batch_4_epochs_2_seed_12345")
        self.assertContainsSubset(
            os.listdir(self.path("output")),
            {"runs", "runs.txt", "train.log", "notes.txt", *os.listdir(best)}
            | {run_folder.WRITTEN_FILE},
        )

    @pytest.mark.thorough
    def test_finished_trials_must_have_started_from_the_same_model(self):
        runs = {"num_train_epochs": "0.5", "num_restarts": 2}
        config = self.config(**runs)
        finetuning_case.run(config)
        finetuning_case.change_weights(config.pretrained_model_dir, 0.1)
        # New trials come first, but the check must fail before they start.
        wider = self.config(
            **runs | {"num_restarts": 1, "learning_rate": "0.001,0.003"}
        )
        with (
            finetuning_case.die_at(0),
            self.assertRaisesRegex(
                UserError,
                "runs/rate_0.003_.*_seed_12345: the model of "
                "--pretrained_model_dir was",
            ),
        ):
            finetuning_case.run(wider)

    @pytest.mark.slow
    def test_a_trial_that_is_not_finite_does_not_stop_the_others(self):
        runs = {
            "learning_rate": "1e38,0.003",
            "num_train_epochs": "0.5",
            "save_checkpoints_steps": 1,
        }
        released = []
        release = Trial.release

        def note(trial):
            released.append(trial.step)
            release(trial)

        with (
            mock.patch.object(Trial, "release", note),
            self.assertLogs(level="ERROR") as logs,
        ):
            results = self.tune(**runs)
        self.assertEqual(released, [1, 6])
        (message,) = logs.output
        failed = "rate_1e+38_batch_4_epochs_0.5_seed_12345"
        self.assertIn(f"{failed} has failed: Step 2 is not finite", message)
        folder = self.path(f"output/runs/{failed}")
        written = files.read_json(os.path.join(folder, "run.json"))
        self.assertIn(written["failure"], message)
        # The message names this file, so it must exist.
        self.assertIn("not_finite_batch_2.npz", os.listdir(folder))
        self.assertEqual(finetuning_case.state(folder)["global_step"], 1)
        table = self.read_text("runs.txt")
        value = f"{results['dev']['accuracy']:.4f}"
        self.assertRegex(table, r"(?m)^ *1e\+38 .* -  failed$")
        self.assertRegex(table, rf"(?m)^ *0\.003 .* {value} +best$")
        self.assertRegex(table, rf"(?m)^ *all .* 1 of 2 runs +{value}$")
        # The failed trial must be neither repeated nor evaluated.
        with finetuning_case.die_at(0), self.assertLogs(level="INFO") as logs:
            again = self.tune(do_predict=True, **runs)
        self.assertEqual(again["dev"], results["dev"])
        text = "\n".join(logs.output)
        self.assertIn(f"Trial 1 of 2 has failed before: {failed}.", text)
        self.assertIn("Trial 2 of 2 is done and is evaluated again", text)

    @pytest.mark.thorough
    def test_fails_if_all_trials_are_not_finite(self):
        config = self.config(learning_rate="1e38,1e37", num_train_epochs="0.5")
        with self.assertRaisesRegex(
            UserError,
            "All 2 trials in .*output/runs have failed.*try a smaller",
        ):
            finetuning_case.run(config)
        table = self.read_text("runs.txt")
        self.assertEqual(table.count("failed"), 2)
        with (
            finetuning_case.die_at(0),
            self.assertRaisesRegex(UserError, "All 2 trials"),
        ):
            finetuning_case.run(config)
        # A single trial raises its own error, since there is no other trial.
        with self.assertRaisesRegex(NotFiniteError, "Step 2 is not finite"):
            finetuning_case.run(
                dataclasses.replace(config, learning_rate="1e38")
            )

    @pytest.mark.slow
    def test_a_trial_with_scores_that_are_not_finite_fails(self):
        # The only step is finite, but its weights are not, so scores are NaN.
        self.tune(learning_rate="1e38,0.003", num_train_epochs="0.084")
        table = self.read_text("runs.txt")
        self.assertRegex(table, r"(?m)^ *1e\+38 .* -  failed$")
        self.assertRegex(table, r"(?m)^ *0\.003 .* best$")

    @pytest.mark.slow
    def test_other_errors_stop_all_trials(self):
        config = self.config(num_restarts=2)
        error = UserError("Something else.")
        with (
            mock.patch.object(Trial, "train", side_effect=error),
            self.assertRaisesRegex(UserError, "Something else"),
        ):
            finetuning_case.run(config)
        self.assertFalse(os.path.exists(self.path("output/runs.txt")))
        for folder in os.listdir(self.path("output/runs")):
            self.assertEmpty(os.listdir(self.path(f"output/runs/{folder}")))

    def test_table_has_test_scores_and_layers(self):
        def finished(layers, seed, *values):
            trial_config = grid_search.TrialConfig(
                1e-3, 16, 2.0, seed, "", layers
            )
            splits = ("dev", "test_b")[: len(values)]
            results = {
                split: {"f1": value}
                for split, value in zip(splits, values, strict=True)
            }
            return grid_search.FinishedTrial(
                trial_config, "", results, failure=None if values else "NaN"
            )

        runs = [
            finished("embeddings", 1, 0.5, 0.4),
            finished("embeddings", 2, 0.7, 0.7),
            finished("last_hidden", 1, 0.8),
            finished("last_hidden", 2),
        ]
        splits = ["dev", "test_a", "test_b"]
        table = grid_search.format_table(runs, runs[2], "f1", splits)
        name = "layer_combination"
        head = f"learning_rate  batch  epochs  {name}"
        self.assertEqual(
            table,
            f"{head}  seed      f1  test_b_f1\n"
            "        0.001     16       2         embeddings     1  0.5000"
            "     0.4000\n"
            "        0.001     16       2         embeddings     2  0.7000"
            "     0.7000\n"
            "        0.001     16       2        last_hidden     1  0.8000"
            "          -    best\n"
            "        0.001     16       2        last_hidden     2       -"
            "          -  failed\n"
            "\n"
            "Mean and standard deviation:\n"
            f"{head}         seed      f1             test_b_f1\n"
            "        0.001     16       2         embeddings       2 runs  "
            "0.6000  +- 0.1414     0.5500  +- 0.2121\n"
            "        0.001     16       2        last_hidden  1 of 2 runs  "
            "0.8000                     -\n"
            "          all    all     all                all  3 of 4 runs  "
            "0.6667  +- 0.1528     0.5500  +- 0.2121\n",
        )


if __name__ == "__main__":
    tf.test.main()
