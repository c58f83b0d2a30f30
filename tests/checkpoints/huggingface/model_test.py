"""Tests for bert_tf.checkpoints.huggingface.model: directories as a whole."""

import dataclasses
import os
import re
import sys
from unittest import mock

import ml_dtypes
import numpy as np
import safetensors.numpy
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from tests.support import huggingface_case as case
from tests.support import tiny_layers


class FilesTest(case.DirectoryCase):
    def _shard(self, suffix="safetensors"):
        """Splits the weights into two files; returns the index."""
        self.write_all()
        self.remove("model.safetensors")
        values = case.make_values()
        places = {
            name: f"model-0000{1 + index % 2}-of-00002.{suffix}"
            for index, name in enumerate(values)
        }
        for file in set(places.values()):
            part = {n: x for n, x in values.items() if places[n] == file}
            self.write(file, safetensors.numpy.save(part))
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        self.write("model.safetensors.index.json", index)
        return index

    def test_shards_read_as_one_file_does(self):
        self._shard()
        self.assertTrue(huggingface.recognizes(self.path))
        sharded = self.read().weights
        self.write_all()
        whole = self.read().weights
        self.assertAllClose(sharded, whole, rtol=0, atol=0)

    def test_refuses_a_missing_shard(self):
        self._shard()
        self.remove("model-00002-of-00002.safetensors")
        self.assert_refused("names model-00002-of-00002.safetensors, which")

    @parameterized.parameters("moved", "lost", "unlisted")
    def test_refuses_an_index_that_does_not_fit(self, fault):
        index = self._shard()
        places = index["weight_map"]
        name = "bert.pooler.dense.bias"
        if fault == "moved":
            places[name] = places["bert.pooler.dense.weight"]
        elif fault == "lost":
            places["bert.extra"] = places[name]
        else:
            del places[name]
        self.write("model.safetensors.index.json", index)
        self.assert_refused("do not agree on what each holds, first on bert")

    @parameterized.parameters(
        ("{}",),
        ("[]",),
        ('{"weight_map": {"a": "../b.safetensors"}}',),
        ('{"weight_map": {"a": 3}}',),
    )
    def test_refuses_an_index_without_a_weight_map(self, contents):
        self._shard()
        self.write("model.safetensors.index.json", contents)
        self.assert_refused("'weight_map'|must hold one JSON object")

    @parameterized.parameters(
        "pytorch_model.bin", "pytorch_model.bin.index.json"
    )
    def test_pytorch_files_need_pytorch(self, name):
        self.write_all()
        self.remove("model.safetensors")
        self.write(name, {"weight_map": {"a": "pytorch_model-1.bin"}})
        self.write("pytorch_model-1.bin", b"")
        self.assertTrue(huggingface.recognizes(self.path))
        with mock.patch.dict(sys.modules, {"torch": None}):
            self.assert_refused("needs PyTorch, which is not installed; `pip")


class WriteTest(case.DirectoryCase):
    def _stored(self, architecture="BertForPreTraining", **changes):
        self.write_all(architecture)
        stored = self.read()
        return dataclasses.replace(stored, **changes)

    def test_writes_weights_of_the_class_alone(self):
        stored = self._stored(task={"kind": "masked_lm", "max_seq_length": 6})
        path, _ = self.written(stored)
        written = safetensors.numpy.load_file(
            os.path.join(path, "model.safetensors")
        )
        self.assertEqual(set(written), set(case.make_values("BertForMaskedLM")))

    @parameterized.parameters(
        ("left_to_right", "is bidirectional"),
        ("pooler", "lacks bert/pooler, which Hugging Face's BertForSequence"),
    )
    def test_refuses_before_writing(self, fault, message):
        stored = self._stored("BertForSequenceClassification")
        changes = {
            "left_to_right": {
                "config": dataclasses.replace(stored.config, left_to_right=True)
            },
            "pooler": {
                "weights": stored.weights.select(lambda n: "pooler" not in n)
            },
        }[fault]
        stored = dataclasses.replace(stored, **changes)
        path = self.create_tempdir().full_path
        with self.assertRaisesRegex(UserError, message):
            huggingface.write_model(path, stored)
        self.assertEmpty(os.listdir(path))

    def test_holds_one_tensor_at_a_time(self):
        """Reads source tensors while it writes, so only one is in memory."""
        stored = self._stored()
        reads = []

        def read(name):
            path = os.path.join(target, "model.safetensors")
            reads.append(os.path.exists(path))
            return stored.weights[name]

        target = self.create_tempdir().full_path
        weights = Tensors(stored.weights.shapes, read)
        huggingface.write_model(
            target, dataclasses.replace(stored, weights=weights)
        )
        self.assertLen(reads, len(stored.weights))
        self.assertTrue(all(reads))


_CLASSIFIER = {"architecture": "BertForSequenceClassification"}
_NUMBERED = "by the numbers from 0 on"
# Values of config.json, and a pattern of the message that refuses them.
_REFUSED = (
    *(
        ({"model_type": x}, f"another architecture.*received {x!r}")
        for x in ("albert", "deberta-v2", "distilbert", "electra", None)
    ),
    *(
        (
            {"architectures": [x], "model_type": "absent"},
            rf"must name one of.*Received: \['{x}'\]",
        )
        for x in ("BertLMHeadModel", "RobertaForMaskedLM", "DistilBertModel")
    ),
    (
        {"architecture": "BertForTokenClassification", "architectures": None},
        "lacks `architectures`.*BertForSequenceClassif",
    ),
    *(
        ({"hidden_act": x}, f"'hidden_act' must be one of.*{x!r}")
        for x in ("silu", "gelu_10", "quick_gelu", None, 3)
    ),
    *(
        ({key: value}, f"something else than BERT: {key}=")
        for key, value in (
            ("position_embedding_type", "relative_key"),
            ("is_decoder", True),
            ("add_cross_attention", True),
            ("is_encoder_decoder", True),
            ("embedding_size", 4),
            ("pruned_heads", {"0": [1]}),
            ("quantization_config", {"quant_method": "bitsandbytes"}),
            ("auto_map", {"AutoModel": "modeling_x.XModel"}),
        )
    ),
    *(
        (_CLASSIFIER | {"problem_type": x}, "'problem_type' must be one of")
        for x in ("x", ["regression"])
    ),
    *(
        (_CLASSIFIER | {"id2label": x}, message)
        for x, message in (
            ({"0": "a", "1": "b"}, "as the classifier has rows, 3"),
            ({"0": "a", "1": "b", "3": "c"}, _NUMBERED),
            (["a", "b", "c"], _NUMBERED),
            ({}, _NUMBERED),
        )
    ),
)


class ConfigTest(case.DirectoryCase):
    @parameterized.parameters(*_REFUSED)
    def test_refuses_unsupported_configs(self, config, message):
        self.write_all(**config)
        self.assert_refused(message)

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
    def test_reads_classes_of_users(self, names, weights, others, kind):
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

    def test_reads_old_configs_without_model_type_and_class(self):
        self.write_all(
            "BertForPreTraining", architectures="absent", model_type="absent"
        )
        self.assertEqual(self.read().task["kind"], "pretraining")

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

    @parameterized.parameters(
        ("regression", "regression"),
        ("single_label_classification", "single_label"),
        ("multi_label_classification", "multi_label"),
        (None, None),
    )
    def test_problem_type_survives_a_round_trip(self, theirs, ours):
        self.write_all("BertForSequenceClassification", problem_type=theirs)
        stored = self.read()
        self.assertEqual(stored.task.get("problem_type"), ours)
        path, _ = self.written(stored)
        self.assertEqual(
            case.read_json(path, "config.json")["problem_type"], theirs
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


class WeightsTest(case.DirectoryCase):
    @parameterized.parameters(*(name for _, name, _ in case.CLASSES))
    def test_reads_prefixed_bare_and_old_names(self, name):
        values = case.make_values(name)
        self.write_all(name, values)
        expected = dict(self.read().weights)

        def old(key):
            key = key.replace("LayerNorm.weight", "LayerNorm.gamma")
            return key.replace("LayerNorm.bias", "LayerNorm.beta")

        renamed = {old(key): x for key, x in case.bare(values).items()}
        self.write_all(name, renamed)
        stored = self.read()
        self.assertAllClose(stored.weights, expected, rtol=0, atol=0)

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
        notes = " ".join(stored.report.notes)
        self.assertIn(f"type {label}, which become float32", notes)

    def test_quantized_weights_are_refused(self):
        name = "bert.pooler.dense.weight"
        values = case.make_values()
        values[name] = np.arange(64, dtype=np.int8).reshape(8, 8)
        self.write_all(values=values)
        self.assert_refused(f"quantized .*but {name} is I8")

    def test_refuses_one_weight_under_two_names(self):
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
        """Reads more heads than the class has, as in the original's models."""
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

    def test_an_encoder_may_lack_a_pooler(self):
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


class SentenceFilesTest(case.DirectoryCase):
    """Files of sentence-transformers: modules.json and its folders."""

    def _write(self, pooling, *modules, **settings):
        self.write_all()
        names = ("Transformer", "Pooling", *modules)
        values = [
            {"path": f"{n}_{x}" if n else "", "type": f"a.models.{x}"}
            for n, x in enumerate(names)
        ]
        self.write("modules.json", values)
        os.makedirs(f"{self.path}/1_Pooling", exist_ok=True)
        self.write("1_Pooling/config.json", pooling)
        self.write("sentence_bert_config.json", settings)

    @parameterized.parameters(
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        (
            {
                "pooling_mode_mean_sqrt_len_tokens": True,
                "pooling_mode_max_tokens": True,
            },
            "max+mean_sqrt_len",
        ),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean", "cls"]}, "mean+cls"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
    )
    def test_pooling_becomes_task_settings(self, pooling, expected):
        self._write(pooling, "Normalize", max_seq_length=5)
        stored = self.read()
        settings = {"pooling": expected, "normalize": True, "max_seq_length": 5}
        self.assertEqual(stored.task, {"kind": "encoder", **settings})
        _, sentences = self.written(stored)
        self.assertIn("no place for max_seq_length", " ".join(sentences))

    def test_other_modules_are_named(self):
        self._write({"pooling_mode": "mean"}, "Dense", "Dropout")
        self.write(
            "config_sentence_transformers.json",
            {"default_prompt_name": "q", "prompts": {"q": "query: "}},
        )
        task = self.read().task
        self.assertEqual(task["pooling"], "mean+Dense+default_prompt_name")
        self.assertFalse(task["normalize"])

    def test_length_comes_from_the_tokenizer(self):
        self._write({"pooling_mode": "mean"})
        tokenizer = case.read_json(self.path, "tokenizer_config.json")
        tokenizer["model_max_length"] = 6
        self.write("tokenizer_config.json", tokenizer)
        self.assertEqual(self.read().task["max_seq_length"], 6)

    def test_pooling_names_lower_case_of_a_cased_model(self):
        self._write({"pooling_mode": "mean"}, do_lower_case=True)
        self.assertEqual(self.read().task["pooling"], "mean")
        tokenizer = case.read_json(self.path, "tokenizer_config.json")
        tokenizer["do_lower_case"] = False
        self.write("tokenizer_config.json", tokenizer)
        self.assertEqual(self.read().task["pooling"], "mean+do_lower_case")

    def test_damaged_sentence_files_are_refused(self):
        self._write({"pooling_mode": "mean"})
        self.remove("1_Pooling/config.json")
        self.assert_refused("There is no .*1_Pooling/config.json")
        self.write("modules.json", {"idx": 0})
        self.assert_refused("modules.json must be a list of modules")


if __name__ == "__main__":
    tf.test.main()
