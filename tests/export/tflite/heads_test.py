"""Tests of the .tflite files of every head in several runtimes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export import serving_module
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.inference.lite_model import LiteModel
from tests.support import every_head
from tests.support import rows_of_ids
from tests.support import tiny_builds

_INPUTS = ("input_ids", "input_mask", "segment_ids")
_LENGTH = every_head.MAX_SEQ_LENGTH
# Heads that need different operators of TensorFlow Lite.
_DIFFERENT = (
    "classification",
    "question_answering",
    "multiple_choice",
    "tagging",
    "fill_mask",
    "embeddings",
)
# Each head is in float32 with free shapes; those with different operators are
# also in float16 and dynamic, with one of the two shapes each.
_PAIRS = [
    ((name, first), (name, second))
    for name, (first, second) in zip(
        sorted(_DIFFERENT),
        itertools.cycle((("float16", "dynamic"), ("dynamic", "float16"))),
        strict=False,
    )
]
_STATIC, _FREE = zip(*_PAIRS, strict=True)


def _expect(built, rows):
    """Returns the outputs of the ids-only SavedModel, by name."""
    outputs = serving_module.answer_ids_in_numbers(
        built.build.head,
        built.build.model,
        {name: tf.constant(x) for name, x in rows.items()},
    )
    return {
        name: x.numpy()
        for name, x in outputs.items()
        if name not in builds.OMITTED_FOR_IDS
    }


def _run_with_tensorflow(content, rows):
    runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    return runner(**rows)


class HeadsTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_same(self, actual, expected, tolerance):
        self.assertEqual(set(actual), set(expected))
        for name, values in expected.items():
            self.assertEqual(actual[name].dtype, values.dtype)
            self.assertAllClose(actual[name], values, tolerance, tolerance)

    @parameterized.parameters(*every_head.NAMES)
    @pytest.mark.slow
    def test_any_number_of_rows_of_any_length_in_two_runtimes(self, name):
        built = tiny_builds.make(name)
        model = LiteModel(built.content)
        self.assertEqual(set(model.inputs), set(_INPUTS))
        for dtype, shape in model.inputs.values():
            self.assertEqual(dtype, np.int32)
            self.assertEqual(set(shape), {-1})
        for batch, length in ((1, 5), (4, _LENGTH), (3, 7), (1, 5)):
            rows = rows_of_ids.make(built, batch, length)
            expected = _expect(built, rows)
            self._assert_same(model.run(rows), expected, 1e-4)
        self._assert_same(
            _run_with_tensorflow(built.content, rows), expected, 1e-4
        )
        self.assertEmpty(conversion.custom_operators(built.content))

    def test_rows_without_a_mask_have_no_candidates(self):
        built = tiny_builds.make("fill_mask")
        model = LiteModel(built.content)
        rows = rows_of_ids.make(built, 2, 6)
        mask_id = built.build.head.tokenizer.vocabulary.mask_id
        is_mask = rows["input_ids"] == mask_id
        self.assertTrue(is_mask.any())
        without = rows | {"input_ids": np.where(is_mask, 5, rows["input_ids"])}
        # In sequence, as tensors change their sizes.
        for one in (rows, without, rows):
            self._assert_same(model.run(one), _expect(built, one), 1e-4)

    @parameterized.parameters(("fill_mask", "none"), *_STATIC)
    @pytest.mark.slow
    def test_static_shapes(self, name, quantization):
        built = tiny_builds.make(
            name, quantization=quantization, batch_size=1, max_seq_length=8
        )
        model = LiteModel(built.content)
        for _, (first, *_, last) in model.inputs.values():
            self.assertEqual((first, last), (1, 8))
        rows = rows_of_ids.make(built, 1, 8)
        expected = _expect(built, rows)
        answer = model.run(rows)
        if quantization == "dynamic":
            self.assertIsNone(built.verification["tolerance"])
            self.assertEqual(set(answer), set(expected))
            return
        self._assert_same(
            answer, expected, 1e-4 if quantization == "none" else 5e-3
        )

    @parameterized.parameters(*_FREE)
    @pytest.mark.slow
    def test_free_shapes_of_rounded_weights(self, name, quantization):
        built = tiny_builds.make(name, quantization=quantization)
        self.assertEmpty(conversion.custom_operators(built.content))
        rows = rows_of_ids.make(built, 3, 7)
        expected = _expect(built, rows)
        for answer in (
            LiteModel(built.content).run(rows),
            _run_with_tensorflow(built.content, rows),
        ):
            if quantization == "float16":
                self._assert_same(answer, expected, 5e-3)
            self.assertEqual(set(answer), set(expected))


if __name__ == "__main__":
    tf.test.main()
