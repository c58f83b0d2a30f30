"""Tests for bert_tf.pretraining.run."""

import dataclasses
import json
import os
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.pretraining import evaluation
from bert_tf.pretraining import run as pretraining
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import metrics as training_metrics
from bert_tf.training import unpad as unpadding
from bert_tf.training.checkpoints import CheckpointStore
from tests.support import full_disk
from tests.support import killed_process
from tests.support import logical_devices
from tests.support import pretrain_case
from tests.support import record_files
from tests.support import tiny_pretraining

logical_devices.make()


class PretrainTest(pretrain_case.PretrainCase):
    @pytest.mark.slow
    def test_writes_metrics_checkpoints_and_model(self):
        log = self.pretrain(do_eval=True, max_eval_steps=3, num_train_steps=5)

        self.assertStartsWith(log[2], "Training from scratch")
        text = "\n".join(log)
        for fragment in (
            "1,514 parameters",
            "precision float32 (--mixed_precision=float32)",
            "tokens/s",
            " left",
            "the tanh form",
        ):
            self.assertIn(fragment, text)
        lines = self.metrics()
        self.assertEqual([line["step"] for line in lines], [1, 2, 4])
        self.assertEqual(
            set(lines[0]),
            {
                "step",
                "loss",
                "masked_lm_loss",
                "masked_lm_accuracy",
                "next_sentence_loss",
                "next_sentence_accuracy",
                "learning_rate",
                "grad_norm",
                "tokens_seen",
                "masked_lm_frequency_loss",
                "examples_per_second",
                "tokens_per_second",
            },
        )
        self.assertEqual(lines[0]["learning_rate"], 0)
        results = files.read_bytes(self.path("out", "eval_results.txt"))
        names = [row.split(" = ")[0] for row in results.decode().splitlines()]
        self.assertEqual(
            names,
            [
                "global_step",
                "loss",
                "masked_lm_accuracy",
                "masked_lm_loss",
                "masked_lm_perplexity",
                "masked_lm_perplexity_error",
                "next_sentence_accuracy",
                "next_sentence_loss",
            ],
        )
        names = set(os.listdir(self.path("out")))
        self.assertContainsSubset(
            {"learning_curves.png", "summaries", "model.ckpt-5.index"}, names
        )
        # The model directory must have the weights of the last checkpoint.
        directory = model_directory.read_model(self.path("out", "model"))
        self.assertEqual(
            directory.vocabulary.hash, tiny_pretraining.VOCABULARY.hash
        )
        self.assertEqual(directory.tokenizer_settings["lower_case"], True)
        self.assertEqual(directory.config, tiny_pretraining.CONFIG)
        tensors = tf1_checkpoint.read(self.path("out"))
        self.assertEqual(tensors["global_step"], 5)
        for name, value in directory.weights.items():
            self.assertAllEqual(value, tensors[name], name)

    def test_rerunning_a_finished_run_does_nothing(self):
        self.copy_run()
        written = os.stat(self.path("out", "model", "README.md")).st_mtime_ns
        log = self.pretrain()
        self.assertStartsWith(log[2], "Resumed at step 6")
        self.assertIn("All 6 steps are done already", "\n".join(log))
        self.assertEqual(
            os.stat(self.path("out", "model", "README.md")).st_mtime_ns,
            written,
        )

    def test_model_card_does_not_change_by_resuming(self):
        self.copy_run()
        folder = pathlib.Path(self.path("out", "model"))

        def read_card():
            lines = (folder / "README.md").read_text("utf-8").splitlines()
            # Skip lines with paths: the copied run has another folder.
            return [x for x in lines if "tmp/" not in x]

        card = read_card()
        self.assertIn("what XLA compiled", str(card))
        # A kill after the last checkpoint leaves no model; a rerun writes it.
        shutil.rmtree(folder)
        self.pretrain()
        self.assertEqual(read_card(), card)

    def test_refuses_bad_output_dirs(self):
        files.write_text(self.path("out"), "")
        for path, message in (
            (self.path("out"), "--output_dir=.*not a directory"),
            (self.path("lr[1e-4]"), "pattern"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.pretrain(output_dir=path)

    def test_refuses_to_evaluate_as_another_model(self):
        self.copy_run()
        flags = {"do_train": False, "do_eval": True}
        with self.assertRaisesRegex(
            UserError, "of another model: bert_config.hidden_act was 'gelu'"
        ):
            self.pretrain(hidden_act="relu", **flags)
        log = self.pretrain(hidden_act="relu", allow_changed_data=True, **flags)
        self.assertIn("as allowed: bert_config.hidden_act", "\n".join(log))
        self.pretrain(**flags)

    def test_checks_evaluation_records_before_training(self):
        longer = {"max_seq_length": 16, "max_predictions_per_seq": 4}
        records = tiny_pretraining.write_records(
            self.path("long.tfrecord"), range(3), **longer
        )
        for path in (records, self.path("nothing*")):
            with self.assertRaises(UserError):
                self.pretrain(do_eval=True, eval_input_file=path)
            self.assertFalse(os.path.exists(self.path("out")))

    @pytest.mark.slow
    def test_resuming_equals_an_uninterrupted_run(self):
        self.copy_run("through")
        self.copy_run(stop_at_step=3)
        # A killed run may have written lines of steps that the rerun repeats.
        with open(self.path("out", training_metrics.METRICS_FILE), "a") as file:
            file.write('{"step": 4, "loss": 9}\n{"step": 5, "lo')
        self.pretrain(stop_at_step=6)
        self.assert_same_run("through", "out")

    def _checkpoint(self):
        return CheckpointStore(self.path("out"), 1).restore_latest()

    @pytest.mark.slow
    def test_second_phase_continues_with_longer_records(self):
        self.copy_run(stop_at_step=3)
        longer = {"max_seq_length": 16, "max_predictions_per_seq": 4}
        records = tiny_pretraining.write_records(
            self.path("long.tfrecord"), range(40, 60), **longer
        )
        self.assertIs(self._checkpoint().metadata["unpad"], False)
        with mock.patch.object(unpadding, "pays", return_value=True):
            log = self.pretrain(input_file=records, **longer)
        # The choice is made again, because longer records have more padding.
        self.assertIs(self._checkpoint().metadata["unpad"], True)
        self.assertStartsWith(log[2], "Resumed at step 3")
        lines = [line for line in log if "New phase from step 3" in line]
        self.assertLen(lines, 1)
        self.assertRegex(lines[0], "input_file was.*long.tfrecord")
        self.assertRegex(lines[0], "max_seq_length was 8 and is 16")
        # The rate is 0.01 * (1 - 5 / 6), so the schedule continues.
        last = self.metrics()[-1]
        self.assertEqual(last["step"], 6)
        self.assertEqual(last["tokens_seen"], 3 * 4 * 8 + 3 * 4 * 16)
        self.assertAllClose(last["learning_rate"], 0.01 / 6)
        # A rerun of the second phase changes no setting, so nothing is logged.
        log = self.pretrain(input_file=records, **longer)
        self.assertNotIn("New phase", "\n".join(log))

    def test_scores_held_out_records_during_training(self):
        path = tiny_pretraining.write_records(
            self.path("held_out.tfrecord"), range(20, 40)
        )
        with (
            mock.patch.object(evaluation, "_SECONDS_BETWEEN", 0.0),
            mock.patch.object(evaluation, "_TIMES_ITS_COST", 0.0),
            mock.patch.object(pretraining.pretraining_input, "agree") as agree,
        ):
            log = self.pretrain(
                do_eval=True, eval_input_file=path, iterations_per_loop=4
            )
        # Workers compare the records to train on, to score and to evaluate.
        self.assertEqual(agree.call_count, 3)
        lines = [
            line
            for line in self.metrics()
            if "held_out_masked_lm_accuracy" in line
        ]
        self.assertNotEmpty([x for x in lines if x["step"] < lines[-1]["step"]])
        text = files.read_bytes(self.path("out", "eval_results.txt")).decode()
        results = dict(row.split(" = ") for row in text.splitlines())
        for name, value in results.items():
            self.assertEqual(
                np.float32(value), np.float32(lines[-1][f"held_out_{name}"])
            )
        self.assertLen([x for x in log if x.startswith("Held out")], len(lines))
        # Scoring must not change training, so all weights are equal.
        self.copy_run("through")
        tensors = tf1_checkpoint.read(self.path("out"))
        expected = tf1_checkpoint.read(self.path("through"))
        for name, value in expected.items():
            self.assertAllEqual(tensors[name], value, name)

    def test_evaluates_a_new_model(self):
        log = self.pretrain(do_train=False, do_eval=True)
        self.assertIn("new and untrained", "\n".join(log))
        results = files.read_bytes(self.path("out", "eval_results.txt"))
        self.assertIn(b"global_step = 0\n", results)
        self.assertFalse(os.path.exists(self.path("out", "model")))

    @pytest.mark.slow
    def test_refuses_to_end_before_the_last_checkpoint(self):
        self.copy_run()
        with self.assertRaisesRegex(
            UserError, "has done 6 steps, and this run ends at step 2"
        ):
            self.pretrain(stop_at_step=2)


class PretrainErrorsTest(pretrain_case.PretrainCase):
    @pytest.mark.slow
    def test_an_infinite_loss_dumps_the_batch(self):
        with self.assertRaisesRegex(
            UserError, "Step 2 is not finite"
        ) as raised:
            self.pretrain(
                learning_rate=1e38,
                num_warmup_steps=0,
                save_checkpoints_steps=1,
                xla="off",
            )
        path = self.path("out", "not_finite_batch_2.npz")
        self.assertIn(path, str(raised.exception))
        batch = np.load(path)
        self.assertEqual(batch["input_ids"].shape, (4, 8))
        self.assertAllEqual(batch["example_index"], [4, 5, 6, 7])
        self.assertEqual(
            tf1_checkpoint.read(self.path("out"))["global_step"], 1
        )
        self.assertFalse(os.path.exists(self.path("out", "model")))

    @parameterized.parameters(
        ({"input_file": "/nowhere/*.tfrecord"}, "--input_file matches no"),
        ({"max_seq_length": 17}, "--max_seq_length must be at most 16"),
        ({"max_seq_length": 12}, r"record 0: `input_ids` must have 12"),
        ({"num_gpus": 9, "distribution_strategy": "mirrored"}, "num_gpus=9"),
        ({"bert_config_file": "/nowhere.json"}, "--bert_config_file"),
        ({"init_checkpoint": "/nowhere"}, "/nowhere"),
        ({"do_lower_case": False}, "do_lower_case=True.*do_lower_case=False"),
        (
            {"eval_input_file": "/nowhere/*", "do_eval": True},
            "--eval_input_file",
        ),
    )
    def test_unusable_flags_are_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            self.pretrain(num_train_steps=1, **flags)

    def test_refuses_a_vocabulary_of_another_size(self):
        config = dataclasses.replace(tiny_pretraining.CONFIG, vocab_size=60)
        files.write_text(self.path("bert_config.json"), config.to_json())
        with self.assertRaisesRegex(UserError, "has 64 lines.*60"):
            self.pretrain()

    def test_refuses_another_vocabulary_than_the_records(self):
        tokens = list(tiny_pretraining.VOCABULARY.tokens)
        tokens[-2:] = tokens[:-3:-1]
        other = Vocabulary(tokens)
        other.write(self.path("other.txt"))
        with self.assertRaisesRegex(UserError, f"(?s).*{other.hash}"):
            self.pretrain(vocab_file=self.path("other.txt"))

    @parameterized.parameters(
        ("input_ids", 64), ("masked_lm_ids", 64), ("input_ids", -1)
    )
    def test_refuses_ids_outside_the_vocabulary(self, name, token):
        record = record_files.make_features(7)
        record[name][0] = token
        path = self.path("x.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(record_files.serialize(record))
        for flags in (
            {"input_file": path},
            {"eval_input_file": path, "do_eval": True, "do_train": False},
        ):
            with self.assertRaisesRegex(UserError, "vocab_size=64"):
                self.pretrain(**flags)

    @pytest.mark.slow
    def test_refuses_to_resume_with_other_settings(self):
        self.pretrain(stop_at_step=3)
        before = self.metrics()
        deeper = dataclasses.replace(
            tiny_pretraining.CONFIG, num_attention_heads=4
        )
        files.write_text(self.path("deeper.json"), deeper.to_json())
        for flags, message in (
            ({"seed": 1}, "seed was 12345 and is 1"),
            ({"optimizer": "lamb"}, "optimizer was 'bert_adam'"),
            (
                {"bert_config_file": self.path("deeper.json")},
                "bert_config.num_attention_heads was 2 and is 4",
            ),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.pretrain(**flags)
        # The files behind --input_file now hold other records.
        tiny_pretraining.write_records(self.path("b.tfrecord"), range(9))
        flags = tiny_pretraining.write_flags(
            self.folder, input_file=self.path("[ab].tfrecord")
        )
        with self.assertRaisesRegex(UserError, "records behind --input_file"):
            self.pretrain(**flags)
        self.assertEqual(self.metrics(), before)
        log = self.pretrain(allow_changed_data=True, **flags)
        self.assertIn("as allowed: the records behind", "\n".join(log))
        self.assertEqual(self.metrics()[-1]["step"], 6)


class FullDiskTest(pretrain_case.PretrainCase):
    def _fill(self, folder, free):
        """Fills the small file system until `free` bytes remain."""
        usage = os.statvfs(folder)
        size = usage.f_bavail * usage.f_frsize - free
        pathlib.Path(folder, "filler").write_bytes(bytes(size))

    @pytest.mark.slow
    def test_training_continues_without_checkpoints(self):
        with full_disk.mount(self, megabytes=4) as folder:
            # 1 MB holds one checkpoint (0.6 MB) and the model (0.2), not two.
            wide = dataclasses.replace(
                tiny_pretraining.CONFIG, hidden_size=128, intermediate_size=128
            )
            files.write_text(self.path("bert_config.json"), wide.to_json())
            self._fill(folder, 1_000_000)
            # Step 6 has no checkpoint, so training cannot resume from it.
            with self.assertRaisesRegex(
                UserError, "checkpoint of step 6 could not .*the model is there"
            ):
                self.pretrain(output_dir=folder, xla="off")
            self.assertEqual(
                json.loads(
                    files.read_bytes(os.path.join(folder, "model/task.json"))
                )["global_step"],
                6,
            )


class CorruptRecordsTest(pretrain_case.PretrainCase):
    def setUp(self):
        super().setUp()
        tiny_pretraining.write_records(self.path("a.tfrecord"))

    def _damage(self):
        return record_files.damage(self.path("a.tfrecord"), 3)

    def pretrain(self, **flags):
        # The default would write the records again, undamaged.
        flags |= {"input_file": self.path("a.tfrecord")}
        return super().pretrain(**flags)

    @pytest.mark.thorough
    def test_a_damaged_record_ends_the_run_or_is_skipped(self):
        flags = {"num_train_steps": 9, "iterations_per_loop": 9}
        offset = self._damage()
        place = f"a.tfrecord, record 3 at byte {offset}"
        with self.assertRaisesRegex(UserError, place):
            self.pretrain(**flags, output_dir=self.path("refused"))
        flags["max_corrupt_records"] = 1
        log = self.pretrain(**flags)
        lines = [line for line in log if "skipped, 1 of at most 1" in line]
        self.assertLen(lines, 1)
        self.assertIn(place, lines[0])

        # A resumed run must skip the record again, or weights would differ.
        flags["output_dir"] = self.path("two")
        self.pretrain(stop_at_step=5, **flags)
        self.pretrain(**flags)
        tensors = tf1_checkpoint.read(self.path("two"))
        for name, value in tf1_checkpoint.read(self.path("out")).items():
            self.assertAllEqual(tensors[name], value, name)

    @pytest.mark.slow
    def test_leaves_records_out_of_the_evaluation(self):
        self.pretrain(num_train_steps=1)
        self._damage()
        flags = {"do_train": False, "do_eval": True}
        with self.assertRaisesRegex(UserError, "a.tfrecord, record 3"):
            self.pretrain(**flags)
        log = self.pretrain(**flags, max_corrupt_records=2)
        self.assertIn("skipped, 1 of at most 2", "\n".join(log))
        self.assertTrue(os.path.exists(self.path("out", "eval_results.txt")))


class UnpadTest(pretrain_case.PretrainCase):
    @pytest.mark.thorough
    def test_killed_twice_equals_uninterrupted(self):
        flags = tiny_pretraining.write_flags(
            self.folder,
            num_train_steps=60,
            iterations_per_loop=1,
            save_checkpoints_steps=7,
            unpad="on",
        )

        def start(**flags):
            return killed_process.start(
                tiny_pretraining.command_line("run/pretrain.py", **flags)
            )

        killed_process.assert_resumes(self, start, flags, 60)


class BuildTrainingTest(tf.test.TestCase):
    def _build(self, preferred_micro_batch=0, **flags):
        folder = self.create_tempdir().full_path
        config = tiny_pretraining.make_config(folder, **flags)
        return pretraining.build_training(
            config,
            tiny_pretraining.CONFIG,
            device_setup.prepare(config),
            preferred_micro_batch,
        )

    def test_accumulated_batches_make_one_step(self):
        setup = self._build(train_batch_size=4, gradient_accumulation_steps=2)
        self.assertEqual(setup.plan, StepPlan(8, 1, 4))
        self.assertEqual(setup.plan.num_micro_batches, 2)

    def test_flags_reach_the_model(self):
        setup = self._build(remat=True, xla="off", schedule_start_step=3)
        self.assertTrue(setup.model.bert.encoder.remat)
        self.assertFalse(setup.model.fuse)
        rates = [
            float(setup.optimizer.learning_rate_at(tf.constant(step)))
            for step in (3, 4)
        ]
        self.assertAllClose(rates, [0.0, 0.005])
        other = self._build(schedule="wsd", adam_beta2=0.9).optimizer
        self.assertEqual(other.rule.beta_2, 0.9)
        self.assertEqual(setup.optimizer.rule.beta_2, 0.999)
        stable = [other.learning_rate_at(tf.constant(step)) for step in (3, 4)]
        self.assertAllClose(*stable)

    def test_micro_batch_is_of_use_or_stays_as_before(self):
        flags = {"train_batch_size": 12, "micro_batch_size": "auto"}
        with mock.patch.dict(pretraining._TOKENS_AT_ONCE, CPU=5 * 8):
            few = self._build(**flags)
            as_before = self._build(preferred_micro_batch=6, **flags)
        self.assertEqual(few.plan.micro_batch_size, 4)
        self.assertEqual(as_before.plan.micro_batch_size, 6)


if __name__ == "__main__":
    tf.test.main()
