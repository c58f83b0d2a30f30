"""Tests of the folders that transformers' TensorFlow classes wrote."""

import os
import shutil

import h5py
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.checkpoints.huggingface import weights as huggingface_weights
from bert_tf.errors import UserError
from bert_tf.io import files
from tests.support import repository

_FILE = "tf_model.h5"
_TESTS = repository.ROOT / "tests"
_FOLDERS = {
    path.name: str(path)
    for parent in ("golden", "testdata")
    for path in sorted((_TESTS / parent / "tf_keras_h5").iterdir())
    if path.is_dir()
}
# Outputs' names in transformers to ours, where they differ.
_OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "masked_lm_logits",
    "seq_relationship_logits": "next_sentence_logits",
}
_LOGITS = {
    "masked_lm": "masked_lm_logits",
    "next_sentence": "next_sentence_logits",
}
_OTHERS = (
    "dense/dense/kernel:0",
    "layers/token_embedding/vars/0",
    "electra/tf_electra_model/electra/embeddings/word_embeddings/weight:0",
)


class TfKerasH5Test(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "model")

    def _copy(self, kind):
        """Copies a folder; returns its weights by their paths."""
        shutil.copytree(_FOLDERS[kind], self.path)
        weights = {}

        def add(name, item):
            if isinstance(item, h5py.Dataset):
                weights[name] = item[()]

        with h5py.File(os.path.join(self.path, _FILE)) as file:
            file.visititems(add)
        return weights

    def _write(self, weights, name=_FILE):
        with h5py.File(os.path.join(self.path, name), "w") as file:
            for path, value in weights.items():
                file[path] = value

    def _change_config(self, **values):
        path = os.path.join(self.path, "config.json")
        files.write_json(path, files.read_json(path) | values)

    def _assert_read(self, kind):
        """Asserts that the copy holds the same model as its original."""
        expected = huggingface.read_model(_FOLDERS[kind])
        stored = formats.read(self.path)
        self.assertEqual(stored.task, expected.task)
        self.assertAllClose(stored.weights, expected.weights, rtol=0, atol=0)

    def _assert_refused(self, message):
        with self.assertRaisesRegex(UserError, message) as context:
            dict(formats.read(self.path).weights)
        self.assertNotIn("\n", str(context.exception))

    @parameterized.parameters(*_FOLDERS)
    def test_outputs_match_transformers(self, kind):
        stored = formats.read(_FOLDERS[kind])
        self.assertEqual(stored.task["kind"], kind)
        self.assertEqual(stored.report.unused + stored.report.missing, ())
        model = bert_tf.load_model(_FOLDERS[kind])
        with np.load(os.path.join(_FOLDERS[kind], "expected.npz")) as file:
            expected = dict(file)
        names = {"input_ids": "ids", "input_mask": "mask"}
        names |= {"segment_ids": "seg"}
        outputs = model({x: expected.pop(y) for x, y in names.items()})
        self.assertNotEmpty(expected)
        for name, value in expected.items():
            ours = _LOGITS.get(kind, _OUTPUTS.get(name, name))
            self.assertAllClose(outputs[ours], value, 0, 1e-5, name)

    @parameterized.parameters("my_bert", "tf_bert_model_1", "a/tf_bert_model/b")
    def test_only_class_names_above_the_layers_matter(self, name):
        weights = self._copy("classification")
        old = "tf_bert_for_sequence_classification"
        self._write({x.replace(old, name): v for x, v in weights.items()})
        if name.startswith("tf"):  # The name of an encoder.
            self._assert_refused(r"also has classifier\.")
        else:
            self._assert_read("classification")

    def test_names_of_weights_determine_the_class(self):
        """Ignores the class in config.json, which may precede training."""
        self._copy("tagging")
        for names in (["BertForMaskedLM"], None):
            self._change_config(architectures=names)
            self._assert_read("tagging")

    def test_reads_weights_with_an_axis_of_heads(self):
        """Reads transformers 4.2's attention weights, with an axis of heads."""
        weights = self._copy("encoder")
        for name, value in weights.items():
            if "/attention/self/" in name:
                weights[name] = value.reshape((*value.shape[:-1], 4, 8))
            elif name.endswith("/attention/output/dense/kernel:0"):
                weights[name] = value.reshape(4, 8, 32)
        self._write(weights)
        self._assert_read("encoder")

    def test_shards_read_as_one_file_does(self):
        weights = self._copy("masked_lm")
        os.remove(os.path.join(self.path, _FILE))
        shards, places = ({}, {}), {}
        for i, (name, value) in enumerate(weights.items()):
            full = name.partition("/")[2]
            if full not in places:
                places[full] = f"tf_model-0000{i % 2 + 1}-of-00002.h5"
                shards[i % 2][full.partition("/")[2]] = value
        for i, shard in enumerate(shards):
            self._write(shard, f"tf_model-0000{i + 1}-of-00002.h5")
        index = os.path.join(self.path, f"{_FILE}.index.json")
        files.write_json(index, {"weight_map": places})
        self._assert_read("masked_lm")

    def test_safetensors_go_first_and_pickles_last(self):
        self._copy("encoder")
        files.write_bytes(os.path.join(self.path, "pytorch_model.bin"), b"")
        self.assertEndsWith(huggingface_weights.read(self.path).path, _FILE)
        files.write_bytes(os.path.join(self.path, "model.safetensors"), b"")
        with self.assertRaisesRegex(UserError, "model.safetensors"):
            huggingface_weights.read(self.path)

    def test_optimizer_of_a_compiled_model_is_left_out(self):
        weights = self._copy("tagging")
        self._write(weights | {"optimizer_weights/Adam/iter:0": 7})
        self._assert_read("tagging")

    def test_pointer_of_git_lfs_is_named(self):
        self._copy("encoder")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
        files.write_bytes(os.path.join(self.path, _FILE), pointer)
        self._assert_refused("pointer of Git LFS.*git lfs pull")

    @parameterized.parameters(*_OTHERS)
    def test_refuses_files_of_others(self, name):
        self._copy("encoder")
        self._write({name: np.ones((66, 32), "f4")})
        self._assert_refused(f"{_FILE} holds no BERT of transformers: expected")

    def test_names_weights_that_do_not_fit(self):
        weights = self._copy("encoder")
        pooler = "bert/tf_bert_model/bert/pooler/dense/"
        weights["x/y/kernel:0"] = weights.pop(f"{pooler}kernel:0")
        weights[f"{pooler}bias:0"] = weights[f"{pooler}bias:0"][1:]
        self._write(weights)
        self._assert_refused(
            r"lacks bert\.pooler\.dense\.weight; it also has x/y/kernel:0; it "
            r"has in another shape bert\.pooler\.dense\.bias"
        )

    def test_two_models_in_one_file_are_refused(self):
        weights = self._copy("encoder")
        for name, value in list(weights.items()):
            weights[f"b/{name}"] = value + 1
        self._write(weights)
        self._assert_refused("holds two models")

    def test_refuses_numbers_in_another_file(self):
        weights = self._copy("encoder")
        name, value = weights.popitem()
        self._write(weights)
        place = [("/etc/passwd", 0, value.nbytes)]
        with h5py.File(os.path.join(self.path, _FILE), "a") as file:
            file.create_dataset(name, value.shape, "f4", external=place)
        self._assert_refused("from another file, which is not read")
        layout = h5py.VirtualLayout(value.shape, "f4")
        layout[:] = h5py.VirtualSource("x.h5", "x", value.shape)
        with h5py.File(os.path.join(self.path, _FILE), "a") as file:
            del file[name]
            file.create_virtual_dataset(name, layout)
        self._assert_refused("from another file, which is not read")


if __name__ == "__main__":
    tf.test.main()
