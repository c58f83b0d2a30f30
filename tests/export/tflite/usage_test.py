"""Tests for export.tflite.usage."""

import contextlib
import io
import sys
import types
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import ASCII_LOWER
from bert_tf.export.tflite import usage
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import client_models
from tests.support import tiny_model

_CLS, _SEP, _MASK = 2, 3, 4


def _build(name="classification", takes="ids", longest=64, **values):
    """Returns a report of a file."""
    pair = values.pop("pair", False)
    head = types.SimpleNamespace(
        tokenizer=BertTokenizer(Vocabulary(tiny_model.TOKENS)),
        max_seq_length=longest,
        pair=pair,
        input_specs=lambda: {
            name: tf.TensorSpec([None], tf.string)
            for name in ("text", "text_pair")[: 1 + pair]
        },
    )
    shape = {"batch_size": None, "seq_length": None} | values
    return types.SimpleNamespace(
        name=name,
        head=head,
        config=types.SimpleNamespace(input=takes),
        **shape,
    )


def _run(program):
    """Runs a program without LiteRT; returns the inputs of the file."""
    captured = {}

    class Interpreter:
        def __init__(self, first, **options):
            # The operator registrar precedes the path.
            captured.update(first=first, path=options.get("model_path", first))

        def get_signature_runner(self):
            def run(**inputs):
                captured["inputs"] = inputs
                return {"probabilities": np.array([[0.25, 0.75]])}

            return run

    module = types.SimpleNamespace(
        interpreter=types.SimpleNamespace(
            Interpreter=Interpreter, InterpreterWithCustomOps=Interpreter
        )
    )
    printed = io.StringIO()
    with (
        mock.patch.dict(sys.modules, {"ai_edge_litert": module}),
        contextlib.redirect_stdout(printed),
    ):
        exec(program, {})
    captured["printed"] = printed.getvalue()
    return captured


class UsageTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_row_of_free_length_has_the_length_of_its_text(self):
        captured = _run(usage.python_snippet(_build(), "a b.tflite"))
        self.assertEqual(captured["path"], "a b.tflite")
        self.assertEqual(captured["printed"], "probabilities [[0.25 0.75]]\n")
        (ids,) = captured["inputs"]["input_ids"]
        # The cat sat on the mat.
        self.assertAllEqual(ids, [_CLS, 5, 6, 8, 9, 5, 10, 13, _SEP])
        self.assertAllEqual(captured["inputs"]["input_mask"], [[1] * 9])
        self.assertAllEqual(captured["inputs"]["segment_ids"], [[0] * 9])

    def test_rows_of_a_fixed_shape_are_padded(self):
        build = _build(batch_size=2, seq_length=11, pair=True, longest=11)
        inputs = _run(usage.python_snippet(build, "a"))["inputs"]
        for array in inputs.values():
            self.assertEqual(array.dtype, np.int32)
            self.assertEqual(array.shape, (2, 11))
            self.assertAllEqual(array[0], array[1])
        self.assertAllEqual(inputs["segment_ids"][0], [0] * 9 + [1] * 2)

    def test_choices_have_an_axis_and_masks_a_token(self):
        inputs = _run(usage.python_snippet(_build("multiple_choice"), "a"))
        self.assertEqual(inputs["inputs"]["input_ids"].shape[:2], (1, 2))
        inputs = _run(usage.python_snippet(_build("fill_mask"), "a"))
        self.assertEqual(inputs["inputs"]["input_ids"][0, 6], _MASK)

    @parameterized.parameters((False, None, 1), (True, 3, 3))
    def test_texts_are_bytes(self, pair, batch_size, count):
        build = _build(takes="text", pair=pair, batch_size=batch_size)
        captured = _run(usage.python_snippet(build, "a"))
        self.assertNotEmpty(captured["first"])
        self.assertNotEqual(captured["first"], captured["path"])
        names = {"text", "text_pair"} if pair else {"text"}
        self.assertEqual(set(captured["inputs"]), names)
        for texts in captured["inputs"].values():
            self.assertEqual(texts.shape, (count,))
            self.assertIsInstance(texts[0], bytes)


def _client_build(head="classification", pair=False, reads="ids", **settings):
    """Returns the parts of a `Build` that are read."""
    tokenizer = BertTokenizer(client_models.VOCABULARY, **settings)
    return types.SimpleNamespace(
        name=head,
        config=types.SimpleNamespace(input=reads),
        head=types.SimpleNamespace(tokenizer=tokenizer, pair=pair),
    )


class WarningTest(tf.test.TestCase, parameterized.TestCase):
    def test_counts_texts_that_are_tokenized_differently(self):
        uncased = BertTokenizer(client_models.VOCABULARY)
        texts = ["The FILM!", "Café", "cafe", "a\u00a0b", "中文", "É", ""]
        self.assertEqual(usage.count_changed(uncased, texts), 3)
        cased = BertTokenizer(client_models.VOCABULARY, lower_case=False)
        self.assertEqual(usage.count_changed(cased, texts), 3)
        theirs = BertTokenizer(
            client_models.VOCABULARY, normalization=ASCII_LOWER
        )
        self.assertEqual(usage.count_changed(theirs, texts), 0)

    def test_counts_affected_examples(self):
        examples = [
            InputExample("1", "The film"),
            InputExample("2", "the", "Café"),
            InputExample("3", "É"),
        ]
        note = usage.warning(_client_build(), examples)
        self.assertRegex(note, "only ASCII.* affects 2 of the 3 .*ascii_l")
        of_squad = [
            SquadExample("1", "who?", ("É", "the"), (0, 2)),
            SquadExample("2", "was?", ("the",), (0,)),
        ]
        note = usage.warning(_client_build("question_answering"), of_squad)
        self.assertIn("affects 1 of the 2 examples of --eval_file.", note)
        self.assertNotIn("examples", usage.warning(_client_build()))

    def test_note_for_cased_models(self):
        note = usage.warning(_client_build(lower_case=False))
        self.assertRegex(note, "lower-case all ASCII.*cased")

    @parameterized.parameters(
        {"normalization": ASCII_LOWER},
        {"reads": "text"},
        {"pair": True},
        {"head": "tagging"},
    )
    def test_no_note_without_differences(self, **values):
        self.assertIsNone(usage.warning(_client_build(**values)))


if __name__ == "__main__":
    tf.test.main()
