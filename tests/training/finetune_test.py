"""Tests for bert_tf.training.finetune and what it is made of."""

import dataclasses
import functools
import json
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import files
from bert_tf import model_directory
from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.interop import tf1_checkpoint
from bert_tf.tasks import classification_flags
from bert_tf.training import finetune
from bert_tf.training import finetuning_setting
from bert_tf.training import metrics_log
from bert_tf.training import run_selection
from bert_tf.training import start_model
from bert_tf.training.finetune_input import FinetuneInput
from bert_tf.training.finetuning_run import FinetuningRun
from bert_tf.training.loop import TrainingLoop
from bert_tf.training.task_evaluation import Evaluator
from tests import logical_devices
from tests import tiny_finetuning

logical_devices.make()

# 50 examples in batches of 4, twice.
_STEPS = 25
_SPEED = ("examples_per_second", "tokens_per_second")


def _run(config):
    return finetune.run(config, classification_flags.build_task)


def _state(output_dir):
    return tf1_checkpoint.read(output_dir)


def _change_weights(path, change):
    """Replaces a model by another one of the same shape and vocabulary."""
    stored = model_directory.read_model(path)
    model_directory.write(
        path,
        stored.config,
        {name: stored.weights[name] + change for name in stored.weights},
        stored.vocabulary,
        stored.tokenizer_settings,
        stored.task,
        "# Another\n",
    )


def _forget_model(values):
    """Makes of an identity what it was before models were hashed."""
    (name,) = [name for name in values if name.startswith("the model of")]
    del values[name]


def _weights(path):
    stored = model_directory.read_model(path)
    return {name: stored.weights[name] for name in stored.weights}


def _lines(output_dir):
    lines = metrics_log.read(os.path.join(output_dir, metrics_log.METRICS_FILE))
    return [
        {name: value for name, value in line.items() if name not in _SPEED}
        for line in lines
    ]


def _read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


class _Interrupted(Exception):
    """Stands for the end of the process."""


def _die_at(step):
    """Lets the process die after so many calls of the training loop."""
    calls = []
    run = TrainingLoop.run

    def run_or_die(self, *args):
        calls.append(1)
        if len(calls) > step:
            raise _Interrupted
        return run(self, *args)

    return mock.patch.object(TrainingLoop, "run", run_or_die)


def _die_evaluating():
    """Lets the process die in its first evaluation."""
    return mock.patch.object(Evaluator, "evaluate", side_effect=_Interrupted)


class _TestCase(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    def config(self, **values):
        return tiny_finetuning.config(self.folder, **values)

    def assert_same_state(self, one, other):
        expected, received = _state(one), _state(other)
        self.assertEqual(set(received), set(expected))
        for name, value in expected.items():
            self.assertAllEqual(received[name], value, name)

    def out(self, name):
        return os.path.join(self.folder, name)


class OneRunTest(_TestCase):
    def test_learns_and_leaves_what_it_says(self):
        config = self.config(num_train_epochs="6", do_predict=True)
        results = _run(config)
        self.assertGreater(results["dev"]["accuracy"], 0.85)
        self.assertLess(results["dev"]["loss"], 0.5)
        output_dir = config.output_dir
        lines = _lines(output_dir)
        self.assertEqual([line["step"] for line in lines], [*range(1, 76)])
        self.assertGreater(
            np.mean([line["loss"] for line in lines[:10]]),
            1.5 * np.mean([line["loss"] for line in lines[-10:]]),
        )
        # Warm-up in the first tenth, then linear decay to 0.
        rates = [line["learning_rate"] for line in lines]
        self.assertAllClose(rates[:3], [0.0, 0.003 / 7, 0.006 / 7])
        self.assertAllClose(rates[-1], 0.003 / 75)
        written = dict(
            line.split(" = ")
            for line in _read(output_dir, "eval_results.txt").splitlines()
        )
        self.assertEqual(int(written["global_step"]), 75)
        self.assertAllClose(
            float(written["eval_accuracy"]), results["dev"]["accuracy"]
        )
        self.assertEqual(written["loss"], written["eval_loss"])
        self.assertEqual(
            json.loads(_read(output_dir, "eval_results.json")),
            {"global_step": 75} | results,
        )
        predictions = [
            json.loads(line)
            for line in _read(output_dir, "dev_predictions.jsonl").splitlines()
        ]
        truth = [
            line.split(",")[2]
            for line in _read(self.folder, "dev.csv").splitlines()[1:]
        ]
        right = [
            p["label"] == label
            for p, label in zip(predictions, truth, strict=True)
        ]
        self.assertAllClose(np.mean(right), results["dev"]["accuracy"])
        self.assertLen(_read(output_dir, "test_results.tsv").splitlines(), 9)
        task = model_directory.read_model(self.out("output/model")).task
        self.assertEqual(task["labels"], ["feline", "other"])
        self.assertEqual(task["results"], results)

    def test_evaluation_alone_repeats_the_scores(self):
        results = _run(self.config())
        again = _run(self.config(do_train=False, pretrained_model_dir=None))
        self.assertAllClose(again["dev"], results["dev"])
        model = self.out("output/model")
        elsewhere = self.config(
            do_train=False,
            pretrained_model_dir=model,
            output_dir=self.out("elsewhere"),
        )
        self.assertAllClose(_run(elsewhere)["dev"], results["dev"])
        # A model that was trained for something else.
        with self.assertRaisesRegex(UserError, "no fine-tuned model for this"):
            _run(self.config(do_train=False, output_dir=self.out("third")))
        with self.assertRaisesRegex(
            UserError,
            "no trained model in .*third.* give a fine-tuned one with",
        ):
            _run(
                self.config(
                    do_train=False,
                    output_dir=self.out("third"),
                    pretrained_model_dir=None,
                )
            )

    def test_scores_stay_that_are_not_computed_again(self):
        results = _run(self.config(num_train_epochs="0.5"))
        again = _run(
            self.config(
                do_train=False,
                do_eval=False,
                do_predict=True,
                pretrained_model_dir=None,
            )
        )
        self.assertEqual(list(again), ["test"])
        self.assertEqual(
            json.loads(_read(self.out("output"), "eval_results.json")),
            {"global_step": 6} | results | again,
        )

    def test_head_goes_on_where_labels_are_the_same(self):
        _run(self.config())
        config = self.config(
            pretrained_model_dir=self.out("output/model"),
            output_dir=self.out("further"),
            learning_rate="1e-9",
        )
        _run(config)
        before = _weights(self.out("output/model"))
        after = _weights(self.out("further/model"))
        for name, value in before.items():
            self.assertAllClose(after[name], value, atol=1e-6, msg=name)

    @parameterized.parameters(
        {"micro_batch_size": 2},
        {"distribution_strategy": "mirrored", "num_gpus": 2},
        {"distribution_strategy": "mirrored", "num_gpus": 4},
    )
    @pytest.mark.thorough
    def test_parts_of_a_step_change_nothing(self, **parts):
        # Weights of classes make the parts count differently. Four devices
        # cannot share the batch evenly.
        common = {
            "train_batch_size": "6",
            "num_train_epochs": "0.5",
            "class_weights": "feline:3,other:0.5",
        }
        _run(self.config(output_dir=self.out("whole"), **common))
        _run(self.config(output_dir=self.out("parts"), **common, **parts))
        expected = _state(self.out("whole"))
        for name, value in _state(self.out("parts")).items():
            self.assertAllClose(
                value, expected[name], rtol=1e-4, atol=1e-5, msg=name
            )

    def test_fixed_length_pads_all_as_the_original(self):
        shapes = set()
        read = FinetuneInput.read

        def note(source, step, *rows):
            batch = read(source, step, *rows)
            shapes.add(batch["input_ids"].shape)
            return batch

        with mock.patch.object(FinetuneInput, "read", note):
            _run(self.config(num_length_buckets=1))
            self.assertEqual(shapes, {(4, 12)})
            shapes.clear()
            _run(self.config(output_dir=self.out("buckets")))
            self.assertEqual(shapes, {(4, 8), (4, 12)})

    def test_unreached_and_frozen_keep_their_weights(self):
        start = _weights(
            tiny_finetuning.flags(self.folder)["pretrained_model_dir"]
        )
        config = self.config(num_frozen_layers=1)
        _run(config)
        after = _weights(self.out("output/model"))
        frozen = ("bert/embeddings/", "bert/encoder/layer_0/")
        for name, value in start.items():
            if name.startswith(frozen):
                self.assertAllEqual(after[name], value, name)
            elif "key/bias" not in name:  # No softmax depends on it.
                self.assertNotAllClose(after[name], value, msg=name)
        # Nor are there moments of them.
        self.assertFalse(
            [
                name
                for name in _state(config.output_dir)
                if name.startswith(frozen) and name.endswith("/adam_m")
            ]
        )

    def test_layer_decay_scales_the_update(self):
        start = _weights(
            tiny_finetuning.flags(self.folder)["pretrained_model_dir"]
        )

        def change(layer_decay):
            output_dir = self.out(f"decay_{layer_decay}")
            _run(
                self.config(
                    output_dir=output_dir,
                    layer_decay=layer_decay,
                    # One step, at a constant rate.
                    num_train_epochs="0.1",
                    warmup_proportion=0.0,
                )
            )
            after = _weights(os.path.join(output_dir, "model"))
            return {name: after[name] - start[name] for name in start}

        full, decayed = change(1.0), change(0.5)
        for name, value in full.items():
            factor = 1.0
            if name.startswith("bert/embeddings/"):
                factor = 0.5**3
            elif "layer_0" in name:
                factor = 0.5**2
            elif "layer_1" in name:
                factor = 0.5
            self.assertAllClose(
                decayed[name], factor * value, rtol=1e-3, atol=1e-6, msg=name
            )

    @pytest.mark.thorough
    def test_dropout_flags_change_the_run(self):
        losses = []
        for number, values in enumerate(
            (
                {},
                {"hidden_dropout_prob": 0.0},
                {"attention_probs_dropout_prob": 0.0},
                {"head_dropout_prob": 0.0},
            )
        ):
            config = self.config(
                output_dir=self.out(str(number)),
                num_train_epochs="0.1",
                **values,
            )
            _run(config)
            losses.append(_lines(config.output_dir)[0]["loss"])
        self.assertLen(set(losses), 4)

    def test_a_run_gives_its_memory_back(self):
        models = []
        release = FinetuningRun.release

        def note(run):
            models.append(run.model)
            release(run)

        with mock.patch.object(FinetuningRun, "release", note):
            _run(self.config(num_train_epochs="0.1"))
        for weight in models[0].trainable_weights:
            value = tf.raw_ops.ReadVariableOp(
                resource=weight.value.handle, dtype=tf.float32
            )
            self.assertEqual(value.shape, (0,), weight.path)

    def test_too_few_examples_for_a_step(self):
        with self.assertRaisesRegex(UserError, "less than one step"):
            _run(self.config(train_batch_size="64", num_train_epochs="1"))
        self.assertFalse(os.path.exists(self.out("output/model")))


class ResumeTest(_TestCase):
    @parameterized.parameters(
        ({},),
        ({"keep_best": True, "evaluate_every_steps": 6},),
    )
    def test_continues_bit_for_bit(self, values):
        common = {"save_checkpoints_steps": 7} | values
        through = self.config(output_dir=self.out("through"), **common)
        _run(through)
        config = self.config(**common)
        for step in (10, 8):
            with _die_at(step), self.assertRaises(_Interrupted):
                _run(config)
        if values:
            with _die_evaluating(), self.assertRaises(_Interrupted):
                _run(config)
        results = _run(config)
        self.assertEqual(_lines(config.output_dir), _lines(through.output_dir))
        self.assertLen(_lines(config.output_dir), _STEPS)
        self.assert_same_state(through.output_dir, config.output_dir)
        for name, value in _weights(self.out("through/model")).items():
            self.assertAllEqual(
                _weights(self.out("output/model"))[name], value, name
            )
        written = json.loads(_read(self.out("through"), "eval_results.json"))
        self.assertEqual(results["dev"], written["dev"])
        # Nothing is left to do.
        with _die_at(0):
            self.assertEqual(_run(config), results)

    def test_refuses_to_go_on_with_other_settings(self):
        _run(self.config(num_train_epochs="0.5"))
        for values, message in (
            (
                {"learning_rate": "0.02"},
                "--learning_rate was 0.003 and is 0.02",
            ),
            ({"num_frozen_layers": 1}, "--num_frozen_layers was 0"),
        ):
            with self.assertRaisesRegex(UserError, message):
                _run(self.config(num_train_epochs="0.5", **values))
        tiny_finetuning.write_rows(self.out("train.csv"), 50, seed=9)
        with self.assertRaisesRegex(
            UserError, "file of the train data was .*--allow_changed_data"
        ):
            _run(self.config(num_train_epochs="0.5"))
        # Where to compute may change without being asked.
        allowed = self.config(
            num_train_epochs="0.75",
            allow_changed_data=True,
            distribution_strategy="mirrored",
            num_gpus=2,
        )
        with self.assertLogs(level="INFO") as logs:
            _run(allowed)
        text = "\n".join(logs.output)
        for message in (
            "as allowed: the file of the train data was",
            "as allowed: --num_train_epochs was 0.5 and is 0.75 now",
            "Changed at step 6: the strategy was 'OneDeviceStrategy' and is "
            "'MirroredStrategy' now; the number of replicas was 1 and is 2 now",
        ):
            self.assertIn(message, text)
        self.assertEqual(_lines(allowed.output_dir)[-1]["step"], 9)

    def test_notices_another_pretrained_model_of_the_same_name(self):
        config = self.config(num_train_epochs="0.5")
        results = _run(config)
        _change_weights(config.pretrained_model_dir, 0.1)
        with self.assertRaisesRegex(
            UserError,
            r"run in .*output \(step 6\) cannot go on like this: the model of "
            "--pretrained_model_dir was '[0-9a-f]{64}' and is '[0-9a-f]{64}' "
            "now. Use what it was begun with, .*--allow_changed_data",
        ):
            _run(config)
        allowed = dataclasses.replace(config, allow_changed_data=True)
        with self.assertLogs(level="WARNING") as logs:
            self.assertEqual(_run(allowed), results)
        self.assertIn(
            "as allowed: the model of --pretrained_model_dir was",
            "\n".join(logs.output),
        )

    def test_goes_on_where_no_model_was_noted(self):
        describe = finetuning_setting.describe

        def describe_less(*args):
            identity = describe(*args)
            _forget_model(identity)
            return identity

        config = self.config(num_train_epochs="0.5")
        with mock.patch.object(finetuning_setting, "describe", describe_less):
            results = _run(config)
        with self.assertNoLogs(level="WARNING"), _die_at(0):
            self.assertEqual(_run(config), results)

    def test_new_weights_are_drawn_and_not_compared(self):
        model = tiny_finetuning.flags(self.folder)["pretrained_model_dir"]
        config = self.config(
            pretrained_model_dir=None,
            bert_config_file=os.path.join(model, "bert_config.json"),
            vocab_file=os.path.join(model, "vocab.txt"),
            num_train_epochs="0.5",
        )
        results = _run(config)
        draw = start_model.draw_weights
        with mock.patch.object(
            start_model, "draw_weights", lambda shape, seed: draw(shape, 7)
        ):
            self.assertEqual(_run(config), results)

    def test_what_no_weight_depends_on_may_change(self):
        config = self.config(num_train_epochs="0.5")
        results = _run(config)
        moved = self.out("moved.csv")
        os.rename(self.out("train.csv"), moved)
        again = self.config(
            num_train_epochs="0.5",
            train_file=moved,
            do_predict=True,
            eval_batch_size=3,
            iterations_per_loop=5,
        )
        self.assertAllClose(_run(again)["dev"], results["dev"])
        self.assertTrue(os.path.exists(self.out("output/test_results.tsv")))


class SelectionTest(_TestCase):
    def _scores(self, values):
        """Lets dev score what the test says."""
        scores = iter(values)
        real = classification_flags.ClassificationTask.score

        def score(task, examples, predictions):
            found = real(task, examples, predictions)
            return found | {"accuracy": next(scores, found["accuracy"])}

        return mock.patch.object(
            classification_flags.ClassificationTask, "score", score
        )

    def test_best_evaluation_is_kept(self):
        config = self.config(keep_best=True, evaluate_every_steps=5)
        seen = []
        save = functools.partial(self._remember, seen)
        # Of the two best ones the first counts.
        with self._scores([0.5, 0.7, 0.9, 0.9, 0.1]), save():
            _run(config)
        steps = [step for step, _ in seen]
        self.assertEqual(steps, [5, 10, 15])
        self.assertEqual(_lines(config.output_dir)[-1]["step"], _STEPS)
        (_, best) = seen[-1]
        for name, value in _weights(self.out("output/model")).items():
            self.assertAllEqual(value, best[name], name)
        last = _state(config.output_dir)
        self.assertNotAllClose(last["output_weights"], best["output_weights"])
        # What is said of the model is said of that step.
        for path in ("model/task.json", "eval_results.json"):
            values = json.loads(_read(self.out("output"), path))
            self.assertEqual(values["global_step"], 15)
        self.assertIn(
            "for 15 steps", _read(self.out("output"), "model/README.md")
        )

    def _remember(self, seen):
        """Keeps what is written to the folder of the best."""
        from bert_tf.training.checkpoints import CheckpointStore

        save = CheckpointStore.save

        def remember(store, step, tensors, metadata):
            if store.folder.endswith("best"):
                seen.append((step, dict(tensors)))
            return save(store, step, tensors, metadata)

        return mock.patch.object(CheckpointStore, "save", remember)

    def test_early_stopping(self):
        config = self.config(early_stopping_patience=2, evaluate_every_steps=4)
        with self._scores([0.5, 0.6, 0.6, 0.4, 0.9]):
            _run(config)
        self.assertEqual(_lines(config.output_dir)[-1]["step"], 16)
        # Started again, it does not go on.
        with _die_at(0):
            _run(config)

    def test_evaluates_each_epoch_and_at_the_end(self):
        config = self.config(keep_best=True)
        steps = []
        write = metrics_log.MetricsLog.write_summaries

        def note(log, group, step, values):
            if group == "eval":
                steps.append(step)
            write(log, group, step, values)

        with mock.patch.object(metrics_log.MetricsLog, "write_summaries", note):
            _run(config)
        # 12.5 steps are an epoch.
        self.assertEqual(steps, [12, 25])

    @pytest.mark.thorough
    def test_grid(self):
        config = self.config(
            learning_rate="0.003,1e-9",
            num_restarts=2,
            num_train_epochs="3",
            do_predict=True,
        )
        # The process dies in the second run.
        with _die_at(60), self.assertRaises(_Interrupted):
            _run(config)
        results = _run(config)
        folders = sorted(os.listdir(self.out("output/runs")))
        self.assertLen(folders, 4)
        self.assertIn("rate_0.003_batch_4_epochs_3_seed_12346", folders)
        scores = {}
        for folder in folders:
            path = self.out(f"output/runs/{folder}")
            scores[folder] = json.loads(_read(path, "eval_results.json"))[
                "dev"
            ]["accuracy"]
            # Gone, since each is three times the model.
            self.assertFalse([n for n in os.listdir(path) if "ckpt" in n])
        best = max(scores.values())
        self.assertEqual(results["dev"]["accuracy"], best)
        self.assertGreater(best, min(scores.values()))
        winner = [
            row.split()
            for row in _read(self.out("output"), "runs.txt").splitlines()
            if row.endswith("best")
        ]
        self.assertLen(winner, 1)
        rate, size, epochs, seed, value, _ = winner[0]
        folder = f"rate_{rate}_batch_{size}_epochs_{epochs}_seed_{seed}"
        self.assertEqual(f"{scores[folder]:.4f}", value)
        for name in ("eval_results.txt", "test_results.tsv"):
            self.assertEqual(
                _read(self.out("output"), name),
                _read(self.out(f"output/runs/{folder}"), name),
            )
        for name, value in _weights(self.out("output/model")).items():
            self.assertAllEqual(
                value,
                _weights(self.out(f"output/runs/{folder}/model"))[name],
            )
        # All is done.
        with _die_at(0):
            self.assertEqual(_run(config), results)

    @pytest.mark.thorough
    def test_runs_that_are_done_are_evaluated_on_other_data(self):
        runs = {"num_restarts": 2, "num_train_epochs": "0.5"}
        first = _run(self.config(**runs))
        folders = [
            self.out(f"output/runs/{name}")
            for name in os.listdir(self.out("output/runs"))
        ]
        weights = [_weights(os.path.join(x, "model")) for x in folders]
        # What a process leaves that is killed while it writes.
        os.makedirs(os.path.join(folders[0], "model.tmp-123-0a1b2c3d"))
        with _die_at(0):
            again = _run(self.config(do_predict=True, **runs))
        self.assertEqual(again["dev"], first["dev"])
        for folder in (self.out("output"), *folders):
            lines = _read(folder, "test_predictions.jsonl").splitlines()
            self.assertLen(lines, 9)
        self.assertNotIn(
            "model.tmp-123-0a1b2c3d", os.listdir(self.out("output"))
        )
        tiny_finetuning.write_rows(self.out("dev.csv"), 17, seed=7)
        with _die_at(0):
            other = _run(self.config(**runs))
        scores = []
        for folder, before in zip(folders, weights, strict=True):
            path = os.path.join(folder, "model")
            for name, value in _weights(path).items():
                self.assertAllEqual(value, before[name], name)
            task = json.loads(_read(path, "task.json"))
            scores.append(task["results"]["dev"])
        best = max(scores, key=lambda values: values["accuracy"])
        self.assertEqual(other["dev"]["accuracy"], best["accuracy"])
        self.assertNotEqual(other["dev"]["loss"], first["dev"]["loss"])
        alone = self.config(
            do_train=False,
            pretrained_model_dir=path,
            output_dir=self.out("alone"),
        )
        self.assertEqual(_run(alone)["dev"], scores[-1])

    @pytest.mark.thorough
    def test_runs_that_are_done_began_with_the_same_model(self):
        runs = {"num_train_epochs": "0.5", "num_restarts": 2}
        config = self.config(**runs)
        results = _run(config)
        _change_weights(config.pretrained_model_dir, 0.1)
        # The runs that are new come first, and are not begun.
        wider = self.config(
            **runs | {"num_restarts": 1, "learning_rate": "0.001,0.003"}
        )
        with (
            _die_at(0),
            self.assertRaisesRegex(
                UserError,
                "runs/rate_0.003_.*_seed_12345 cannot go on like this: the "
                "model of --pretrained_model_dir was",
            ),
        ):
            _run(wider)
        # Begun before models were hashed, runs stay what they were.
        for folder in os.listdir(self.out("output/runs")):
            path = self.out(f"output/runs/{folder}/run.json")
            written = files.read_json(path)
            _forget_model(written["identity"])
            files.write_json(path, written)
        with self.assertNoLogs(level="WARNING"), _die_at(0):
            self.assertEqual(_run(config), results)

    def test_a_run_that_is_not_finite_stops_no_other(self):
        runs = {
            "learning_rate": "1e38,0.003",
            "num_train_epochs": "0.5",
            "save_checkpoints_steps": 1,
        }
        released = []
        release = FinetuningRun.release

        def note(run):
            released.append(run.step)
            release(run)

        with (
            mock.patch.object(FinetuningRun, "release", note),
            self.assertLogs(level="ERROR") as logs,
        ):
            results = _run(self.config(**runs))
        self.assertEqual(released, [1, 6])
        (message,) = logs.output
        failed = "rate_1e+38_batch_4_epochs_0.5_seed_12345"
        self.assertIn(f"{failed} has failed: Step 2 is not finite", message)
        folder = self.out(f"output/runs/{failed}")
        written = files.read_json(os.path.join(folder, "run.json"))
        self.assertIn(written["failure"], message)
        # What the message speaks of.
        self.assertIn("not_finite_batch_2.npz", os.listdir(folder))
        self.assertEqual(_state(folder)["global_step"], 1)
        value = results["dev"]["accuracy"]
        self.assertEqual(
            _read(self.out("output"), "runs.txt"),
            "learning_rate  batch  epochs   seed  accuracy\n"
            "        1e+38      4     0.5  12345         -  failed\n"
            f"        0.003      4     0.5  12345    {value:.4f}    best\n"
            "\n"
            "Mean and standard deviation:\n"
            "learning_rate  batch  epochs         seed  accuracy\n"
            "        1e+38      4     0.5   0 of 1 run         -\n"
            f"        0.003      4     0.5        1 run    {value:.4f}\n"
            f"          all    all     all  1 of 2 runs    {value:.4f}\n",
        )
        # It is neither repeated nor evaluated.
        with _die_at(0), self.assertLogs(level="INFO") as logs:
            again = _run(self.config(do_predict=True, **runs))
        self.assertEqual(again["dev"], results["dev"])
        text = "\n".join(logs.output)
        self.assertIn(f"Run 1 of 2 has failed before: {failed}.", text)
        self.assertIn("Run 2 of 2 is done, and is evaluated again", text)

    @pytest.mark.thorough
    def test_all_runs_are_not_finite(self):
        config = self.config(learning_rate="1e38,1e37", num_train_epochs="0.5")
        with self.assertRaisesRegex(
            UserError, "All 2 runs in .*output/runs have failed.*try a smaller"
        ):
            _run(config)
        table = _read(self.out("output"), "runs.txt")
        self.assertEqual(table.count("failed"), 2)
        with _die_at(0), self.assertRaisesRegex(UserError, "All 2 runs"):
            _run(config)
        # Of a single run it is the end.
        with self.assertRaisesRegex(NotFiniteError, "Step 2 is not finite"):
            _run(dataclasses.replace(config, learning_rate="1e38"))

    def test_a_run_whose_scores_are_not_finite_has_failed_too(self):
        # The only step is finite; what it makes of the weights is not.
        _run(self.config(learning_rate="1e38,0.003", num_train_epochs="0.084"))
        table = _read(self.out("output"), "runs.txt")
        self.assertRegex(table, r"(?m)^ *1e\+38 .* -  failed$")
        self.assertRegex(table, r"(?m)^ *0\.003 .* best$")

    def test_another_error_of_a_run_stops_all(self):
        config = self.config(num_restarts=2)
        error = UserError("Something else.")
        with (
            mock.patch.object(FinetuningRun, "train", side_effect=error),
            self.assertRaisesRegex(UserError, "Something else"),
        ):
            _run(config)
        self.assertFalse(os.path.exists(self.out("output/runs.txt")))
        for folder in os.listdir(self.out("output/runs")):
            self.assertEmpty(os.listdir(self.out(f"output/runs/{folder}")))

    def test_table(self):
        def finished(rate, seed, value):
            settings = run_selection.RunSettings(rate, 16, 2.0, seed, "")
            return run_selection.FinishedRun(
                settings, "", {"dev": {"f1": value}}
            )

        runs = [
            finished(5e-5, 1, 0.5),
            finished(5e-5, 2, 0.7),
            finished(3e-5, 1, 0.65),
        ]
        self.assertEqual(
            run_selection.format_table(runs, runs[1], "f1", "dev"),
            "learning_rate  batch  epochs  seed      f1\n"
            "        5e-05     16       2     1  0.5000\n"
            "        5e-05     16       2     2  0.7000  best\n"
            "        3e-05     16       2     1  0.6500\n"
            "\n"
            "Mean and standard deviation:\n"
            "learning_rate  batch  epochs    seed      f1\n"
            "        5e-05     16       2  2 runs  0.6000  +- 0.1414\n"
            "        3e-05     16       2   1 run  0.6500\n"
            "          all    all     all  3 runs  0.6167  +- 0.1041\n",
        )


@dataclasses.dataclass
class _Numbers:
    """Features that say which example they are of."""

    lengths: np.ndarray

    def __len__(self):
        return len(self.lengths)

    def batch(self, indices, length):
        ids = np.repeat(indices[:, np.newaxis], length, axis=1)
        mask = np.arange(length) < self.lengths[indices][:, np.newaxis]
        return {"input_ids": ids, "input_mask": mask.astype(np.int32)}


class InputTest(tf.test.TestCase):
    def test_rows_of_workers_make_the_batch(self):
        source = FinetuneInput(
            _Numbers(np.array([3, 9, 5, 12, 7, 8, 2, 11])), 5, 1, 6, (8, 12)
        )
        whole = iter(source.dataset(2))
        # The third worker is left with nothing.
        parts = [
            iter(source.dataset(2, first, count))
            for first, count in ((0, 3), (3, 2), (5, 0))
        ]
        for step in range(2, 6):
            batch = next(whole)
            shares = [next(part) for part in parts]
            self.assertEqual([len(x["input_ids"]) for x in shares], [3, 2, 0])
            for name, value in batch.items():
                self.assertAllEqual(
                    tf.concat([share[name] for share in shares], 0), value
                )
            self.assertAllEqual(
                batch["input_ids"], source.read(step)["input_ids"]
            )


class FlagsTest(_TestCase):
    @parameterized.parameters(
        ({"learning_rate": "5e-5,x"}, "--learning_rate must be a number"),
        ({"train_batch_size": "4.5"}, "--train_batch_size must be a whole"),
        ({"num_train_epochs": "2,2"}, "names a value twice"),
        ({"num_restarts": 2, "do_eval": False}, "Several runs need --do_eval"),
        ({"keep_best": True, "do_eval": False}, "need --do_train and"),
        ({"evaluate_every_steps": 5}, "needs --keep_best or"),
        ({"pretrained_model_dir": None}, "Give --pretrained_model_dir"),
        ({"vocab_file": "v.txt"}, "takes the place of"),
        ({"do_train": False, "do_eval": False}, "At least one of"),
        ({"layer_decay": 0.0}, "--layer_decay must be above 0"),
        (
            {"new_pooler": True, "head": "bilstm"},
            "--new_pooler has no effect with --head=bilstm",
        ),
    )
    def test_refuses(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            self.config(**values)

    @parameterized.parameters(
        ({"max_seq_length": 13}, "--max_seq_length must be at most 12"),
        ({"num_frozen_layers": 3}, "--num_frozen_layers must be at most 2"),
        ({"do_lower_case": False}, "with do_lower_case=True"),
    )
    def test_refuses_what_the_model_is_not(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            _run(self.config(**values))
        self.assertFalse(os.path.exists(self.out("output")))


if __name__ == "__main__":
    tf.test.main()
