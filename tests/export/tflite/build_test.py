"""Tests for export.tflite.build: every head, files that take strings."""

import contextlib
import io
import itertools
import pathlib
import re
import types

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.flags.export import TfliteConfig
from bert_tf.inference.lite_model import LiteModel
from tests.support import every_head
from tests.support import rows_of_ids
from tests.support import tiny_builds
from tests.support import tiny_exports

_LENGTH = tiny_exports.MAX_SEQ_LENGTH
_TEXTS = (
    *tiny_exports.TEXTS,
    "",
    " \t",
    b"the \xff cat \xe6\x9d",
    "cat " * 9000,
)
_PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "on_device.md"
_FILE = "topics_text.tflite"
# The answers of these heads must equal the SavedModel's.
_AS_SAVED = (
    "classification",
    "pair",
    "multi_label",
    "regression",
    "next_sentence",
    "embeddings",
)


def _strings(texts):
    encoded = [x if isinstance(x, bytes) else x.encode() for x in texts]
    return np.array(encoded, object)


def _make(name, **flags):
    return tiny_builds.make(name, input="text", **flags)


def _run(program):
    """Returns the output of a program."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    return printed.getvalue()


class BuildTest(tf.test.TestCase, parameterized.TestCase):
    def _require(self, model, **flags):
        config = TfliteConfig(
            model_dir="output/recurrent", output_file="a.tflite", **flags
        )
        builds._require_form(config, model)

    @parameterized.parameters(
        ({}, "None and None"),
        ({"batch_size": 1}, "1 and None"),
        ({"max_seq_length": 8}, "None and 8"),
        ({"input": "text"}, "None and None"),
    )
    def test_rejects_recurrent_heads_with_free_shapes(self, flags, given):
        recurrent = types.SimpleNamespace(lstms=["one"])
        with self.assertRaisesRegex(
            UserError, f"Received: {given} for the model in output/recurrent"
        ):
            self._require(recurrent, **flags)
        self._require(recurrent, batch_size=1, max_seq_length=8)
        self._require(recurrent, batch_size=1, input="text")

    def test_classifiers_have_fixed_shapes_by_default(self):
        for flags, expected in (
            ({"dynamic_shapes": False}, (1, 12)),
            ({"dynamic_shapes": False, "max_seq_length": 7}, (1, 7)),
            ({}, (None, None)),
            ({"batch_size": 3}, (3, None)),
        ):
            build = builds.prepare(tiny_builds.config("pair", **flags))
            self.assertEqual(
                (build.config.batch_size, build.config.max_seq_length), expected
            )


class TextFunctionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_AS_SAVED)
    @pytest.mark.slow
    def test_outputs_equal_the_saved_model(self, name):
        built = _make(name)
        build = builds.prepare(tiny_builds.config(name))
        custom = conversion.custom_operators(built.content)
        self.assertContainsSubset(custom, conversion.TEXT_OPERATORS)
        model = LiteModel(built.content, text_operators=True)
        self.assertEqual(set(model.inputs), set(build.head.inputs))
        for numbers in ([0], [2], range(len(_TEXTS))):
            strings = {
                column: _strings([_TEXTS[n - shift] for n in numbers])
                for shift, column in enumerate(build.head.inputs)
            }
            rows = build.head.pack(
                {x: tf.constant(column) for x, column in strings.items()}
            )
            outputs = build.model(rows.inputs, training=False)
            expected = serving_module.for_predict(
                build.head, build.head.answer(outputs, rows)
            )
            answer = model.run(strings)
            self.assertEqual(set(answer), set(expected))
            for key, values in expected.items():
                if values.dtype == tf.string:
                    self.assertAllEqual(answer[key], values)
                else:
                    self.assertAllClose(answer[key], values, 1e-4, 1e-4)

    @pytest.mark.slow
    def test_the_documented_program_runs(self):
        (program,) = re.findall(
            r"(?m)^```python\n([^`]*WithCustomOps[^`]*)^```$",
            _PAGE.read_text(encoding="utf-8"),
        )
        built = _make("classification")
        path = self.create_tempfile(content=built.content, mode="wb").full_path
        self.assertIn(_FILE, program)
        printed = _run(program.replace(_FILE, path))
        self.assertRegex(printed, r"^\[b'.*'\] \[\[0\.")

    def test_rejects_unsupported_heads_and_quantizations(self):
        with self.assertRaisesRegex(UserError, "find .MASK.*--input=ids"):
            _make("fill_mask")
        with self.assertRaisesRegex(UserError, "full_int8 .* --input=ids"):
            _make("pair", quantization="full_int8", representative_file="a.tsv")


class TokenOutputsTest(tf.test.TestCase, parameterized.TestCase):
    """Heads that point into texts return the offsets of each token."""

    @pytest.mark.slow
    def test_tags_have_offsets_of_tokens(self):
        built = _make("tagging")
        model = LiteModel(built.content, text_operators=True)
        text = "The cafe\u0301s, cat \u6771 " + "dog " * 9
        answer = model.run({"text": _strings([text, ""])})
        self.assertEqual(set(answer), {"probabilities", "starts", "ends"})
        self.assertEqual(answer["probabilities"].shape[:2], (2, _LENGTH))
        spans = list(zip(answer["starts"][0], answer["ends"][0], strict=True))
        self.assertEqual(spans[0], (-1, -1))
        self.assertEqual(
            [text.encode()[start:end].decode() for start, end in spans[1:-1]],
            "The cafe\u0301s , cat \u6771 dog dog dog dog dog".split(),
        )
        self.assertEqual(spans[-1], (-1, -1))
        self.assertAllEqual(answer["starts"][1], np.full(_LENGTH, -1))

    @pytest.mark.slow
    def test_logits_have_offsets_of_tokens(self):
        built = _make("question_answering")
        model = LiteModel(built.content, text_operators=True)
        context = "\u00a0The cats sat " + "on " * 9
        answer = model.run(
            {
                "question": _strings(["the the the the dog", ""]),
                "context": _strings([context, "mat"]),
            }
        )
        self.assertEqual(
            set(answer), {"start_logits", "end_logits", "starts", "ends"}
        )
        # [CLS], four tokens of the question and [SEP] have no offsets.
        nowhere = [-1] * 6
        self.assertAllEqual(
            answer["starts"],
            [
                [*nowhere, 2, 6, 9, 11, 15, -1],
                [-1, -1, 0, *nowhere, -1, -1, -1],
            ],
        )
        self.assertAllEqual(
            answer["ends"],
            [
                [*nowhere, 5, 9, 10, 14, 17, -1],
                [-1, -1, 3, *nowhere, -1, -1, -1],
            ],
        )

    @pytest.mark.slow
    def test_choices_as_strings_answer_as_the_model(self):
        built = _make("multiple_choice")
        build = builds.prepare(tiny_builds.config("multiple_choice"))
        model = LiteModel(built.content, text_operators=True)
        choices = _strings(["the cat", "dog " * 20, "", "mat", "sat", "on"])
        strings = {
            "text": _strings(["cat sat on the mat", ""]),
            "choices": choices.reshape(2, 3),
        }
        rows = build.head.pack({x: tf.constant(v) for x, v in strings.items()})
        outputs = build.model(rows.inputs, training=False)
        expected = build.head.answer(outputs, rows)
        answer = model.run(strings)
        self.assertAllEqual(answer["index"], expected["index"])
        self.assertAllClose(
            answer["probabilities"], expected["probabilities"], 1e-4, 1e-4
        )


_INPUTS = ("input_ids", "input_mask", "segment_ids")
_HEAD_LENGTH = every_head.MAX_SEQ_LENGTH
# These heads need different operators of TensorFlow Lite, so each is tested.
_DIFFERENT = (
    "classification",
    "question_answering",
    "multiple_choice",
    "tagging",
    "fill_mask",
    "embeddings",
)
# Every head is tested in float32 with free shapes. The heads above are tested
# in float16 and dynamic, too: one with static shapes, one with free shapes.
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
    def test_two_runtimes_accept_any_number_and_length_of_rows(self, name):
        built = tiny_builds.make(name)
        model = LiteModel(built.content)
        self.assertEqual(set(model.inputs), set(_INPUTS))
        for dtype, shape in model.inputs.values():
            self.assertEqual(dtype, np.int32)
            self.assertEqual(set(shape), {-1})
        for batch, length in ((1, 5), (4, _HEAD_LENGTH), (3, 7), (1, 5)):
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
        # In this order tensors become empty and grow again, which must work.
        for one in (rows, without, rows):
            self._assert_same(model.run(one), _expect(built, one), 1e-4)

    @parameterized.parameters(("fill_mask", "none"), *_STATIC)
    @pytest.mark.slow
    def test_static_exports_have_fixed_input_sizes(self, name, quantization):
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
    def test_rounded_weights_allow_free_shapes(self, name, quantization):
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
