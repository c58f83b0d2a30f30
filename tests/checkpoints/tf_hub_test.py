"""Tests for bert_tf.checkpoints.tf_hub, on SavedModels of the libraries."""

import json
import os
import re
import shutil
import tarfile
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.core.protobuf import saved_model_pb2

import bert_tf
from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import tf_hub
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.errors import UserError
from bert_tf.io import paths
from tests.support import files_case
from tests.support import shared_data

_GOLDEN = shared_data.golden("tf_hub")


class TfHubTest(files_case.FolderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.models)
        shutil.copytree(_GOLDEN, cls.models, dirs_exist_ok=True)
        with tarfile.open(os.path.join(_GOLDEN, "more.tar.xz")) as archive:
            archive.extractall(cls.models, filter="data")

    def model(self, name):
        return os.path.join(self.models, name)

    def copy(self, name):
        return shutil.copytree(self.model(name), self.path(name))

    def assert_refused(self, path, message):
        self.assertEqual(formats.detect(path), "tf_hub")
        with self.assertRaisesRegex(UserError, message) as raised:
            formats.read(path)
        self.assertNotIn("\n", str(raised.exception))

    def change(self, path, function):
        """Changes the only graph of a SavedModel."""
        file = os.path.join(path, "saved_model.pb")
        with open(file, "rb") as opened:
            saved = saved_model_pb2.SavedModel.FromString(opened.read())
        function(saved.meta_graphs[0])
        with open(file, "wb") as opened:
            opened.write(saved.SerializeToString())

    @parameterized.parameters(
        ("encoder", "encoder", "gelu", 2, None),
        ("masked_lm", "masked_lm", "gelu", 1, None),
        ("keras_layer_classifier", "classification", "gelu", 2, "single_label"),
        ("multi_label", "classification", "gelu_erf", 1, "multi_label"),
        ("text", "classification", "gelu_erf", 1, "regression"),
    )
    def test_reads_config_task_and_vocabulary(
        self, name, kind, hidden_act, layers, problem_type
    ):
        self.assertTrue(paths.may_be_model(self.model(name)))
        self.assertEqual(formats.detect(self.model(name)), "tf_hub")
        stored = formats.read(self.model(name))
        config = stored.config
        self.assertEqual(
            (config.num_hidden_layers, config.num_attention_heads), (layers, 4)
        )
        self.assertEqual(
            (config.hidden_size, config.intermediate_size), (32, 64)
        )
        self.assertEqual(config.hidden_act, hidden_act)
        self.assertEqual(config.max_position_embeddings, 64)
        self.assertEqual(stored.task["kind"], kind)
        self.assertEqual(stored.task.get("problem_type"), problem_type)
        self.assertLen(stored.vocabulary, config.vocab_size)
        self.assertTrue(stored.tokenizer_settings["lower_case"])
        self.assertFalse(stored.lower_case_is_derived)

    @pytest.mark.slow
    @parameterized.parameters(
        "encoder", "masked_lm", "keras_layer_classifier", "multi_label"
    )
    def test_outputs_equal_those_of_the_savedmodel(self, name):
        expected = dict(np.load(f"{self.model(name)}_expected.npz"))
        inputs = {
            ours: expected.pop(theirs).astype(np.int32)
            for ours, theirs in (
                ("input_ids", "ids"),
                ("input_mask", "mask"),
                ("segment_ids", "seg"),
                ("masked_lm_positions", "positions"),
            )
            if theirs in expected
        }
        options = {} if name == "encoder" else {"return_encoder_outputs": True}
        outputs = dict(bert_tf.load_model(self.model(name), **options)(inputs))
        outputs["mlm_logits"] = outputs.get("masked_lm_logits")
        if name == "multi_label":
            outputs["logits"] = tf.sigmoid(outputs["logits"])
        for key, value in expected.items():
            self.assertAllClose(outputs[key], value, 0, 1e-5, key)

    @pytest.mark.slow
    def test_scores_equal_those_of_preprocessing_in_the_graph(self):
        expected = np.load(self.model("text_expected.npz"))
        model = bert_tf.load_model(self.model("text"))
        scores = [x["score"] for x in model.predict(list(expected["texts"]))]
        self.assertAllClose(scores, expected["logits"][:, 0], 0, 1e-5)

    def test_refuses_a_flag_that_contradicts_the_stored_case(self):
        config = ConvertCheckpointConfig(
            input=self.model("encoder"),
            output=self.path("out"),
            target_format="tf1",
            do_lower_case=False,
        )
        with self.assertRaisesRegex(UserError, "lower case, which --nodo_low"):
            conversion.run(config)

    def test_reads_a_graph_with_unknown_operators(self):
        """Reads a graph with unknown operators, because it never runs it."""
        path = self.copy("keras_layer_classifier")

        def change(graph):
            for function in graph.graph_def.library.function:
                for node in function.node_def:
                    node.op = "NoSuchOperator"

        self.change(path, change)
        notes = formats.read(path).report.notes
        self.assertRegex(notes[0], 'hidden_act "gelu".*is assumed')

    def test_vocabulary_is_an_asset(self):
        path = self.copy("encoder")
        assets = os.path.join(path, "assets")
        os.rename(f"{assets}/vocab.txt", f"{assets}/words.txt")

        def change(graph):
            graph.asset_file_def[0].filename = name

        for name in ("words.txt", "../assets/words.txt"):
            self.change(path, change)
            if name == "words.txt":
                self.assertLen(formats.read(path).vocabulary, 66)
        self.assert_refused(path, "the asset '../assets/words.txt'")

    def test_reads_the_head_of_tensorflow_2_4(self):
        """Reads Keras's metadata from saved_model.pb, as of TensorFlow 2.4."""
        path = self.copy("keras_layer_classifier")
        graph = tf_hub._read_graph(os.path.join(path, "saved_model.pb"))
        metadata = tf_hub._read_metadata(path, graph)
        os.remove(os.path.join(path, "keras_metadata.pb"))
        self.assert_refused(path, "no keras_metadata.pb that describes")

        def change(graph):
            root = graph.object_graph_def.nodes[0].user_object
            root.metadata = json.dumps(metadata)

        self.change(path, change)
        self.assertEqual(formats.read(path).task["kind"], "classification")

    def test_another_head_is_refused_unless_allowed(self):
        path = self.model("on_sequence_output")
        self.assert_refused(path, "layer_with_weights-1/kernel.*--allow_miss")
        pattern = re.compile("layer_with_weights-1")
        stored = formats.read(path, allow_missing=pattern)
        self.assertEqual(stored.task, {"kind": "encoder"})
        self.assertLen(stored.report.unused, 2)

    def test_other_architectures_are_refused(self):
        self.assert_refused(self.model("albert"), "without one encoder of BERT")
        tf.saved_model.save(tf.Module(), self.path("module"))
        self.assert_refused(self.path("module"), "encoder of BERT.*model direc")

    def test_refuses_a_graph_of_tensorflow_1(self):
        path = self.copy("encoder")
        self.change(path, lambda graph: graph.ClearField("object_graph_def"))
        self.assert_refused(path, "version for TensorFlow 2")

    def test_incomplete_models_are_refused(self):
        path = self.copy("encoder")
        os.remove(os.path.join(path, "variables", "variables.index"))
        self.assert_refused(path, "no .*variables.index; copy the model again")
        with open(os.path.join(path, "saved_model.pb"), "r+b") as file:
            file.truncate(1000)
        self.assert_refused(path, "saved_model.pb is damaged or incomplete")


if __name__ == "__main__":
    tf.test.main()
