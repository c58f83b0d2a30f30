"""Tests for bert_tf.checkpoints.keras_hub."""

import dataclasses
import importlib.util
import os
import shutil
import tempfile
from unittest import mock

import h5py
import keras
import keras_hub as their_library
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import keras_hub
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import stored_models
from tests.support import tiny_layers
from tests.support import tiny_model
from tests.support.shared_data import golden

VOCABULARY = Vocabulary(tiny_model.TOKENS)
CONFIG = tiny_layers.replace(
    vocab_size=len(VOCABULARY), attention_probs_dropout_prob=0.2
)
ENCODER = ("bert", "bert/pooler")
TEXT = "The cat, dogs sitting on 東mat."


def make_stored(*heads, config=CONFIG, parts=ENCODER, **task):
    """Returns a model with distinct weights and three labels."""
    values = stored_models.weights((*parts, *heads), config)
    stored = stored_models.of_weights(values, config, VOCABULARY, path="there")
    return dataclasses.replace(stored, task=stored.task | task)


def make_stored_with(**changes):
    """Returns the encoder with other fields replaced."""
    config = changes.get("config", CONFIG)
    vocabulary = changes.get("vocabulary", VOCABULARY)
    settings = stored_model.tokenizer_settings(vocabulary, True)
    changes = {"tokenizer_settings": settings} | changes
    return dataclasses.replace(make_stored(config=config), **changes)


def make_inputs(config=CONFIG):
    """Returns padded inputs with segments, by our names and by KerasHub's."""
    ours = tiny_layers.inputs(batch=4, length=7)
    ours["input_ids"] %= config.vocab_size
    ours["segment_ids"] %= config.type_vocab_size
    return ours, rename_inputs(ours)


def rename_inputs(ours):
    return {
        "token_ids": ours["input_ids"],
        "padding_mask": ours["input_mask"],
        "segment_ids": ours["segment_ids"],
    }


def compute_our_outputs(stored, inputs):
    model = bert_model.BertModel(stored.config)
    checkpoint_loading.load_into(model, dict(stored.weights))
    return model(inputs)


class PresetCase(files_case.FolderCase):
    def write(self, stored=None, **options):
        return keras_hub.write_model(
            self.folder, stored or make_stored(), **options
        )

    def edit(self, name, **changes):
        """Changes the config in a JSON file of the preset."""
        values = files.read_json(self.path(name))
        values["config"].update(changes)
        files.write_json(self.path(name), values)

    def their_backbone(self, seed=5, **changes):
        """Returns a KerasHub backbone with distinct weights."""
        arguments = {
            "vocabulary_size": len(VOCABULARY),
            "num_layers": 3,
            "num_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 12,
            "dropout": 0.25,
            "max_sequence_length": 9,
            "num_segments": 3,
        }
        backbone = their_library.models.BertBackbone(**arguments | changes)
        return tiny_layers.randomize(backbone, seed)

    def their_tokenizer(self, **settings):
        return their_library.models.BertTokenizer(
            vocabulary=list(VOCABULARY.tokens), **settings
        )

    def assert_same_outputs(self, ours, theirs, mask):
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

    def assert_same_model(self, received, expected):
        self.assertEqual(received.config, expected.config)
        self.assertEqual(
            dict(received.weights.shapes), dict(expected.weights.shapes)
        )
        for name, value in expected.weights.items():
            self.assertEqual(received.weights[name].dtype, np.float32)
            self.assertAllEqual(received.weights[name], value, name)


class BackboneTest(PresetCase):
    def test_outputs_match_the_originals(self):
        prefix = golden("model/bert_model.ckpt.index").removesuffix(".index")
        backbone = keras_hub.build_backbone(tf1_checkpoint.read_model(prefix))
        expected = np.load(golden("model/forward.npz"))
        outputs = backbone(rename_inputs(expected))
        self.assert_same_outputs(
            outputs,
            {name: tf.constant(expected[name]) for name in outputs},
            expected["input_mask"],
        )

    def test_models_without_pooler_are_refused(self):
        stored = make_stored("cls/predictions", parts=("bert",))
        with self.assertRaisesRegex(UserError, "masked_lm. has none; convert"):
            keras_hub.build_backbone(stored)
        with self.assertRaisesRegex(UserError, "has a pooler, and there"):
            self.write(stored)
        self.assertEmpty(os.listdir(self.folder))

    @parameterized.parameters(
        ({"hidden_act": "relu"}, "hidden_act='gelu' and no.*'relu' in there"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps=1e-12 .*=1e-06"),
        ({"left_to_right": True}, "left_to_right=False .*=True"),
        ({"hidden_act": "gelu_erf"}, "'gelu_erf'.*--allow_activation"),
        (
            {"hidden_act": "gelu_erf", "layer_norm_eps": 1e-5},
            "--allow_activation_change",
        ),
    )
    def test_unsupported_configs_are_refused(self, changes, message):
        stored = make_stored(config=dataclasses.replace(CONFIG, **changes))
        with self.assertRaisesRegex(UserError, message):
            keras_hub.build_backbone(stored)
        with self.assertRaisesRegex(UserError, message):
            self.write(stored)
        self.assertEmpty(os.listdir(self.folder))


class WriteTest(PresetCase):
    def test_from_preset_finds_everything(self):
        stored = make_stored()
        sentences = self.write(stored)
        # Loading fails after a move if the preset refers to outside files.
        moved = self.create_tempdir().full_path + "/moved"
        shutil.move(self.folder, moved)
        inputs, theirs = make_inputs()
        backbone = their_library.models.BertBackbone.from_preset(moved)
        self.assert_same_outputs(
            compute_our_outputs(stored, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        self.assertEqual(backbone.dropout, 0.2)
        self.assertEqual(backbone.max_sequence_length, 7)
        tokenizer = their_library.models.BertTokenizer.from_preset(moved)
        self.assertEqual(tokenizer.get_vocabulary(), tiny_model.TOKENS)
        self.assertAllEqual(
            tokenizer(TEXT), stored.build_tokenizer().tokenize(TEXT)
        )
        text = " ".join(sentences)
        self.assertIn("tanh form of GELU", text)
        self.assertIn("no-break spaces do not separate words", text)
        # A classifier must take the encoder's length, or it would pack more
        # tokens than the encoder has positions.
        classifier = their_library.models.BertTextClassifier.from_preset(
            moved, num_classes=2
        )
        self.assertEqual(classifier.preprocessor.sequence_length, 7)
        masked_lm = their_library.models.BertMaskedLMPreprocessor.from_preset(
            moved
        )
        self.assertEqual(masked_lm.tokenizer.vocabulary_size(), 16)
        self.assertAllEqual(
            classifier.backbone.get_layer("pooled_dense").kernel,
            stored.weights["bert/pooler/dense/kernel"],
        )

    # These four rows hold every pair of values of any two settings.
    @parameterized.parameters(
        (False, False, False),
        (False, True, True),
        (True, False, True),
        (True, True, False),
    )
    def test_settings_are_read_back(self, lower_case, strip_accents, preserve):
        settings = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "preserve_special_tokens": preserve,
        }
        self.write(
            make_stored_with(
                tokenizer_settings=stored_model.tokenizer_settings(
                    VOCABULARY, **settings
                )
            )
        )
        self.assertEqual(
            keras_hub.read_model(self.folder).tokenizer_settings,
            settings
            | {"normalization": "original", "vocabulary_hash": mock.ANY},
        )

    def test_classifier_gives_our_logits_in_keras_hub(self):
        stored = make_stored(
            "output",
            labels=["no", "yes", "who knows"],
            max_seq_length=6,
            problem_type="multi_label",
        )
        sentences = self.write(stored)
        inputs, theirs = make_inputs()
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.folder
        )
        pooled = compute_our_outputs(stored, inputs)["pooled_output"].numpy()
        expected = (
            pooled @ stored.weights["output_weights"].T
            + stored.weights["output_bias"]
        )
        self.assertAllClose(classifier(theirs), expected, rtol=0, atol=1e-5)
        self.assertEqual(classifier.dropout, 0.1)
        self.assertEqual(classifier.preprocessor.sequence_length, 6)
        packed = classifier.preprocessor([TEXT])["token_ids"]
        self.assertEqual(packed.shape, (1, 6))
        self.assertIn("no place for labels, problem_type", sentences[0])
        received = keras_hub.read_model(self.folder)
        self.assert_same_model(received, stored)
        self.assertEqual(
            received.task, {"kind": "classification", "max_seq_length": 6}
        )

    def test_writes_the_originals_classifier(self):
        prefix = golden("model/classifier.ckpt.index").removesuffix(".index")
        stored = tf1_checkpoint.read_model(prefix)
        self.write(stored)
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.folder
        )
        inputs = np.load(golden("model/forward.npz"))
        expected = np.load(golden("model/classifier.npz"))
        self.assertAllClose(
            classifier(rename_inputs(inputs)),
            expected["logits"],
            rtol=0,
            atol=1e-5,
        )
        self.assert_same_model(keras_hub.read_model(self.folder), stored)

    def test_refuses_two_wordpieces_of_white_space(self):
        # KerasHub strips white space, so two such tokens would become one.
        config = tiny_layers.replace(vocab_size=17)
        one = Vocabulary([*tiny_model.TOKENS, "\u2028"])
        stored = make_stored_with(config=config, vocabulary=one)
        self.write(stored)
        tokenizer = their_library.models.BertTokenizer.from_preset(self.folder)
        self.assertAllEqual(
            tokenizer("the dog"), [one.id("the"), one.id("dog")]
        )
        two = Vocabulary([*one.tokens, "\u3000"])
        stored = make_stored_with(
            config=tiny_layers.replace(vocab_size=18), vocabulary=two
        )
        with self.assertRaisesRegex(UserError, "would hold a wordpiece"):
            self.write(stored)


class ReadTest(PresetCase):
    def _assert_read_as(self, backbone):
        received = keras_hub.read_model(self.folder)
        inputs, theirs = make_inputs(received.config)
        self.assert_same_outputs(
            compute_our_outputs(received, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        return received

    def test_their_backbone_is_read_with_its_config(self):
        backbone = self.their_backbone()
        backbone.save_to_preset(self.folder)
        self.assertEqual(formats.detect(self.folder), "keras_hub")
        received = self._assert_read_as(backbone)
        self.assertEqual(
            received.config,
            tiny_layers.replace(
                vocab_size=16,
                num_hidden_layers=3,
                hidden_dropout_prob=0.25,
                attention_probs_dropout_prob=0.25,
                max_position_embeddings=9,
            ),
        )
        self.assertEqual(received.task["kind"], "encoder")
        self.assertLen(received.report.loaded, len(backbone.weights))
        # Four kernels and three biases per layer have a head axis: 7 * 3.
        self.assertLen(received.report.reshaped, 21)
        self.assertIn("tanh form", received.report.notes[0])
        self.assertIn("no tokenizer", " ".join(received.report.notes))

    def test_shards_read_as_the_whole_backbone(self):
        backbone = self.their_backbone()
        backbone.save_to_preset(self.folder, max_shard_size=1e-6)
        self.assertIn("model_00003.weights.h5", os.listdir(self.folder))
        self.assertEqual(formats.detect(self.folder), "keras_hub")
        self._assert_read_as(backbone)

    def test_reads_names_from_before_keras_3(self):
        backbone = self.their_backbone()
        backbone.save_to_preset(self.folder)
        with h5py.File(self.path("model.weights.h5"), "a") as file:
            file.move("layers", "_layer_checkpoint_dependencies")
        their_library.models.BertBackbone.from_preset(self.folder)
        self._assert_read_as(backbone)

    def test_their_classifier_gives_the_same_logits(self):
        classifier = their_library.models.BertTextClassifier(
            self.their_backbone(),
            num_classes=4,
            preprocessor=their_library.models.BertTextClassifierPreprocessor(
                self.their_tokenizer(lowercase=True), sequence_length=8
            ),
        )
        tiny_layers.randomize(classifier.output_dense, seed=8)
        classifier.save_to_preset(self.folder)
        received = keras_hub.read_model(self.folder)
        inputs, theirs = make_inputs(received.config)
        outputs = compute_our_outputs(received, inputs)
        weights = received.weights
        logits = outputs["pooled_output"] @ weights["output_weights"].T
        logits += weights["output_bias"]
        self.assertAllClose(classifier(theirs), logits, rtol=0, atol=1e-5)
        self.assertEqual(
            received.task, {"kind": "classification", "max_seq_length": 8}
        )
        self.assertEqual(received.vocabulary.tokens, VOCABULARY.tokens)
        settings = received.tokenizer_settings
        self.assertTrue(settings["lower_case"])
        self.assertFalse(settings["strip_accents"])
        notes = " ".join(received.report.notes)
        self.assertIn("keeps accents", notes)
        self.assertIn("no label names", notes)

    def test_reads_a_trained_classifier(self):
        classifier = their_library.models.BertTextClassifier(
            self.their_backbone(), num_classes=3, activation="softmax"
        )
        classifier.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(),
        )
        classifier.optimizer.build(classifier.trainable_variables)
        classifier.save_to_preset(self.folder)
        received = keras_hub.read_model(self.folder)
        self.assertAllEqual(
            received.weights["output_bias"], classifier.output_dense.bias
        )
        self.assertEqual(
            received.task,
            {"kind": "classification", "problem_type": "single_label"},
        )
        self.assertIn("softmax of the logits", str(received.report.notes))

    @parameterized.parameters(
        ("BertMaskedLM", "masked-LM head is ignored"),
        ("BertTextEmbedder", "BertTextEmbedder"),
    )
    def test_their_other_models_are_encoders(self, name, note):
        model = getattr(their_library.models, name)(self.their_backbone())
        model.save_to_preset(self.folder)
        received = keras_hub.read_model(self.folder)
        self.assertEqual(received.task, {"kind": "encoder"})
        self.assertIn(note, " ".join(received.report.notes))

    def test_reads_a_vocabulary_added_by_the_user(self):
        self.their_backbone().save_to_preset(self.folder)
        VOCABULARY.write(self.path("vocab.txt"))
        received = keras_hub.read_model(self.folder)
        self.assertEqual(received.vocabulary.tokens, VOCABULARY.tokens)
        self.assertTrue(received.tokenizer_settings["lower_case"])
        self.assertTrue(received.lower_case_is_derived)

    def test_needs_keras_hub(self):
        self.write()
        with mock.patch.object(
            importlib.util, "find_spec", lambda name: name != "keras_hub"
        ):
            self.assertTrue(keras_hub.recognizes(self.folder))
            with self.assertRaisesRegex(UserError, r"bert_tf\[interop\]"):
                keras_hub.read_model(self.folder)


class BadInputTest(PresetCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.preset = cls.enter_context(tempfile.TemporaryDirectory())
        keras_hub.write_model(cls.preset, make_stored("output"))

    def setUp(self):
        super().setUp()
        shutil.copytree(self.preset, self.folder, dirs_exist_ok=True)

    def _assert_refused(self, message, **options):
        with self.assertRaisesRegex(UserError, message) as raised:
            keras_hub.read_model(self.folder, **options)
        self.assertNotIn("\n", str(raised.exception))

    def test_sigmoid_means_multi_label(self):
        self.edit("task.json", activation="sigmoid")
        received = keras_hub.read_model(self.folder)
        self.assertIn("returns sigmoid of the", str(received.report.notes))
        self.assertEqual(received.task["problem_type"], "multi_label")

    def test_missing_shard_is_refused(self):
        backbone = self.their_backbone()
        os.remove(self.path("model.weights.h5"))
        backbone.save_to_preset(self.folder, max_shard_size=1e-6)
        os.remove(self.path("model_00001.weights.h5"))
        self._assert_refused("cannot read")

    @parameterized.parameters(
        ({"split": False}, "'split' must be True. Received: False"),
        ({"suffix_indicator": "@"}, "'suffix_indicator' must be '##'"),
    )
    def test_other_tokenizers_are_refused(self, changes, message):
        self.edit("tokenizer.json", **changes)
        self._assert_refused(message)

    def test_refuses_a_tokenizer_of_another_architecture(self):
        values = files.read_json(self.path("tokenizer.json"))
        values["registered_name"] = "keras_hub>RobertaTokenizer"
        files.write_json(self.path("tokenizer.json"), values)
        self._assert_refused("RobertaTokenizer")

    @parameterized.parameters("class_name", "config")
    def test_refuses_a_tokenizer_that_keras_does_not_build(self, name):
        values = files.read_json(self.path("tokenizer.json"))
        del values[name]
        files.write_json(self.path("tokenizer.json"), values)
        self._assert_refused("cannot read")


if __name__ == "__main__":
    tf.test.main()
