"""Tests for export.serving_module with a classifier of pairs."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.protobuf import saved_model_pb2

import bert_tf
from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.export import serving_module
from bert_tf.export.verify import reference
from bert_tf.modeling import task_models
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
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
        config = BertConfig(
            vocab_size=len(tiny_model.TOKENS),
            hidden_size=128,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=12,
            hidden_act="gelu_erf",
        )
        task = tiny_exports.classification(pair=True)
        model = task_models.BertForClassification(config, labels=task.labels)
        vocabulary = Vocabulary(tiny_model.TOKENS)
        cls.model_dir = os.path.join(cls.folder, "model")
        model_directory.write(
            cls.model_dir,
            config,
            tiny_model.random_weights(model, scale=0.1),
            vocabulary,
            BertTokenizer(vocabulary).settings(),
            {"kind": task.kind} | task.to_json(),
            "# Small\n",
        )
        cls.output_dir = os.path.join(cls.folder, "served", "name")
        cls.version = tiny_exports.export(cls.model_dir, cls.output_dir)
        cls.graph = _read(cls.version)
        cls.loaded = tf.saved_model.load(cls.version).signatures

    def test_signatures_have_names_dtypes_and_shapes(self):
        strings, numbers = tf.string.as_datatype_enum, tf.float32
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
        texts = {"text": (strings, [-1]), "text_pair": (strings, [-1])}
        answer = {
            "label": (strings, [-1]),
            "probabilities": (numbers, [-1, 3]),
        }
        ids = ("input_ids", "input_mask", "segment_ids")
        tokens = [-1, -1]
        self.assertEqual(
            described,
            {
                "serving_default": (texts, answer),
                "from_examples": ({"examples": (strings, [-1])}, answer),
                "from_ids": (
                    dict.fromkeys(ids, (integers, tokens)),
                    answer | {"logits": (numbers, [-1, 3])},
                ),
                "classify": (
                    {"inputs": (strings, [-1])},
                    {
                        "classes": (strings, [-1, 3]),
                        "scores": (numbers, [-1, 3]),
                    },
                ),
                "tokenize": (
                    {"text": (strings, [-1])},
                    {
                        "input_ids": (integers, tokens),
                        "tokens": (strings, tokens),
                        "starts": (integers, tokens),
                        "ends": (integers, tokens),
                    },
                ),
                "attention": (
                    texts,
                    {
                        "tokens": (strings, tokens),
                        "attention": (numbers, [-1, 1, 2, -1, -1]),
                    },
                ),
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
        # Several lengths, with an empty second text and an empty first one.
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
        # The library rejects empty texts, but not texts without tokens.
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
            for loaded in (
                self.loaded,
                tf.saved_model.load(version).signatures,
            )
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
            # In order, as the parts are computed one by one.
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


if __name__ == "__main__":
    tf.test.main()
