"""Tests for bert_tf.finetuning.run and the modules it uses."""

import contextlib
import functools
import json
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.finetuning.trial import FinetuneInput
from bert_tf.finetuning.trial import Trial
from bert_tf.tasks.classification.task import ClassificationTask
from tests.support import finetuning_case
from tests.support import logical_devices
from tests.support import tiny_finetuning
from tests.support import tiny_model

logical_devices.make()


@contextlib.contextmanager
def _noting_shapes():
    """Yields the set of the shapes of all batches that are read."""
    shapes = set()
    read = FinetuneInput.read

    def note(source, step, *rows):
        batch = read(source, step, *rows)
        shapes.add(batch["input_ids"].shape)
        return batch

    with mock.patch.object(FinetuneInput, "read", note):
        yield shapes


@pytest.mark.slow
class LearningTest(tf.test.TestCase):
    """Tests of the files, scores and batches of one run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.config = tiny_finetuning.config(
            cls.folder, num_train_epochs="6", do_predict=True
        )
        cls.models = []
        release = Trial.release

        def note(trial):
            cls.models.append(trial.model)
            release(trial)

        with (
            mock.patch.object(Trial, "release", note),
            _noting_shapes() as cls.shapes,
        ):
            cls.results = finetuning_case.run(cls.config)

    def _lines(self, name):
        return finetuning_case.read_text(self.folder, name).splitlines()

    def test_learns_and_writes_its_results(self):
        config, results = self.config, self.results
        self.assertGreater(results["dev"]["accuracy"], 0.85)
        self.assertLess(results["dev"]["loss"], 0.5)
        output_dir = config.output_dir
        lines = finetuning_case.metrics(output_dir)
        self.assertEqual([line["step"] for line in lines], [*range(1, 76)])
        self.assertGreater(
            np.mean([line["loss"] for line in lines[:10]]),
            1.5 * np.mean([line["loss"] for line in lines[-10:]]),
        )
        # The rate warms up in the first tenth, then decays linearly to 0.
        rates = [line["learning_rate"] for line in lines]
        self.assertAllClose(rates[:3], [0.0, 0.003 / 7, 0.006 / 7])
        self.assertAllClose(rates[-1], 0.003 / 75)
        written = dict(
            line.split(" = ") for line in self._lines("output/eval_results.txt")
        )
        self.assertEqual(int(written["global_step"]), 75)
        self.assertAllClose(
            float(written["eval_accuracy"]), results["dev"]["accuracy"]
        )
        self.assertEqual(written["loss"], written["eval_loss"])
        self.assertEqual(
            finetuning_case.read_json(output_dir, "eval_results.json"),
            {"global_step": 75} | results,
        )
        predictions = [
            json.loads(line)
            for line in self._lines("output/dev_predictions.jsonl")
        ]
        truth = [line.split(",")[2] for line in self._lines("dev.csv")[1:]]
        is_correct = [
            p["label"] == label
            for p, label in zip(predictions, truth, strict=True)
        ]
        self.assertAllClose(np.mean(is_correct), results["dev"]["accuracy"])
        self.assertLen(self._lines("output/test_results.tsv"), 9)
        task = model_directory.read_model(f"{output_dir}/model").task
        self.assertEqual(task["labels"], ["feline", "other"])
        self.assertEqual(task["results"], results)

    def test_batches_have_several_lengths(self):
        self.assertEqual(self.shapes, {(4, 8), (4, 12)})

    def test_trial_frees_its_memory(self):
        (model,) = self.models
        for weight in model.trainable_weights:
            value = tf.raw_ops.ReadVariableOp(
                resource=weight.value.handle, dtype=tf.float32
            )
            self.assertEqual(value.shape, (0,), weight.path)


@pytest.mark.slow
class SingleTrialTest(finetuning_case.FinetuningCase):
    def test_evaluation_without_training_repeats_the_scores(self):
        results = self.copy_finished()
        again = self.tune(do_train=False, pretrained_model_dir=None)
        self.assertAllClose(again["dev"], results["dev"])
        model = self.path("output/model")
        elsewhere = self.config(
            do_train=False,
            pretrained_model_dir=model,
            output_dir=self.path("elsewhere"),
        )
        self.assertAllClose(
            finetuning_case.run(elsewhere)["dev"], results["dev"]
        )
        # The pretrained model has no head, so it cannot be evaluated.
        with self.assertRaisesRegex(
            UserError, "is not fine-tuned for this task"
        ):
            self.tune(do_train=False, output_dir=self.path("third"))
        with self.assertRaisesRegex(
            UserError,
            "no trained model in .*third",
        ):
            self.tune(
                do_train=False,
                output_dir=self.path("third"),
                pretrained_model_dir=None,
            )

    def test_a_held_out_share_is_as_files_of_its_parts(self):
        flags = {"dev_fraction": 0.2, "dev_file": None}
        results = self.tune(**flags)
        folder = self.path("output/split")
        with open(self.path("train.csv"), encoding="utf-8") as file:
            header, *rows = file.read().splitlines()
        train, dev = (
            finetuning_case.read_text(folder, f"{x}.csv").splitlines()
            for x in ("train", "dev")
        )
        self.assertEqual([train.pop(0), dev.pop(0)], [header] * 2)
        self.assertEqual(sorted(train + dev), sorted(rows))
        files = {
            f"{x}_file": os.path.join(folder, f"{x}.csv")
            for x in ("train", "dev")
        }
        other = self.tune(output_dir=self.path("other"), **files)
        self.assertEqual(other, results)
        self.assert_same_weights("output/model", "other/model")
        again = self.tune(do_train=False, pretrained_model_dir=None, **flags)
        self.assertAllClose(again["dev"], results["dev"])
        with self.assertRaisesRegex(UserError, "dev_fraction was 0.2 and is"):
            self.tune(**flags | {"dev_fraction": 0.3})

    def test_keeps_scores_of_finished_training(self):
        results = self.copy_finished()
        with finetuning_case.die_at(0):
            again = self.tune(do_eval=False, do_predict=True)
        expected = results | again
        self.assertEqual(set(expected), {"dev", "test"})
        folder = self.path("output")
        written = finetuning_case.read_json(folder, "eval_results.json")
        self.assertEqual(
            written, {"global_step": finetuning_case.NUM_STEPS} | expected
        )
        task = model_directory.read_model(self.path("output/model")).task
        self.assertEqual(task["results"], expected)

    def test_output_dir_must_be_a_folder(self):
        with open(self.path("output"), "w", encoding="utf-8"):
            pass
        with self.assertRaisesRegex(UserError, "--output_dir=.*output is "):
            self.tune()

    @parameterized.parameters(
        {"micro_batch_size": 2},
        {"distribution_strategy": "mirrored", "num_gpus": 4},
    )
    @pytest.mark.thorough
    def test_results_do_not_depend_on_micro_batches_and_devices(self, **parts):
        # Class weights give the parts unequal counts, and four devices cannot
        # share 6 rows evenly, so averages of averages would be wrong.
        common = {
            "train_batch_size": "6",
            "num_train_epochs": "0.5",
            "class_weights": "feline:3,other:0.5",
        }
        self.tune(output_dir=self.path("whole"), **common)
        self.tune(output_dir=self.path("parts"), **common, **parts)
        expected = finetuning_case.state(self.path("whole"))
        for name, value in finetuning_case.state(self.path("parts")).items():
            self.assertAllClose(
                value, expected[name], rtol=1e-4, atol=1e-5, msg=name
            )

    def test_one_length_bucket_pads_to_the_maximum_as_in_the_original(self):
        with _noting_shapes() as shapes:
            self.tune(num_length_buckets=1, num_train_epochs="1", do_eval=False)
        self.assertEqual(shapes, {(4, 12)})

    def test_frozen_layers_keep_their_weights(self):
        start = finetuning_case.weights(
            tiny_finetuning.write_model(self.folder, tiny_model.CONFIG)
        )
        config = self.config(
            num_frozen_layers=1, num_train_epochs="0.5", do_eval=False
        )
        finetuning_case.run(config)
        after = finetuning_case.weights(self.path("output/model"))
        frozen = ("bert/embeddings/", "bert/encoder/layer_0/")
        for name, value in start.items():
            if name.startswith(frozen):
                self.assertAllEqual(after[name], value, name)
            elif "key/bias" not in name:  # Its gradient is 0.
                self.assertNotAllClose(after[name], value, msg=name)
        # Slots of frozen weights would only take memory.
        self.assertFalse(
            [
                name
                for name in finetuning_case.state(config.output_dir)
                if name.startswith(frozen) and name.endswith("/adam_m")
            ]
        )

    def test_layer_decay_scales_the_update(self):
        start = finetuning_case.weights(
            tiny_finetuning.write_model(self.folder, tiny_model.CONFIG)
        )

        def change(layer_decay):
            output_dir = self.path(f"decay_{layer_decay}")
            self.tune(
                output_dir=output_dir,
                layer_decay=layer_decay,
                # One step at a constant rate makes the factors exact.
                num_train_epochs="0.1",
                warmup_proportion=0.0,
                do_eval=False,
            )
            after = finetuning_case.weights(os.path.join(output_dir, "model"))
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

    def test_refuses_too_few_examples_for_a_step(self):
        with self.assertRaisesRegex(UserError, "less than one step"):
            self.tune(train_batch_size="64", num_train_epochs="1")
        self.assertFalse(os.path.exists(self.path("output/model")))


@pytest.mark.slow
class ModelSelectionTest(finetuning_case.FinetuningCase):
    def _scores(self, values):
        """Replaces the accuracies on dev by the given values, in turn."""
        scores = iter(values)
        real = ClassificationTask.score

        def score(task, examples, predictions):
            metrics = real(task, examples, predictions)
            accuracy = next(scores, metrics["accuracy"])
            return metrics | {"accuracy": accuracy}

        return mock.patch.object(ClassificationTask, "score", score)

    def test_best_evaluation_is_kept(self):
        config = self.config(keep_best=True, evaluate_every_steps=5)
        seen = []
        save = functools.partial(self._remember, seen)
        # Steps 15 and 20 tie, so step 15, the first, must be kept.
        with self._scores([0.5, 0.7, 0.9, 0.9, 0.1]), save():
            finetuning_case.run(config)
        steps = [step for step, _ in seen]
        self.assertEqual(steps, [5, 10, 15])
        self.assertEqual(
            finetuning_case.metrics(config.output_dir)[-1]["step"],
            finetuning_case.NUM_STEPS,
        )
        (_, best) = seen[-1]
        for name, value in finetuning_case.weights(
            self.path("output/model")
        ).items():
            self.assertAllEqual(value, best[name], name)
        last = finetuning_case.state(config.output_dir)
        self.assertNotAllClose(last["output_weights"], best["output_weights"])
        # Results and model card must name step 15, not the last step.
        for path in ("model/task.json", "eval_results.json"):
            values = self.read_json(path)
            self.assertEqual(values["global_step"], 15)
        card = self.read_text("model/README.md")
        self.assertIn("for 15 steps", card)
        self.assertIn('pipeline_tag: "text-classification"\n', card)
        self.assertNotIn(self.folder, card)

    def _remember(self, seen):
        """Records the weights written to the folder of the best model."""
        from bert_tf.training.checkpoints import CheckpointStore

        save = CheckpointStore.save

        def remember(store, step, tensors, metadata):
            if store.folder.endswith("best"):
                seen.append((step, dict(tensors)))
            return save(store, step, tensors, metadata)

        return mock.patch.object(CheckpointStore, "save", remember)

    def test_early_stopping_ends_after_its_patience(self):
        config = self.config(early_stopping_patience=2, evaluate_every_steps=4)
        with self._scores([0.5, 0.6, 0.6, 0.4, 0.9]):
            finetuning_case.run(config)
        self.assertEqual(
            finetuning_case.metrics(config.output_dir)[-1]["step"], 16
        )
        # A rerun must not resume training that was stopped early.
        with finetuning_case.die_at(0):
            finetuning_case.run(config)

    def test_evaluating_each_epoch_changes_no_weight_and_no_loss(self):
        finetuning_case.copy_finished(self.path("evaluated"))
        evaluated = os.path.join(self.path("evaluated"), "output")
        name = f"model.ckpt-{finetuning_case.NUM_STEPS}.json"
        written = finetuning_case.read_json(evaluated, name)
        # An epoch is 12.5 steps; the end of the run evaluates step 25.
        evaluations = written["metadata"]["evaluations"]
        self.assertEqual([values["step"] for values in evaluations], [12])
        config = self.config(do_eval=False)
        finetuning_case.run(config)
        self.assert_same_state(evaluated, config.output_dir)
        self.assertEqual(
            finetuning_case.metrics(evaluated),
            finetuning_case.metrics(config.output_dir),
        )


class FlagsTest(finetuning_case.FinetuningCase):
    @parameterized.parameters(
        ({"learning_rate": "5e-5,x"}, "--learning_rate must be a number"),
        ({"train_batch_size": "4.5"}, "--train_batch_size must be a whole"),
        ({"num_train_epochs": "2,2"}, "names a value twice"),
        ({"num_restarts": 2, "do_eval": False}, "trials.* need --do_eval"),
        ({"keep_best": True, "do_eval": False}, "--keep_best.* need --do_eval"),
        ({"evaluate_every_steps": 5}, "needs --keep_best or"),
        ({"pretrained_model_dir": None}, "Give --pretrained_model_dir"),
        ({"vocab_file": "v.txt"}, "--vocab_file"),
        ({"do_train": False, "do_eval": False}, "At least one of"),
        ({"max_seq_length": 2}, "--max_seq_length must be at least 3.*: 2"),
        ({"seed": -1}, "--seed must be at least 0.*: -1"),
        (
            {"seed": 2**32 - 2, "num_restarts": 3},
            "--seed must be below 4294967296",
        ),
        ({"layer_decay": 0.0}, "--layer_decay must be above 0"),
        (
            {"new_pooler": True, "head": "bilstm"},
            "--new_pooler cannot be used with --head=bilstm",
        ),
    )
    def test_wrong_flags_are_refused(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            self.config(**values)

    @parameterized.parameters(
        ({"max_seq_length": 13}, "--max_seq_length must be at most 12"),
        ({"num_frozen_layers": 2}, "--num_frozen_layers must be at most 1"),
        ({"do_lower_case": False}, "lower case, which --nodo_l"),
    )
    def test_refuses_flags_that_the_model_does_not_support(
        self, values, message
    ):
        with self.assertRaisesRegex(UserError, message):
            self.tune(**values)
        self.assertFalse(os.path.exists(self.path("output")))


if __name__ == "__main__":
    tf.test.main()
