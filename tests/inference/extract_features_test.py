"""Tests for bert_tf.inference.extract_features."""

import dataclasses
import json
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.commands.extract_features import ExtractFeaturesConfig
from bert_tf.errors import UserError
from bert_tf.inference import extract_features
from bert_tf.io import files
from bert_tf.modeling import bert as bert_model
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model
from tests.support.shared_data import golden


def _read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


class ExtractFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.input_file = os.path.join(self.folder, "lines.txt")
        self.output_file = os.path.join(self.folder, "features.jsonl")

    def _run(self, text=None, **options):
        if text is not None:
            files.write_bytes(self.input_file, text)
        options = {"input_file": self.input_file} | options
        extract_features.run(
            ExtractFeaturesConfig(output_file=self.output_file, **options)
        )
        return _read(self.output_file)

    def _model_dir(self, **options):
        return tiny_model.write(os.path.join(self.folder, "model"), **options)

    @parameterized.parameters(1, 3, 32)
    def test_golden_in_full(self, batch_size):
        rows = self._run(
            input_file=golden("model/features_input.txt"),
            layers="-1,-2,-3",
            bert_config_file=golden("model/bert_config.json"),
            init_checkpoint=golden("model/bert_model.ckpt.index"),
            vocab_file=golden("model/vocab.txt"),
            max_seq_length=20,
            batch_size=batch_size,
        )
        expected = _read(golden("model/features_output.jsonl"))
        self.assertEqual(len(rows), len(expected))
        for row, golden_row in zip(rows, expected, strict=True):
            self.assertEqual(list(row), list(golden_row))
            self.assertEqual(row["linex_index"], golden_row["linex_index"])
            entries = zip(row["features"], golden_row["features"], strict=True)
            for entry, golden_entry in entries:
                self.assertEqual(list(entry), list(golden_entry))
                self.assertEqual(entry["token"], golden_entry["token"])
                layers = zip(
                    entry["layers"], golden_entry["layers"], strict=True
                )
                for layer, golden_layer in layers:
                    self.assertEqual(list(layer), list(golden_layer))
                    self.assertEqual(layer["index"], golden_layer["index"])
                    self.assertAllClose(
                        layer["values"],
                        golden_layer["values"],
                        rtol=0,
                        atol=1e-5,
                    )

    def test_model_directory_gives_its_own_activations(self):
        rows = self._run(
            b"the cats\n\nthe ||| dog ||| on mat.",
            model_dir=self._model_dir(),
            layers="0,-1",
            max_seq_length=12,
        )
        tokens = [[p["token"] for p in row["features"]] for row in rows]
        self.assertEqual(tokens[0], "[CLS] the cat ##s [SEP]".split())
        self.assertEqual(tokens[1], "[CLS] [SEP]".split())
        # The last ||| separates; the first is text without tokens.
        pair = "[CLS] the [UNK] [UNK] [UNK] dog [SEP] on mat . [SEP]"
        self.assertEqual(tokens[2], pair.split())
        model = bert_model.BertModel(tiny_model.CONFIG, return_all_layers=True)
        checkpoint_loading.load_into(model, tiny_model.random_weights())
        ids = [tiny_model.TOKENS.index(token) for token in tokens[2]]
        outputs = model(
            {
                "input_ids": np.array([ids]),
                "segment_ids": np.array([[0] * 7 + [1] * 4]),
            }
        )
        for number, layer in enumerate((0, -1)):
            found = [p["layers"][number] for p in rows[2]["features"]]
            self.assertEqual({layer["index"] for layer in found}, {layer})
            self.assertAllClose(
                [layer["values"] for layer in found],
                outputs["encoder_outputs"][layer][0],
                rtol=0,
                atol=1e-5,
            )
            values = np.array([layer["values"] for layer in found])
            self.assertAllEqual(values, np.round(values, 6))

    @parameterized.parameters("bert_tf", "tf1", "huggingface")
    def test_model_of_any_format_needs_no_other_flags(self, weights_format):
        stored = formats.read(self._model_dir())
        path = os.path.join(self.folder, weights_format)
        os.mkdir(path)
        formats.module_of(weights_format).write_model(path, stored)
        options = {"max_seq_length": 12, "layers": "-1"}
        text = b"The cats sat ||| on the mat."
        expected = self._run(text, model_dir=stored.path, **options)
        self.assertEqual(self._run(model_dir=path, **options), expected)
        self.assertEqual(self._run(init_checkpoint=path, **options), expected)

    def test_the_default_has_the_layers_of_a_small_model(self):
        for number, expected in (
            (2, [-1, -2]),
            (4, [-1, -2, -3, -4]),
            (9, [-1, -2, -3, -4]),
        ):
            default = ExtractFeaturesConfig.layers
            self.assertEqual(
                extract_features._parse_layers(default, number, default),
                expected,
            )
        with self.assertRaisesRegex(UserError, "must lie between -2 and 1"):
            extract_features._parse_layers("-1,-3", 2, "-1")

    def test_flags_override_files_next_to_the_checkpoint(self):
        path = os.path.join(self.folder, "tf1")
        os.mkdir(path)
        stored = formats.read(self._model_dir())
        formats.module_of("tf1").write_model(path, stored)
        tokens = [t.replace("cat", "Dog") for t in tiny_model.TOKENS]
        vocab_file = os.path.join(self.folder, "other.txt")
        Vocabulary(tokens).write(vocab_file)
        options = {"max_seq_length": 12, "layers": "-1"}
        with self.assertLogs(level="WARNING") as logs:
            rows = self._run(
                b"the Dogs",
                init_checkpoint=path,
                vocab_file=vocab_file,
                do_lower_case=False,
                **options,
            )
        self.assertIn("other.txt is not the vocabulary in", logs.output[0])
        self.assertEqual(
            [entry["token"] for entry in rows[0]["features"]],
            "[CLS] the Dog ##s [SEP]".split(),
        )
        config_file = os.path.join(self.folder, "exact.json")
        config = dataclasses.replace(tiny_model.CONFIG, hidden_act="gelu_erf")
        files.write_text(config_file, config.to_json())
        with self.assertRaisesRegex(UserError, "'gelu' there and 'gelu_erf'"):
            self._run(
                init_checkpoint=path, bert_config_file=config_file, **options
            )
        # Without a configuration next to it the flags are required.
        os.remove(os.path.join(path, "bert_config.json"))
        with self.assertRaisesRegex(UserError, "bert_config.json"):
            self._run(init_checkpoint=path, **options)
        with self.assertRaisesRegex(UserError, "vocab.txt.*--vocab_file"):
            self._run(
                init_checkpoint=path, bert_config_file=config_file, **options
            )

    def test_long_lines_are_truncated(self):
        rows = self._run(
            b"cats cats cats ||| the dog\ncats cats cats\n",
            model_dir=self._model_dir(),
            layers="-1",
            max_seq_length=6,
        )
        tokens = [
            " ".join(entry["token"] for entry in row["features"])
            for row in rows
        ]
        self.assertEqual(
            tokens,
            ["[CLS] cat ##s [SEP] the [SEP]", "[CLS] cat ##s cat ##s [SEP]"],
        )

    def test_rejects_wrong_flags(self):
        model_dir = self._model_dir()
        for options, message in (
            ({"layers": "-1,x"}, "separated by commas.*'-1,x'"),
            ({"layers": "-1,2"}, "between -2 and 1.* Received: 2"),
            ({"max_seq_length": 13}, "must not exceed .* 12. Received: 13"),
            ({"do_lower_case": False}, "reads lower-case"),
            ({"input_file": "nowhere.txt"}, "--input_file: no such file"),
        ):
            options = {"max_seq_length": 12, "layers": "-1"} | options
            with self.assertRaisesRegex(UserError, message):
                self._run(b"the cat\n", model_dir=model_dir, **options)
            self.assertFalse(os.path.exists(self.output_file))

    def test_rejects_bad_text_and_keeps_an_earlier_result(self):
        options = {"model_dir": self._model_dir(), "max_seq_length": 12}
        options["layers"] = "-1"
        before = self._run(b"the cat\n", **options)
        for text, message in (
            (b"the cat\non the \xff mat\n", "line 2 is not UTF-8 at byte 7"),
            (b"", "has no line"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self._run(text, **options)
            self.assertEqual(_read(self.output_file), before)
        self.assertCountEqual(
            os.listdir(self.folder), ["features.jsonl", "lines.txt", "model"]
        )

    def test_refuses_invalid_output_paths(self):
        for output, message in (
            (self.input_file, "must differ from --input_file"),
            (self.folder, "must name a file"),
            (f"{self.input_file}/features.jsonl", "cannot be written"),
        ):
            self.output_file = output
            with self.assertRaisesRegex(UserError, message):
                self._run(b"the cat\n", model_dir="not read before")
        self.assertEqual(files.read_bytes(self.input_file), b"the cat\n")

    def test_rejects_a_model_without_vocabulary(self):
        with self.assertRaisesRegex(UserError, "has no vocab.txt"):
            self._run(
                b"the cat\n", model_dir=self._model_dir(with_vocabulary=False)
            )

    def test_ignored_flags_warn_once(self):
        with self.assertLogs(level="WARNING") as logs:
            self._run(
                b"the cat\n",
                model_dir=self._model_dir(),
                layers="-1",
                max_seq_length=12,
                use_tpu=True,
                master="grpc://somewhere",
            )
        warnings = [line for line in logs.output if "are ignored" in line]
        self.assertLen(warnings, 1)
        self.assertIn("--use_tpu, --master", warnings[0])


if __name__ == "__main__":
    tf.test.main()
