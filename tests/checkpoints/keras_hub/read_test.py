"""Tests for reading KerasHub presets."""

import importlib.util
import os
import shutil
import tempfile
from unittest import mock

import h5py
import keras
import keras_hub as their_library
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import keras_hub
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from tests.support import keras_hub_case as case
from tests.support import tiny_layers


class ReadTest(case.PresetCase, tf.test.TestCase, parameterized.TestCase):
    def _assert_read_as(self, backbone):
        received = keras_hub.read_model(self.directory)
        inputs, theirs = case.make_inputs(received.config)
        self.assert_same_outputs(
            case.compute_our_outputs(received, inputs),
            backbone(theirs),
            inputs["input_mask"],
        )
        return received

    def test_their_backbone(self):
        backbone = self.their_backbone()
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
        # Four kernels and three biases of attention per layer.
        self.assertLen(received.report.reshaped, 21)
        self.assertIn("tanh form", received.report.notes[0])
        self.assertIn("no tokenizer", " ".join(received.report.notes))

    def test_shards(self):
        backbone = self.their_backbone()
        backbone.save_to_preset(self.directory, max_shard_size=1e-6)
        self.assertIn("model_00003.weights.h5", os.listdir(self.directory))
        self.assertEqual(formats.detect(self.directory), "keras_hub")
        self._assert_read_as(backbone)

    def test_half_precision(self):
        self.their_backbone(dtype="bfloat16").save_to_preset(self.directory)
        backbone = their_library.models.BertBackbone.from_preset(
            self.directory, dtype="float32"
        )
        received = self._assert_read_as(backbone)
        kernel = received.weights["bert/pooler/dense/kernel"]
        self.assertAllEqual(
            kernel, backbone.get_layer("pooled_dense").kernel.numpy()
        )

    def test_names_from_before_keras_3(self):
        backbone = self.their_backbone()
        backbone.save_to_preset(self.directory)
        with h5py.File(self.path("model.weights.h5"), "a") as file:
            file.move("layers", "_layer_checkpoint_dependencies")
        their_library.models.BertBackbone.from_preset(self.directory)
        self._assert_read_as(backbone)

    def test_their_classifier(self):
        classifier = their_library.models.BertTextClassifier(
            self.their_backbone(),
            num_classes=4,
            preprocessor=their_library.models.BertTextClassifierPreprocessor(
                self.their_tokenizer(lowercase=True), sequence_length=8
            ),
        )
        tiny_layers.randomize(classifier.output_dense, seed=8)
        classifier.save_to_preset(self.directory)
        received = keras_hub.read_model(self.directory)
        inputs, theirs = case.make_inputs(received.config)
        outputs = case.compute_our_outputs(received, inputs)
        weights = received.weights
        logits = outputs["pooled_output"] @ weights["output_weights"].T
        logits += weights["output_bias"]
        self.assertAllClose(classifier(theirs), logits, rtol=0, atol=1e-5)
        self.assertEqual(
            received.task, {"kind": "classification", "max_seq_length": 8}
        )
        self.assertEqual(received.vocabulary.tokens, case.VOCABULARY.tokens)
        settings = received.tokenizer_settings
        self.assertTrue(settings["lower_case"])
        self.assertFalse(settings["strip_accents"])
        notes = " ".join(received.report.notes)
        self.assertIn("keeps accents", notes)
        self.assertIn("no label names", notes)

    def test_a_trained_classifier(self):
        classifier = their_library.models.BertTextClassifier(
            self.their_backbone(), num_classes=3, activation="softmax"
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
        self.assertIn("softmax of the logits", received.report.notes[-1])

    @parameterized.parameters(
        ("BertMaskedLM", "masked-LM head is ignored"),
        ("BertTextEmbedder", "BertTextEmbedder"),
    )
    def test_their_other_models_are_encoders(self, name, note):
        model = getattr(their_library.models, name)(self.their_backbone())
        model.save_to_preset(self.directory)
        received = keras_hub.read_model(self.directory)
        self.assertEqual(received.task, {"kind": "encoder"})
        self.assertIn(note, received.report.notes[-1])

    def test_vocabulary_added_by_the_user(self):
        self.their_backbone().save_to_preset(self.directory)
        case.VOCABULARY.write(self.path("vocab.txt"))
        received = keras_hub.read_model(self.directory)
        self.assertEqual(received.vocabulary.tokens, case.VOCABULARY.tokens)
        self.assertTrue(received.tokenizer_settings["lower_case"])
        self.assertIn("vocab.txt", " ".join(received.report.notes))

    def test_needs_keras_hub(self):
        self.write()
        with mock.patch.object(
            importlib.util, "find_spec", lambda name: name != "keras_hub"
        ):
            self.assertTrue(keras_hub.recognizes(self.directory))
            with self.assertRaisesRegex(UserError, r"bert_tf\[interop\]"):
                keras_hub.read_model(self.directory)


class RecognizeTest(case.PresetCase, tf.test.TestCase, parameterized.TestCase):
    def test_other_directories(self):
        self.assertFalse(keras_hub.recognizes(self.directory))
        self.assertFalse(keras_hub.recognizes(self.path("nothing")))
        for contents in (b'{"model_type": "bert"}', b"[1]", b"{", b"\xff"):
            files.write_bytes(self.path("config.json"), contents)
            self.assertFalse(keras_hub.recognizes(self.directory))
            self.assertFalse(keras_hub.recognizes(self.path("config.json")))

    @parameterized.parameters(
        {"registered_name": "keras_nlp>BertBackbone"},
        {"module": "keras_hub.src.models.bert.bert_backbone"},
    )
    def test_config(self, **values):
        files.write_json(self.path("config.json"), values)
        self.assertTrue(keras_hub.recognizes(self.directory))


class BadInputTest(case.PresetCase, tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.preset = cls.enter_context(tempfile.TemporaryDirectory())
        keras_hub.write_model(cls.preset, case.make_stored("output"))

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
        self._assert_refused("preset of DistilBertBackbone; only .* a Bert")

    @parameterized.parameters(
        ({"num_layers": 1}, "config.json describes"),
        ({"num_layers": 3}, "config.json describes"),
        ({"hidden_dim": 10}, "config.json describes"),
        ({"num_heads": 4}, r"query/kernel \(8, 2, 4\) \(expected"),
        ({"max_sequence_length": 8}, "config.json describes"),
        ({"num_segments": 2}, "config.json describes"),
        ({"vocabulary_size": 15}, "16 lines, but `vocab_size`"),
        ({"vocabulary_size": "x"}, "config.json: `vocab_size` must be of type"),
        ({"num_heads": 3}, "config.json: `num_attention_heads` must divide"),
        ({"dropout": None}, "config.json: `hidden_dropout_prob` must be"),
    )
    def test_config_of_other_weights(self, changes, message):
        self.edit("config.json", **changes)
        self._assert_refused(message)

    @parameterized.product(
        name=("config.json", "task.json", "tokenizer.json"),
        contents=("{", "[]", '{"config": 3}'),
    )
    def test_damaged_json(self, name, contents):
        files.write_text(self.path(name), contents)
        self._assert_refused(
            f"{name}(: .config. must| is not| must hold)|BertTokenizer"
        )

    @parameterized.parameters(
        *("model.weights.h5", "task.weights.h5"),
        "assets/tokenizer/vocabulary.txt",
    )
    def test_missing_file(self, name):
        os.remove(self.path(name))
        self._assert_refused("There is no|no such file|vocabulary.txt")

    def test_activation_of_a_classifier(self):
        self.edit("task.json", activation="sigmoid")
        received = keras_hub.read_model(self.directory)
        self.assertIn("returns sigmoid of the", received.report.notes[-1])
        self.assertEqual(received.task["problem_type"], "multi_label")

    def test_head_without_its_weights(self):
        with h5py.File(self.path("task.weights.h5"), "a") as file:
            for name in list(file):
                del file[name]
        self._assert_refused("could not be loaded")

    def test_missing_shard(self):
        backbone = self.their_backbone()
        os.remove(self.path("model.weights.h5"))
        backbone.save_to_preset(self.directory, max_shard_size=1e-6)
        os.remove(self.path("model_00001.weights.h5"))
        self._assert_refused("cannot read")

    @parameterized.parameters(
        ({"split": False}, "split=True.*Received.*split=False"),
        ({"suffix_indicator": "@"}, "suffix_indicator='@'"),
    )
    def test_other_tokenizers(self, changes, message):
        self.edit("tokenizer.json", **changes)
        self._assert_refused(message)

    def test_tokenizer_of_another_architecture(self):
        values = files.read_json(self.path("tokenizer.json"))
        values["registered_name"] = "keras_hub>RobertaTokenizer"
        files.write_json(self.path("tokenizer.json"), values)
        self._assert_refused("RobertaTokenizer")


if __name__ == "__main__":
    tf.test.main()
