"""Tests for bert_tf.checkpoints.keras_hub."""

import os
import shutil
from unittest import mock

import keras_hub as their_library
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import keras_hub
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.text.vocabulary import Vocabulary
from tests.support import keras_hub_case as case
from tests.support import tiny_layers
from tests.support import tiny_model
from tests.support.shared_data import golden


class BackboneTest(case.PresetCase, tf.test.TestCase, parameterized.TestCase):
    def test_outputs_match_ours(self):
        stored = case.make_stored("cls/predictions", "cls/seq_relationship")
        inputs, theirs = case.make_inputs()
        backbone = keras_hub.build_backbone(stored)
        self.assertIsInstance(backbone, their_library.models.BertBackbone)
        self.assert_same_outputs(
            case.compute_our_outputs(stored, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )

    def test_outputs_match_the_originals(self):
        prefix = golden("model/bert_model.ckpt.index").removesuffix(".index")
        backbone = keras_hub.build_backbone(tf1_checkpoint.read_model(prefix))
        expected = np.load(golden("model/forward.npz"))
        outputs = backbone(case.rename_golden_inputs(expected))
        self.assert_same_outputs(
            outputs,
            {name: tf.constant(expected[name]) for name in outputs},
            expected["input_mask"],
        )

    def test_no_pooler(self):
        stored = case.make_stored("cls/predictions", parts=("bert",))
        with self.assertRaisesRegex(UserError, "masked_lm. has none; convert"):
            keras_hub.build_backbone(stored)
        with self.assertRaisesRegex(UserError, "has a pooler, and there"):
            self.write(stored)
        self.assertEmpty(os.listdir(self.directory))

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
        stored = case.make_stored(
            config=BertConfig(**vars(case.CONFIG) | changes)
        )
        with self.assertRaisesRegex(UserError, message):
            keras_hub.build_backbone(stored)
        with self.assertRaisesRegex(UserError, message):
            self.write(stored)
        self.assertEmpty(os.listdir(self.directory))


class WriteTest(case.PresetCase, tf.test.TestCase, parameterized.TestCase):
    def test_from_preset_finds_everything(self):
        stored = case.make_stored()
        sentences = self.write(stored)
        # A preset does not refer to other files.
        moved = self.create_tempdir().full_path + "/moved"
        shutil.move(self.directory, moved)
        inputs, theirs = case.make_inputs()
        backbone = their_library.models.BertBackbone.from_preset(moved)
        self.assert_same_outputs(
            case.compute_our_outputs(stored, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        self.assertEqual(backbone.dropout, 0.2)
        self.assertEqual(backbone.max_sequence_length, 7)
        tokenizer = their_library.models.BertTokenizer.from_preset(moved)
        self.assertEqual(tokenizer.get_vocabulary(), tiny_model.TOKENS)
        self.assertAllEqual(
            tokenizer(case.TEXT), stored.build_tokenizer().tokenize(case.TEXT)
        )
        text = " ".join(sentences)
        self.assertIn("tanh form of GELU", text)
        self.assertIn("no-break spaces do not separate words", text)
        # A classifier on the preset has its encoder and packs no more tokens
        # than the encoder has positions.
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

    # Every pair of values.
    @parameterized.parameters(
        (False, False, False),
        (False, True, True),
        (True, False, True),
        (True, True, False),
    )
    def test_tokenizer_settings(self, lower_case, strip_accents, preserve):
        settings = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "preserve_special_tokens": preserve,
        }
        self.write()
        tokenizer = keras_hub._build_tokenizer(
            case.make_stored_with(
                tokenizer_settings=stored_model.tokenizer_settings(
                    case.VOCABULARY, **settings
                )
            )
        )
        tokenizer.save_to_preset(self.directory)
        _, received, _ = keras_hub._read_tokenizer(self.directory, 16)
        self.assertEqual(
            received,
            settings
            | {"normalization": "original", "vocabulary_hash": mock.ANY},
        )

    def test_classifier(self):
        stored = case.make_stored(
            "output",
            labels=["no", "yes", "who knows"],
            max_seq_length=6,
            problem_type="multi_label",
        )
        sentences = self.write(stored)
        inputs, theirs = case.make_inputs()
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.directory
        )
        pooled = case.compute_our_outputs(stored, inputs)[
            "pooled_output"
        ].numpy()
        expected = (
            pooled @ stored.weights["output_weights"].T
            + stored.weights["output_bias"]
        )
        self.assertAllClose(classifier(theirs), expected, rtol=0, atol=1e-5)
        self.assertEqual(classifier.dropout, 0.1)
        self.assertEqual(classifier.preprocessor.sequence_length, 6)
        packed = classifier.preprocessor([case.TEXT])["token_ids"]
        self.assertEqual(packed.shape, (1, 6))
        self.assertIn("no place for labels, problem_type", sentences[0])
        received = keras_hub.read_model(self.directory)
        self.assert_same_model(received, stored)
        self.assertEqual(
            received.task, {"kind": "classification", "max_seq_length": 6}
        )

    def test_the_originals_classifier(self):
        prefix = golden("model/classifier.ckpt.index").removesuffix(".index")
        stored = tf1_checkpoint.read_model(prefix)
        self.write(stored)
        classifier = their_library.models.BertTextClassifier.from_preset(
            self.directory
        )
        inputs = np.load(golden("model/forward.npz"))
        expected = np.load(golden("model/classifier.npz"))
        self.assertAllClose(
            classifier(case.rename_golden_inputs(inputs)),
            expected["logits"],
            rtol=0,
            atol=1e-5,
        )
        self.assert_same_model(keras_hub.read_model(self.directory), stored)

    def test_classifier_without_vocabulary(self):
        stored = case.make_stored("output", with_vocabulary=False)
        sentences = self.write(stored)
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
        self.assert_same_model(received, stored)

    def test_wordpieces_of_white_space(self):
        # KerasHub strips them, so two of them would be one.
        config = tiny_layers.replace(vocab_size=17)
        one = Vocabulary([*tiny_model.TOKENS, "\u2028"])
        stored = case.make_stored_with(config=config, vocabulary=one)
        self.assertIn("end: '\\u2028'.", " ".join(self.write(stored)))
        tokenizer = their_library.models.BertTokenizer.from_preset(
            self.directory
        )
        self.assertAllEqual(
            tokenizer("the dog"), [one.id("the"), one.id("dog")]
        )
        two = Vocabulary([*one.tokens, "\u3000"])
        stored = case.make_stored_with(
            config=tiny_layers.replace(vocab_size=18), vocabulary=two
        )
        with self.assertRaisesRegex(UserError, "would hold a wordpiece"):
            self.write(stored)


if __name__ == "__main__":
    tf.test.main()
