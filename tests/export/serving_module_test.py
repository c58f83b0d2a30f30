"""Tests for export.serving_module, and of exports with --litert."""

import contextlib
import dataclasses
import io
import json
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.protobuf import saved_model_pb2

import bert_tf
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export import serving_module
from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.reference import Reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.modeling import task_models
from bert_tf.serving import litert
from tests.support import tiny_exports
from tests.support import tiny_model


def _read(version):
    saved = saved_model_pb2.SavedModel()
    with open(os.path.join(version, "saved_model.pb"), "rb") as file:
        saved.ParseFromString(file.read())
    (graph,) = saved.meta_graphs
    return graph


def _shape(info):
    return [size.size for size in info.tensor_shape.dim]


class SavedClassifierTest(tf.test.TestCase):
    """Tests of one export with all signatures and the exact GELU."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        config = dataclasses.replace(
            tiny_model.ONE_LAYER,
            hidden_size=128,
            intermediate_size=512,
            hidden_act="gelu_erf",
        )
        task = tiny_exports.classification(pair=True)
        model = task_models.BertForClassification(config, labels=task.labels)
        cls.model_dir = os.path.join(cls.folder, "model")
        weights = tiny_model.random_weights(model, scale=0.1)
        values = {"kind": task.kind} | task.to_json()
        tiny_model.write_weights(cls.model_dir, config, weights, values)
        cls.output_dir = os.path.join(cls.folder, "served", "name")
        cls.version = tiny_exports.export(cls.model_dir, cls.output_dir)
        cls.graph = _read(cls.version)
        cls.loaded = tf.saved_model.load(cls.version).signatures

    def test_signatures_have_names_dtypes_and_shapes(self):
        strings = tf.string.as_datatype_enum
        described = {
            name: (
                {x: (i.dtype, _shape(i)) for x, i in one.inputs.items()},
                {x: (i.dtype, _shape(i)) for x, i in one.outputs.items()},
            )
            for name, one in self.graph.signature_def.items()
            if not name.startswith("_")
        }
        numbers = tf.float32.as_datatype_enum
        integers = tf.int32.as_datatype_enum
        rows, tokens, labels = [-1], [-1, -1], [-1, 3]
        texts = dict.fromkeys(("text", "text_pair"), (strings, rows))
        ids = ("input_ids", "input_mask", "segment_ids")
        answer = {"label": (strings, rows), "probabilities": (numbers, labels)}
        of_tokens = {"tokens": (strings, tokens)}
        weights = {"attention": (numbers, [-1, 1, 2, -1, -1])}
        self.assertEqual(
            described,
            {
                "serving_default": (texts, answer),
                "from_examples": ({"examples": (strings, rows)}, answer),
                "from_ids": (
                    dict.fromkeys(ids, (integers, tokens)),
                    answer | {"logits": (numbers, labels)},
                ),
                "classify": (
                    {"inputs": (strings, rows)},
                    {"classes": (strings, labels), "scores": (numbers, labels)},
                ),
                "tokenize": (
                    {"text": (strings, rows)},
                    dict.fromkeys(
                        ("input_ids", "starts", "ends"), (integers, tokens)
                    )
                    | of_tokens,
                ),
                "attention": (texts, of_tokens | weights),
            },
        )

    def test_methods_are_those_of_tensorflow_serving(self):
        methods = {
            name: one.method_name
            for name, one in self.graph.signature_def.items()
            if not name.startswith("_")
        }
        self.assertEqual(methods.pop("classify"), "tensorflow/serving/classify")
        self.assertEqual(set(methods.values()), {"tensorflow/serving/predict"})

    def test_pairs_need_equal_numbers_of_rows(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "`text` and `text_pair` must have the same number of rows",
        ):
            self.loaded["serving_default"](
                text=tf.constant(["the cat"]),
                text_pair=tf.constant(["sat", "on the mat"]),
            )

    def test_all_signatures_return_the_same_answer(self):
        loaded = self.loaded
        # The lengths differ; a first text and a second text are empty.
        first = ["the cat", "東 dog sat on the mat", ""]
        second = ["", "matting . " * 20, "cat"]
        serialized = reference.to_examples(
            [
                {"text": text, "text_pair": text_pair}
                for text, text_pair in zip(first, second, strict=True)
            ]
        )
        expected = loaded["serving_default"](
            text=tf.constant(first), text_pair=tf.constant(second)
        )
        model = bert_tf.load_model(self.model_dir)
        # The library rejects empty texts, so use texts without tokens.
        rows = [
            (a or "\u200b", b or "\u200b")
            for a, b in zip(first, second, strict=True)
        ]
        self.assertAllClose(
            expected["probabilities"],
            [
                list(row["probabilities"].values())
                for row in model.predict(rows)
            ],
            rtol=0,
            atol=1e-5,
        )
        parsed = loaded["from_examples"](
            examples=tf.constant(serialized, tf.string)
        )
        self.assertAllEqual(parsed["label"], expected["label"])
        self.assertAllEqual(parsed["probabilities"], expected["probabilities"])
        classified = loaded["classify"](
            inputs=tf.constant(serialized, tf.string)
        )
        self.assertAllEqual(classified["scores"], expected["probabilities"])
        self.assertAllEqual(
            classified["classes"],
            [[label.encode() for label in tiny_exports.LABELS]] * 3,
        )

    def test_an_empty_batch_has_an_empty_answer(self):
        none = tf.zeros([0], tf.string)
        for name, inputs in (
            ("serving_default", {"text": none, "text_pair": none}),
            ("from_examples", {"examples": none}),
            ("classify", {"inputs": none}),
        ):
            for output in self.loaded[name](**inputs).values():
                self.assertAllEqual(output.shape[0], 0)

    def test_rows_are_padded_to_the_smallest_bucket(self):
        loaded = self.loaded["attention"]
        for text, length in (
            ("cat", 5),
            ("the cat sat on", 8),
            ("cat " * 9, 12),
        ):
            outputs = loaded(
                text=tf.constant([text, "dog"]), text_pair=tf.constant([""] * 2)
            )
            self.assertEqual(
                outputs["attention"].shape, [2, 1, 2, length, length]
            )
            tokens = text.split()[: length - 2]
            tokens = ["[CLS]", *tokens, "[SEP]"]
            tokens += [""] * (length - len(tokens))
            self.assertAllEqual(
                outputs["tokens"][0], [token.encode() for token in tokens]
            )
            self.assertAllClose(
                tf.reduce_sum(outputs["attention"], -1),
                np.ones([2, 1, 2, length]),
            )

    def test_half_precision_stores_bfloat16(self):
        output_dir = os.path.join(self.folder, "half")
        version = tiny_exports.export(
            self.model_dir, output_dir, precision="bfloat16", version=7
        )
        self.assertEqual(os.path.basename(version), "7")

        def size(path):
            folder = os.path.join(path, "variables")
            return sum(
                os.path.getsize(os.path.join(folder, name))
                for name in os.listdir(folder)
            )

        self.assertLess(size(version), 0.6 * size(self.version))
        strings = {
            "text": tf.constant(["the cat", "東 dog . mat"]),
            "text_pair": tf.constant(["dog", "mat , the"]),
        }
        exact, rounded = (
            loaded["serving_default"](**strings)
            for loaded in (self.loaded, tf.saved_model.load(version).signatures)
        )
        self.assertEqual(rounded["probabilities"].dtype, tf.float32)
        self.assertAllClose(
            rounded["probabilities"], exact["probabilities"], atol=2e-2
        )


def _logits(outputs):
    return {x: t for x, t in outputs.items() if x.endswith("logits")}


class ComputeTest(tf.test.TestCase, parameterized.TestCase):
    def test_parts_have_at_most_the_given_number_of_rows(self):
        counts = []

        def model(inputs, training):
            self.assertFalse(training)
            ids = inputs["input_ids"]
            # Notes the rows of each part, in the order of computation.
            count = tf.py_function(
                lambda x: counts.append(len(x)) or len(x), [ids], tf.int32
            )
            with tf.control_dependencies([count]):
                return {"logits": tf.cast(ids, tf.float32), "states": ids}

        compute = tf.function(
            lambda ids, most: serving_module.compute(
                model, {"input_ids": ids}, most, _logits
            ),
            input_signature=[
                tf.TensorSpec([None, 2], tf.int32),
                tf.TensorSpec([], tf.int32),
            ],
        )
        ids = tf.reshape(tf.range(22), [11, 2])
        for most, expected in ((4, [4, 4, 3]), (11, [11])):
            counts.clear()
            outputs = compute(ids, tf.constant(most))
            self.assertAllEqual(outputs["logits"], ids)
            self.assertEqual(list(outputs), ["logits"])
            self.assertEqual(counts, expected)


_SPECS = {
    "text": tf.TensorSpec([None], tf.string),
    "choices": tf.TensorSpec([None, None], tf.string),
}


class ExamplesTest(tf.test.TestCase):
    def test_an_example_without_text_fails(self):
        without = reference.to_examples([{"choices": ["a"]}]).tolist()
        for wrong in (without, [b"no example"]):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                serving_module.parse_examples(tf.constant(wrong), _SPECS)


_CALL = Call("serving_default", {"text": np.array([b"the cat", b"a"], object)})


def _few(plan):
    """Verifies only a few texts, to save time."""

    def planned(*args):
        found = [
            one
            for one in plan(*args)
            if one.signature != serving_module.TOKENIZE
        ]
        return found[:: max(1, len(found) // 12)]

    return planned


@pytest.mark.slow
class LitertExportTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = tiny_exports.write(folder, tiny_exports.classification())
        output_dir = os.path.join(folder, "m")
        with (
            mock.patch.object(Reference, "plan", _few(Reference.plan)),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            savedmodel.run(
                SavedModelConfig(
                    model_dir=model,
                    output_dir=output_dir,
                    buckets=tiny_exports.BUCKETS,
                    litert=True,
                    # int8 would leave so few weights in float32.
                    litert_quantization="float16",
                )
            )
        cls.version = os.path.join(output_dir, "1")
        cls.card = json.loads(
            files.read_bytes(os.path.join(cls.version, artifacts.CARD_FILE))
        )

    def test_card_has_the_difference_of_each_engine(self):
        found = {one["check"]: one for one in self.card["verification"]}
        exact = found["serving_default by LiteRT (float32)"]
        rounded = found["serving_default by LiteRT (float16)"]
        self.assertLess(exact["largest_difference"], 1e-5)
        self.assertGreater(rounded["largest_difference"], 1e-5)
        self.assertRegex(rounded["detail"], r"%.* decisions agree")
        self.assertIn("from_ids by LiteRT (float32)", found)
        warmup = found["warm-up by LiteRT (float16)"]
        self.assertIn("one row takes", warmup["detail"])
        export = self.card["export"]
        self.assertEqual(
            {x: export[x] for x in ("model_name", "litert", "buckets")},
            {"model_name": "m", "litert": "float16", "buckets": [5, 8, 12]},
        )
        self.assertFalse(export["settings"]["pair"])
        self.assertContainsSubset(
            {litert.MODEL_FILE, "litert/saved_model.pb"}, self.card["sha256"]
        )

    def test_graph_around_the_model_has_no_weights(self):
        folder = os.path.join(self.version, litert.FOLDER, "variables")
        sizes = [
            os.path.getsize(os.path.join(folder, name))
            for name in os.listdir(folder)
        ]
        self.assertLess(sum(sizes), 10_000)

    def test_finds_and_counts_differences(self):
        content = files.read_bytes(
            os.path.join(self.version, litert.MODEL_FILE)
        )
        load = litert.LitertEngine().load
        (answer,) = verification.call(self.version, [_CALL], load)
        other = {
            "probabilities": answer.outputs["probabilities"] + 0.01,
            "label": np.array([answer.outputs["label"][0], b"other"], object),
        }
        for values, largest, share, num_faults in (
            (answer.outputs, 0, "100.00% of 2", 0),
            (other, 0.01, "50.00% of 2", 2),
        ):
            exactly, rounded, warmups = verification.examine_litert(
                self.version,
                "float16",
                [dataclasses.replace(_CALL, expected=Expected(values))],
                [dataclasses.replace(_CALL, repeats=2)],
                content,
            )
            self.assertLen(exactly.faults, num_faults)
            self.assertEmpty(rounded.faults)
            self.assertAllClose(rounded.largest, largest)
            self.assertIn(share, rounded.detail)
            self.assertEmpty(warmups.faults)


if __name__ == "__main__":
    tf.test.main()
