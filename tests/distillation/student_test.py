"""Tests for bert_tf.distillation.student and the flags of its shape."""

import dataclasses
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.distillation import student as students
from bert_tf.errors import UserError
from bert_tf.flags.distill import DistillConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model

_TASK = ClassificationTask(
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


class StudentTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        path = tiny_model.write_task(
            os.path.join(self.folder, "teacher"),
            _TASK,
            config=tiny_model.CONFIG,
        )
        self.teacher = formats.read(path)

    def _read(self, **values):
        return students.read(_config(**values), self.teacher)

    def _assert_equal_weights(self, made, names):
        for name, source in names.items():
            self.assertAllEqual(
                made.weights[name], self.teacher.weights[source], name
            )

    def _equals_teacher(self, made, name):
        return np.array_equal(made.weights[name], self.teacher.weights[name])

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
        kernels = [x for x in made.weights if x.endswith("kernel")]
        self.assertEqual(
            [x for x in kernels if self._equals_teacher(made, x)],
            ["bert/pooler/dense/kernel"],
        )
        self._assert_equal_weights(made, {"output_weights": "output_weights"})

    @parameterized.parameters(
        {"hidden_size": 8, "num_attention_heads": 1},
        {"initialize_from_teacher": False},
    )
    def test_other_students_start_at_random_by_seed(self, **flags):
        first = self._read(num_hidden_layers=2, **flags)
        again = self._read(num_hidden_layers=2, **flags)
        other = self._read(num_hidden_layers=2, seed=2, **flags)
        self.assertEqual(first.task, {"kind": "encoder"})
        name = "bert/encoder/layer_1/output/dense/kernel"
        self.assertAllEqual(first.weights[name], again.weights[name])
        self.assertNotAllClose(first.weights[name], other.weights[name])
        embeddings = "bert/embeddings/word_embeddings"
        self.assertNotAllClose(
            first.weights[embeddings],
            self.teacher.weights[embeddings][:, : first.config.hidden_size],
        )
        self.assertEqual(first.vocabulary.hash, self.teacher.vocabulary.hash)

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
        config = _config(num_hidden_layers=mine)
        self.assertEqual(students.choose_layers(config, mine, theirs), expected)

    @parameterized.parameters("1", "1,3", "1,2,2")
    def test_refuses_missing_layers(self, layers):
        with self.assertRaisesRegex(
            UserError, "2 layers.*from 1 to 2.*" + layers
        ):
            self._read(num_hidden_layers=2, teacher_layers=layers)

    def test_refuses_students_with_another_vocabulary(self):
        tokens = [*tiny_model.TOKENS[:-1], "western"]
        vocabulary = Vocabulary(tokens)
        encoder = bert_model.BertModel(tiny_model.CONFIG)
        model_directory.write(
            os.path.join(self.folder, "student"),
            tiny_model.CONFIG,
            tiny_model.random_weights(encoder),
            vocabulary,
            BertTokenizer(vocabulary).settings(),
            {"kind": "encoder"},
            "# Tiny\n",
        )
        with self.assertRaisesRegex(
            UserError, r"must have the vocabulary of its teacher .*\bhash"
        ) as caught:
            self._read(
                pretrained_model_dir=os.path.join(self.folder, "student")
            )
        self.assertNotIn("\n", str(caught.exception))

    def test_student_may_have_another_normalization(self):
        made = self._read(num_hidden_layers=1, normalization="ascii_lower")
        self.assertEqual(made.normalization, "ascii_lower")
        self.assertEqual(made.vocabulary.hash, self.teacher.vocabulary.hash)

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
        (
            {"pretrained_model_dir": "x", "hidden_size": 8},
            "--hidden_size: these",
        ),
        (
            {"pretrained_model_dir": "x", "initialize_from_teacher": False},
            "--noinitialize_from_teacher: these",
        ),
        (
            {"num_hidden_layers": 1, "do_lower_case": False},
            "as its teacher does",
        ),
        ({"num_hidden_layers": 0}, "--num_hidden_layers must be at least 1"),
        (
            {"distillation_weight": 1.5},
            "--distillation_weight must lie between",
        ),
        ({"temperature": 0.5}, "--temperature must be at least 1"),
        (
            {"distillation_weight": 0.0, "temperature": 3.0},
            "--temperature has no effect with --distillation_weight=0",
        ),
        (
            {"hidden_weight": 0.0, "hidden_loss": "cosine"},
            "--hidden_loss has no effect with --hidden_weight=0",
        ),
        ({"hidden_weight": -1.0}, "--hidden_weight must be at least 0"),
        ({"attention_weight": -1.0}, "--attention_weight must be at least 0"),
        ({"teacher_layers": "2,x"}, "numbers from 1.*'2,x'"),
        ({"train_file": None}, "--do_train needs --train_file, or --data_dir"),
        ({"data_dir": "x"}, "--data_dir replaces .* --train_file"),
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
            "--unlabeled_file is for training",
        ),
    )
    def test_refuses_flags(self, flags, message):
        if "pretrained_model_dir" not in flags and flags:
            flags = {"num_hidden_layers": 1} | flags
        with self.assertRaisesRegex(UserError, message) as caught:
            _config(**flags)
        self.assertNotIn("\n", str(caught.exception))

    def test_requires_heads_for_odd_widths(self):
        with self.assertRaisesRegex(UserError, "=100 is not a multiple of 64"):
            _config(num_hidden_layers=1, hidden_size=100).shape(768, 12, 3072)


if __name__ == "__main__":
    tf.test.main()
