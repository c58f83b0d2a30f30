"""Tests for bert_tf.interop.huggingface and the modules beside it."""

import dataclasses
import json
import os
import re
import sys
from unittest import mock

import ml_dtypes
import numpy as np
import safetensors.numpy
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.interop import huggingface
from bert_tf.interop import huggingface_config
from bert_tf.interop.tensors import Tensors
from bert_tf.text.vocabulary import Vocabulary
from tests.modeling import tiny

_PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on mat ##s ##ting . , "
    "東 a b c"
).split()
# Everything that differs from what Hugging Face takes a missing key to be.
_CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 19,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "max_position_embeddings": 7,
    "type_vocab_size": 3,
    "initializer_range": 0.03,
    "layer_norm_eps": 1e-7,
}
_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

# Shapes in PyTorch's order, written down by hand: [out, in].
_EMBEDDINGS = {
    "word_embeddings.weight": (19, 8),
    "position_embeddings.weight": (7, 8),
    "token_type_embeddings.weight": (3, 8),
    "LayerNorm.weight": (8,),
    "LayerNorm.bias": (8,),
}
_LAYER = {
    "attention.self.query.weight": (8, 8),
    "attention.self.query.bias": (8,),
    "attention.self.key.weight": (8, 8),
    "attention.self.key.bias": (8,),
    "attention.self.value.weight": (8, 8),
    "attention.self.value.bias": (8,),
    "attention.output.dense.weight": (8, 8),
    "attention.output.dense.bias": (8,),
    "attention.output.LayerNorm.weight": (8,),
    "attention.output.LayerNorm.bias": (8,),
    "intermediate.dense.weight": (12, 8),
    "intermediate.dense.bias": (12,),
    "output.dense.weight": (8, 12),
    "output.dense.bias": (8,),
    "output.LayerNorm.weight": (8,),
    "output.LayerNorm.bias": (8,),
}
_POOLER = {"bert.pooler.dense.weight": (8, 8), "bert.pooler.dense.bias": (8,)}
_MASKED_LM = {
    "cls.predictions.bias": (19,),
    "cls.predictions.transform.dense.weight": (8, 8),
    "cls.predictions.transform.dense.bias": (8,),
    "cls.predictions.transform.LayerNorm.weight": (8,),
    "cls.predictions.transform.LayerNorm.bias": (8,),
}
_NEXT_SENTENCE = {
    "cls.seq_relationship.weight": (2, 8),
    "cls.seq_relationship.bias": (2,),
}


def _classifier(name, rows):
    return {f"{name}.weight": (rows, 8), f"{name}.bias": (rows,)}


# Kind, class, and what it has beside the encoder.
_CLASSES = (
    ("encoder", "BertModel", _POOLER),
    (
        "pretraining",
        "BertForPreTraining",
        _POOLER | _MASKED_LM | _NEXT_SENTENCE,
    ),
    ("masked_lm", "BertForMaskedLM", _MASKED_LM),
    (
        "next_sentence",
        "BertForNextSentencePrediction",
        _POOLER | _NEXT_SENTENCE,
    ),
    (
        "classification",
        "BertForSequenceClassification",
        _POOLER | _classifier("classifier", 3),
    ),
    ("tagging", "BertForTokenClassification", _classifier("classifier", 3)),
    (
        "question_answering",
        "BertForQuestionAnswering",
        _classifier("qa_outputs", 2),
    ),
    (
        "multiple_choice",
        "BertForMultipleChoice",
        _POOLER | _classifier("classifier", 1),
    ),
)
_HEADS = {name: heads for _, name, heads in _CLASSES}
_LABELS = ["no", "yes", "maybe"]


def _values(architecture="BertModel"):
    """Returns the tensors of a class, by the names that begin with bert."""
    shapes = {f"bert.embeddings.{n}": s for n, s in _EMBEDDINGS.items()}
    for n in range(2):
        shapes |= {f"bert.encoder.layer.{n}.{k}": s for k, s in _LAYER.items()}
    shapes |= _HEADS[architecture]
    return {
        name: tiny.normal(*shape, seed=index)
        for index, (name, shape) in enumerate(shapes.items())
    }


def _bare(values):
    return {name.removeprefix("bert."): x for name, x in values.items()}


def _tokenizer_json(pieces=_PIECES, added=(), **normalizer):
    """Returns what matters of a tokenizer.json."""
    return {
        "added_tokens": [{"id": i, "content": x} for i, x in added],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        }
        | normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
        },
    }


class _DirectoryTest(tf.test.TestCase, parameterized.TestCase):
    """Makes a directory, of which tests then spoil a part."""

    def setUp(self):
        super().setUp()
        self.path = self.create_tempdir().full_path

    def write(self, name, contents):
        if not isinstance(contents, (str, bytes)):
            contents = json.dumps(contents)
        if isinstance(contents, str):
            contents = contents.encode()
        with open(os.path.join(self.path, name), "wb") as file:
            file.write(contents)

    def remove(self, name):
        os.remove(os.path.join(self.path, name))

    def write_all(self, architecture="BertModel", values=None, **config):
        values = _values(architecture) if values is None else values
        config = _CONFIG | {"architectures": [architecture]} | config
        config = {key: x for key, x in config.items() if x != "absent"}
        self.write("config.json", config)
        self.write(
            "model.safetensors",
            safetensors.numpy.save(values, {"format": "pt"}),
        )
        self.write("vocab.txt", "\n".join(_PIECES) + "\n")
        self.write("tokenizer_config.json", {"do_lower_case": True} | _SPECIAL)

    def read(self, **options):
        return huggingface.read_model(self.path, **options)

    def assert_refused(self, message, **options):
        with self.assertRaisesRegex(UserError, message) as context:
            self.read(**options)
        text = str(context.exception)
        self.assertNotIn("\n", text)
        self.assertEndsWith(text, ".")

    def written(self, stored):
        """Writes a model; returns its directory and the sentences."""
        path = self.create_tempdir().full_path
        return path, huggingface.write_model(path, stored)


def _read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


class WeightsTest(_DirectoryTest):
    def test_orders_numbers_as_tensorflow_does(self):
        theirs = _values("BertForPreTraining")
        self.write_all("BertForPreTraining")
        stored = self.read()
        ours = stored.weights
        layer = "bert.encoder.layer.1."
        for name, expected in {
            "bert/embeddings/word_embeddings": theirs[
                "bert.embeddings.word_embeddings.weight"
            ],
            "bert/encoder/layer_1/intermediate/dense/kernel": theirs[
                f"{layer}intermediate.dense.weight"
            ].T,
            "bert/encoder/layer_1/attention/self/key/kernel": theirs[
                f"{layer}attention.self.key.weight"
            ].T,
            "bert/encoder/layer_1/output/LayerNorm/gamma": theirs[
                f"{layer}output.LayerNorm.weight"
            ],
            "bert/pooler/dense/kernel": theirs["bert.pooler.dense.weight"].T,
            "cls/predictions/output_bias": theirs["cls.predictions.bias"],
            "cls/seq_relationship/output_weights": theirs[
                "cls.seq_relationship.weight"
            ],
        }.items():
            self.assertAllEqual(ours[name], expected, name)
        self.assertLen(ours, len(theirs))
        self.assertEqual(stored.report.unused + stored.report.missing, ())
        self.assertEqual(stored.report.absent_heads, ())

    @parameterized.parameters(*_CLASSES)
    def test_every_kind_comes_out_as_it_went_in(self, kind, name, heads):
        del heads
        values = _values(name)
        # As transformers saves it: no prefix where there is no head.
        values = _bare(values) if name == "BertModel" else values
        labels = {str(i): label for i, label in enumerate(_LABELS)}
        has_labels = kind in ("classification", "tagging")
        self.write_all(
            name, values, id2label=labels if has_labels else "absent"
        )
        stored = self.read()
        self.assertEqual(stored.task["kind"], kind)
        self.assertEqual(
            stored.task.get("labels"), _LABELS if has_labels else None
        )
        path, _ = self.written(stored)
        with open(os.path.join(path, "model.safetensors"), "rb") as file:
            written = file.read()
        self.assertEqual(
            written, safetensors.numpy.save(values, {"format": "pt"})
        )
        config = _read_json(path, "config.json")
        for key, value in (_CONFIG | {"architectures": [name]}).items():
            self.assertEqual(config[key], value, key)
        if has_labels:
            self.assertEqual(config["id2label"], labels)
            self.assertEqual(
                config["label2id"], {"no": 0, "yes": 1, "maybe": 2}
            )

    @parameterized.parameters(*(name for _, name, _ in _CLASSES))
    def test_prefixed_and_bare_and_old_names(self, name):
        values = _values(name)
        self.write_all(name, values)
        expected = dict(self.read().weights)

        def old(key):
            key = key.replace("LayerNorm.weight", "LayerNorm.gamma")
            return key.replace("LayerNorm.bias", "LayerNorm.beta")

        renamed = {old(key): x for key, x in _bare(values).items()}
        self.write_all(name, renamed)
        stored = self.read()
        self.assertEqual(set(stored.weights), set(expected))
        for key, value in expected.items():
            self.assertAllEqual(stored.weights[key], value, key)

    def test_buffers_and_copies_hold_nothing_new(self):
        values = _values("BertForMaskedLM")
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
        values = _values("BertForMaskedLM")
        bias = values.pop("cls.predictions.bias")
        table = values.pop("bert.embeddings.word_embeddings.weight")
        values["cls.predictions.decoder.bias"] = bias
        values["cls.predictions.decoder.weight"] = table
        self.write_all("BertForMaskedLM", values)
        weights = self.read().weights
        self.assertAllEqual(weights["cls/predictions/output_bias"], bias)
        self.assertAllEqual(weights["bert/embeddings/word_embeddings"], table)

    @parameterized.parameters("weight", "bias")
    def test_a_decoder_of_its_own_is_refused(self, suffix):
        values = _values("BertForMaskedLM")
        shape = (19, 8) if suffix == "weight" else (19,)
        name = f"cls.predictions.decoder.{suffix}"
        values[name] = tiny.normal(*shape, seed=99)
        self.write_all("BertForMaskedLM", values, tie_word_embeddings=False)
        self.assert_refused(f"{name} must equal .*one table for both")

    @parameterized.parameters(
        ("float16", "F16"), ("bfloat16", "BF16"), ("float64", "F64")
    )
    def test_other_precisions_become_float32(self, dtype, said):
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        values = {name: x.astype(dtype) for name, x in _values().items()}
        self.write_all(values=values)
        stored = self.read()
        name = "bert/encoder/layer_0/output/dense/kernel"
        self.assertEqual(stored.weights[name].dtype, np.float32)
        theirs = values["bert.encoder.layer.0.output.dense.weight"]
        self.assertAllEqual(stored.weights[name], theirs.astype("float32").T)
        self.assertIn(f"type {said}, which become float32", str(stored.report))

    def test_quantized_weights_are_refused(self):
        name = "bert.pooler.dense.weight"
        values = _values()
        values[name] = np.arange(64, dtype=np.int8).reshape(8, 8)
        self.write_all(values=values)
        self.assert_refused(f"quantized .*but {name} is I8")

    def test_half_a_head_extra_tensors_and_shapes_are_refused(self):
        values = _values("BertForPreTraining")
        del values["cls.predictions.transform.dense.bias"]
        values["lm_head.weight"] = np.ones((2, 2), np.float32)
        values["bert.pooler.dense.bias"] = np.ones(9, np.float32)
        self.write_all("BertForPreTraining", values)
        self.assert_refused(
            r"lacks cls.predictions.transform.dense.bias; it has besides "
            r"lm_head.weight; it has in another shape bert.pooler.dense.bias"
        )

    def test_allowed_weights_begin_anew(self):
        values = _values("BertForPreTraining")
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
        values = _values()
        values["pooler.dense.bias"] = np.ones(8, np.float32)
        self.write_all(values=values)
        self.assert_refused(
            r"one weight twice, as (bert\.)?pooler.dense.bias and as "
            r"(bert\.)?pooler.dense.bias"
        )

    @parameterized.parameters(
        ("BertForMaskedLM", _POOLER, "cls.predictions.bias"),
        ("BertForSequenceClassification", _POOLER, "classifier.weight"),
        (
            "BertForSequenceClassification",
            _HEADS["BertForTokenClassification"],
            "bert.pooler.dense.weight",
        ),
        ("BertForPreTraining", _POOLER | _MASKED_LM, "cls.seq_relationship"),
        ("BertForPreTraining", _MASKED_LM | _NEXT_SENTENCE, "bert.pooler"),
        ("BertModel", _NEXT_SENTENCE, "bert.pooler"),
    )
    def test_a_class_must_have_its_heads(self, name, heads, lacking):
        values = {
            key: x
            for key, x in (
                _values("BertForPreTraining")
                | _values("BertForSequenceClassification")
            ).items()
            if key.startswith(("bert.em", "bert.enc")) or key in heads
        }
        self.write_all(name, values)
        self.assert_refused(f"lacks .*{lacking}.*allow_missing")

    def test_a_head_may_be_allowed_to_be_absent(self):
        self.write_all("BertForMaskedLM", _values())
        stored = self.read(allow_missing=re.compile(r"^cls\.predictions"))
        self.assertEqual(stored.task["kind"], "encoder")
        self.assertEqual(stored.report.absent_heads, ("cls/predictions",))

    def test_more_than_the_class_has_is_kept(self):
        """The class of the original's checkpoints names one of their heads."""
        self.write_all("BertForMaskedLM", _values("BertForPreTraining"))
        stored = self.read()
        self.assertEqual(stored.task["kind"], "pretraining")
        self.assertIn("cls/seq_relationship/output_bias", stored.weights)

    @parameterized.parameters(
        ("BertForTokenClassification", "tagging"),
        ("BertForQuestionAnswering", "question_answering"),
    )
    def test_a_fine_tuned_model_is_what_its_class_says(self, name, kind):
        more = _values("BertForPreTraining") | _values(
            "BertForQuestionAnswering"
        )
        self.write_all(name, more | _values(name))
        stored = self.read()
        self.assertEqual(stored.task["kind"], kind)
        self.assertIn("cls/predictions/output_bias", stored.weights)

    def test_an_encoder_without_pooler(self):
        values = {n: x for n, x in _values().items() if "pooler" not in n}
        self.write_all(values=_bare(values))
        stored = self.read()
        self.assertEqual(stored.report.absent_heads, ("bert/pooler",))
        path, sentences = self.written(stored)
        self.assertIn("add_pooling_layer=False", " ".join(sentences))
        written = safetensors.numpy.load_file(
            os.path.join(path, "model.safetensors")
        )
        self.assertEqual(set(written), set(_bare(values)))


class FilesTest(_DirectoryTest):
    def test_recognizes_its_directories(self):
        self.assertFalse(huggingface.recognizes(self.path))
        self.write_all()
        self.assertTrue(huggingface.recognizes(self.path))
        self.remove("config.json")
        self.assertTrue(huggingface.recognizes(self.path))
        self.remove("model.safetensors")
        self.assertFalse(huggingface.recognizes(self.path))
        self.write("config.json", {"registered_name": "keras_hub>BertBackbone"})
        self.assertFalse(huggingface.recognizes(self.path))
        self.write("config.json", {"model_type": "distilbert"})
        self.assertTrue(huggingface.recognizes(self.path))
        self.write("config.json", "{")
        self.assertFalse(huggingface.recognizes(self.path))
        self.assertFalse(
            huggingface.recognizes(os.path.join(self.path, "config.json"))
        )
        self.assertFalse(huggingface.recognizes("/nowhere"))

    def _shard(self, suffix="safetensors"):
        """Splits the weights over two files; returns the index."""
        self.write_all()
        self.remove("model.safetensors")
        values = _values()
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

    def test_shards(self):
        self._shard()
        self.assertTrue(huggingface.recognizes(self.path))
        sharded = self.read().weights
        self.write_all()
        whole = self.read().weights
        self.assertEqual(set(sharded), set(whole))
        for name, value in whole.items():
            self.assertAllEqual(sharded[name], value, name)

    def test_a_missing_shard(self):
        self._shard()
        self.remove("model-00002-of-00002.safetensors")
        self.assert_refused("names model-00002-of-00002.safetensors, which")

    @parameterized.parameters("moved", "lost", "unlisted")
    def test_an_index_that_does_not_fit(self, fault):
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
    def test_an_index_that_is_none(self, contents):
        self._shard()
        self.write("model.safetensors.index.json", contents)
        self.assert_refused("must hold `weight_map`")

    def test_a_truncated_shard(self):
        self._shard()
        os.truncate(
            os.path.join(self.path, "model-00001-of-00002.safetensors"), 500
        )
        self.assert_refused("model-00001-of-00002.safetensors is damaged")

    @parameterized.parameters(
        "pytorch_model.bin", "pytorch_model.bin.index.json"
    )
    def test_pytorch_files_take_pytorch(self, name):
        self.write_all()
        self.remove("model.safetensors")
        self.write(name, {"weight_map": {"a": "pytorch_model-1.bin"}})
        self.write("pytorch_model-1.bin", b"")
        self.assertTrue(huggingface.recognizes(self.path))
        with mock.patch.dict(sys.modules, {"torch": None}):
            self.assert_refused("takes PyTorch, which is not installed; `pip")

    def test_no_weights(self):
        self.write_all()
        self.remove("model.safetensors")
        self.write("tf_model.h5", b"")
        self.assert_refused("has no weights: expected one of model.safetensors")

    @parameterized.parameters(0, 4, 300, -1)
    def test_truncated_weights(self, length):
        self.write_all()
        path = os.path.join(self.path, "model.safetensors")
        os.truncate(path, length if length >= 0 else os.path.getsize(path) - 1)
        self.assert_refused("model.safetensors is damaged or incomplete")

    @parameterized.parameters("config.json", "tokenizer_config.json")
    def test_broken_json(self, name):
        self.write_all()
        self.write(name, '{"model_type": "bert", ')
        self.assert_refused(f"{name} is not valid JSON")

    @parameterized.parameters("config.json", "tokenizer.json")
    def test_json_that_is_no_object(self, name):
        self.write_all()
        self.write(name, "[3]")
        self.assert_refused(f"{name} must hold one JSON object")

    def test_no_config(self):
        self.write_all()
        self.remove("config.json")
        self.assert_refused("no config.json; copy the whole directory")

    def test_no_vocabulary(self):
        self.write_all()
        self.remove("vocab.txt")
        self.assert_refused("expected vocab.txt or tokenizer.json")


class ConfigTest(_DirectoryTest):
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

    def test_several_classes(self):
        self.write_all(architectures=["BertModel", "BertForMaskedLM"])
        self.assert_refused("`architectures` must name one of")

    def test_old_configs_name_neither(self):
        self.write_all(
            "BertForPreTraining", architectures="absent", model_type="absent"
        )
        self.assertEqual(self.read().task["kind"], "pretraining")

    def test_a_classifier_needs_its_class(self):
        self.write_all("BertForTokenClassification", architectures=None)
        self.assert_refused("lacks `architectures`.*BertForSequenceClassif")

    def test_missing_keys_have_hugging_faces_defaults(self):
        config, _ = huggingface_config.to_bert_config({}, "there")
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
    def test_activations_are_translated_and_said(self, theirs, ours, back):
        self.write_all(hidden_act=theirs)
        stored = self.read()
        self.assertEqual(stored.config.hidden_act, ours)
        path, sentences = self.written(stored)
        self.assertEqual(_read_json(path, "config.json")["hidden_act"], back)
        is_gelu = ours.startswith("gelu")
        form = "exact" if ours == "gelu_erf" else "tanh"
        for said in (stored.report.notes, sentences):
            self.assertEqual(
                is_gelu, f'"{theirs}"' in str(said) or f'"{back}"' in str(said)
            )
            self.assertEqual(is_gelu, form in str(said))

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
    def test_what_computes_something_else_is_refused(self, key, value):
        self.write_all(**{key: value})
        self.assert_refused(f"something else than BERT: {key}=")

    def test_what_is_off_is_not_refused_and_other_keys_are_listed(self):
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
            _read_json(path, "config.json")["problem_type"], theirs
        )

    def test_an_unknown_problem_type(self):
        self.write_all("BertForSequenceClassification", problem_type="x")
        self.assert_refused("`problem_type` must be one of")

    def test_labels_nobody_named(self):
        self.write_all("BertForTokenClassification")
        self.assertEqual(
            self.read().task["labels"], ["LABEL_0", "LABEL_1", "LABEL_2"]
        )

    def test_labels_are_ordered_by_number(self):
        names = {"10": "k"} | {str(9 - i): f"l{9 - i}" for i in range(10)}
        values = _values("BertForTokenClassification") | {
            "classifier.weight": tiny.normal(11, 8),
            "classifier.bias": tiny.normal(11),
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
    def test_labels_that_do_not_fit(self, names, message):
        self.write_all("BertForSequenceClassification", id2label=names)
        self.assert_refused(message)


class TokenizerTest(_DirectoryTest):
    @parameterized.parameters(
        (True, None, True, True),
        (False, None, False, False),
        (True, False, True, False),
        (False, True, False, True),
        (True, True, True, True),
    )
    def test_settings(self, lower_case, accents, ours_lower, ours_accents):
        self.write_all()
        self.write(
            "tokenizer_config.json",
            {"do_lower_case": lower_case, "strip_accents": accents},
        )
        expected = {
            "lower_case": ours_lower,
            "strip_accents": ours_accents,
            "preserve_special_tokens": False,
            "vocabulary_hash": Vocabulary(_PIECES).hash,
        }
        stored = self.read()
        self.assertEqual(stored.tokenizer_settings, expected)
        self.assertEqual(stored.vocabulary.tokens, tuple(_PIECES))
        # And the same from what is written, with and without each file.
        self.path, _ = self.written(stored)
        self.assertEqual(self.read().tokenizer_settings, expected)
        self.remove("tokenizer_config.json")
        self.assertEqual(self.read().tokenizer_settings, expected)
        self.remove("vocab.txt")
        self.assertEqual(self.read().tokenizer_settings, expected)

    def test_tokenizer_json_alone(self):
        """As version 5 of transformers saves it."""
        self.write_all()
        self.remove("vocab.txt")
        self.remove("tokenizer_config.json")
        self.write("tokenizer.json", _tokenizer_json(lowercase=False))
        stored = self.read()
        self.assertEqual(stored.vocabulary.tokens, tuple(_PIECES))
        self.assertFalse(stored.tokenizer_settings["lower_case"])

    def test_of_two_files_that_differ_hugging_faces_choice_counts(self):
        self.write_all()
        self.write("tokenizer.json", _tokenizer_json(lowercase=False))
        stored = self.read()
        self.assertTrue(stored.tokenizer_settings["lower_case"])
        self.assertIn("differ on lower case", str(stored.report.notes))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "do_lower_case": True,
        }
        self.write("tokenizer_config.json", config)
        self.assertFalse(self.read().tokenizer_settings["lower_case"])

    @parameterized.parameters(
        (_PIECES, True), ([*_PIECES[:-1], "Paris"], False)
    )
    def test_nobody_says_whether_text_is_lower_cased(self, pieces, expected):
        self.write_all()
        self.remove("tokenizer_config.json")
        self.write("vocab.txt", "\n".join(pieces))
        stored = self.read()
        self.assertEqual(stored.tokenizer_settings["lower_case"], expected)
        self.assertIn("does not say whether", str(stored.report.notes))

    @parameterized.parameters("added", "decoder", "tokenizer", "alone")
    def test_added_tokens_follow_the_vocabulary(self, where):
        self.write_all()
        pieces, (first, second) = _PIECES[:-2], _PIECES[-2:]
        self.write("vocab.txt", "\n".join(pieces) + "\n")
        added = ((17, first), (18, second))
        special = ((0, "[PAD]"), *added)
        if where == "added":
            self.write("added_tokens.json", {second: 18, first: 17})
        elif where == "decoder":
            decoder = {str(i): {"content": x} for i, x in special}
            self.write(
                "tokenizer_config.json",
                {"do_lower_case": True, "added_tokens_decoder": decoder},
            )
        else:
            self.write("tokenizer.json", _tokenizer_json(pieces, special))
        if where == "alone":
            self.remove("vocab.txt")
        stored = self.read()
        self.assertEqual(stored.vocabulary.tokens, tuple(_PIECES))
        self.assertRegex(
            str(stored.report.notes), "Added tokens follow .*: b, c; here"
        )

    @parameterized.parameters(
        ({"x": 20}, "has nothing at id 20, where the added token 'x'"),
        ({"x": 5}, "has 'the' at id 5, where the added token 'x'"),
        ({"x": "many"}, "must each have an id"),
    )
    def test_added_tokens_that_do_not_fit(self, added, message):
        self.write_all()
        self.write("added_tokens.json", added)
        self.assert_refused(message)

    def test_two_added_tokens_of_one_id(self):
        self.write_all()
        self.write("added_tokens.json", {"x": 19})
        self.write("tokenizer.json", _tokenizer_json(added=[(19, "y")]))
        self.assert_refused("have the id 19: 'x' and 'y'")

    def test_vocabularies_that_differ(self):
        self.write_all()
        self.write("tokenizer.json", _tokenizer_json([*_PIECES[:-1], "d"]))
        self.assert_refused("different vocabularies, first at id 18")

    @parameterized.parameters(({"a": 0, "b": 2},), ({"a": 0, "b": 0},), (None,))
    def test_ids_with_gaps(self, vocabulary):
        self.write_all()
        values = _tokenizer_json()
        values["model"]["vocab"] = vocabulary
        self.write("tokenizer.json", values)
        self.assert_refused("whose ids are the numbers from 0")

    def test_a_padded_table(self):
        self.write_all()
        self.write("vocab.txt", "\n".join(_PIECES[:-2]))
        self.assert_refused("17 pieces.*19 rows.*add 2 lines such as .padding0")

    def test_a_vocabulary_that_is_too_long(self):
        self.write_all()
        self.write("vocab.txt", "\n".join([*_PIECES, "d"]))
        self.assert_refused("has 20 lines, but `vocab_size`")

    @parameterized.parameters(
        "BertJapaneseTokenizer",
        "XLMRobertaTokenizer",
        "BertTweetTokenizer",
        "PreTrainedTokenizerFast",
    )
    def test_other_tokenizers_are_refused_by_name(self, name):
        self.write_all()
        self.write("tokenizer_config.json", {"tokenizer_class": name})
        self.assert_refused(f"expected BertTokenizer, received {name}")

    @parameterized.parameters(
        ("tokenize_chinese_chars", False),
        ("do_basic_tokenize", False),
        ("never_split", ["x"]),
    )
    def test_other_rules_are_refused(self, key, value):
        self.write_all()
        self.write("tokenizer_config.json", {key: value})
        self.assert_refused(f"knows {key} only as .*Received: ")

    def test_flags_must_be_flags(self):
        self.write_all()
        self.write("tokenizer_config.json", {"do_lower_case": "yes"})
        self.assert_refused("true, false or null for `do_lower_case`")

    @parameterized.parameters(
        ("normalizer", "handle_chinese_chars", False, "knows handle_chinese"),
        ("normalizer", "clean_text", False, "knows clean_text only as True"),
        ("normalizer", "type", "Sequence", "a normalizer of type BertNorm"),
        ("model", "continuing_subword_prefix", "@@", "only as '##'"),
        ("model", "unk_token", "<unk>", "only as '.UNK.'"),
        ("model", "type", "Unigram", "a model of type WordPiece, received 'U"),
        ("pre_tokenizer", "type", "Whitespace", "a pre_tokenizer of type"),
    )
    def test_other_rules_in_tokenizer_json(self, part, key, value, message):
        self.write_all()
        values = _tokenizer_json()
        values[part][key] = value
        self.write("tokenizer.json", values)
        self.assert_refused(message)

    @parameterized.parameters("normalizer", "model", "pre_tokenizer")
    def test_parts_that_lack_in_tokenizer_json(self, part):
        self.write_all()
        for value in (None, [3]):
            self.write("tokenizer.json", _tokenizer_json() | {part: value})
            self.assert_refused(f"not a tokenizer of BERT: expected a {part}")

    @parameterized.parameters(
        "tokenizer_config.json", "special_tokens_map.json"
    )
    def test_special_tokens_must_be_berts(self, file):
        self.write_all()
        spelled = {key: {"content": x} for key, x in _SPECIAL.items()}
        self.write(file, spelled)
        self.assertEqual(self.read().vocabulary.cls_id, 2)
        self.write(file, spelled | {"cls_token": "<s>"})
        self.assert_refused(r"cls_token must be '\[CLS\]'.*Received: '<s>'")


class WriteTest(_DirectoryTest):
    def _stored(self, architecture="BertForPreTraining", **changes):
        self.write_all(architecture)
        stored = self.read()
        return dataclasses.replace(stored, **changes)

    def test_heads_without_a_place_are_said(self):
        stored = self._stored(task={"kind": "masked_lm", "max_seq_length": 6})
        path, sentences = self.written(stored)
        written = safetensors.numpy.load_file(
            os.path.join(path, "model.safetensors")
        )
        self.assertEqual(set(written), set(_values("BertForMaskedLM")))
        text = " ".join(sentences)
        self.assertIn(
            "BertForMaskedLM has no place for bert/pooler, "
            "cls/seq_relationship; not carried",
            text,
        )
        self.assertIn("no place for max_seq_length of the task", text)

    def test_the_optimizers_state_is_said_to_stay(self):
        state = {"global_step": np.int64(7)}
        stored = self._stored(optimizer_state=Tensors.from_arrays(state))
        _, sentences = self.written(stored)
        self.assertIn("optimizer's state; not carried", " ".join(sentences))

    def test_no_vocabulary(self):
        stored = self._stored(vocabulary=None, tokenizer_settings=None)
        path, sentences = self.written(stored)
        self.assertIn("no tokenizer files", " ".join(sentences))
        self.assertSameElements(
            os.listdir(path), ["config.json", "model.safetensors"]
        )

    def test_tokenizer_files(self):
        path, _ = self.written(self._stored())
        self.assertSameElements(
            os.listdir(path),
            [
                "config.json",
                "model.safetensors",
                "special_tokens_map.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "vocab.txt",
            ],
        )
        config = _read_json(path, "tokenizer_config.json")
        self.assertEqual(config["tokenizer_class"], "BertTokenizer")
        self.assertEqual(config["model_max_length"], 7)
        values = _read_json(path, "tokenizer.json")
        for name, part in _tokenizer_json().items():
            if name != "added_tokens":
                part = part | {"max_input_chars_per_word": 200}
                self.assertEqual(
                    values[name], {key: part[key] for key in values[name]}
                )
        self.assertEqual(
            [(x["id"], x["content"]) for x in values["added_tokens"]],
            list(enumerate(_PIECES[:5])),
        )
        self.assertEqual(_read_json(path, "config.json")["pad_token_id"], 0)

    @parameterized.parameters(
        ("left_to_right", "reads in both directions"),
        ("labels", "as many different names as the classifier has rows, 3"),
        ("pooler", "lacks bert/pooler, which Hugging Face's BertForSequence"),
        ("vocabulary", "has 18 lines, but `vocab_size`"),
    )
    def test_what_does_not_fit_is_refused_before_writing(self, fault, message):
        stored = self._stored("BertForSequenceClassification")
        changes = {
            "left_to_right": {
                "config": dataclasses.replace(stored.config, left_to_right=True)
            },
            "labels": {"task": {"kind": "classification", "labels": ["a"]}},
            "pooler": {
                "weights": stored.weights.select(lambda n: "pooler" not in n)
            },
            "vocabulary": {"vocabulary": Vocabulary(_PIECES[:-1])},
        }[fault]
        stored = dataclasses.replace(stored, **changes)
        path = self.create_tempdir().full_path
        with self.assertRaisesRegex(UserError, message):
            huggingface.write_model(path, stored)
        self.assertEmpty(os.listdir(path))

    def test_holds_one_tensor_at_a_time(self):
        """Reads of the source come between writes, not before them."""
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


if __name__ == "__main__":
    tf.test.main()
