"""Fuzz tests: a changed model file is refused in one sentence, or loads."""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import zipfile

import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.tasks import registry
from bert_tf.tasks import stored_task
from tests.support import fuzzing
from tests.support import stored_models
from tests.support import tiny_exports
from tests.support import tiny_model
from tests.support.shared_data import golden

_TASKS = {
    "classification": tiny_exports.classification(pair=True),
    "multi_label": tiny_exports.classification("multi_label"),
    "question_answering": tiny_exports.squad(),
    "multiple_choice": tiny_exports.multiple_choice(),
    "tagging": tiny_exports.tagging(),
}
# Formats without checksums, each with the kind of its model.
_OTHERS = {
    "huggingface": "classification",
    "keras_hub": "encoder",
    "model_garden": "pretraining",
    "tf1": "pretraining",
}
# Formats that are only read, never written, so the model is a golden.
_GOLDENS = {
    "keras_h5": "tf_keras_h5/classification",
    "tf_hub": "tf_hub/keras_layer_classifier",
}
_MAX_MESSAGE = 5000
_TEXT = "The cat sat on the mats."


def _write(folder, name):
    """Writes the model that mutations start from; returns its directory."""
    path = os.path.join(folder, name)
    if name in _TASKS:
        return tiny_model.write_task(
            path, _TASKS[name], config=tiny_model.ONE_LAYER
        )
    if name in _GOLDENS:
        return shutil.copytree(golden(_GOLDENS[name]), path)
    os.mkdir(path)
    model = stored_models.build(_OTHERS[name], num_hidden_layers=1)
    formats.module_of(name).write_model(path, model)
    return path


def _load(path, name):
    """Loads all that predictions need; returns a hash of the model."""
    if name in _TASKS:
        stored_task.read(path)  # As scripts do before they import TensorFlow.
    stored = formats.read(path, name if name in _OTHERS else None)
    if stored.vocabulary is not None:
        stored.build_tokenizer().tokenize([_TEXT])
    if (stored.task.get("variant") or stored.task["kind"]) in registry.TASKS:
        task = registry.from_stored(stored)
        task.to_json()
    return stored.fingerprint


def _correct_checksums(path):
    """Makes a model directory accept its files, as an attacker would."""
    file = os.path.join(path, model_directory.CHECKSUMS_FILE)
    values = json.loads(pathlib.Path(file).read_bytes())
    for name in values["sha256"]:
        digest = hashlib.sha256(
            pathlib.Path(os.path.join(path, name)).read_bytes()
        ).hexdigest()
        values["sha256"][name] = digest
    pathlib.Path(file).write_text(json.dumps(values))


class ModelFilesFuzzTest(tf.test.TestCase, parameterized.TestCase):
    def make(self, name):
        """Makes a model; returns its path, files' contents, and hash."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = _write(folder, name)
        contents = {}
        for parent, _, names in os.walk(path):
            for file in names:
                full = os.path.join(parent, file)
                contents[full] = pathlib.Path(full).read_bytes()
        return path, contents, _load(path, name)

    def check(self, path, name, expected):
        """Loads a changed model; `expected` is its hash, or None for any."""
        try:
            received = _load(path, name)
        except UserError as error:
            message = str(error)
            self.assertLess(len(message), _MAX_MESSAGE)
            self.assertNotIn("\n", message)
            return "refused"
        if expected is not None:
            self.assertEqual(received, expected)
        return "loaded"

    def fuzz(self, name, examples):
        path, contents, expected = self.make(name)
        files = sorted(contents)
        json_files = [file for file in files if file.endswith(".json")]
        has_checksums = name in _TASKS
        checksums = os.path.join(path, model_directory.CHECKSUMS_FILE)

        @fuzzing.run(examples, fuzzing.RANDOM)
        def check(rng):
            jsons = ["json"] * 3 if json_files else []
            kind = rng.choice(["bytes", *jsons, "place"])
            file = rng.choice(json_files if kind == "json" else files)
            is_harmless = False
            try:
                if kind == "place":
                    is_harmless = fuzzing.replace_file(rng, file)
                    correct = False
                else:
                    changed = contents[file]
                    if kind == "bytes":
                        changed = fuzzing.mutate_bytes(rng, changed)
                    else:
                        changed, is_harmless = fuzzing.mutate_json(rng, changed)
                    pathlib.Path(file).write_bytes(changed)
                    correct = has_checksums and rng.randrange(4) > 0
                if correct and file != checksums:
                    _correct_checksums(path)
                # With a wrong checksum, only the original may load.
                must_be_equal = is_harmless or (has_checksums and not correct)
                result = self.check(
                    path, name, expected if must_be_equal else None
                )
                if is_harmless and (correct or kind == "place"):
                    self.assertEqual(result, "loaded")
            finally:
                fuzzing.restore_file(file, contents[file])
                if has_checksums:
                    fuzzing.restore_file(checksums, contents[checksums])

        self.assertEqual(_load(path, name), expected)

    @pytest.mark.thorough
    def test_changed_keras_files_load_or_are_refused(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        model = bert_tf.load_model(_write(folder, "classification"))
        path = os.path.join(folder, "model.keras")
        model.save(path)
        expected = _load(path, "keras")
        contents = pathlib.Path(path).read_bytes()
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}

        @fuzzing.run(15, fuzzing.RANDOM)
        def check(rng):
            name = rng.choice(["", *parts])
            is_harmless = False
            if not name:
                fuzzing.restore_file(path, fuzzing.mutate_bytes(rng, contents))
            else:
                part = fuzzing.mutate_bytes(rng, parts[name])
                if name.endswith(".json") and rng.randrange(4):
                    part, is_harmless = fuzzing.mutate_json(rng, parts[name])
                with zipfile.ZipFile(path, "w") as archive:
                    for other in parts:
                        archive.writestr(
                            other, part if other == name else parts[other]
                        )
            self.check(path, "keras", expected if is_harmless else None)

    @parameterized.parameters("classification", "huggingface")
    def test_few_changes_load_or_are_refused(self, name):
        self.fuzz(name, 20)

    @parameterized.parameters(*_TASKS, *_OTHERS, *_GOLDENS)
    @pytest.mark.thorough
    def test_many_changes_load_or_are_refused(self, name):
        self.fuzz(name, 150)


if __name__ == "__main__":
    tf.test.main()
