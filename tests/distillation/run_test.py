"""Tests of distillation, and of rows with and without labels."""

import dataclasses
import json
import os
import pathlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands import distill
from bert_tf.commands.distill import DistillConfig
from bert_tf.commands.predict import PredictConfig
from bert_tf.distillation import inputs
from bert_tf.distillation import run as distillation
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.inference import predict
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks import registry
from bert_tf.tasks.classification.examples import Columns as PairColumns
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.embeddings.task import EmbeddingsTask
from bert_tf.tasks.multiple_choice.examples import OFFICIAL
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import finetuning_case
from tests.support import glue_layouts
from tests.support import predictions
from tests.support import tiny_exports
from tests.support import tiny_finetuning
from tests.support import tiny_model

_TASK = ClassificationTask(
    name="custom", labels=("feline", "other"), metric_names=("accuracy",)
)


class DistillTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.teacher = tiny_model.write_task(
            self.path("teacher"), _TASK, config=tiny_model.CONFIG
        )
        # Compiling would take most of the time without changing a result.
        self.enter_context(mock.patch.object(Devices, "fuse", False))

    def flags(self, **values):
        flags = tiny_finetuning.flags(str(self.folder), num_train_epochs="1")
        del flags["task_name"], flags["pretrained_model_dir"]
        flags |= {"teacher_dir": self.teacher, "num_hidden_layers": 1}
        return flags | values

    def _run(self, **values):
        return distillation.run(DistillConfig(**self.flags(**values)))

    def read(self, name):
        return pathlib.Path(self.path(name)).read_text("utf-8")

    def _lines(self, name):
        return finetuning_case.metrics(self.path(name))

    def _assert_same_state(self, one, other):
        expected = tf1_checkpoint.read(self.path(one))
        received = tf1_checkpoint.read(self.path(other))
        self.assertAllClose(received, expected, rtol=0, atol=0)

    @pytest.mark.thorough
    def test_interrupted_equals_uninterrupted(self):
        """Resumes a run with a projection, unlabeled rows and --keep_best."""
        rows = "text\nthe cat sat\ndog\n東 on the mat\n"
        flags = {
            "num_hidden_layers": 1,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "unlabeled_file": self.write("unlabeled.csv", rows),
            "keep_best": True,
            "evaluate_every_steps": 5,
            "save_checkpoints_steps": 3,
            "do_predict": True,
        }
        before = self._teacher_hash()
        results = self._run(output_dir=self.path("through"), **flags)
        with (
            finetuning_case.die_at(7),
            self.assertRaises(finetuning_case.Interrupted),
        ):
            self._run(output_dir=self.path("twice"), **flags)
        with self.assertLogs(level="INFO") as logs:
            again = self._run(output_dir=self.path("twice"), **flags)
        self.assertRegex("\n".join(logs.output), "Resumed at step [1-9]")
        self.assertEqual(again, results)
        self.assertEqual(self._lines("twice"), self._lines("through"))
        self._assert_same_state("through", "twice")
        self.assertEqual(self._teacher_hash(), before)
        # 50 rows with labels and 3 without, 4 per step, make 13 steps.
        self.assertLen(self._lines("through"), 13)
        self._check_output(results)

    def _check_output(self, results):
        matrix = "distillation/hidden_projection/kernel"
        state = tf1_checkpoint.read(self.path("twice"))
        self.assertEqual(state[matrix].shape, (8, 16))
        self.assertIn(f"{matrix}/adam_m", state)
        model = os.path.join(self.path("twice"), "model")
        stored = model_directory.read_model(model)
        self.assertNotIn(matrix, stored.weights)
        self.assertEqual(stored.config.hidden_size, 8)
        self.assertEqual(stored.task["labels"], ["feline", "other"])
        card = self.read("twice/model/README.md")
        self.assertIn("## Teacher", card)
        self.assertIn("| dev teacher_accuracy |", card)
        dev = results["dev"]
        self.assertContainsSubset({"accuracy", "teacher_accuracy"}, dev)
        text = self.read("twice/eval_results.txt")
        self.assertIn("eval_teacher_accuracy = ", text)
        self.assertTrue(os.path.exists(self.path("twice/learning_curves.png")))
        predict.run(
            PredictConfig(
                model_dir=model,
                input_file=self.path("test.csv"),
                output_file=self.path("again.jsonl"),
            )
        )
        written, again = (
            [json.loads(line) for line in self.read(name).splitlines()]
            for name in ("twice/test_predictions.jsonl", "again.jsonl")
        )
        for one, other in zip(again, written, strict=True):
            predictions.assert_close(
                self, one["probabilities"], other["probabilities"]
            )
        with self.subTest("another teacher, other unlabeled rows"):
            other = tiny_model.write_task(
                self.path("other"),
                _TASK,
                {
                    name: value * 1.5
                    for name, value in formats.read(
                        self.teacher
                    ).weights.items()
                },
                config=tiny_model.CONFIG,
            )
            with self.assertRaisesRegex(UserError, "the teacher was"):
                self._run(
                    output_dir=self.path("twice"),
                    hidden_size=8,
                    num_attention_heads=2,
                    keep_best=True,
                    evaluate_every_steps=5,
                    teacher_dir=other,
                    unlabeled_file=self.write("more.csv", "text\ncat\n"),
                )

    def test_trained_student_keeps_head_and_threshold(self):
        stored = {"null_score_diff_threshold": -1.5, "doc_stride": 7}
        restored = distillation._restore_choices(SquadTask(), stored)
        self.assertEqual(restored.null_score_diff_threshold, -1.5)
        self.assertEqual(restored.doc_stride, SquadTask().doc_stride)
        self.assertEqual(distillation._restore_choices(_TASK, stored), _TASK)

    def _teacher_hash(self):
        path = os.path.join(self.teacher, model_directory.CHECKSUMS_FILE)
        return json.loads(pathlib.Path(path).read_text("utf-8"))

    @pytest.mark.slow
    def test_without_teacher_weights_equals_fine_tuning(self):
        tiny_model.write_task(self.teacher, _TASK, config=tiny_model.ONE_LAYER)
        flags = self.flags(
            pretrained_model_dir=self.teacher,
            num_hidden_layers=None,
            distillation_weight=0.0,
            hidden_weight=0.0,
            num_train_epochs="0.3",
            output_dir=self.path("distilled"),
        )
        with self.assertLogs(level="WARNING") as logs:
            results = distillation.run(DistillConfig(**flags))
        self.assertIn("from the labels alone", "\n".join(logs.output))
        config = tiny_finetuning.config(
            str(self.folder),
            pretrained_model_dir=self.teacher,
            num_train_epochs="0.3",
            output_dir=self.path("finetuned"),
        )
        expected = finetuning_case.run(config)
        self._assert_same_state("finetuned", "distilled")
        for name in ("accuracy", "loss"):
            self.assertEqual(results["dev"][name], expected["dev"][name])

    @pytest.mark.thorough
    def test_pairs_may_have_other_column_names_than_the_teachers(self):
        header = ("first", "b", "kind")
        rows = [
            ("the cat", "sat on", "yes"),
            ("dog", "mat .", "no"),
            ("東", "the dog sat", "no"),
            ("cat", "dog", "yes"),
        ]
        data = self.write_csv("data.csv", header, *rows)
        more = self.write_csv("more.csv", header[:2], ("mat", "on the mat"))
        task = ClassificationTask(
            name="custom",
            labels=("no", "yes"),
            metric_names=("accuracy", "macro_f1"),
            columns=PairColumns("a", "b", ("kind",)),
        )
        flags = {
            "teacher_dir": tiny_model.write_task(
                self.path("pairs"), task, None, tiny_model.CONFIG
            ),
            "output_dir": self.path("output"),
            "num_hidden_layers": 1,
            "train_batch_size": "3",
            "num_train_epochs": "1",
            "max_seq_length": 12,
            "dev_file": data,
            "text_column": "first",
            "do_eval": True,
        }
        training = {
            "train_file": data,
            "test_file": more,
            "unlabeled_file": more,
            "do_train": True,
            "do_predict": True,
        }
        distill.main(DistillConfig(**flags | training))
        results = self.read("output/eval_results.txt").splitlines()
        names = {line.partition(" = ")[0] for line in results}
        self.assertContainsSubset(
            {"eval_loss", "eval_teacher_loss", "eval_teacher_macro_f1"}, names
        )
        self.assertEqual(
            {name for name in self._lines("output")[0] if "loss" in name},
            {"loss", "label_loss", "soft_target_loss", "hidden_loss"},
        )
        distill.main(DistillConfig(**flags))
        again = self.read("output/eval_results.txt").splitlines()
        self.assertCountEqual(again, results)

    @parameterized.parameters(
        (None, {}, "--teacher_dir must", {}),
        ({"labels": ("x", "y")}, {}, "'(feline|other)'", {}),
        (
            {},
            {"max_seq_length": 64},
            "--max_seq_length must be at most 12, .*: 13",
            {"max_seq_length": 13},
        ),
    )
    def test_wrong_teachers_are_refused(self, changes, stored, message, flags):
        path = self.path("wrong")
        if changes is None:
            tiny_model.write(path)
        else:
            task = dataclasses.replace(_TASK, **changes)
            tiny_model.write_task(
                path, task, config=tiny_model.CONFIG, **stored
            )
        self._assert_refused(path, message, **flags)

    def test_refuses_no_teacher_and_flags_of_other_tasks(self):
        path = self.path("wrong")
        self._assert_refused(path, "wrong")
        task = SquadTask(name="squad", max_seq_length=12)
        tiny_model.write_task(path, task, config=tiny_model.CONFIG)
        self._assert_refused(
            path, "--head_dropout_prob has no effect", head_dropout_prob=0.3
        )
        path = self.path("vectors")
        task = EmbeddingsTask(max_seq_length=12)
        tiny_model.write_task(path, task, config=tiny_model.CONFIG)
        self._assert_refused(path, "must have labels or answers to teach")

    def _assert_refused(self, teacher, message, **flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self._run(teacher_dir=teacher, **flags)
        self.assertNotIn("\n", str(caught.exception))
        self.assertFalse(os.path.exists(self.path("output")))


class EachTaskTest(files_case.FilesCase):
    """Tests one batch of each kind of task, without training."""

    def _write_choices(self):
        header = ("sent1", "sent2", *(f"ending{i}" for i in range(4)), "label")
        rows = [
            ("the cat sat", "the", "sat", "on", "mat", "dog", 0),
            ("dog", "the", "cat", "dog", "東", "mat", 3),
        ]
        self.write_csv("train.csv", header, *rows)
        return MultipleChoiceTask(name="swag", columns=OFFICIAL["swag"].columns)

    def _write_scores(self):
        rows = [("the cat", "sat", 0.0), ("dog", "dog on", 5.0)]
        glue_layouts.write(str(self.folder), "sts-b", "train", rows)
        return tiny_exports.official("sts-b")

    def _write_tags(self):
        self.write("train.txt", "the O\ncats B-X\n\nmat O\n")
        return TaggingTask(
            name="tagging",
            labels=("O", "B-X"),
            approach="feature_based",
            layer_combination="last_hidden",
            lstm_size=3,
        )

    def test_students_take_no_pooling_or_threshold_of_teachers(self):
        task = tiny_exports.classification(pooling="mean", normalize=True)
        config = DistillConfig(
            teacher_dir="teacher",
            data_dir="tasks",
            output_dir="output",
            do_train=True,
            num_hidden_layers=1,
        )
        own = distillation.of_student(task, config)
        self.assertEqual((own.pooling, own.normalize), (None, False))
        task = dataclasses.replace(task, reject_below=0.75, reject_label="?")
        with self.assertLogs(level="INFO") as logs:
            own = distillation.of_student(task, config)
        self.assertIn("--reject_below=0.75 is for the", logs.output[0])
        self.assertEqual((own.reject_below, own.reject_label), (None, "?"))

    @parameterized.parameters(_write_choices, _write_scores, _write_tags)
    def test_losses_vanish_for_equal_students_only(self, write):
        """Compares one student that equals its teacher, and another one."""
        task = write(self)
        path = self.path("teacher")
        tiny_model.write_task(
            path, task, max_seq_length=12, config=tiny_model.CONFIG
        )
        config = DistillConfig(
            teacher_dir=path,
            output_dir="output",
            data_dir=str(self.folder),
            do_train=True,
            num_hidden_layers=1,
            max_seq_length=12,
            attention_weight=1.0,
            attention_probs_dropout_prob=0.0,
        )
        stored = formats.read(path)
        task = inputs.with_files(registry.from_stored(stored), config)
        own = distillation.of_student(task, config)
        reader = SplitReader(own, stored.build_tokenizer())
        devices = device_setup.prepare(config)
        teacher = distillation.Teacher(config, stored, task, reader, devices)
        same = checkpoint_loading.build_model(stored, **teacher.model_arguments)
        other = pretrained_models.build_model(
            distillation.read_student(config, stored),
            own,
            devices,
            **teacher.model_arguments,
        )
        _, features = teacher.read()
        batch = features.batch(np.arange(len(features)), 12)
        values = [self._losses(teacher, x, batch) for x in (same, other)]
        for name in ("soft_target_loss", "hidden_loss", "attention_loss"):
            self.assertAllClose(values[0][name], 0.0, atol=1e-5)
            self.assertGreater(values[1][name], 1e-4)
        self.assertContainsSubset(
            {f"teacher_{own.metric}", "teacher_loss"}, teacher.compare("train")
        )

    def _losses(self, teacher, model, batch):
        objective = teacher.build_objective(model)
        rows = {name: tf.constant(value) for name, value in batch.items()}
        rows = objective.add_targets(rows)
        outputs = model({name: rows[name] for name in objective.inputs})
        sums = objective.compute_sums(outputs, rows)
        return objective.normalize(sums, objective.count(rows))


class MixedFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = tiny_model.tokenizer()

    def _mix(self, labeled, unlabeled):
        self.labeled, self.unlabeled = labeled, unlabeled
        return distillation.MixedFeatures(labeled, unlabeled)

    def _classification(self):
        task = tiny_exports.classification(labels=("a", "b"))
        examples = [
            task.example_from_row(x) for x in ("cat", "the cat sat", "東 dog")
        ]
        unlabeled = [
            task.example_from_row(x) for x in ("mat . the dog sat", "sat")
        ]
        with_labels = [
            dataclasses.replace(one, label=label)
            for one, label in zip(examples, "bab", strict=True)
        ]
        return self._mix(
            task.featurize(with_labels, self.tokenizer, True),
            task.featurize_unlabeled(unlabeled, self.tokenizer),
        )

    @parameterized.parameters(
        ([0, 4, 2, 3, 1],), ([3, 4],), ([1],), ([4, 0, 4],)
    )
    def test_mixed_rows_equal_those_of_their_sources(self, indices):
        mixed = self._classification()
        self.assertLen(mixed, 5)
        self.assertAllEqual(mixed.lengths, [3, 5, 4, 7, 3])
        batch = mixed.batch(np.array(indices), 7)
        self.assertAllEqual(batch["is_labeled"], np.less(indices, 3))
        self.assertEqual(batch["is_labeled"].dtype, np.float32)
        self.assertEqual(batch["label_ids"].dtype, np.int32)
        for row, index in enumerate(indices):
            is_labeled = index < 3
            source = self.labeled if is_labeled else self.unlabeled
            alone = source.batch(
                np.array([index if is_labeled else index - 3]), 7
            )
            if not is_labeled:
                self.assertNotIn("label_ids", alone)
            for name, values in batch.items():
                if name != "is_labeled":
                    expected = alone.get(name, np.zeros([1], np.int32))
                    self.assertAllEqual(values[row], expected[0])

    def test_fewer_choices_are_padded_to_the_most(self):
        task = MultipleChoiceTask(name="custom", columns=Columns(("choices",)))
        rows = [{"choices": ["cat", "dog"]}, {"choices": ["cat", "dog", "mat"]}]
        few, many = (task.example_from_row(row) for row in rows)
        for labeled, unlabeled in ((few, many), (many, few)):
            labeled = dataclasses.replace(labeled, label=1)
            mixed = self._mix(
                task.featurize([labeled], self.tokenizer, True),
                task.featurize_unlabeled([unlabeled], self.tokenizer),
            )
            batch = mixed.batch(np.arange(2), 5)
            self.assertEqual(batch["input_ids"].shape, (2, 3, 5))
            order = (0, 1) if labeled.choices == few.choices else (1, 0)
            self.assertAllEqual(
                batch["input_mask"][list(order), :, 0], [[1, 1, 0], [1, 1, 1]]
            )
            self.assertAllEqual(batch["label_ids"], [1, 0])

    def test_first_tokens_of_words_count(self):
        task = tiny_exports.tagging(labels=("O", "B-X"))
        labeled = task.example_from_row(["cat", "mats"])
        labeled = dataclasses.replace(labeled, tags=("O", "B-X"))
        mixed = self._mix(
            task.featurize([labeled], self.tokenizer, True),
            task.featurize_unlabeled(
                [task.example_from_row(["sitting", "mats", "on"])],
                self.tokenizer,
            ),
        )
        batch = mixed.batch(np.arange(2), 8)
        weights = [[0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 1, 0, 0, 0]]
        self.assertAllEqual(task.soft_target_weights(batch), weights)


_STUDENT_TASK = ClassificationTask(
    name="custom", labels=("a", "b", "c"), metric_names=("accuracy",)
)


def _config(**values):
    return DistillConfig(
        **{
            "teacher_dir": "teacher",
            "output_dir": "output",
            "train_file": "train.csv",
            "do_train": True,
            "max_seq_length": 12,
        }
        | values
    )


class StudentTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        path = tiny_model.write_task(
            self.path("teacher"), _STUDENT_TASK, config=tiny_model.CONFIG
        )
        self.teacher = formats.read(path)

    def _read(self, **values):
        return distillation.read_student(_config(**values), self.teacher)

    def _assert_equal_weights(self, made, names):
        for name, source in names.items():
            self.assertAllEqual(
                made.weights[name], self.teacher.weights[source], name
            )

    def test_student_starts_with_layers_of_the_teacher(self):
        made = self._read(num_hidden_layers=1)
        shape = dataclasses.replace(tiny_model.CONFIG, num_hidden_layers=1)
        self.assertEqual(made.config, shape)
        self.assertEqual(made.task, self.teacher.task)
        last = "bert/encoder/layer_1/"
        self._assert_equal_weights(
            made,
            {name: name.replace("layer_0", "layer_1") for name in made.weights},
        )
        self.assertFalse([name for name in made.weights if last in name])
        other = self._read(num_hidden_layers=3, teacher_layers="2,1,2")
        for mine, theirs in enumerate((1, 0, 1)):
            name = "bert/encoder/layer_{}/output/dense/kernel"
            self._assert_equal_weights(
                other, {name.format(mine): name.format(theirs)}
            )

    @parameterized.parameters(
        {"num_attention_heads": 4}, {"intermediate_size": 8}
    )
    def test_layers_of_another_shape_start_at_random(self, **shape):
        made = self._read(num_hidden_layers=2, **shape)
        own = self.teacher.weights
        kernels = [x for x in made.weights if x.endswith("kernel")]
        self.assertEqual(
            [x for x in kernels if np.array_equal(made.weights[x], own[x])],
            ["bert/pooler/dense/kernel"],
        )
        self._assert_equal_weights(made, {"output_weights": "output_weights"})

    @parameterized.parameters(
        {"hidden_size": 24, "num_attention_heads": 1},
        {"initialize_from_teacher": False},
    )
    def test_other_students_start_at_random_by_seed(self, **flags):
        first = self._read(num_hidden_layers=2, **flags)
        again = self._read(num_hidden_layers=2, **flags)
        other = self._read(num_hidden_layers=2, seed=2, **flags)
        self.assertEqual(first.task, {"kind": "encoder"})
        name = "bert/encoder/layer_1/output/dense/kernel"
        self.assertAllEqual(first.weights[name], again.weights[name])
        for each in (name, "bert/embeddings/word_embeddings"):
            self.assertNotAllClose(first.weights[each], other.weights[each])
        self.assertEqual(first.vocabulary.hash, self.teacher.vocabulary.hash)

    def test_a_narrower_student_starts_with_projected_embeddings(self):
        made = self._read(
            num_hidden_layers=2, hidden_size=8, num_attention_heads=1
        )
        self.assertEqual(made.task, {"kind": "encoder"})
        words, *others = (
            f"bert/embeddings/{x}_embeddings"
            for x in ("word", "position", "token_type")
        )
        theirs = self.teacher.weights[words]
        projection, *_ = np.linalg.lstsq(theirs, made.weights[words])
        self.assertAllClose(projection.T @ projection, np.eye(8), atol=1e-3)
        for name in others:
            self.assertAllClose(
                made.weights[name],
                self.teacher.weights[name] @ projection,
                atol=1e-3,
            )
        # Equal singular values: no projection to 8 values keeps more.
        self.assertAllClose(
            np.linalg.svd(made.weights[words], compute_uv=False),
            np.linalg.svd(theirs, compute_uv=False)[:8],
            rtol=1e-4,
        )

    @parameterized.parameters(
        ({}, (768, 12, 3072)),
        ({"hidden_size": 256}, (256, 4, 1024)),
        ({"hidden_size": 192}, (192, 3, 768)),
        ({"hidden_size": 96, "num_attention_heads": 6}, (96, 6, 384)),
        ({"num_attention_heads": 8}, (768, 8, 3072)),
        ({"hidden_size": 128, "intermediate_size": 300}, (128, 2, 300)),
    )
    def test_default_shapes_follow_the_paper(self, flags, expected):
        shape = _config(num_hidden_layers=2, **flags).shape(768, 12, 3072)
        self.assertEqual(
            shape,
            {
                "num_hidden_layers": 2,
                "hidden_size": expected[0],
                "num_attention_heads": expected[1],
                "intermediate_size": expected[2],
            },
        )

    @parameterized.parameters(
        (3, 6, (2, 4, 6)),
        (2, 12, (6, 12)),
        (4, 6, (2, 3, 5, 6)),
        (1, 1, (1,)),
        (3, 2, (1, 2, 2)),
    )
    def test_layers_are_spread_evenly(self, mine, theirs, expected):
        config = _config(pretrained_model_dir="student")
        chosen = inputs.choose_layers(config, mine, theirs)
        self.assertEqual(chosen, expected)
        with self.assertRaisesRegex(UserError, f"must be at most {theirs}"):
            inputs.choose_layers(_config(num_hidden_layers=99), 99, theirs)

    @parameterized.parameters("1", "1,3", "1,2,2")
    def test_refuses_missing_layers(self, layers):
        with self.assertRaisesRegex(UserError, f"2 layers.*1 to 2.*{layers}"):
            self._read(num_hidden_layers=2, teacher_layers=layers)

    def test_refuses_students_with_another_vocabulary(self):
        tokens = [*tiny_model.TOKENS[:-1], "western"]
        vocabulary = Vocabulary(tokens)
        encoder = bert_model.BertModel(tiny_model.CONFIG)
        tiny_model.write_weights(
            self.path("student"),
            tiny_model.CONFIG,
            tiny_model.random_weights(encoder),
            {"kind": "encoder"},
            vocabulary,
        )
        with self.assertRaisesRegex(UserError, "vocabulary .* hash") as caught:
            self._read(pretrained_model_dir=self.path("student"))
        self.assertNotIn("\n", str(caught.exception))

    def test_refuses_attention_that_cannot_be_compared(self):
        flags = {
            "num_hidden_layers": 1,
            "attention_weight": 0.5,
            "attention_probs_dropout_prob": 0.0,
        }
        self.assertEqual(self._read(**flags).config.num_hidden_layers, 1)
        with self.assertRaisesRegex(UserError, "its teacher, 2. Received: 4"):
            self._read(**flags | {"num_attention_heads": 4})
        with self.assertRaisesRegex(UserError, "add --attention_probs_dropout"):
            self._read(**flags | {"attention_probs_dropout_prob": None})

    @parameterized.parameters(
        ({}, "Give --num_hidden_layers"),
        ({"pretrained_model_dir": "x", "hidden_size": 8}, "--hidden_size can"),
        (
            {"pretrained_model_dir": "x", "initialize_from_teacher": False},
            "--noinitialize_from_teacher cannot",
        ),
        ({"num_hidden_layers": 1, "do_lower_case": False}, "as its teacher"),
        ({"num_hidden_layers": 0}, "--num_hidden_layers must be at least 1"),
        ({"distillation_weight": 1.5}, "--distillation_weight must"),
        ({"temperature": 0.5}, "--temperature must be at least 1"),
        (
            {"distillation_weight": 0.0, "temperature": 3.0},
            "--temperature needs",
        ),
        ({"hidden_weight": 0.0, "hidden_loss": "cosine"}, "--hidden_loss"),
        ({"hidden_weight": -1.0}, "--hidden_weight must be at least 0"),
        ({"attention_weight": -1.0}, "--attention_weight must be at least 0"),
        ({"teacher_layers": "2,x"}, "whole number above 0.*'2,x'"),
        ({"train_file": None}, "--do_train needs --train_file, or --data_dir"),
        ({"data_dir": "x"}, "--data_dir cannot .* --train_file"),
        (
            {
                "unlabeled_file": "x",
                "distillation_weight": 0.0,
                "hidden_weight": 0.0,
            },
            "--unlabeled_file has no effect",
        ),
        (
            {
                "unlabeled_file": "x",
                "do_train": False,
                "do_eval": True,
                "dev_file": "x",
            },
            "--unlabeled_file needs --do_train",
        ),
    )
    def test_wrong_flags_are_refused(self, flags, message):
        if "pretrained_model_dir" not in flags and flags:
            flags = {"num_hidden_layers": 1} | flags
        with self.assertRaisesRegex(UserError, message) as caught:
            _config(**flags)
        self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    tf.test.main()
