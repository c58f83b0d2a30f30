"""Tests for bert_tf.checkpoints.convert: every format to every other."""

import contextlib
import dataclasses
import errno
import io
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.errors import UserError
from bert_tf.flags.groups import FORMATS
from tests.support import files_case
from tests.support import stored_models

# Kinds whose class in Hugging Face has no pooler.
_WITHOUT_POOLER = ("masked_lm", "question_answering", "tagging")


def _carried(parts, target):
    """Returns the parts of a model that a format can hold."""
    parts = set(parts)
    kind = _kind(parts)
    if target == "keras_hub":
        return parts & {"bert", "bert/pooler", "output"}
    if target == "model_garden":
        return parts - {"cls/multiple_choice"}
    if target == "huggingface" and kind in _WITHOUT_POOLER:
        return parts - {"bert/pooler"}
    return parts


def _kind(parts):
    return next(
        kind for kind, heads in weight_map.HEADS.items() if parts >= set(heads)
    )


class ConversionTestCase(files_case.FolderCase):
    def write(self, stored, name="model", target="bert_tf"):
        """Writes a model of `stored_models` and returns its directory."""
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        formats.module_of(target).write_model(path, stored)
        return path

    def convert(self, source, target, name=None, **flags):
        """Converts; returns the directory and the printed report."""
        path = os.path.join(self.folder, name or f"{target}_out")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            conversion.run(
                ConvertCheckpointConfig(
                    input=source, output=path, target_format=target, **flags
                )
            )
        return path, printed.getvalue()

    def listing(self):
        """Returns all paths below the folder, with the sizes of files."""
        return {
            os.path.join(folder, name): os.stat(
                os.path.join(folder, name)
            ).st_mtime_ns
            for folder, folders, names in os.walk(self.folder)
            for name in [*folders, *names]
        }

    def assert_refused(self, message, source, target="bert_tf", **flags):
        before = self.listing()
        with self.assertRaisesRegex(UserError, message) as raised:
            self.convert(source, target, **flags)
        sentence = str(raised.exception)
        self.assertNotIn("\n", sentence)
        self.assertRegex(sentence, r"[.\]]$")
        self.assertEqual(self.listing(), before)
        return sentence

    def assert_same(self, path, stored, parts=None):
        """Checks that a directory holds the given parts of a model."""
        read = formats.read(path)
        expected = [
            name
            for name in stored.weights
            if parts is None or weight_map.part_of(name) in parts
        ]
        self.assertCountEqual(read.weights, expected)
        for name in expected:
            value = read.weights[name]
            self.assertEqual(value.dtype, np.float32)
            np.testing.assert_array_equal(value, stored.weights[name], name)
        self.assertEqual(read.config, stored.config)
        self.assertEqual(read.vocabulary.tokens, stored.vocabulary.tokens)
        self.assertEqual(
            dict(read.tokenizer_settings), dict(stored.tokenizer_settings)
        )
        self.assertEqual(read.report.missing + read.report.unused, ())
        return read


class RoundTripTest(ConversionTestCase):
    @parameterized.parameters("pretraining", "classification")
    @pytest.mark.slow
    def test_every_format_into_every_other(self, kind):
        stored = stored_models.build(kind)
        model = self.write(stored)
        start = {"bert", "bert/pooler", *weight_map.HEADS[kind]}
        for source in FORMATS:
            there, _ = self.convert(model, source, f"{kind}_{source}")
            carried = _carried(start, source)
            self.assertEqual(formats.detect(there), source)
            for target in FORMATS:
                with self.subTest(source=source, target=target):
                    out, _ = self.convert(there, target, f"{source}_{target}")
                    self.assertEqual(formats.detect(out), target)
                    parts = _carried(carried, target)
                    read = self.assert_same(out, stored, parts)
                    self.assertEqual(read.task["kind"], _kind(parts))
                    if kind == "classification" and {source, target} <= {
                        "huggingface",
                        "bert_tf",
                    }:
                        self.assertEqual(
                            read.task["labels"], list(stored_models.LABELS)
                        )

    @parameterized.parameters(
        "encoder",
        "masked_lm",
        "next_sentence",
        "question_answering",
        "tagging",
        "multiple_choice",
    )
    def test_other_kinds_round_trip_through_all_formats(self, kind):
        stored = stored_models.build(kind)
        path = self.write(stored)
        parts = {"bert", "bert/pooler", *weight_map.HEADS[kind]}
        route = ("tf1", "huggingface", "model_garden", "huggingface", "bert_tf")
        for number, target in enumerate(route):
            parts = _carried(parts, target)
            path, _ = self.convert(path, target, f"{number}_{target}")
            read = self.assert_same(path, stored, parts)
            self.assertEqual(read.task["kind"], _kind(parts))

    def test_exact_gelu_stays_exact(self):
        stored = stored_models.build(hidden_act="gelu_erf")
        path = self.write(stored)
        for target in ("huggingface", "tf1", "model_garden", "bert_tf"):
            path, _ = self.convert(path, target)
            self.assert_same(path, stored)
        message = "exact GELU.*--allow_activation_change"
        self.assert_refused(message, path, "keras_hub")
        path, printed = self.convert(
            path, "keras_hub", allow_activation_change=True
        )
        self.assertRegex(printed, "became its tanh form")
        read = formats.read(path)
        self.assertEqual(read.config.hidden_act, "gelu")

    def test_device_normalization_only_in_model_directories(self):
        stored = stored_models.build()
        settings = stored_model.tokenizer_settings(
            stored.vocabulary, True, normalization="ascii_lower"
        )
        stored = dataclasses.replace(stored, tokenizer_settings=settings)
        path = self.write(stored)
        for target in ("huggingface", "keras_hub", "model_garden", "tf1"):
            message = f"=ascii_lower, which tokenizers of --to={target} do not"
            self.assert_refused(message, path, target)
        path, _ = self.convert(path, "bert_tf")
        self.assertEqual(formats.read(path).tokenizer_settings, settings)

    def test_cased_vocabulary(self):
        tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] The Cat cat ##s É".split()
        stored = stored_models.build("encoder", tokens=tokens)
        self.assertFalse(stored.tokenizer_settings["lower_case"])
        model = self.write(stored)
        for target in FORMATS:
            path, printed = self.convert(model, target)
            self.assertIn("text is not lower-cased", printed)
            self.assert_same(path, stored)

    def test_optimizer_state_round_trips(self):
        stored = stored_models.build("pretraining", optimizer=True)
        path = self.write(stored, target="tf1")
        for number, target in enumerate(("bert_tf", "tf1", "tf1", "bert_tf")):
            path, printed = self.convert(path, target, f"{number}")
            self.assertIn("both moments of 46 weights, step 1234", printed)
            state = formats.read(path).optimizer_state
            self.assertCountEqual(state, stored.optimizer_state)
            for name, value in stored.optimizer_state.items():
                self.assertEqual(state[name].dtype, value.dtype)
                np.testing.assert_array_equal(state[name], value, name)
        for target in ("huggingface", "keras_hub", "model_garden"):
            path, printed = self.convert(self.folder + "/0", target)
            self.assertRegex(printed, "(?i)optimizer's state.*(not|behind)")
            parts = {weight_map.part_of(name) for name in stored.weights}
            self.assert_same(path, stored, _carried(parts, target))


class ReportTest(ConversionTestCase):
    @parameterized.parameters(
        ("tf1", "tagging", "labels, mine"),
        ("huggingface", "classification", "mine, the optimizer's state"),
        ("huggingface", "tagging", "bert/pooler, mine, the optimizer's state"),
        (
            "keras_hub",
            "pretraining",
            "cls/predictions, cls/seq_relationship, mine, the optimizer",
        ),
        ("model_garden", "classification", "labels, mine, the optimizer's"),
        ("model_garden", "multiple_choice", "cls/multiple_choice, mine, the "),
    )
    def test_parts_that_a_format_lacks_are_named(self, target, kind, lost):
        stored = stored_models.build(kind, optimizer=True)
        stored = dataclasses.replace(stored, task=stored.task | {"mine": [0]})
        write_model = formats.module_of(target).write_model
        sentences = write_model(self.folder, stored)
        self.assertIn(f"has no place for {lost}", " ".join(sentences))

    def test_report_lists_everything(self):
        stored = stored_models.build("classification")
        source = self.write(stored, target="huggingface")
        _, printed = self.convert(source, "tf1")
        for line in (
            f"Read {source} (format huggingface):\n",
            "labels: no, maybe, yes",
            '"gelu_new"',
            "Loaded 41 weights, 13 of them reshaped.",
            "Wrote ",
            "bert_model.ckpt.data-00000-of-00001, ",
        ):
            self.assertIn(line, printed)


class FlagsTest(ConversionTestCase):
    def setUp(self):
        super().setUp()
        self.stored = stored_models.build("encoder")

    def test_model_card_names_the_source(self):
        source = self.write(self.stored, target="tf1")
        path, _ = self.convert(source, "bert_tf", do_lower_case=True)
        with open(f"{path}/README.md", encoding="utf-8") as file:
            card = file.read()
        self.assertIn("from the format tf1", card)
        self.assertIn(f"| input | {source} |", card)
        self.assertIn("| to | bert_tf |", card)
        self.assertIn("| tensorflow |", card)
        # Defaults, and a flag of places.
        self.assertNotIn("| offline |", card)
        self.assertNotIn("| overwrite |", card)

    def test_existing_output_is_refused(self):
        source = self.write(self.stored, target="tf1")
        empty = os.path.join(self.folder, "empty")
        os.mkdir(empty)
        self.assert_refused("already exists", source, name="empty")
        self.convert(source, "bert_tf", "empty", overwrite=True)
        self.assert_refused("already exists", source, name="empty")
        path, _ = self.convert(source, "huggingface", "empty", overwrite=True)
        self.assert_same(path, self.stored)
        self.assertCountEqual(os.listdir(self.folder), ["model", "empty"])

    def test_target_of_a_link_is_replaced(self):
        source = self.write(self.stored, target="tf1")
        old = os.path.join(self.folder, "old")
        os.mkdir(old)
        os.symlink(old, os.path.join(self.folder, "link"))
        self.convert(source, "bert_tf", "link", overwrite=True)
        self.assertTrue(os.path.islink(os.path.join(self.folder, "link")))
        self.assert_same(old, self.stored)

    @parameterized.parameters(
        ("model", "is or contains --input"),
        ("model/", "is or contains --input"),
        (".", "is or contains --input"),
        ("file", "which is a file"),
        ("file/new", "could not be written"),
    )
    def test_output_cannot_be_a_file(self, name, message):
        source = self.write(self.stored, target="tf1")
        with open(os.path.join(self.folder, "file"), "w") as file:
            file.write("precious")
        self.assert_refused(message, source, name=name, overwrite=True)
        self.assert_same(source, self.stored)

    @parameterized.parameters("", "bert_model.ckpt")
    def test_output_inside_the_input(self, name):
        directory = self.write(self.stored, target="tf1")
        source = os.path.join(directory, name)
        message = "is or contains --input"
        self.assert_refused(message, source, name="model", overwrite=True)
        path, _ = self.convert(source, "bert_tf", "model/new")
        self.assert_same(path, self.stored)
        self.assert_same(directory, self.stored)

    def test_directories_that_are_never_replaced(self):
        source = self.write(self.stored, target="tf1")
        os.makedirs(os.path.join(self.folder, "home", "work"))
        with contextlib.chdir(os.path.join(self.folder, "home", "work")):
            for path in ("home", "home/work"):
                self.assert_refused(
                    "working directory", source, name=path, overwrite=True
                )
        home = {"HOME": os.path.join(self.folder, "home")}
        with mock.patch.dict(os.environ, home):
            self.assert_refused(
                "home directory", source, name="home", overwrite=True
            )

    @parameterized.parameters(
        dict(input="gs://bucket/model"), dict(output="s3://x/y"), dict(input="")
    )
    def test_remote_paths(self, **paths):
        flags = dict(input="a", output="b", target_format="tf1") | paths
        with self.assertRaisesRegex(UserError, "must be a local path"):
            conversion.run(ConvertCheckpointConfig(**flags))

    def test_allowed_missing_weights(self):
        source = self.write(self.stored, target="tf1")
        prefix = os.path.join(source, "bert_model.ckpt")
        tensors = tf1_checkpoint.read(prefix)
        lost = [f"bert/encoder/layer_{n}/output/dense/bias" for n in range(2)]
        for name in lost:
            del tensors[name]
        tensors["bert/extra"] = np.float32([1, 2])
        tf1_checkpoint.write(prefix, tensors)
        message = "lacks bert/encoder/layer_0/output/dense/bias,.*bert/extra"
        self.assert_refused(message, source)
        message = "it also has bert/extra"
        self.assert_refused(message, source, allow_missing="output/dense/bias")
        path, printed = self.convert(
            source, "bert_tf", allow_missing="output/dense/bias|extra"
        )
        self.assertIn(f"initialized: {', '.join(lost)}", printed)
        self.assertIn("Unused: bert/extra", printed)
        read = formats.read(path)
        self.assertCountEqual(read.weights, self.stored.weights)
        for name in lost:
            self.assertAllEqual(read.weights[name], np.zeros(16))

    def test_invalid_regular_expression(self):
        source = self.write(self.stored)
        message = r"--allow_missing must be a regular expression.*'\(\['"
        self.assert_refused(message, source, "tf1", allow_missing="([")

    @parameterized.parameters(*FORMATS)
    def test_lower_case_flag_overrides_a_derived_setting(self, source_format):
        source = self.write(self.stored, target=source_format)
        if source_format in ("tf1", "model_garden"):
            path, printed = self.convert(source, "bert_tf", do_lower_case=False)
            self.assertIn("--nodo_lower_case overrides", printed)
            settings = formats.read(path).tokenizer_settings
            self.assertFalse(settings["lower_case"])
            self.assertFalse(settings["strip_accents"])
        else:
            self.assert_refused(
                "lower case, which --nodo_lower", source, do_lower_case=False
            )
        path, _ = self.convert(source, "bert_tf", "same", do_lower_case=True)
        self.assert_same(path, self.stored)

    def test_lower_case_of_a_directory_without_settings(self):
        source = self.write(self.stored, target="huggingface")
        os.remove(os.path.join(source, "tokenizer.json"))
        os.remove(os.path.join(source, "tokenizer_config.json"))
        path, _ = self.convert(source, "bert_tf", do_lower_case=False)
        settings = formats.read(path).tokenizer_settings
        self.assertFalse(settings["lower_case"])

    def test_activation_flag_without_effect(self):
        message = "--to=keras_hub only.*--to=tf1"
        source = self.write(self.stored)
        self.assert_refused(
            message, source, "tf1", allow_activation_change=True
        )


class InterruptedTest(ConversionTestCase):
    @parameterized.parameters(KeyboardInterrupt, MemoryError)
    def test_failed_writing_leaves_no_files(self, error):
        source = self.write(stored_models.build())
        before = self.listing()
        with mock.patch.object(
            tf1_checkpoint, "write", side_effect=error
        ) as write:
            with self.assertRaises(error):
                self.convert(source, "tf1")
            write.assert_called()
        self.assertEqual(self.listing(), before)

    def test_full_disk_is_one_sentence(self):
        source = self.write(stored_models.build())
        message = f"x; {os.strerror(errno.ENOSPC)}\nin save"
        for error in (
            tf.errors.ResourceExhaustedError(None, None, message),
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ):
            with mock.patch.object(tf1_checkpoint, "write", side_effect=error):
                self.assert_refused("The disk is full: .*", source, "tf1")


if __name__ == "__main__":
    tf.test.main()
