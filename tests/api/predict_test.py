"""Tests of `predict` on raw rows."""

import contextlib
import io
import json
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.api import preprocessor
from bert_tf.errors import UserError
from bert_tf.inference import fill_mask
from bert_tf.modeling.bert import named_variables
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.examples import Columns as ChoiceColumns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from tests.support import tiny_model

_CLASSIFICATION = ClassificationTask(
    name="custom",
    max_seq_length=12,
    labels=("no", "maybe", "yes"),
    metric_names=("accuracy",),
    columns=Columns("first", "second"),
)
_PAIRS = [("the cat sat", "on the mat"), ("dogs", "sat, the cat sat .")]
_SQUAD = SquadTask(
    max_seq_length=12, doc_stride=3, max_query_length=5, max_answer_length=4
)
_QUESTIONS = [
    {"id": "a", "question": "cat ?", "context": "the dog sat on the mat ."},
    {"id": "b", "question": "on", "context": "東 dogs . The cat, the cat"},
]
_TAGGING = TaggingTask(
    name="custom", max_seq_length=12, labels=("O", "B-X", "I-X")
)
_SENTENCES = ["The cat sat on the mat.", "dogs"]
_CHOICES = MultipleChoiceTask(
    name="custom", max_seq_length=12, columns=ChoiceColumns(("a", "b"), "c")
)
_CHOICE_ROWS = [
    {"c": "the cat", "a": "sat", "b": "sat on a mat"},
    {"c": "dogs", "a": "the dog", "b": "cat"},
]


@contextlib.contextmanager
def _standard_error():
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with contextlib.redirect_stderr(terminal) as stream:
        yield stream


class PredictTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # Eager predictions differ from compiled ones in the last digits.
        self.enter_context(mock.patch.object(preprocessor, "_EAGER_ROWS", 0))

    def test_a_model_is_compiled_after_the_first_few_rows(self):
        model = self._load(_CLASSIFICATION)
        prepare = self.enter_context(
            mock.patch.object(
                preprocessor.inference,
                "prepare",
                wraps=preprocessor.inference.prepare,
            )
        )
        with mock.patch.object(preprocessor, "_EAGER_ROWS", len(_PAIRS)):
            eager = model.predict(_PAIRS, verbose=0)
            prepare.assert_not_called()
            self._assert_same(model.predict(_PAIRS, verbose=0), eager)
        prepare.assert_called_once()

    def _load(self, task, *arguments, weights=None, **options):
        path = tiny_model.write_task(
            self.create_tempdir().full_path, task, weights
        )
        return bert_tf.load_model(path, *arguments, **options)

    @parameterized.parameters(
        (
            _CLASSIFICATION,
            _PAIRS,
            [list(pair) for pair in _PAIRS],
            [{"second": b, "first": a, "x": 1} for a, b in _PAIRS],
        ),
        (
            _SQUAD,
            _QUESTIONS,
            [{"answers": [], **question} for question in _QUESTIONS],
        ),
        (
            _TAGGING,
            _SENTENCES,
            [{"text": sentence} for sentence in _SENTENCES],
            pd.DataFrame({"id": _SENTENCES, "text": _SENTENCES}),
        ),
        (_CHOICES, _CHOICE_ROWS, [{**row, "label": 1} for row in _CHOICE_ROWS]),
    )
    def test_all_forms_of_a_row_are_equal(self, task, rows, *others):
        model = self._load(task)
        expected = model.predict(rows, verbose=0)
        self.assertLen(expected, len(rows))
        # A row alone has no padding, which must not change its prediction.
        for row, alone in zip(rows, expected, strict=True):
            self._assert_same(model.predict([row], 1, verbose=0), [alone])
        for other in others:
            self.assertEqual(model.predict(other, verbose=0), expected)
        json.dumps(expected)

    def _assert_same(self, received, expected):
        """Asserts that values are equal except for the last digits."""

        def rounded(value):
            if isinstance(value, dict):
                return {name: rounded(x) for name, x in value.items()}
            return round(value, 4) if isinstance(value, float) else value

        self.assertEqual(
            [rounded(row) for row in received],
            [rounded(row) for row in expected],
        )

    @pytest.mark.slow
    def test_keras_predict_still_works(self):
        model = self._load(_CLASSIFICATION)
        ids = np.array([[2, 6, 8, 3], [2, 7, 3, 0], [2, 5, 6, 3]])
        inputs = {"input_ids": ids, "input_mask": (ids > 0).astype(np.int32)}
        expected = model(inputs)["logits"]
        received = model.predict(inputs, batch_size=2, verbose=0)["logits"]
        self.assertAllClose(received, expected, atol=1e-5)
        dataset = tf.data.Dataset.from_tensor_slices(inputs).batch(2)
        received = model.predict(dataset, verbose=0)["logits"]
        self.assertAllClose(received, expected, atol=1e-5)

    def test_predicts_with_changed_weights(self):
        model = self._load(_CLASSIFICATION)
        before = model.predict(_PAIRS, verbose=0)
        for name, variable in named_variables(model).items():
            if name == "output_bias":
                variable.assign_add([9.0, 0.0, 0.0])
        after = model.predict(_PAIRS, verbose=0)
        self.assertNotEqual(before, after)
        self.assertEqual({row["label"] for row in after}, {"no"})

    def test_verbose_0_hides_progress(self):
        model = self._load(_CLASSIFICATION)
        with _standard_error() as stream:
            model.predict(_PAIRS, verbose=0)
        self.assertNotIn("predicting", stream.getvalue())
        with _standard_error() as stream:
            model.predict(_PAIRS)
        self.assertIn("predicting 2/2", stream.getvalue())

    def test_no_rows_give_an_empty_list(self):
        self.assertEqual(self._load(_TAGGING).predict([], verbose=0), [])

    def test_new_head_answers_with_its_labels(self):
        model = self._load(
            _CLASSIFICATION,
            "classification",
            labels=["good", "bad"],
            new_parts=["head"],
        )
        # A new head drops the stored columns, so a row is one text, no pair.
        (row,) = model.predict(["the cat"], verbose=0)
        self.assertEqual(list(row["probabilities"]), ["good", "bad"])
        named = self._load(_CLASSIFICATION, labels=["a", "b", "c"])
        (row,) = named.predict([("cat", "dog")], verbose=0)
        self.assertEqual(list(row["probabilities"]), ["a", "b", "c"])
        nameless = self._load(
            _CLASSIFICATION, "classification", num_labels=2, new_parts=["head"]
        )
        (row,) = nameless.predict(["the cat"], verbose=0)
        self.assertEqual(list(row["probabilities"]), ["0", "1"])

    def test_rejects_invalid_rows(self):
        model = self._load(_CLASSIFICATION)
        with self.assertRaisesRegex(UserError, "Row 1 of the list: .*pair"):
            model.predict([("cat", "dog"), "cat"])
        with self.assertRaisesRegex(UserError, "without steps= and callbacks="):
            model.predict([("cat", "dog")], steps=2)

    @parameterized.parameters(
        ("cat", "Row 0 of the list: Expected a pair of texts. Rec.*'cat'"),
        ([1, 2], r"Expected a pair of texts. Received: 1 \(int\)"),
        (("a", "b"), r"in a list, \[row.* Received: a tuple"),
        ({"first": "cat", "second": "dog"}, "a column of values.*'cat'"),
        ([b"caf\xe9"], r"Expected texts in UTF-8; .*: b'caf\\xe9'"),
        ((["cat", "dog"], ["cat"]), "equal length.*lengths 2, 1 in a tuple"),
    )
    def test_rejects_rows_without_a_list(self, rows, message):
        with (
            # Preparing takes seconds, so wrong rows are refused before it.
            mock.patch.object(preprocessor.inference, "prepare") as prepare,
            self.assertRaisesRegex(UserError, message) as caught,
        ):
            self._load(_CLASSIFICATION).predict(rows)
        prepare.assert_not_called()
        self.assertIsNone(caught.exception.__cause__)  # Prints one traceback.

    @parameterized.parameters(
        (np.zeros([2, 8], int), "ndarray"),
        ({"body": np.zeros(2)}, "body"),
        ({"input_ids": [[1]], "attention_mask": [[1]]}, "attention_mask"),
        ({"input_ids": [1, 2]}, r"input_ids \(2,\)"),
        ({"input_ids": [[1]], "input_mask": [[1, 1]]}, r"input_ids \(1, 1\)"),
    )
    def test_rejects_what_is_no_input(self, x, received):
        model = self._load(_CLASSIFICATION)
        message = rf"model's inputs .* Received: {received}\W"
        with self.assertRaisesRegex(UserError, message):
            model.predict(x)
        with self.assertRaisesRegex(UserError, message):
            model.fit(x, [0, 1])

    def test_messages_have_no_arguments_of_layers(self):
        model = self._load(_CLASSIFICATION)
        with self.assertRaisesRegex(UserError, "^A sequence .*gs=12.$"):
            model.predict({"input_ids": np.ones([2, 20], int)})

    def test_columns_give_the_answers_of_rows(self):
        model = self._load(_CLASSIFICATION)
        expected = model.predict(_PAIRS, verbose=0)
        first, second = zip(*_PAIRS, strict=True)
        frame = pd.DataFrame({"first": first, "second": second})
        for rows in (
            (list(first), np.array(second)),
            (np.array(first, object), tf.constant(second)),
            np.array(_PAIRS),
            {"second": second, "first": pd.Series(first)},
            frame,
            frame.assign(more=[1, 2]),
        ):
            self.assertEqual(model.predict(rows, verbose=0), expected)

    def test_rejects_models_without_a_task(self):
        path = tiny_model.write(self.create_tempdir().full_path)
        model = bert_tf.load_model(path, "encoder")
        with self.assertRaisesRegex(
            UserError, "^Expected .*head of a task, .*'encoder'; load it as"
        ):
            model.predict(["the cat"])

    def test_masked_language_models_fill_masks(self):
        path = tiny_model.write(self.create_tempdir().full_path)
        model = bert_tf.load_model(path)
        text = "the [MASK] sat on the [MASK]"
        (row,) = model.predict(text)
        (expected,) = fill_mask.FillMask(path)([text])
        self.assertEqual(
            row["tokens"], [[x.token for x in mask] for mask in expected]
        )
        self.assertAllClose(
            row["probabilities"],
            [[x.probability for x in mask] for mask in expected],
        )
        with self.assertRaisesRegex(UserError, "at least one .MASK."):
            model.predict(["the cat"])
        with self.assertRaisesRegex(UserError, "Received: a pair"):
            model.predict([(text, text)])


if __name__ == "__main__":
    tf.test.main()
