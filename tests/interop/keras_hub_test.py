"""Tests for bert_tf.interop.keras_hub and what it consists of."""

import dataclasses
import os
import re
import shutil
import sys
import tempfile
from unittest import mock

import h5py
import keras
import keras_hub as their_library
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import files
from bert_tf import stored_model
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.interop import activation_change
from bert_tf.interop import formats
from bert_tf.interop import keras_hub
from bert_tf.interop import keras_hub_preset
from bert_tf.interop import keras_weights
from bert_tf.interop import loading
from bert_tf.interop import tf1_model
from bert_tf.interop import weight_map
from bert_tf.interop.tensors import Tensors
from bert_tf.modeling import model as bert_model
from bert_tf.stored_model import StoredModel
from bert_tf.text.vocabulary import Vocabulary
from tests import tiny_model
from tests.modeling import tiny
from tests.shared_data import golden

_VOCABULARY = Vocabulary(tiny_model.TOKENS)
_CONFIG = tiny.replace(
    vocab_size=len(_VOCABULARY), attention_probs_dropout_prob=0.2
)
_ENCODER = ("bert", "bert/pooler")
_TEXT = "The cat, dogs sitting on 東mat."


def _stored(
    *heads, config=_CONFIG, with_vocabulary=True, parts=_ENCODER, **task
):
    """Returns a model with telling weights; its classifier has three labels."""
    rows = [
        row
        for row in weight_map.rows(config)
        if weight_map.part_of(row.name) in (*parts, *heads)
    ]
    weights = {
        row.name: 0.5
        * tiny.normal(*weight_map.shape_of(row, config, 3), seed=index)
        for index, row in enumerate(rows)
    }
    settings = stored_model.tokenizer_settings(_VOCABULARY, True)
    return StoredModel(
        "there",
        config,
        Tensors.from_arrays(weights),
        _VOCABULARY if with_vocabulary else None,
        settings if with_vocabulary else None,
        {"kind": weight_map.kind_of(weights)} | task,
    )


def _stored_with(**changes):
    """Returns the encoder with other fields."""
    config = changes.get("config", _CONFIG)
    vocabulary = changes.get("vocabulary", _VOCABULARY)
    settings = stored_model.tokenizer_settings(vocabulary, True)
    changes = {"tokenizer_settings": settings} | changes
    return dataclasses.replace(_stored(config=config), **changes)


def _inputs(config=_CONFIG):
    """Returns ids with padding and segments, in our names and in theirs."""
    ours = tiny.inputs(batch=4, length=7)
    ours["input_ids"] %= config.vocab_size
    ours["segment_ids"] %= config.type_vocab_size
    return ours, {
        "token_ids": ours["input_ids"],
        "padding_mask": ours["input_mask"],
        "segment_ids": ours["segment_ids"],
    }


def _our_outputs(stored, inputs):
    model = bert_model.BertModel(stored.config)
    loading.load_into(model, dict(stored.weights))
    return model(inputs)


def _their_golden_inputs(golden_outputs):
    return {
        "token_ids": golden_outputs["input_ids"],
        "padding_mask": golden_outputs["input_mask"],
        "segment_ids": golden_outputs["segment_ids"],
    }


class _PresetTestCase(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = self.create_tempdir().full_path

    def _write(self, stored=None, **options):
        return keras_hub.write_model(
            self.directory, stored or _stored(), **options
        )

    def _path(self, name):
        return os.path.join(self.directory, name)

    def _edit(self, name, **changes):
        """Changes what a JSON file of the preset says of its object."""
        values = files.read_json(self._path(name))
        values["config"].update(changes)
        files.write_json(self._path(name), values)

    def _their_backbone(self, seed=5, **changes):
        """Returns a backbone of theirs whose every weight tells."""
        arguments = {
            "vocabulary_size": len(_VOCABULARY),
            "num_layers": 3,
            "num_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 12,
            "dropout": 0.25,
            "max_sequence_length": 9,
            "num_segments": 3,
        }
        backbone = their_library.models.BertBackbone(**arguments | changes)
        return tiny.randomize(backbone, seed)

    def _their_tokenizer(self, **settings):
        return their_library.models.BertTokenizer(
            vocabulary=list(_VOCABULARY.tokens), **settings
        )

    def _assert_same_outputs(self, ours, theirs, mask):
        tokens = mask.astype(bool)
        self.assertAllClose(
            ours["sequence_output"].numpy()[tokens],
            theirs["sequence_output"].numpy()[tokens],
            rtol=0,
            atol=1e-5,
        )
        self.assertAllClose(
            ours["pooled_output"], theirs["pooled_output"], rtol=0, atol=1e-5
        )

    def _assert_same_model(self, received, expected):
        self.assertEqual(received.config, expected.config)
        self.assertEqual(
            dict(received.weights.shapes), dict(expected.weights.shapes)
        )
        for name, value in expected.weights.items():
            self.assertEqual(received.weights[name].dtype, np.float32)
            self.assertAllEqual(received.weights[name], value, name)


class BackboneTest(_PresetTestCase):
    def test_gives_our_outputs(self):
        stored = _stored("cls/predictions", "cls/seq_relationship")
        inputs, theirs = _inputs()
        backbone = keras_hub.build_backbone(stored)
        self.assertIsInstance(backbone, their_library.models.BertBackbone)
        self._assert_same_outputs(
            _our_outputs(stored, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )

    def test_gives_the_originals_outputs(self):
        prefix = golden("model/bert_model.ckpt.index").removesuffix(".index")
        backbone = keras_hub.build_backbone(tf1_model.read_model(prefix))
        expected = np.load(golden("model/forward.npz"))
        outputs = backbone(_their_golden_inputs(expected))
        tokens = expected["input_mask"].astype(bool)
        self.assertAllClose(
            outputs["sequence_output"].numpy()[tokens],
            expected["sequence_output"][tokens],
            rtol=0,
            atol=1e-5,
        )
        self.assertAllClose(
            outputs["pooled_output"],
            expected["pooled_output"],
            rtol=0,
            atol=1e-5,
        )

    def test_no_pooler(self):
        stored = _stored("cls/predictions", parts=("bert",))
        with self.assertRaisesRegex(UserError, "masked_lm. has none; convert"):
            keras_hub.build_backbone(stored)
        with self.assertRaisesRegex(UserError, "has a pooler, and there"):
            self._write(stored)
        self.assertEmpty(os.listdir(self.directory))

    @parameterized.parameters(
        ({"hidden_act": "relu"}, "hidden_act='gelu' and no.*'relu' in there"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps=1e-12 .*=1e-06"),
        ({"left_to_right": True}, "left_to_right=False .*=True"),
        (
            {"hidden_act": "gelu_erf"},
            "'gelu_erf'.*only has its tanh form.*--allow_activation_change",
        ),
        (
            {"hidden_act": "gelu_erf", "layer_norm_eps": 1e-5},
            "--allow_activation_change",
        ),
    )
    def test_what_theirs_cannot_be(self, changes, message):
        stored = _stored(config=BertConfig(**vars(_CONFIG) | changes))
        with self.assertRaisesRegex(UserError, message):
            keras_hub.build_backbone(stored)
        with self.assertRaisesRegex(UserError, message):
            self._write(stored)
        self.assertEmpty(os.listdir(self.directory))


class WriteTest(_PresetTestCase):
    def test_from_preset_finds_everything(self):
        stored = _stored()
        sentences = self._write(stored)
        # A preset refers to nothing outside.
        moved = self.create_tempdir().full_path + "/moved"
        shutil.move(self.directory, moved)
        inputs, theirs = _inputs()
        backbone = their_library.models.BertBackbone.from_preset(moved)
        self._assert_same_outputs(
            _our_outputs(stored, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        self.assertEqual(backbone.dropout, 0.2)
        self.assertEqual(backbone.max_sequence_length, 7)
        tokenizer = their_library.models.BertTokenizer.from_preset(moved)
        self.assertEqual(tokenizer.get_vocabulary(), tiny_model.TOKENS)
        self.assertAllEqual(
            tokenizer(_TEXT), stored.build_tokenizer().tokenize(_TEXT)
        )
        text = " ".join(sentences)
        self.assertIn("tanh form of GELU", text)
        self.assertIn("no-break spaces do not part words", text)
        # A classifier of it begins with its encoder.
        classifier = their_library.models.BertTextClassifier.from_preset(
            moved, num_classes=2
        )
        self.assertAllEqual(
            classifier.backbone.get_layer("pooled_dense").kernel,
            stored.weights["bert/pooler/dense/kernel"],
        )

    def test_is_undone_by_reading(self):
        stored = _stored()
        self._write(stored)
        received = keras_hub.read_model(self.directory)
        self._assert_same_model(received, stored)
        self.assertEqual(received.vocabulary.tokens, stored.vocabulary.tokens)
        self.assertEqual(received.tokenizer_settings, stored.tokenizer_settings)
        self.assertEqual(received.task, {"kind": "encoder"})
        self.assertEqual(set(received.report.loaded), set(stored.weights))
        self.assertEqual(received.report.absent_heads, ())
        self.assertEqual(received.report.unused, ())

    @parameterized.product(
        lower_case=(False, True),
        strip_accents=(False, True),
        preserve_special_tokens=(False, True),
    )
    def test_tokenizer_settings(self, **settings):
        tokenizer = keras_hub._build_tokenizer(
            _stored_with(
                tokenizer_settings=stored_model.tokenizer_settings(
                    _VOCABULARY, **settings
                )
            )
        )
        tokenizer.save_to_preset(self.directory)
        received, _ = keras_hub_preset._read_settings(
            self.directory, _VOCABULARY
        )
        self.assertEqual(received, settings | {"vocabulary_hash": mock.ANY})

    def test_classifier(self):
        stored = _stored(
            "output", labels=["no", "yes", "who knows"], max_seq_length=6
        )
        sentences = self._write(stored)
        inputs, theirs = _inputs()
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.directory
        )
        pooled = _our_outputs(stored, inputs)["pooled_output"].numpy()
        expected = (
            pooled @ stored.weights["output_weights"].T
            + stored.weights["output_bias"]
        )
        self.assertAllClose(classifier(theirs), expected, rtol=0, atol=1e-5)
        self.assertEqual(classifier.dropout, 0.1)
        self.assertEqual(classifier.preprocessor.sequence_length, 6)
        packed = classifier.preprocessor([_TEXT])["token_ids"]
        self.assertEqual(packed.shape, (1, 6))
        self.assertIn("no, yes, who knows", " ".join(sentences))
        received = keras_hub.read_model(self.directory)
        self._assert_same_model(received, stored)
        self.assertEqual(
            received.task, {"kind": "classification", "max_seq_length": 6}
        )

    def test_the_originals_classifier(self):
        prefix = golden("model/classifier.ckpt.index").removesuffix(".index")
        stored = tf1_model.read_model(prefix)
        self._write(stored)
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.directory
        )
        inputs = np.load(golden("model/forward.npz"))
        expected = np.load(golden("model/classifier.npz"))
        self.assertAllClose(
            classifier(_their_golden_inputs(inputs)),
            expected["logits"],
            rtol=0,
            atol=1e-5,
        )
        self._assert_same_model(keras_hub.read_model(self.directory), stored)

    def test_classifier_without_vocabulary(self):
        stored = _stored("output", with_vocabulary=False)
        sentences = self._write(stored)
        self.assertIn("no tokenizer", " ".join(sentences))
        self.assertNotIn("tokenizer.json", os.listdir(self.directory))
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.directory
        )
        self.assertAllEqual(
            classifier.output_dense.bias, stored.weights["output_bias"]
        )
        received = keras_hub.read_model(self.directory)
        self.assertIsNone(received.vocabulary)
        self.assertIsNone(received.tokenizer_settings)
        self._assert_same_model(received, stored)

    @parameterized.parameters(
        ("cls/predictions", "masked-LM head stays behind"),
        ("cls/seq_relationship", "next-sentence head stays behind"),
        ("cls/squad", "question answering head stays behind"),
        ("cls/tagging", "tagging head stays behind"),
        ("cls/multiple_choice", "multiple-choice head stays behind"),
    )
    def test_a_head_that_stays_behind_is_named(self, head, sentence):
        with mock.patch.object(keras_hub, "_build_backbone"):
            self.assertIn(sentence, " ".join(self._write(_stored(head))))

    def test_what_else_stays_behind_is_said(self):
        config = tiny.replace(
            vocab_size=len(_VOCABULARY), initializer_range=0.03
        )
        stored = _stored_with(
            config=config,
            optimizer_state=Tensors.from_arrays({"global_step": np.int64(3)}),
        )
        with mock.patch.object(keras_hub, "_build_backbone"):
            text = " ".join(self._write(stored))
        self.assertIn("hidden_dropout_prob, 0.2, also takes", text)
        self.assertIn("attention_probs_dropout_prob, 0.3.", text)
        self.assertIn("initializer_range, 0.03, is not kept", text)
        self.assertIn("optimizer's state stays behind", text)

    def test_pieces_of_white_space(self):
        # KerasHub strips them, so two of them would be one.
        config = tiny.replace(vocab_size=17)
        one = Vocabulary([*tiny_model.TOKENS, "\u2028"])
        stored = _stored_with(config=config, vocabulary=one)
        self.assertIn("end: '\\u2028'.", " ".join(self._write(stored)))
        tokenizer = their_library.models.BertTokenizer.from_preset(
            self.directory
        )
        self.assertAllEqual(
            tokenizer("the dog"), [one.id("the"), one.id("dog")]
        )
        two = Vocabulary([*one.tokens, "\u3000"])
        stored = _stored_with(
            config=tiny.replace(vocab_size=18), vocabulary=two
        )
        with self.assertRaisesRegex(UserError, "would hold a piece twice"):
            self._write(stored)


class ActivationTest(_PresetTestCase):
    def _exact(self, **options):
        config = BertConfig(**vars(_CONFIG) | {"hidden_act": "gelu_erf"})
        return _stored(config=config, **options)

    def test_says_how_far_outputs_move(self):
        stored = self._exact()
        sentences = self._write(stored, allow_activation_change=True)
        found = re.search(
            r"at most ([^ ]+) \(sequence_output\) and ([^ ]+) \(pooled_output",
            " ".join(sentences),
        )
        # Sentence by sentence, without padding, both in our own model.
        tanh = _stored()
        tokenizer = stored.build_tokenizer()
        sequence, pooled = [], []
        for sentence in activation_change.SENTENCES:
            ids = tokenizer.tokenize(sentence).numpy()[: 7 - 2]
            ids = np.array([[_VOCABULARY.cls_id, *ids, _VOCABULARY.sep_id]])
            exact = _our_outputs(stored, {"input_ids": ids})
            other = _our_outputs(tanh, {"input_ids": ids})
            difference = {k: np.abs(exact[k] - other[k]).max() for k in exact}
            sequence.append(difference["sequence_output"])
            pooled.append(difference["pooled_output"])
        self.assertLen(sequence, 10)
        self.assertGreater(max(pooled), 1e-5)
        for received, expected in zip(
            found.groups(), (max(sequence), max(pooled)), strict=True
        ):
            # Two digits are printed.
            self.assertAllClose(float(received), expected, rtol=0.06, atol=1e-6)

    def test_what_is_written_has_the_tanh_form(self):
        stored = self._exact(with_vocabulary=False)
        sentences = self._write(stored, allow_activation_change=True)
        self.assertIn("differ by at most", " ".join(sentences))
        inputs, theirs = _inputs()
        backbone = their_library.models.BertBackbone.from_preset(self.directory)
        self._assert_same_outputs(
            _our_outputs(_stored(), inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        received = keras_hub.read_model(self.directory)
        self.assertEqual(received.config, _CONFIG)

    def test_ids_without_a_vocabulary(self):
        inputs = activation_change.build_inputs(
            self._exact(with_vocabulary=False)
        )
        self.assertEqual(inputs["input_ids"].shape, (10, 7))
        self.assertEqual(set(inputs["input_ids"].flat), set(range(16)))
        lengths = inputs["input_mask"].sum(axis=1)
        self.assertEqual((lengths.max(), lengths.min()), (7, 4))

    def test_padding_does_not_count(self):
        exact = np.zeros((1, 2, 1)), np.float32([[1.0]])
        other = np.float32([[[0.25], [9.0]]]), np.float32([[0.5]])
        sentence = activation_change.describe_difference(
            exact, other, {"input_mask": np.array([[1, 0]])}
        )
        self.assertIn("0.25 (sequence_output) and 0.5 (pooled", sentence)


class ReadTest(_PresetTestCase):
    def _assert_read_as(self, backbone):
        received = keras_hub.read_model(self.directory)
        inputs, theirs = _inputs(received.config)
        self._assert_same_outputs(
            _our_outputs(received, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        return received

    def test_their_backbone(self):
        backbone = self._their_backbone()
        backbone.save_to_preset(self.directory)
        self.assertEqual(formats.detect(self.directory), "keras_hub")
        received = self._assert_read_as(backbone)
        self.assertEqual(
            received.config,
            BertConfig(
                vocab_size=16,
                hidden_size=8,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=12,
                hidden_dropout_prob=0.25,
                attention_probs_dropout_prob=0.25,
                max_position_embeddings=9,
                type_vocab_size=3,
            ),
        )
        self.assertEqual(received.task["kind"], "encoder")
        self.assertLen(received.report.loaded, len(backbone.weights))
        # Four kernels and three biases of attention a layer.
        self.assertLen(received.report.reshaped, 21)
        self.assertIn("tanh form", received.report.notes[0])
        self.assertIn("no tokenizer", " ".join(received.report.notes))

    def test_shards(self):
        backbone = self._their_backbone()
        backbone.save_to_preset(self.directory, max_shard_size=1e-6)
        self.assertIn("model_00003.weights.h5", os.listdir(self.directory))
        self.assertEqual(formats.detect(self.directory), "keras_hub")
        self._assert_read_as(backbone)

    def test_half_precision(self):
        self._their_backbone(dtype="bfloat16").save_to_preset(self.directory)
        backbone = their_library.models.BertBackbone.from_preset(
            self.directory, dtype="float32"
        )
        received = self._assert_read_as(backbone)
        kernel = received.weights["bert/pooler/dense/kernel"]
        self.assertAllEqual(
            kernel, backbone.get_layer("pooled_dense").kernel.numpy()
        )

    def test_names_of_before_keras_3(self):
        backbone = self._their_backbone()
        backbone.save_to_preset(self.directory)
        with h5py.File(self._path("model.weights.h5"), "a") as file:
            file.move("layers", "_layer_checkpoint_dependencies")
        their_library.models.BertBackbone.from_preset(self.directory)
        self._assert_read_as(backbone)

    @parameterized.parameters(
        (
            "layers/transformer_encoder_11/_self_attention_layer/_query_dense"
            "/vars/0",
            "transformer_layer_11/self_attention_layer/query/kernel",
        ),
        (
            "layers/transformer_encoder/_feedforward_layer_norm/vars/1",
            "transformer_layer_0/feedforward_layer_norm/beta",
        ),
        ("layers/layer_normalization/vars/0", "embeddings_layer_norm/gamma"),
        ("layers/layer_normalization_1/vars/0", None),
        ("layers/dense/vars/2", None),
        ("layers/dense/inner/vars/0", None),
        ("layers/transformer_encoder/vars/0", None),
        ("layers/dense", None),
        ("optimizer/vars/0", None),
    )
    def test_names(self, name, path):
        self.assertEqual(
            keras_weights.variable_path(name, keras_weights.BACKBONE), path
        )

    def test_their_classifier(self):
        classifier = their_library.models.BertTextClassifier(
            self._their_backbone(),
            num_classes=4,
            preprocessor=their_library.models.BertTextClassifierPreprocessor(
                self._their_tokenizer(lowercase=True), sequence_length=8
            ),
        )
        tiny.randomize(classifier.output_dense, seed=8)
        classifier.save_to_preset(self.directory)
        received = keras_hub.read_model(self.directory)
        inputs, theirs = _inputs(received.config)
        pooled = _our_outputs(received, inputs)["pooled_output"].numpy()
        logits = (
            pooled @ received.weights["output_weights"].T
            + received.weights["output_bias"]
        )
        self.assertAllClose(classifier(theirs), logits, rtol=0, atol=1e-5)
        self.assertEqual(
            received.task, {"kind": "classification", "max_seq_length": 8}
        )
        self.assertEqual(received.vocabulary.tokens, _VOCABULARY.tokens)
        settings = received.tokenizer_settings
        self.assertTrue(settings["lower_case"])
        self.assertFalse(settings["strip_accents"])
        notes = " ".join(received.report.notes)
        self.assertIn("keeps accents", notes)
        self.assertIn("no names of classes", notes)

    def test_a_trained_classifier(self):
        classifier = their_library.models.BertTextClassifier(
            self._their_backbone(), num_classes=3, activation="softmax"
        )
        classifier.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(),
        )
        classifier.optimizer.build(classifier.trainable_variables)
        classifier.save_to_preset(self.directory)
        received = keras_hub.read_model(self.directory)
        self.assertAllEqual(
            received.weights["output_bias"], classifier.output_dense.bias
        )
        self.assertEqual(
            received.task,
            {"kind": "classification", "problem_type": "single_label"},
        )
        self.assertIn("optimizer/vars/9", received.report.expected)
        self.assertIn("softmax of the logits", received.report.notes[-1])

    def test_their_masked_lm_head_is_left(self):
        their_library.models.BertMaskedLM(
            self._their_backbone()
        ).save_to_preset(self.directory)
        received = keras_hub.read_model(self.directory)
        self.assertEqual(received.task, {"kind": "encoder"})
        self.assertIn("masked-LM head is left", received.report.notes[-1])

    def test_their_embedder_is_an_encoder(self):
        their_library.models.BertTextEmbedder(
            self._their_backbone()
        ).save_to_preset(self.directory)
        received = keras_hub.read_model(self.directory)
        self.assertEqual(received.task, {"kind": "encoder"})
        self.assertIn("BertTextEmbedder", received.report.notes[-1])

    def test_vocabulary_put_beside(self):
        self._their_backbone().save_to_preset(self.directory)
        _VOCABULARY.write(self._path("vocab.txt"))
        received = keras_hub.read_model(self.directory)
        self.assertEqual(received.vocabulary.tokens, _VOCABULARY.tokens)
        self.assertTrue(received.tokenizer_settings["lower_case"])
        self.assertIn("follows from vocab.txt", " ".join(received.report.notes))

    def test_needs_no_keras_hub(self):
        self._write()
        with mock.patch.dict(sys.modules, {"keras_hub": None}):
            self.assertTrue(keras_hub.recognizes(self.directory))
            received = keras_hub.read_model(self.directory)
            self._assert_same_model(received, _stored())

    def test_values_are_read_when_asked_for(self):
        self._write()
        received = keras_hub.read_model(self.directory)
        os.remove(self._path("model.weights.h5"))
        with self.assertRaisesRegex(UserError, "is damaged or incomplete"):
            received.weights["bert/pooler/dense/bias"]  # noqa: B018


class RecognizeTest(_PresetTestCase):
    def test_other_directories(self):
        self.assertFalse(keras_hub.recognizes(self.directory))
        self.assertFalse(keras_hub.recognizes(self._path("nothing")))
        for contents in ('{"model_type": "bert"}', "[1]", "{", "\udcff"):
            with open(
                self._path("config.json"), "w", errors="surrogateescape"
            ) as file:
                file.write(contents)
            self.assertFalse(keras_hub.recognizes(self.directory))
            self.assertFalse(keras_hub.recognizes(self._path("config.json")))

    @parameterized.parameters(
        {"registered_name": "keras_nlp>BertBackbone"},
        {"module": "keras_hub.src.models.bert.bert_backbone"},
    )
    def test_config(self, **values):
        files.write_json(self._path("config.json"), values)
        self.assertTrue(keras_hub.recognizes(self.directory))

    def test_without_config(self):
        self._write()
        os.remove(self._path("config.json"))
        self.assertTrue(keras_hub.recognizes(self.directory))
        with self.assertRaisesRegex(UserError, "there is no .*config.json"):
            keras_hub.read_model(self.directory)


class BadInputTest(_PresetTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.preset = cls.enter_context(tempfile.TemporaryDirectory())
        keras_hub.write_model(cls.preset, _stored("output"))

    def setUp(self):
        super().setUp()
        shutil.copytree(self.preset, self.directory, dirs_exist_ok=True)

    def _assert_refused(self, message, **options):
        with self.assertRaisesRegex(UserError, message) as raised:
            keras_hub.read_model(self.directory, **options)
        self.assertNotIn("\n", str(raised.exception))

    def test_other_architectures(self):
        backbone = their_library.models.DistilBertBackbone(
            vocabulary_size=17,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=12,
            max_sequence_length=7,
        )
        backbone.save_to_preset(self.directory)
        self.assertEqual(formats.detect(self.directory), "keras_hub")
        self._assert_refused("preset of a DistilBertBackbone; only .* a Bert")

    @parameterized.parameters(
        ({"num_layers": 1}, "has besides layers?|transformer_layer_1/"),
        ({"num_layers": 3}, "lacks transformer_layer_2/"),
        ({"hidden_dim": 10}, "another shape .*embeddings .16, 8"),
        ({"num_heads": 4}, r"query/kernel \(8, 2, 4\) \(its config wants"),
        ({"max_sequence_length": 8}, "another shape position_embedding"),
        ({"num_segments": 2}, "another shape segment_embedding"),
        ({"vocabulary_size": 17}, "16 lines, but `vocab_size`"),
        ({"vocabulary_size": "x"}, "config.json: `vocab_size` must be of type"),
        ({"num_heads": 3}, "config.json: `num_attention_heads` must divide"),
        ({"dropout": None}, "config.json: `hidden_dropout_prob` must be"),
        ({"rotary": True}, "Missing: none; unknown: rotary"),
    )
    def test_config_of_other_weights(self, changes, message):
        self._edit("config.json", **changes)
        self._assert_refused(message)

    def test_config_lacks_a_key(self):
        values = files.read_json(self._path("config.json"))
        del values["config"]["num_heads"]
        files.write_json(self._path("config.json"), values)
        self._assert_refused("config.json must describe .*Missing: num_heads")

    @parameterized.product(
        name=("config.json", "task.json", "tokenizer.json"),
        contents=("{", "[]", '{"config": 3}'),
    )
    def test_damaged_json(self, name, contents):
        files.write_text(self._path(name), contents)
        self._assert_refused(f"{name} (is not valid JSON|must hold a JSON obj)")

    @parameterized.parameters(
        "model.weights.h5",
        "task.weights.h5",
        "assets/tokenizer/vocabulary.txt",
    )
    def test_missing_file(self, name):
        os.remove(self._path(name))
        self._assert_refused(f"is incomplete: there is no .*{name}")

    @parameterized.parameters(
        (lambda x: x[: len(x) // 2],),
        (lambda x: x[:-1],),
        (lambda x: b"",),
        (lambda x: b"not HDF5 at all" * 99,),
        # The tables of groups, not the numbers.
        (lambda x: x.replace(b"SNOD", b"XXXX"),),
        (lambda x: x.replace(b"TREE", b"XXXX"),),
        (lambda x: x.replace(b"HEAP", b"XXXX"),),
    )
    def test_damaged_weights(self, damage):
        file = self._path("model.weights.h5")
        contents = files.read_bytes(file)
        files.write_bytes(file, damage(contents))
        self._assert_refused("model.weights.h5 is damaged or incomplete")

    def test_other_number_of_classes(self):
        self._edit("task.json", num_classes=4)
        self._assert_refused(r"num_classes=4, but the bias .* shape \(3,\)")

    @parameterized.parameters(
        ({"class_name": "function"}, r"\{'class_name': 'function'\}"),
        ("sigmoid", "sigmoid"),
    )
    def test_activation_of_a_classifier(self, activation, name):
        self._edit("task.json", activation=activation)
        received = keras_hub.read_model(self.directory)
        self.assertRegex(received.report.notes[-1], f"returns {name} of the")
        self.assertEqual(
            received.task.get("problem_type"),
            "multi_label" if activation == "sigmoid" else None,
        )

    def test_head_without_its_weights(self):
        with h5py.File(self._path("task.weights.h5"), "a") as file:
            for name in list(file):
                del file[name]
        self._assert_refused("it lacks logits/kernel, logits/bias")
        received = keras_hub.read_model(self.directory, re.compile("^logits"))
        self.assertEqual(received.task["kind"], "encoder")

    def test_more_weights_than_it_should_have(self):
        with h5py.File(self._path("model.weights.h5"), "a") as file:
            file["layers/dense/vars/2"] = np.ones(2, np.float32)
        self._assert_refused("has besides layers/dense/vars/2")
        received = keras_hub.read_model(self.directory, re.compile("vars/2"))
        self.assertEqual(received.report.unused, ("layers/dense/vars/2",))

    def test_quantized(self):
        with h5py.File(self._path("model.weights.h5"), "a") as file:
            del file["layers/dense/vars/0"]
            file["layers/dense/vars/0"] = np.ones((8, 8), np.int8)
        self._assert_refused("vars/0 holds numbers of type int8; expected")

    def test_weights_in_another_file(self):
        with h5py.File(self._path("model.weights.h5"), "a") as file:
            del file["layers/dense/vars/1"]
            file.create_dataset(
                "layers/dense/vars/1",
                (8,),
                np.float32,
                external=[(self._path("config.json"), 0, 32)],
            )
        self._assert_refused("vars/1 lies in another file")

    @parameterized.parameters("../model.weights.h5", "/etc/hostname", 3, ([2],))
    def test_shards_elsewhere(self, name):
        os.remove(self._path("model.weights.h5"))
        files.write_json(
            self._path("model.weights.json"), {"weight_map": {"/a": [name]}}
        )
        self._assert_refused("must name files that lie beside it. Received: ")

    def test_missing_shard(self):
        backbone = self._their_backbone()
        os.remove(self._path("model.weights.h5"))
        backbone.save_to_preset(self.directory, max_shard_size=1e-6)
        os.remove(self._path("model_00001.weights.h5"))
        self._assert_refused("there is no .*model_00001.weights.h5")

    @parameterized.parameters(
        ({"split": False}, "split=True.*Received.*split=False"),
        ({"suffix_indicator": "@"}, "suffix_indicator='@'"),
        ({"lowercase": "yes"}, "lowercase='yes'"),
    )
    def test_other_tokenizers(self, changes, message):
        self._edit("tokenizer.json", **changes)
        self._assert_refused(f"tokenizer.json must describe .*{message}")

    def test_tokenizer_of_another_architecture(self):
        values = files.read_json(self._path("tokenizer.json"))
        values["registered_name"] = "keras_hub>RobertaTokenizer"
        files.write_json(self._path("tokenizer.json"), values)
        self._assert_refused("Received: a RobertaTokenizer")


if __name__ == "__main__":
    tf.test.main()
