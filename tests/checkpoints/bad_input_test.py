"""Tests for bad input of a conversion: one-line errors and no output."""

import itertools
import json
import os
import re
import shutil
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.errors import UserError
from bert_tf.flags.groups import FORMATS
from bert_tf.io import files
from tests.support import files_case
from tests.support import stored_models

_CHECKPOINT = ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001")
_CONFIG = {
    "tf1": "bert_config.json",
    "huggingface": "config.json",
    "keras_hub": "config.json",
    "model_garden": "bert_config.json",
    "bert_tf": "bert_config.json",
}
_VOCABULARY = {
    "tf1": ("vocab.txt",),
    "huggingface": ("vocab.txt", "tokenizer.json"),
    "keras_hub": ("assets/tokenizer/vocabulary.txt",),
    "model_garden": ("vocab.txt",),
    "bert_tf": ("vocab.txt",),
}
_WEIGHTS = {
    "tf1": _CHECKPOINT,
    "huggingface": ("model.safetensors",),
    "keras_hub": ("model.weights.h5",),
    "model_garden": _CHECKPOINT,
    "bert_tf": ("model.weights.safetensors",),
}
_WEIGHT_FILES = [
    (source, file) for source in FORMATS for file in _WEIGHTS[source]
]
# The key of the vocabulary size in each format's config.
_SIZE_KEYS = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "max_position_embeddings": "max_sequence_length",
}
_NO_FORMAT = {
    "empty": "a directory that holds nothing",
    "other": "a directory that holds notes.txt",
    "model.onnx": "a file that is no checkpoint",
    "nowhere": "where there is nothing",
}


class BadInputTest(files_case.FolderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.models)
        for name in FORMATS:
            os.mkdir(os.path.join(cls.models, name))
            formats.module_of(name).write_model(
                os.path.join(cls.models, name), stored_models.build("encoder")
            )

    def _copy(self, source_format):
        path = os.path.join(self.folder, source_format)
        return shutil.copytree(os.path.join(self.models, source_format), path)

    def _assert_refused(self, path, message, target="bert_tf", **flags):
        before = sorted(os.walk(self.folder))
        config = ConvertCheckpointConfig(
            input=path,
            output=os.path.join(self.folder, "new", "out"),
            target_format=target,
            **flags,
        )
        with self.assertRaisesRegex(UserError, message) as raised:
            conversion.run(config)
        self.assertNotIn("\n", str(raised.exception))
        self.assertEqual(str(raised.exception)[-1], ".")
        self.assertEqual(sorted(os.walk(self.folder)), before)

    @parameterized.parameters(itertools.permutations(FORMATS, 2))
    def test_wrong_format_named(self, named, actual):
        self._assert_refused(
            os.path.join(self.models, actual),
            rf"Expected the format {named} \(--from={named}\)\. Received: "
            rf"'.*/{actual}', which looks like {actual}\.",
            source_format=named,
        )

    @parameterized.parameters(None, *FORMATS)
    def test_no_format_fits(self, source_format):
        os.mkdir(os.path.join(self.folder, "empty"))
        os.mkdir(os.path.join(self.folder, "other"))
        for name in ("other/notes.txt", "model.onnx"):
            files.write_bytes(os.path.join(self.folder, name), b"\x08\x07")
        for name, message in _NO_FORMAT.items():
            self._assert_refused(
                os.path.join(self.folder, name),
                f"Expected .*Received: '.*/{name}', {message}",
                source_format=source_format,
            )

    def test_no_format_fits_in_another_file_system(self):
        root = f"ram:/{self.folder}"
        for name in ("empty", "other"):
            tf.io.gfile.makedirs(f"{root}/{name}")
        for name in ("other/notes.txt", "model.onnx"):
            with tf.io.gfile.GFile(f"{root}/{name}", "w") as file:
                file.write("?")
        for name in _NO_FORMAT:
            with self.assertRaisesRegex(
                UserError, f"Expected .*Received: '{root}/{name}', where"
            ):
                formats.read(f"{root}/{name}")

    @parameterized.parameters("pipe", "device")
    def test_folders_with_other_files_are_refused(self, kind):
        path = os.path.join(self.folder, "model[1]")
        os.mkdir(path)
        os.symlink("loop", os.path.join(path, "loop"))
        formats.check_folder(path)
        if kind == "pipe":
            os.mkfifo(os.path.join(path, "x.index"))
        else:
            os.symlink("/dev/null", os.path.join(path, "x.index"))
        with self.assertRaisesRegex(UserError, "x.index must be a regular"):
            formats.check_folder(path)
        with self.assertRaisesRegex(UserError, "x.index must be a regular"):
            formats.check_folder(os.path.join(path, "x"))
        formats.check_folder(os.path.join(path, "y"))

    @parameterized.parameters("variables", "assets", "assets/tokenizer")
    def test_pipes_in_their_folders_are_refused(self, folder):
        os.makedirs(os.path.join(self.folder, folder))
        os.mkfifo(os.path.join(self.folder, folder, "x"))
        with self.assertRaisesRegex(UserError, "x must be a regular"):
            formats.check_folder(self.folder)

    def test_several_formats_in_one_directory(self):
        path = self._copy("huggingface")
        for name in (*_CHECKPOINT, "bert_config.json"):
            shutil.copy(os.path.join(self.models, "tf1", name), path)
        self._assert_refused(path, r"several .*huggingface\).*--from")
        for source_format in ("tf1", "huggingface"):
            read = formats.read(path, source_format)
            self.assertEqual(read.config.hidden_size, 16)

    @parameterized.parameters(*FORMATS)
    def test_missing_config(self, source_format):
        path = self._copy(source_format)
        os.remove(os.path.join(path, _CONFIG[source_format]))
        self._assert_refused(path, _CONFIG[source_format])

    @parameterized.parameters(*FORMATS)
    def test_missing_vocabulary(self, source_format):
        path = self._copy(source_format)
        for name in _VOCABULARY[source_format]:
            os.remove(os.path.join(path, name))
        self._assert_refused(path, r"(?i)vocab\w*(\.txt)?")

    @parameterized.product(
        source=FORMATS,
        contents=(
            b"",
            b'{"vocab_size": 16, "hid',
            b"\xff\xfe\x00",
            b"[1, 2]",
        ),
    )
    def test_damaged_config(self, source, contents):
        path = self._copy(source)
        files.write_bytes(os.path.join(path, _CONFIG[source]), contents)
        self._assert_refused(path, _CONFIG[source], source_format=source)

    @parameterized.parameters(*_WEIGHT_FILES)
    def test_missing_weights(self, source, file):
        path = self._copy(source)
        os.remove(os.path.join(path, file))
        names = f"{re.escape(file)}|{re.escape(file[:15])}|no checkpoint in"
        self._assert_refused(path, names)

    @parameterized.product(
        source=[name for name in FORMATS if name != "bert_tf"],
        key_and_value=(
            ("vocab_size", 17),
            ("hidden_size", 24),
            ("num_hidden_layers", 1),
            ("num_hidden_layers", 3),
            ("max_position_embeddings", 13),
        ),
    )
    def test_sizes_that_differ(self, source, key_and_value):
        key, value = key_and_value
        path = self._copy(source)
        config_file = os.path.join(path, _CONFIG[source])
        config = files.read_json(config_file)
        if source == "keras_hub":
            config["config"][_SIZE_KEYS[key]] = value
        else:
            config[key] = value
        files.write_json(config_file, config)
        self._assert_refused(path, f"{value}|its")

    @parameterized.parameters("tf1", "huggingface", "keras_hub", "model_garden")
    def test_vocabulary_of_another_size(self, source):
        path = self._copy(source)
        vocab_file = os.path.join(path, _VOCABULARY[source][0])
        contents = files.read_bytes(vocab_file)
        files.write_bytes(vocab_file, contents + b"more\n")
        self._assert_refused(path, "17|different vocabularies")

    def test_files_of_a_model_directory_that_were_changed(self):
        path = self._copy("bert_tf")
        for name in sorted(os.listdir(path)):
            if name == "checksums.json":
                continue
            file = os.path.join(path, name)
            contents = files.read_bytes(file)
            files.write_bytes(file, contents + b" ")
            self._assert_refused(path, f"{name} was changed")
            files.write_bytes(file, contents)
        self.assertEqual(formats.read(path).config.hidden_size, 16)

    def test_changed_file_with_new_checksum_is_read(self):
        path = self._copy("bert_tf")
        task_file = os.path.join(path, "task.json")
        files.write_json(
            task_file, files.read_json(task_file) | {"name": "mine"}
        )
        with self.assertRaises(UserError) as caught:
            formats.read(path)
        (found,) = re.findall("put ([0-9a-f]{64}) there", str(caught.exception))
        checksums_file = os.path.join(path, "checksums.json")
        checksums = files.read_json(checksums_file)
        checksums["sha256"]["task.json"] = found
        files.write_json(checksums_file, checksums)
        self.assertEqual(formats.read(path).task["name"], "mine")

    @parameterized.parameters(
        ("generator/encoder/layer_0/output/dense/kernel", None),
        # The name of ALBERT's only layer.
        ("bert/encoder/transformer/group_0/inner_group_0/ffn_1/kernel", None),
        (None, {"vocab_size": 16, "embedding_size": 128}),
    )
    def test_other_architectures_of_tf1(self, name, config):
        path = self._copy("tf1")
        if name:
            tensors = {name: np.zeros([3, 4], np.float32)}
            prefix = os.path.join(path, "bert_model.ckpt")
            tf1_checkpoint.write(prefix, tensors)
        if config:
            config_file = os.path.join(path, "bert_config.json")
            files.write_text(config_file, json.dumps(config))
        self._assert_refused(path, name or "embedding_size")

    def test_other_architectures_of_tf2(self):
        path = os.path.join(self.folder, "tf2")
        module = tf.Module()
        module.kernel = tf.Variable(np.arange(6.0))
        tf.train.Checkpoint(module).write(os.path.join(path, "x.ckpt"))
        files.write_text(os.path.join(path, "bert_config.json"), "{}")
        for name in (None, "tf1", "model_garden"):
            self._assert_refused(path, "Expected", source_format=name)


if __name__ == "__main__":
    tf.test.main()
