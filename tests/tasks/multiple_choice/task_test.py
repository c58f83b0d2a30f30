"""Tests of the multiple-choice task, its features and its flags."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands import finetune_multiple_choice
from bert_tf.commands.finetune_multiple_choice import MultipleChoiceConfig
from bert_tf.errors import UserError
from bert_tf.modeling import task_models
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_layers
from tests.support import tiny_model

_COLUMNS = Columns(("a", "b", "c"), "q", label="answer")


def _example(context, choices, label=None):
    names = tuple("abcdef"[: len(choices)])
    return MultipleChoiceExample("", context, tuple(choices), names, label)


_EXAMPLES = [
    _example("The cat sat.", ["on the mat", "on dogs .", "dog"], 2),
    _example("The dog", ["sat", "the cat sat on the mat"], 0),
    _example("On the mat", ["the cat", "sat ."], 1),
]


class MultipleChoiceTaskTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.task = MultipleChoiceTask(
            name="custom", max_seq_length=12, columns=_COLUMNS
        )
        self.tokenizer = tiny_model.tokenizer()

    def _model(self):
        model = task_models.BertForMultipleChoice(
            tiny_model.CONFIG, **self.task.model_arguments()
        )
        return tiny_layers.randomize(model, seed=5)

    def _predict(self, model, examples):
        features = self.task.featurize(examples, self.tokenizer)
        computer = task_prediction.OutputComputer(model, self.task, 2)
        computed = computer.compute(features, (8, 12))
        return computed.loss, self.task.predict(
            examples, features, computed.outputs, self.tokenizer
        )

    def test_losses_ignore_missing_choices(self):
        logits = np.array(
            [[0.5, -1.0, 2.0], [3.0, -0.5, 50.0], [0.1, 0.2, -80.0]], np.float32
        )
        features = self.task.featurize(_EXAMPLES, self.tokenizer)
        batch = features.batch(np.arange(3), 12)
        variable = tf.Variable(logits)
        with tf.GradientTape() as tape:
            losses = self.task.losses({"logits": variable}, batch)
        expected = [
            -np.log(np.exp(2.0) / np.exp([0.5, -1.0, 2.0]).sum()),
            -np.log(np.exp(3.0) / np.exp([3.0, -0.5]).sum()),
            -np.log(np.exp(0.2) / np.exp([0.1, 0.2]).sum()),
        ]
        self.assertAllClose(losses, expected, rtol=1e-6, atol=1e-6)
        gradient = tape.gradient(losses, variable).numpy()
        self.assertAllEqual(gradient[1:, 2], [0.0, 0.0])
        self.assertNotAllClose(gradient[0], np.zeros(3), atol=1e-3)

    @pytest.mark.slow
    def test_probabilities_cover_only_existing_choices(self):
        model = self._model()
        loss, together = self._predict(model, _EXAMPLES)
        losses = []
        for example, predicted in zip(_EXAMPLES, together, strict=True):
            self.assertLen(predicted, len(example.choices))
            self.assertAllClose(predicted.sum(), 1.0, atol=1e-6)
            _, (alone,) = self._predict(model, [example])
            self.assertAllClose(alone, predicted, atol=1e-5)
            losses.append(-np.log(predicted[example.label]))
        self.assertAllClose(loss, np.mean(losses), rtol=1e-5)
        spread = [p[0] for p in together]
        self.assertGreater(np.ptp(spread), 0.01)

    def test_bilstms_accept_fewer_choices(self):
        self.task = MultipleChoiceTask(
            name="custom", max_seq_length=12, columns=_COLUMNS, head="bilstm"
        )
        _, predicted = self._predict(self._model(), _EXAMPLES)
        self.assertAllEqual(
            [np.isfinite(x).all() for x in predicted], [True] * 3
        )

    def test_json_has_choices_in_the_order_of_the_file(self):
        example = MultipleChoiceExample("", "q", ("z", "x", "y"), tuple("cab"))
        described = self.task.prediction_to_json(
            example, np.array([0.625, 0.25, 0.125], np.float32)
        )
        self.assertEqual((described["label"], described["index"]), ("c", 2))
        self.assertEqual(
            list(described["probabilities"].items()),
            [("a", 0.25), ("b", 0.125), ("c", 0.625)],
        )
        general = MultipleChoiceExample("", "q", ("x", "y"), ("0", "1"))
        described = self.task.prediction_to_json(
            general, np.array([0.25, 0.75], np.float32)
        )
        self.assertEqual((described["label"], described["index"]), ("1", 1))

    def _predictions(self, *indices):
        return [
            np.eye(len(example.choices))[index]
            for example, index in zip(_EXAMPLES, indices, strict=True)
        ]

    def test_score_is_the_accuracy(self):
        self.assertEqual(self.task.metric, "accuracy")
        score = self.task.score(_EXAMPLES, self._predictions(2, 1, 1))
        self.assertAllClose(score, {"accuracy": 2 / 3})
        self.assertTrue(self.task.is_labeled(_EXAMPLES))
        self.assertFalse(self.task.is_labeled([_example("x", ["y", "z"])]))
        self.assertFalse(self.task.is_labeled([]))

    @parameterized.parameters(
        ("dev", "confusion_matrix"), ("test", "test_confusion_matrix")
    )
    def test_report_has_a_matrix_of_choice_columns(self, split, name):
        folder = self.create_tempdir().full_path
        reordered = MultipleChoiceExample(
            "", "q", ("y", "x"), ("b", "a"), label=1
        )
        self.task.write_report(
            folder,
            split,
            [*_EXAMPLES, reordered],
            [*self._predictions(2, 1, 1), np.array([0.75, 0.25])],
        )
        self.assertCountEqual(
            os.listdir(folder), [f"{name}.png", f"{name}.txt"]
        )
        text = pathlib.Path(folder, f"{name}.txt").read_text(encoding="utf-8")
        self.assertStartsWith(
            text,
            """\
4 examples, 2 correct (50.00%), 3 labels

actual \\ predicted  [0]  [1]  [2]
[0] a                 0    2    0
[1] b                 0    1    0
[2] c                 0    0    1
""",
        )

    def test_report_numbers_the_choices_of_lists(self):
        folder = self.create_tempdir().full_path
        task = MultipleChoiceTask(
            name="custom", columns=Columns(("choices",), label="label")
        )
        examples = [
            MultipleChoiceExample("", None, ("x", "y"), ("0", "1"), 1),
            MultipleChoiceExample("", None, ("x",) * 3, ("0", "1", "2"), 0),
        ]
        task.write_report(
            folder,
            "dev",
            examples,
            [np.array([0, 1]), np.array([0, 0, 1])],
        )
        text = pathlib.Path(folder, "confusion_matrix.txt").read_text()
        self.assertIn("[0] 0                 0    0    1\n", text)

    @parameterized.parameters(
        (_COLUMNS,), (multiple_choice_examples.OFFICIAL["swag"].columns,)
    )
    def test_task_json_restores_the_task(self, columns):
        task = MultipleChoiceTask(
            name="mine", max_seq_length=80, columns=columns, head="bilstm"
        )
        self.assertEqual(MultipleChoiceTask.from_json(task.to_json()), task)

    def test_only_a_test_set_may_lack_labels(self):
        path = self.write("x.csv", "q,a,b,c\nWho?,he,she,it\n")
        task = MultipleChoiceTask(
            name="custom", columns=_COLUMNS, files={"dev": path, "test": path}
        )
        self.assertFalse(task.is_labeled(task.read("test")))
        with self.assertRaisesRegex(UserError, "'answer'; .*--label_column"):
            task.read("dev")

    def test_inputs_of_codah_have_no_header(self):
        path = self.write("x.tsv", "o\tHe\teats.\tsits.\truns.\tsings.\t1\n")
        codah = multiple_choice_examples.OFFICIAL["codah"]
        task = MultipleChoiceTask(name="codah", columns=codah.columns)
        (example,) = task.read_inputs(path)
        self.assertEqual(
            (example.context, example.choices),
            ("He", ("eats.", "sits.", "runs.", "sings.")),
        )


def _featurize(examples, tokenizer, max_seq_length):
    task = MultipleChoiceTask(
        columns=Columns(("choices",)), max_seq_length=max_seq_length
    )
    return task.featurize(examples, tokenizer)


class MultipleChoiceFeaturesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = tiny_model.tokenizer()

    def _convert(self, examples, max_seq_length=12):
        return _featurize(examples, self.tokenizer, max_seq_length)

    def _ids(self, text):
        return [tiny_model.TOKENS.index(piece) for piece in text.split()]

    def test_each_choice_follows_the_context(self):
        features = self._convert(
            [
                _example("The cat sat.", ["the mat", "on dogs .", "dog"], 2),
                _example("The dog", ["sat", "the cat sat"], 0),
            ]
        )
        self.assertLen(features, 2)
        self.assertAllEqual(features.lengths, [11, 8])
        batch = features.batch(np.array([1, 0]), 11)
        texts = [
            "[CLS] the dog [SEP] sat [SEP]",
            "[CLS] the dog [SEP] the cat sat [SEP]",
            None,
            "[CLS] the cat sat . [SEP] the mat [SEP]",
            "[CLS] the cat sat . [SEP] on dog ##s . [SEP]",
            "[CLS] the cat sat . [SEP] dog [SEP]",
        ]
        for number, text in enumerate(texts):
            ids = self._ids(text) if text else []
            second = ids.index(3) + 1 if text else 0
            rows = {
                "input_ids": ids,
                "input_mask": [1] * len(ids),
                "segment_ids": [0] * second + [1] * (len(ids) - second),
            }
            for name, row in rows.items():
                self.assertEqual(batch[name].dtype, np.int32)
                self.assertEqual(batch[name].shape, (2, 3, 11))
                self.assertAllEqual(
                    batch[name][number // 3, number % 3],
                    row + [0] * (11 - len(row)),
                    f"{name} of {text}",
                )
        self.assertAllEqual(batch["label_ids"], [0, 2])

    def test_all_batches_have_the_same_number_of_choices(self):
        features = self._convert(
            [_example("The cat", ["the"] * n) for n in (2, 5, 3)]
        )
        for indices in ([0], [2, 0], [0, 1]):
            batch = features.batch(np.array(indices), 8)
            self.assertEqual(batch["input_ids"].shape, (len(indices), 5, 8))
            self.assertNotIn("label_ids", batch)

    def test_padding_uses_the_pad_id(self):
        tokens = ["[UNK]", *tiny_model.TOKENS[2:], "[PAD]"]
        features = _featurize(
            [_example("the", ["cat", "dog"]), _example("the", ["cat"] * 3)],
            BertTokenizer(Vocabulary(tokens)),
            12,
        )
        batch = features.batch(np.array([0, 1]), 6)
        self.assertAllEqual(
            batch["input_ids"] == len(tokens) - 1, batch["input_mask"] == 0
        )
        self.assertEqual(batch["input_mask"][0, 2].sum(), 0)

    def test_choices_without_a_context_stand_alone(self):
        features = self._convert(
            [
                _example(None, ["the cat sat", "mat"]),
                _example(None, ["a", "on"]),
            ]
        )
        self.assertAllEqual(features.lengths, [5, 3])
        batch = features.batch(np.array([0]), 5)
        self.assertAllEqual(
            batch["input_ids"][0],
            [
                self._ids("[CLS] the cat sat [SEP]"),
                self._ids("[CLS] mat [SEP]") + [0, 0],
            ],
        )
        self.assertEqual(batch["segment_ids"].sum(), 0)


_TRAINED_WITH = {
    "choices": ["a", "b"],
    "context": None,
    "start": "s",
    "label": "answer",
}


class MultipleChoiceFlagsTest(files_case.FilesCase):
    def _build(self, stored_task=None, **flags):
        flags = {
            "output_dir": str(self.folder),
            "pretrained_model_dir": "model",
        } | flags
        return finetune_multiple_choice.build_task(
            MultipleChoiceConfig(**flags), stored_task
        )

    def _custom(self, stored_task=None, **flags):
        flags = {
            "task_name": "custom",
            "do_eval": True,
            "dev_file": "dev.csv",
        } | flags
        return self._build(stored_task, **flags)

    def test_flags_set_custom_files_and_columns(self):
        task = self._custom(
            do_train=True,
            train_file="t.csv",
            test_file="not_asked_for.csv",
            choice_columns="x, y,z",
            context_column="q",
            label_column="right",
        )
        self.assertEqual(dict(task.files), {"train": "t.csv", "dev": "dev.csv"})
        self.assertEqual(
            task.columns, Columns(("x", "y", "z"), "q", label="right")
        )

    def test_default_columns_are_context_and_choices(self):
        self.assertEqual(
            self._custom().columns,
            Columns(("choices",), "context", label="label"),
        )
        self.assertIsNone(self._custom(context_column="").columns.context)

    def test_columns_and_head_come_from_the_trained_model(self):
        stored = {"columns": _TRAINED_WITH, "head": "bilstm"}
        task = self._custom(stored)
        self.assertEqual(
            task.columns, Columns(("a", "b"), start="s", label="answer")
        )
        self.assertEqual(task.head, "bilstm")
        task = self._custom(stored, choice_columns="c,d")
        self.assertEqual(task.columns, Columns(("c", "d"), label="answer"))

    @parameterized.parameters(
        ("--train_file", {"do_train": True}),
        ("--dev_file", {"dev_file": None}),
        ("--test_file", {"do_predict": True}),
        (
            "--data_dir cannot be used with --task_name=custom",
            {"data_dir": "x"},
        ),
        ("names a value twice", {"choice_columns": "a,b,a"}),
        ("--choice_columns must be a name", {"choice_columns": "a,,b"}),
        ("'a', 'b', 'a'", {"choice_columns": "a,b", "label_column": "a"}),
        ("--label_column must not be empty", {"label_column": ""}),
        ("below 1", {"head_dropout_prob": 1.0}),
    )
    def test_rejects_flags_for_custom_files(self, message, flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self._custom(**flags)
        self.assertNotIn("\n", str(caught.exception))

    @parameterized.parameters(
        ("codah needs --data_dir", {"data_dir": None}),
        ("--choice_columns needs --task_name=custom",
         {"choice_columns": "a,b", "label_column": "c"}),
        ("--dev_file needs --task_name=custom", {"dev_file": "x.csv"}),
        ("no file dev.csv or one like it for the split dev of CODAH", {}),
    )  # fmt: skip
    def test_rejects_flags_for_official_files(self, message, flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self._build(
                task_name="codah",
                do_eval=True,
                **{"data_dir": str(self.folder)} | flags,
            )
        self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    tf.test.main()
