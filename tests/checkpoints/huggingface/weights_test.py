"""Tests for the weights of Hugging Face directories."""

import os
import re

import ml_dtypes
import numpy as np
import safetensors.numpy
import tensorflow as tf
from absl.testing import parameterized

from tests.support import huggingface_case as case
from tests.support import tiny_layers


class WeightsTest(case.DirectoryCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*(name for _, name, _ in case.CLASSES))
    def test_prefixed_and_bare_and_old_names(self, name):
        values = case.make_values(name)
        self.write_all(name, values)
        expected = dict(self.read().weights)

        def old(key):
            key = key.replace("LayerNorm.weight", "LayerNorm.gamma")
            return key.replace("LayerNorm.bias", "LayerNorm.beta")

        renamed = {old(key): x for key, x in case.bare(values).items()}
        self.write_all(name, renamed)
        stored = self.read()
        self.assertEqual(set(stored.weights), set(expected))
        for key, value in expected.items():
            self.assertAllEqual(stored.weights[key], value, key)

    def test_buffers_and_copies_are_expected(self):
        values = case.make_values("BertForMaskedLM")
        copies = {
            "bert.embeddings.position_ids": np.arange(7)[np.newaxis],
            "cls.predictions.decoder.weight": values[
                "bert.embeddings.word_embeddings.weight"
            ],
            "cls.predictions.decoder.bias": values["cls.predictions.bias"],
        }
        self.write_all("BertForMaskedLM", values | copies)
        stored = self.read()
        self.assertSameElements(stored.report.expected, copies)
        self.assertLen(stored.weights, len(values))

    def test_a_copy_may_stand_alone(self):
        values = case.make_values("BertForMaskedLM")
        bias = values.pop("cls.predictions.bias")
        table = values.pop("bert.embeddings.word_embeddings.weight")
        values["cls.predictions.decoder.bias"] = bias
        values["cls.predictions.decoder.weight"] = table
        self.write_all("BertForMaskedLM", values)
        weights = self.read().weights
        self.assertAllEqual(weights["cls/predictions/output_bias"], bias)
        self.assertAllEqual(weights["bert/embeddings/word_embeddings"], table)

    @parameterized.parameters("weight", "bias")
    def test_an_untied_decoder_is_refused(self, suffix):
        values = case.make_values("BertForMaskedLM")
        shape = (19, 8) if suffix == "weight" else (19,)
        name = f"cls.predictions.decoder.{suffix}"
        values[name] = tiny_layers.normal(*shape, seed=99)
        self.write_all("BertForMaskedLM", values, tie_word_embeddings=False)
        self.assert_refused(f"{name} must equal .*one table for both")

    @parameterized.parameters(
        ("float16", "F16"), ("bfloat16", "BF16"), ("float64", "F64")
    )
    def test_other_precisions_become_float32(self, dtype, label):
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        values = {
            name: x.astype(dtype) for name, x in case.make_values().items()
        }
        self.write_all(values=values)
        stored = self.read()
        name = "bert/encoder/layer_0/output/dense/kernel"
        self.assertEqual(stored.weights[name].dtype, np.float32)
        theirs = values["bert.encoder.layer.0.output.dense.weight"]
        self.assertAllEqual(stored.weights[name], theirs.astype("float32").T)
        self.assertIn(f"type {label}, which become float32", str(stored.report))

    def test_quantized_weights_are_refused(self):
        name = "bert.pooler.dense.weight"
        values = case.make_values()
        values[name] = np.arange(64, dtype=np.int8).reshape(8, 8)
        self.write_all(values=values)
        self.assert_refused(f"quantized .*but {name} is I8")

    def test_half_a_head_extra_tensors_and_shapes_are_refused(self):
        values = case.make_values("BertForPreTraining")
        del values["cls.predictions.transform.dense.bias"]
        values["lm_head.weight"] = np.ones((2, 2), np.float32)
        values["bert.pooler.dense.bias"] = np.ones(9, np.float32)
        self.write_all("BertForPreTraining", values)
        self.assert_refused(
            r"lacks cls.predictions.transform.dense.bias; it also has "
            r"lm_head.weight; it has in another shape bert.pooler.dense.bias"
        )

    def test_allowed_missing_weights_get_initial_values(self):
        values = case.make_values("BertForPreTraining")
        del values["cls.predictions.transform.dense.bias"]
        values["lm_head.weight"] = np.ones((2, 2), np.float32)
        self.write_all("BertForPreTraining", values)
        stored = self.read(allow_missing=re.compile("transform|^lm_head"))
        self.assertEqual(
            stored.report.missing, ("cls/predictions/transform/dense/bias",)
        )
        self.assertEqual(stored.report.unused, ("lm_head.weight",))
        self.assertEqual(stored.task["kind"], "pretraining")

    def test_one_weight_under_two_names(self):
        values = case.make_values()
        values["pooler.dense.bias"] = np.ones(8, np.float32)
        self.write_all(values=values)
        self.assert_refused(r"one weight twice, .*pooler.dense.bias and as")

    @parameterized.parameters(
        ("BertForMaskedLM", case.POOLER, "cls.predictions.bias"),
        ("BertForSequenceClassification", case.POOLER, "classifier.weight"),
        (
            "BertForSequenceClassification",
            case.HEADS["BertForTokenClassification"],
            "bert.pooler.dense.weight",
        ),
        (
            "BertForPreTraining",
            case.POOLER | case.MASKED_LM,
            "cls.seq_relationship",
        ),
        (
            "BertForPreTraining",
            case.MASKED_LM | case.NEXT_SENTENCE,
            "bert.pooler",
        ),
        ("BertModel", case.NEXT_SENTENCE, "bert.pooler"),
    )
    def test_a_class_must_have_its_heads(self, name, heads, lacking):
        values = {
            key: x
            for key, x in (
                case.make_values("BertForPreTraining")
                | case.make_values("BertForSequenceClassification")
            ).items()
            if key.startswith(("bert.em", "bert.enc")) or key in heads
        }
        self.write_all(name, values)
        self.assert_refused(f"lacks .*{lacking}.*allow_missing")

    def test_a_head_may_be_allowed_to_be_absent(self):
        self.write_all("BertForMaskedLM", case.make_values())
        stored = self.read(allow_missing=re.compile(r"^cls\.predictions"))
        self.assertEqual(stored.task["kind"], "encoder")
        self.assertEqual(stored.report.absent_heads, ("cls/predictions",))

    def test_heads_beyond_the_class_are_kept(self):
        """The original's checkpoints have more heads than their class."""
        self.write_all(
            "BertForMaskedLM", case.make_values("BertForPreTraining")
        )
        stored = self.read()
        self.assertEqual(stored.task["kind"], "pretraining")
        self.assertIn("cls/seq_relationship/output_bias", stored.weights)

    @parameterized.parameters(
        ("BertForTokenClassification", "tagging"),
        ("BertForQuestionAnswering", "question_answering"),
    )
    def test_the_class_determines_the_kind_of_a_fine_tuned_model(
        self, name, kind
    ):
        more = case.make_values("BertForPreTraining") | case.make_values(
            "BertForQuestionAnswering"
        )
        self.write_all(name, more | case.make_values(name))
        stored = self.read()
        self.assertEqual(stored.task["kind"], kind)
        self.assertIn("cls/predictions/output_bias", stored.weights)

    def test_an_encoder_without_pooler(self):
        values = {
            n: x for n, x in case.make_values().items() if "pooler" not in n
        }
        self.write_all(values=case.bare(values))
        stored = self.read()
        self.assertEqual(stored.report.absent_heads, ("bert/pooler",))
        path, sentences = self.written(stored)
        self.assertIn("add_pooling_layer=False", " ".join(sentences))
        written = safetensors.numpy.load_file(
            os.path.join(path, "model.safetensors")
        )
        self.assertEqual(set(written), set(case.bare(values)))


if __name__ == "__main__":
    tf.test.main()
