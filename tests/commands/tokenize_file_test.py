"""Tests for bert_tf.commands.tokenize_file."""

import json
import os
from unittest import mock

import tensorflow as tf

from bert_tf.commands import tokenize_file
from bert_tf.commands.tokenize_file import TokenizeFileConfig
from bert_tf.errors import UserError
from tests.support import files_case

_TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] he ##llo é e [ ] mask ! 中".split()
_TEXT = "He!\r\n\nhello É\u2028x\x0c\n 中[MASK]"


class TokenizeFileTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.vocab_file = self.write("vocab.txt", "\n".join(_TOKENS))
        self.output_file = os.path.join(self.folder, "new", "out.jsonl")

    def _run(self, text, **flags):
        config = TokenizeFileConfig(
            vocab_file=self.vocab_file,
            input_file=self.write("in.txt", text),
            output_file=self.output_file,
            **flags,
        )
        tokenize_file.main(config)
        with open(self.output_file, encoding="utf-8", newline="\n") as file:
            return [json.loads(line) for line in file]

    def test_writes_ids_tokens_and_offsets_of_every_line(self):
        rows = self._run(_TEXT)
        self.assertEqual(
            rows,
            [
                {
                    "ids": [5, 12],
                    "tokens": ["he", "!"],
                    "offsets": [[0, 2], [2, 3]],
                },
                {"ids": [], "tokens": [], "offsets": []},
                {
                    "ids": [5, 6, 8, 1],
                    "tokens": ["he", "##llo", "e", "[UNK]"],
                    "offsets": [[0, 2], [2, 5], [6, 8], [11, 13]],
                },
                {
                    "ids": [13, 9, 11, 10],
                    "tokens": ["中", "[", "mask", "]"],
                    "offsets": [[1, 4], [4, 5], [5, 9], [9, 10]],
                },
            ],
        )

    def test_flags_reach_the_tokenizer(self):
        rows = self._run("É", strip_accents=False)
        self.assertEqual(rows[0]["tokens"], ["é"])
        rows = self._run("He he", do_lower_case=False)
        self.assertEqual(rows[0]["tokens"], ["[UNK]", "he"])
        rows = self._run("he[MASK]", preserve_special_tokens=True)
        self.assertEqual(rows[0]["tokens"], ["he", "[MASK]"])
        self.assertEqual(rows[0]["offsets"], [[0, 2], [2, 8]])

    def test_the_last_line_end_may_be_missing(self):
        self.assertEqual(self._run("he\n"), self._run("he"))
        self.assertLen(self._run("he\n\n"), 2)
        self.assertEqual(self._run(""), [])

    def test_lines_do_not_depend_on_how_the_file_is_read(self):
        text = "\n".join(f"he!\r{'llo' * (i % 5)} 中é" for i in range(50))
        whole = self._run(text)
        self.assertLen(whole, 50)
        for size in (1, 7, 64):
            with mock.patch.object(tokenize_file, "_CHARACTERS_AT_ONCE", size):
                self.assertEqual(self._run(text), whole)

    def test_bad_utf8_names_file_and_byte_and_leaves_the_old_output(self):
        self._run("he")
        for size in (4, 1 << 18):
            with (
                mock.patch.object(tokenize_file, "_CHARACTERS_AT_ONCE", size),
                self.assertRaisesRegex(
                    UserError, r"in\.txt, line 3 is not UTF-8 at byte 1"
                ),
            ):
                self._run(b"he\n\xc3\xa9 x\na\xe4b\n")
        self.assertEqual(
            os.listdir(os.path.dirname(self.output_file)), ["out.jsonl"]
        )
        with open(self.output_file, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["tokens"], ["he"])


if __name__ == "__main__":
    tf.test.main()
