"""Tests for bert_tf.inference.extract_features."""

import dataclasses
import json
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.commands.extract_features import ExtractFeaturesConfig
from bert_tf.errors import UserError
from bert_tf.inference import extract_features
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_model
from tests.support.shared_data import golden


def _read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


class ExtractFeaturesTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.input_file = self.path("lines.txt")
        self.output_file = self.path("features.jsonl")

    def _run(self, text=None, **options):
        if text is not None:
            files.write_bytes(self.input_file, text)
        options = {"input_file": self.input_file} | options
        extract_features.run(
            ExtractFeaturesConfig(output_file=self.output_file, **options)
        )
        return _read(self.output_file)

    def _model_dir(self, **options):
        return tiny_model.write(self.path("model"), **options)

    @parameterized.parameters(1, 3, 32)
    def test_features_equal_the_golden_ones(self, batch_size):
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
        values, golden_values = (
            [
                layer.pop("values")
                for row in x
                for entry in row["features"]
                for layer in entry["layers"]
            ]
            for x in (rows, expected)
        )
        # Compare strings, because the order of the keys must be equal, too.
        self.assertEqual(json.dumps(rows), json.dumps(expected))
        self.assertAllClose(values, golden_values, rtol=0, atol=1e-5)

    @parameterized.parameters("bert_tf", "tf1", "huggingface")
    def test_model_of_any_format_needs_no_other_flags(self, weights_format):
        stored = formats.read(self._model_dir())
        path = self.path(weights_format)
        os.mkdir(path)
        formats.module_of(weights_format).write_model(path, stored)
        options = {"max_seq_length": 12, "layers": "-1"}
        text = b"The cats sat ||| on the mat."
        expected = self._run(text, model_dir=stored.path, **options)
        self.assertEqual(self._run(model_dir=path, **options), expected)
        self.assertEqual(self._run(init_checkpoint=path, **options), expected)

    def test_flags_override_files_next_to_the_checkpoint(self):
        path = self.path("tf1")
        os.mkdir(path)
        stored = formats.read(self._model_dir())
        formats.module_of("tf1").write_model(path, stored)
        tokens = [t.replace("cat", "Dog") for t in tiny_model.TOKENS]
        vocab_file = self.path("other.txt")
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
        self.assertRegex(logs.output[0], "hash .* and that of --vocab_file=")
        self.assertEqual(
            [entry["token"] for entry in rows[0]["features"]],
            "[CLS] the Dog ##s [SEP]".split(),
        )
        config_file = self.path("exact.json")
        config = dataclasses.replace(tiny_model.CONFIG, hidden_act="gelu_erf")
        files.write_text(config_file, config.to_json())
        with self.assertRaisesRegex(UserError, "'gelu' there and 'gelu_erf'"):
            self._run(
                init_checkpoint=path, bert_config_file=config_file, **options
            )
        # No configuration is next to the checkpoint, so flags are required.
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
            ({"max_seq_length": 13}, "must be at most 12.* Received: 13"),
            ({"do_lower_case": False}, "reads lower-case"),
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
            (self.folder, "must name a file"),
            (f"{self.input_file}/features.jsonl", "cannot be written"),
        ):
            self.output_file = output
            with self.assertRaisesRegex(UserError, message):
                self._run(b"the cat\n", model_dir="not read before")
        self.assertEqual(files.read_bytes(self.input_file), b"the cat\n")


if __name__ == "__main__":
    tf.test.main()
