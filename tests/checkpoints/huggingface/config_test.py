"""Tests for config.json of Hugging Face's format."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.huggingface import model as huggingface
from tests.support import huggingface_case as case
from tests.support import tiny_layers


class ConfigTest(case.DirectoryCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        "albert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "mobilebert",
        "roberta",
        "xlm-roberta",
        None,
    )
    def test_other_architectures_are_refused_by_name(self, model_type):
        self.write_all(model_type=model_type)
        self.assert_refused(f"another architecture.*received {model_type!r}")

    @parameterized.parameters(
        "BertLMHeadModel", "RobertaForMaskedLM", "DistilBertModel"
    )
    def test_other_classes_are_refused_by_name(self, name):
        self.write_all(architectures=[name], model_type="absent")
        self.assert_refused(rf"must name one of.*Received: \['{name}'\]")

    @parameterized.parameters(
        (["HF_ColBERT"], "BertModel", {"linear.weight": (4, 8)}, "encoder"),
        (
            ["BertForNER"],
            "BertForTokenClassification",
            {"crf.transitions": (3, 3)},
            "encoder",
        ),
        (["BertLMHeadModel"], "BertForMaskedLM", {}, "masked_lm"),
        (["My", "BertForMaskedLM"], "BertForMaskedLM", {}, "masked_lm"),
        ("BertModel", "BertModel", {}, "encoder"),
    )
    def test_classes_of_users(self, names, weights, others, kind):
        values = case.make_values(weights)
        values |= {name: np.zeros(x, np.float32) for name, x in others.items()}
        self.write_all(weights, values, architectures=names)
        stored = self.read()
        self.assertEqual(stored.task["kind"], kind)
        read = stored.weights["bert/embeddings/word_embeddings"]
        self.assertAllEqual(
            read, values["bert.embeddings.word_embeddings.weight"]
        )
        for name in others:
            self.assertIn(name, str(stored.report.notes))
        del values["bert.encoder.layer.1.output.dense.bias"]
        self.write_all(weights, values, architectures=names)
        self.assert_refused("lacks bert.encoder.layer.1.output.dense.bias")

    def test_old_configs_without_model_type_and_class(self):
        self.write_all(
            "BertForPreTraining", architectures="absent", model_type="absent"
        )
        self.assertEqual(self.read().task["kind"], "pretraining")

    def test_a_classifier_needs_its_class(self):
        self.write_all("BertForTokenClassification", architectures=None)
        self.assert_refused("lacks `architectures`.*BertForSequenceClassif")

    def test_missing_keys_have_hugging_faces_defaults(self):
        config, _ = huggingface.to_bert_config({}, "there")
        self.assertEqual(
            config.to_dict(),
            {
                "attention_probs_dropout_prob": 0.1,
                "hidden_act": "gelu_erf",
                "hidden_dropout_prob": 0.1,
                "hidden_size": 768,
                "initializer_range": 0.02,
                "intermediate_size": 3072,
                "max_position_embeddings": 512,
                "num_attention_heads": 12,
                "num_hidden_layers": 12,
                "type_vocab_size": 2,
                "vocab_size": 30522,
            },
        )

    @parameterized.parameters(
        ("gelu", "gelu_erf", "gelu"),
        ("gelu_python", "gelu_erf", "gelu"),
        ("gelu_new", "gelu", "gelu_new"),
        ("gelu_pytorch_tanh", "gelu", "gelu_new"),
        ("gelu_python_tanh", "gelu", "gelu_new"),
        ("gelu_fast", "gelu", "gelu_new"),
        ("gelu_accurate", "gelu", "gelu_new"),
        ("relu", "relu", "relu"),
        ("tanh", "tanh", "tanh"),
        ("linear", "linear", "linear"),
    )
    def test_activations_are_translated_with_a_note(self, theirs, ours, back):
        self.write_all(hidden_act=theirs)
        stored = self.read()
        self.assertEqual(stored.config.hidden_act, ours)
        path, sentences = self.written(stored)
        self.assertEqual(
            case.read_json(path, "config.json")["hidden_act"], back
        )
        is_gelu = ours.startswith("gelu")
        form = "exact" if ours == "gelu_erf" else "tanh"
        for notes in (stored.report.notes, sentences):
            self.assertEqual(
                is_gelu,
                f'"{theirs}"' in str(notes) or f'"{back}"' in str(notes),
            )
            self.assertEqual(is_gelu, form in str(notes))

    @parameterized.parameters("silu", "gelu_10", "quick_gelu", None, 3)
    def test_other_activations_are_refused(self, name):
        self.write_all(hidden_act=name)
        self.assert_refused(f"`hidden_act` must be one of.*{name!r}")

    @parameterized.parameters(
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("embedding_size", 4),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"quant_method": "bitsandbytes"}),
        ("auto_map", {"AutoModel": "modeling_x.XModel"}),
    )
    def test_settings_that_change_the_computation_are_refused(self, key, value):
        self.write_all(**{key: value})
        self.assert_refused(f"something else than BERT: {key}=")

    def test_inactive_settings_pass_and_other_keys_are_listed(self):
        self.write_all(
            position_embedding_type="absolute",
            is_decoder=False,
            embedding_size=8,
            pruned_heads={},
            quantization_config=None,
            torch_dtype="float32",
            use_cache=True,
            classifier_dropout=0.5,
            strange=1,
            temperature=0.7,
        )
        notes = " ".join(self.read().report.notes)
        self.assertIn("not carried: strange, temperature.", notes)
        self.assertIn("classifier_dropout=0.5 is not carried", notes)

    def test_sizes_must_fit(self):
        self.write_all(hidden_size=9)
        self.assert_refused("`num_attention_heads` must divide")
        self.write_all(hidden_size="8")
        self.assert_refused("`hidden_size` must be of type int")
        self.write_all(type_vocab_size=2)
        self.assert_refused(r"token_type_embeddings.weight \(3, 8\)")

    @parameterized.parameters(
        ("regression", "regression"),
        ("single_label_classification", "single_label"),
        ("multi_label_classification", "multi_label"),
        (None, None),
    )
    def test_problem_type(self, theirs, ours):
        self.write_all("BertForSequenceClassification", problem_type=theirs)
        stored = self.read()
        self.assertEqual(stored.task.get("problem_type"), ours)
        path, _ = self.written(stored)
        self.assertEqual(
            case.read_json(path, "config.json")["problem_type"], theirs
        )

    @parameterized.parameters("x", (["regression"],))
    def test_an_unknown_problem_type(self, problem_type):
        self.write_all(
            "BertForSequenceClassification", problem_type=problem_type
        )
        self.assert_refused("`problem_type` must be one of")

    def test_default_labels(self):
        self.write_all("BertForTokenClassification")
        self.assertEqual(
            self.read().task["labels"], ["LABEL_0", "LABEL_1", "LABEL_2"]
        )

    def test_labels_are_ordered_by_number(self):
        names = {"10": "k"} | {str(9 - i): f"l{9 - i}" for i in range(10)}
        values = case.make_values("BertForTokenClassification") | {
            "classifier.weight": tiny_layers.normal(11, 8),
            "classifier.bias": tiny_layers.normal(11),
        }
        self.write_all("BertForTokenClassification", values, id2label=names)
        self.assertEqual(
            self.read().task["labels"], [f"l{i}" for i in range(10)] + ["k"]
        )

    @parameterized.parameters(
        ({"0": "a", "1": "b"}, "as many labels as the classifier has rows, 3"),
        ({"0": "a", "1": "b", "3": "c"}, "must be the numbers from 0 on"),
        (["a", "b", "c"], "must be the numbers from 0 on"),
        ({}, "must be the numbers from 0 on"),
    )
    def test_wrong_labels_are_refused(self, names, message):
        self.write_all("BertForSequenceClassification", id2label=names)
        self.assert_refused(message)


if __name__ == "__main__":
    tf.test.main()
