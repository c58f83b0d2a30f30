"""Tests for run/tokenize_file.py, as a program."""

import os
import pathlib

import pytest
import tensorflow as tf

from bert_tf.io import files
from tests.support import scripts

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class TokenizeFileTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_writes_tokens(self):
        folder = self.create_tempdir().full_path
        vocab_file = os.path.join(folder, "vocab.txt")
        input_file = os.path.join(folder, "in.txt")
        output_file = os.path.join(folder, "new", "out.jsonl")
        command = [
            str(_ROOT / "run" / "tokenize_file.py"),
            f"--vocab_file={vocab_file}",
            f"--input_file={input_file}",
            f"--output_file={output_file}",
        ]
        files.write_text(input_file, "he!")
        files.write_text(vocab_file, "\n".join([*_SPECIAL, "!", "he"]) + "\n")
        (ended,) = scripts.run((command, folder))
        self.assertEqual(ended.status, 0, ended.stderr)
        self.assertEqual(files.read_json(output_file)["ids"], [6, 5])
        self.assertIn(f"tokens of 1 lines to {output_file}.", ended.stderr)


if __name__ == "__main__":
    tf.test.main()
