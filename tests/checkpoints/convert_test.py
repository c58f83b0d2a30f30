"""Tests of conversion: round trips, refusals, and rows without a token."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import random
import re
import shutil
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import extend_vocabulary as extension
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.extend_vocabulary import NewTokens
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands.convert_checkpoint import ConvertCheckpointConfig
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import original as original_generator
from bert_tf.errors import UserError
from bert_tf.export.heads.pretrained import FillMask as FillMaskHead
from bert_tf.flags.groups import FORMATS
from bert_tf.inference.fill_mask import FillMask
from bert_tf.io import files
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import LiteTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import stored_models
from tests.support import tiny_model

# Hugging Face's classes of these kinds have no pooler, so it is not written.
_WITHOUT_POOLER = ("masked_lm", "question_answering", "tagging")


def _carried(parts, target):
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
        path = self.path(name)
        os.mkdir(path)
        formats.module_of(target).write_model(path, stored)
        return path

    def convert(self, source, target, name=None, **flags):
        """Converts; returns the directory and the printed report."""
        path = self.path(name or f"{target}_out")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            conversion.run(
                ConvertCheckpointConfig(
                    input=source, output=path, target_format=target, **flags
                )
            )
        return path, printed.getvalue()

    def listing(self):
        """Returns all paths below the folder, with modification times in ns."""
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
    def test_every_format_converts_into_every_other(self, kind):
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

    def test_only_model_directories_hold_classifiers_of_embeddings(self):
        stored = stored_models.build("classification")
        task = stored.task | {"pooling": "mean", "normalize": True}
        stored = dataclasses.replace(stored, task=task)
        path = self.write(stored)
        for target in ("huggingface", "tf1", "keras_hub", "model_garden"):
            self.assert_refused("reads the mean of all tokens", path, target)
        read = self.assert_same(self.convert(path, "bert_tf")[0], stored)
        self.assertEqual(read.task["pooling"], "mean")

    def test_only_model_directories_keep_device_normalization(self):
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

    def test_models_may_lack_a_vocabulary(self):
        stored = dataclasses.replace(
            stored_models.build("classification"),
            vocabulary=None,
            tokenizer_settings=None,
        )
        read = formats.read(self.write(stored))
        self.assertIsNone(read.vocabulary)
        self.assertIsNone(read.tokenizer_settings)
        self.assertAllClose(read.weights, stored.weights, rtol=0, atol=0)

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


class FlagsTest(ConversionTestCase):
    def setUp(self):
        super().setUp()
        self.stored = stored_models.build("encoder")

    def test_existing_output_is_refused(self):
        source = self.write(self.stored, target="tf1")
        empty = self.path("empty")
        os.mkdir(empty)
        self.assert_refused("already exists", source, name="empty")
        self.convert(source, "bert_tf", "empty", overwrite=True)
        self.assert_refused("already exists", source, name="empty")
        path, _ = self.convert(source, "huggingface", "empty", overwrite=True)
        self.assert_same(path, self.stored)
        card = files.read_bytes(os.path.join(path, "README.md")).decode()
        self.assertIn('library_name: "transformers"\n', card)
        self.assertNotIn(self.folder, card)
        self.assertCountEqual(os.listdir(self.folder), ["model", "empty"])

    @parameterized.parameters(
        ("model", "is or contains --input"),
        ("model/", "is or contains --input"),
        (".", "is or contains --input"),
        ("file", "which is a file"),
        ("file/new", "could not be written"),
    )
    def test_output_cannot_be_a_file(self, name, message):
        source = self.write(self.stored, target="tf1")
        with open(self.path("file"), "w") as file:
            file.write("precious")
        self.assert_refused(message, source, name=name, overwrite=True)
        self.assert_same(source, self.stored)

    def test_never_replaces_home_and_working_directories(self):
        source = self.write(self.stored, target="tf1")
        os.makedirs(self.path("home", "work"))
        with contextlib.chdir(self.path("home", "work")):
            for path in ("home", "home/work"):
                self.assert_refused(
                    "working directory", source, name=path, overwrite=True
                )
        home = {"HOME": self.path("home")}
        with mock.patch.dict(os.environ, home):
            self.assert_refused(
                "home directory", source, name="home", overwrite=True
            )

    @parameterized.parameters(
        ({"input": "gs://bucket/model"}, "must be a local path"),
        ({"output": "s3://x/y"}, "must be a local path"),
        ({"input": ""}, "must be a local path"),
        ({"allow_missing": "(["}, "--allow_missing must be a regular"),
        ({"allow_activation_change": True}, "--to=keras_hub only"),
    )
    def test_wrong_flags_are_refused(self, flags, message):
        paths = {"input": self.write(self.stored), "output": f"{self.folder}/x"}
        with self.assertRaisesRegex(UserError, message):
            conversion.run(
                ConvertCheckpointConfig(target_format="tf1", **paths | flags)
            )

    def test_allowed_missing_weights_are_initialized(self):
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


_COUNT = len(tiny_model.TOKENS)
# No token: the first "cat" (the last counts), the empty line, three more rows.
_TOKENS = (*tiny_model.TOKENS, "", "cat")
_CAT, _NEW_CAT = tiny_model.TOKENS.index("cat"), _COUNT + 1
_WITHOUT_TOKEN = {_CAT, *range(_COUNT, _COUNT + 5)} - {_NEW_CAT}


def _stored():
    return stored_models.build(tokens=_TOKENS, vocab_size=_COUNT + 5)


class VocabularyRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("bert_tf",),
        ("tf1",),
        ("huggingface",),
        ("huggingface", "vocab.txt"),
        ("model_garden",),
    )
    def test_every_format_keeps_the_rows(self, target, removed=None):
        stored = _stored()
        path = self.create_tempdir().full_path
        formats.module_of(target).write_model(path, stored)
        if removed:
            os.remove(os.path.join(path, removed))
        read = formats.read(path)
        self.assertEqual(read.config.vocab_size, _COUNT + 5)
        for name in stored.weights:
            self.assertAllEqual(read.weights[name], stored.weights[name])
        ids = read.build_tokenizer().tokenize("The cat sat.")
        self.assertAllEqual(ids, [5, _NEW_CAT, 8, 13])
        if not removed:
            self.assertEqual(read.vocabulary.tokens, _TOKENS)

    def test_no_text_becomes_a_row_without_a_token(self):
        tokenizer = BertTokenizer(Vocabulary(_TOKENS))
        texts = ["cat \U0002ceaa16 \U0002ceaa", "cats \x00 ", "", " "]
        for one in (tokenizer, LiteTokenizer(tokenizer)):
            ids = one.tokenize(texts)
            self.assertEqual(ids[0, 0], _NEW_CAT)
            self.assertFalse(_WITHOUT_TOKEN & set(ids.flat_values.numpy()))

    def test_masks_are_filled_with_tokens(self):
        path = self.create_tempdir().full_path
        formats.module_of("bert_tf").write_model(path, _stored())
        count = _COUNT
        ((found,),) = FillMask(path)(["the [MASK] sat"], top_k=count)
        ids = [candidate.token_id for candidate in found]
        self.assertEqual(set(ids), set(range(_COUNT + 5)) - _WITHOUT_TOKEN)
        with self.assertRaisesRegex(ValueError, f"vocabulary, {count}"):
            FillMask(path)(["the [MASK] sat"], top_k=count + 1)
        head = FillMaskHead(BertTokenizer(Vocabulary(_TOKENS)), 8, (8,), count)
        logits = np.arange(_COUNT + 5, dtype=np.float32)[None, None]
        best = head.condense({"masked_lm_logits": logits})
        self.assertAllEqual(
            [x for x in reversed(range(_COUNT + 5)) if x not in _WITHOUT_TOKEN],
            best["best_ids"][0, 0],
        )

    def test_random_replacements_are_tokens(self):
        vocabulary = Vocabulary(_TOKENS)
        masking = dataclasses.replace(
            DynamicMasking.from_vocabulary(vocabulary, 0.15),
            mask_rate=0.0,
            same_rate=0.0,
        )
        drawn = masking._replace(
            tf.zeros([500, 2], tf.int32),
            tf.tile([[1, 2]], [500, 1]),
            tf.range(500, dtype=tf.int64),
            seed=1,
        )
        self.assertEqual(set(drawn.numpy().ravel()), set(vocabulary.token_ids))
        config = CreatePretrainingDataConfig(
            input_file="", output_file="", vocab_file=""
        )
        generator = original_generator._Masker(
            config, BertTokenizer(vocabulary)
        )
        rng = random.Random(2)
        drawn = {generator._replacement(7, rng) for _ in range(5000)}
        self.assertEqual(drawn, set(vocabulary.token_ids))

    def test_new_words_follow_the_table(self):
        stored = _stored()
        new = NewTokens("words", {"mats": (10, 11)})
        extended = extension.extend(stored, new)
        self.assertEqual(extended.vocabulary.id("mats"), _COUNT + 5)
        self.assertEqual(extended.vocabulary.id("cat"), _NEW_CAT)
        self.assertEqual(extended.config.vocab_size, _COUNT + 6)


_CHECKPOINT = ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001")
_CONFIG_FILES = {
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
# The keys of KerasHub's configuration for our keys.
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
        path = self.path(source_format)
        return shutil.copytree(os.path.join(self.models, source_format), path)

    def _assert_refused(self, path, message, target="bert_tf", **flags):
        before = sorted(os.walk(self.folder))
        config = ConvertCheckpointConfig(
            input=path,
            output=self.path("new", "out"),
            target_format=target,
            **flags,
        )
        with self.assertRaisesRegex(UserError, message) as raised:
            conversion.run(config)
        self.assertNotIn("\n", str(raised.exception))
        self.assertIn(str(raised.exception)[-1], ".?")  # "Did you mean ...?"
        self.assertEqual(sorted(os.walk(self.folder)), before)

    @parameterized.parameters(itertools.permutations(FORMATS, 2))
    def test_refuses_a_wrong_format_and_names_the_right_one(
        self, named, actual
    ):
        self._assert_refused(
            os.path.join(self.models, actual),
            rf"Expected the format {named} \(--from={named}\)\. Received: "
            rf"'.*/{actual}', which looks like {actual};",
            source_format=named,
        )

    @parameterized.parameters(None, *FORMATS)
    def test_refuses_files_of_no_known_format(self, source_format):
        os.mkdir(self.path("empty"))
        os.mkdir(self.path("other"))
        for name in ("other/notes.txt", "model.onnx"):
            files.write_bytes(self.path(name), b"\x08\x07")
        for name, message in _NO_FORMAT.items():
            self._assert_refused(
                self.path(name),
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
        path = self.path("model[1]")
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
        os.makedirs(self.path(folder))
        os.mkfifo(self.path(folder, "x"))
        with self.assertRaisesRegex(UserError, "x must be a regular"):
            formats.check_folder(self.folder)

    def test_several_formats_in_one_directory_need_a_choice(self):
        path = self._copy("huggingface")
        for name in (*_CHECKPOINT, "bert_config.json"):
            shutil.copy(os.path.join(self.models, "tf1", name), path)
        self._assert_refused(path, r"several .*huggingface\).*--from")
        for source_format in ("tf1", "huggingface"):
            read = formats.read(path, source_format)
            self.assertEqual(read.config.hidden_size, 16)

    @parameterized.parameters(*FORMATS)
    def test_missing_config_is_named_in_the_error(self, source_format):
        path = self._copy(source_format)
        os.remove(os.path.join(path, _CONFIG_FILES[source_format]))
        self._assert_refused(path, _CONFIG_FILES[source_format])

    @parameterized.parameters(*FORMATS)
    def test_missing_vocabulary_is_named_in_the_error(self, source_format):
        path = self._copy(source_format)
        for name in _VOCABULARY[source_format]:
            os.remove(os.path.join(path, name))
        self._assert_refused(path, r"(?i)vocab\w*(\.txt)?")

    @parameterized.product(
        source=FORMATS,
        contents=(b"", b'{"vocab_size": 16, "hid', b"\xff\xfe\x00", b"[1, 2]"),
    )
    def test_damaged_config_is_named_in_the_error(self, source, contents):
        path = self._copy(source)
        files.write_bytes(os.path.join(path, _CONFIG_FILES[source]), contents)
        self._assert_refused(path, _CONFIG_FILES[source], source_format=source)

    @parameterized.parameters(*_WEIGHT_FILES)
    def test_missing_weight_files_are_refused(self, source, file):
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
    def test_refuses_sizes_that_differ(self, source, key_and_value):
        key, value = key_and_value
        path = self._copy(source)
        config_file = os.path.join(path, _CONFIG_FILES[source])
        config = files.read_json(config_file)
        if source == "keras_hub":
            config["config"][_SIZE_KEYS[key]] = value
        else:
            config[key] = value
        files.write_json(config_file, config)
        self._assert_refused(path, f"{value}|its")

    @parameterized.parameters("tf1", "huggingface", "keras_hub", "model_garden")
    def test_refuses_a_vocabulary_of_another_size(self, source):
        path = self._copy(source)
        vocab_file = os.path.join(path, _VOCABULARY[source][0])
        contents = files.read_bytes(vocab_file)
        files.write_bytes(vocab_file, contents + b"more\n")
        self._assert_refused(path, "17|different vocabularies")

    def test_refuses_changed_files_of_a_model_directory(self):
        path = self._copy("bert_tf")
        for name in sorted(os.listdir(path)):
            if name == "checksums.json":
                continue
            file = os.path.join(path, name)
            contents = files.read_bytes(file)
            files.write_bytes(file, contents + b" ")
            if name == "README.md":  # Users may edit it.
                formats.read(path)
            else:
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
        # ALBERT shares one layer, so its names have groups in place of numbers.
        ("bert/encoder/transformer/group_0/inner_group_0/ffn_1/kernel", None),
        (None, {"vocab_size": 16, "embedding_size": 128}),
    )
    def test_refuses_other_architectures_of_tf1(self, name, config):
        path = self._copy("tf1")
        if name:
            tensors = {name: np.zeros([3, 4], np.float32)}
            prefix = os.path.join(path, "bert_model.ckpt")
            tf1_checkpoint.write(prefix, tensors)
        if config:
            config_file = os.path.join(path, "bert_config.json")
            files.write_text(config_file, json.dumps(config))
        self._assert_refused(path, name or "embedding_size")

    def test_refuses_other_architectures_of_tf2(self):
        path = self.path("tf2")
        module = tf.Module()
        module.kernel = tf.Variable(np.arange(6.0))
        tf.train.Checkpoint(module).write(os.path.join(path, "x.ckpt"))
        files.write_text(os.path.join(path, "bert_config.json"), "{}")
        for name in (None, "tf1", "model_garden"):
            self._assert_refused(path, "Expected", source_format=name)


if __name__ == "__main__":
    tf.test.main()
