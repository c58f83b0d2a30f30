"""Tests for export.verify.run: detects wrong exports, accepts correct ones."""

import dataclasses
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export import serving_module
from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.reference import Reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_exports
from tests.support import tiny_model

_EMBEDDINGS = "bert/embeddings/word_embeddings"
_PAIRS = (
    ("the cat", "東 DOG cafe\u0301 sitting."),
    ("the mats on " * 9, ""),
    ("", "dog , mats " * 9),
)
_ROWS = [{"text": first, "text_pair": second} for first, second in _PAIRS]


def setUpModule():
    # Enough to find what is broken here; the exporter sends all of them in the
    # tests of what other programs read.
    mock.patch.object(
        Reference,
        "batches",
        lambda self: [_ROWS[:1], _ROWS],
    ).start()


def tearDownModule():
    mock.patch.stopall()


def _export(folder):
    """Exports a classifier of pairs; returns model and version directory."""
    model = tiny_exports.write(folder, tiny_exports.classification(pair=True))
    version = tiny_exports.export(model, os.path.join(folder, "pairs"))
    export = savedmodel.prepare(
        SavedModelConfig(
            model_dir=model,
            output_dir=os.path.join(folder, "pairs"),
            buckets=tiny_exports.BUCKETS,
        )
    )
    savedmodel.complete(version, tiny_exports.artifact(), export)
    return model, version


@pytest.mark.slow
class VerifyTest(files_case.FolderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model, cls.version = _export(os.path.join(cls.root, "right"))

    def _copy(self):
        """Returns a copy of the version directory to modify."""
        path = os.path.join(self.folder, "1")
        shutil.copytree(self.version, path)
        return path

    def _faults(self, version, model=None):
        """Returns the faults by check, without checksums."""
        artifact = artifacts.read(version)
        stored = checkpoint_loading.read(model or self.model)
        report = savedmodel.compare(version, artifact, stored)
        with self.assertRaisesRegex(UserError, "differs from"):
            report.require_correct()
        return {
            check.name.partition(" by ")[0]: check.faults
            for check in report.checks
            if check.faults
        }

    def test_accepts_a_correct_export(self):
        report = savedmodel.verify(self.version, self.model)
        self.assertEmpty(report.faults)
        names = [check.name.partition(" by ")[0] for check in report.checks]
        self.assertContainsSubset(
            (
                "vocabulary",
                "serving_default",
                "from_ids",
                "from_examples",
                "tokenize",
                "classify",
                "attention",
                "warm-up",
                "files",
            ),
            names,
        )
        numbers = [check.largest for check in report.checks if check.largest]
        self.assertNotEmpty(numbers)
        self.assertLess(max(numbers), verification.TOLERANCES["float32"])
        self.assertNotIn("WRONG", report.text())

    def test_detects_a_changed_weight(self):
        version = self._copy()
        _change_checkpoint(version, checkpoint_loading.read(self.model))
        faults = self._faults(version)
        self.assertContainsSubset(
            ("serving_default", "from_ids", "attention"), faults
        )
        self.assertNotIn("tokenize", faults)

    def test_variables_that_cannot_be_read_raise_one_sentence(self):
        version = self._copy()
        os.remove(os.path.join(version, "variables", "variables.index"))
        with self.assertRaisesRegex(UserError, "that TensorFlow can load"):
            savedmodel.verify(version, self.model)

    def test_detects_another_vocabulary(self):
        # The same words with two ids swapped.
        tokens = list(tiny_model.TOKENS)
        first, second = tokens.index("cat"), tokens.index("mat")
        tokens[first], tokens[second] = tokens[second], tokens[first]
        stored = checkpoint_loading.read(self.model)
        other = os.path.join(self.folder, "other")
        vocabulary = Vocabulary(tokens)
        model_directory.write(
            other,
            stored.config,
            {name: stored.weights[name] for name in stored.weights},
            vocabulary,
            BertTokenizer(vocabulary).settings(),
            stored.task,
            "# Tiny\n",
        )
        faults = self._faults(self._copy(), other)
        self.assertIn("not the vocabulary", faults["vocabulary"][0])
        self.assertIn("input_ids is ", faults["tokenize"][0])
        self.assertIn("serving_default", faults)
        # Calls with ids are not affected.
        self.assertNotIn("from_ids", faults)

    def test_detects_a_missing_signature(self):
        version = self._copy()
        with _edited(version) as meta_graph:
            del meta_graph.signature_def["from_ids"]
        faults = self._faults(version)
        self.assertEqual(faults["signatures"], ("there is no from_ids",))

    def test_detects_a_failing_warm_up_request(self):
        version = self._copy()
        inputs = {"body": np.array([b"the cat"], object)}
        call = Call("serving_default", inputs)
        path = os.path.join(version, artifacts.WARMUP_FILE)
        reference.write_requests(path, "pairs", [call])
        with mock.patch.object(Reference, "plan", lambda *_: []):
            faults = self._faults(version)
        self.assertIn("request 0 fails", faults["warm-up"][0])

    def test_detects_changed_files(self):
        version = self._copy()
        with open(os.path.join(version, "batching_params.pbtxt"), "a") as file:
            file.write("# more\n")
        os.remove(os.path.join(version, artifacts.LABELS_FILE))
        check = verification.check_files(version)
        self.assertCountEqual(
            check.faults,
            [
                f"{artifacts.LABELS_FILE} is missing",
                "batching_params.pbtxt was changed after the export",
            ],
        )

    def test_invalid_exports_raise_one_sentence(self):
        for path in (self.folder, os.path.join(self.folder, "nothing")):
            with self.assertRaisesRegex(UserError, "--export_dir must be"):
                savedmodel.verify(path, self.model)
        version = self._copy()
        self.assertEqual(artifacts.find_version(self.folder), version)
        os.remove(os.path.join(version, artifacts.CARD_FILE))
        with self.assertRaisesRegex(UserError, "model_card.json"):
            savedmodel.verify(self.folder, self.model)

    def test_exporter_does_not_publish_a_wrong_export(self):
        output = os.path.join(self.folder, "out")
        config = SavedModelConfig(
            model_dir=self.model, output_dir=output, buckets="8"
        )

        def plan(*arguments):
            (first, *_) = of_export(*arguments)
            wrong = {n: x[::-1] for n, x in first.expected.values.items()}
            expected = dataclasses.replace(first.expected, values=wrong)
            # A batch of one row is its own reverse.
            wrong["label"] = np.array([b"never"], object)
            return [dataclasses.replace(first, expected=expected)]

        of_export = Reference.plan
        with (
            mock.patch.object(Reference, "plan", plan),
            self.assertRaisesRegex(UserError, "label is .*should be 'never'"),
        ):
            savedmodel.run(config)
        self.assertFalse(os.path.exists(output))


def _change_checkpoint(version, stored):
    """Changes the embedding of a token."""
    prefix = os.path.join(version, "variables", "variables")
    reader = tf.train.load_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
    values = {name: reader.get_tensor(name) for name in names}
    (embeddings,) = (
        name
        for name, value in values.items()
        if np.array_equal(value, stored.weights[_EMBEDDINGS])
    )
    values[embeddings] = values[embeddings].copy()
    values[embeddings][tiny_model.TOKENS.index("cat"), 0] += 0.1
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(values[name]) for name in names],
    )


class _edited:
    """Yields the graph of a SavedModel and writes it back on exit."""

    def __init__(self, version):
        self._path = os.path.join(version, serving_module.FILE)
        self._saved_model = saved_model_pb2.SavedModel()

    def __enter__(self):
        self._saved_model.ParseFromString(files.read_bytes(self._path))
        return self._saved_model.meta_graphs[0]

    def __exit__(self, *_):
        files.write_bytes(self._path, self._saved_model.SerializeToString())


if __name__ == "__main__":
    tf.test.main()
