"""Tests of the tokenization in .tflite files: the golden texts in LiteRT."""

import gzip
import json

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.tflite import convert as conversion
from bert_tf.inference.lite_model import LiteModel
from bert_tf.text import normalizer
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import LiteTokenizer
from tests.support.shared_data import golden

# Golden texts that begin so are tokenized differently, as documented.
_FINAL_SIGMAS = ("ΑΒΓ Σίσυφος ΟΔΟΣ", "ὈΔΥΣΣΕΎΣ", 'ŔﬁΣ"')
_LONG_WORDS = ("x" * 201, "ж" * 201)
_INVALID = (b"a \xff b", b"c \xe6\x9d", b"\xc0\xaf d \xed\xa0\x80 e\xf0\x9f")


class GoldenTest(tf.test.TestCase, parameterized.TestCase):
    def _read(self, name, lower_case):
        """Builds a tokenizer and the file that it is converted to."""
        self.tokenizer = LiteTokenizer(
            BertTokenizer.from_vocab_file(
                golden(f"vocab/bert-base-{name}-vocab.txt"), lower_case
            )
        )
        content = conversion.convert(
            self._tokenize,
            {"text": tf.TensorSpec([None], tf.string)},
            text_operators=True,
        )
        self.assertEqual(
            conversion.custom_operators(content),
            {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"},
        )
        self.model = LiteModel(content, text_operators=True)

    def _tokenize(self, text):
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(text)
        return {
            "ids": ids.flat_values,
            "splits": ids.row_splits,
            "starts": starts.flat_values,
            "ends": ends.flat_values,
        }

    def _run(self, texts):
        """Returns the answer, and the ids of each row."""
        encoded = [x if isinstance(x, bytes) else x.encode() for x in texts]
        answer = self.model.run({"text": np.array(encoded, object)})
        return answer, np.split(answer["ids"], answer["splits"][1:-1])

    @parameterized.parameters(
        ("uncased", True, _FINAL_SIGMAS),
        ("cased", False, ()),
        ("multilingual-cased", False, ()),
    )
    def test_differs_from_the_original_as_documented(
        self, name, lower_case, final_sigmas
    ):
        self._read(name, lower_case)
        with gzip.open(golden("tokenization/strings.jsonl.gz")) as file:
            rows = [json.loads(line) for line in file]
        texts = [row["text"] for row in rows]
        answer, ids = self._run(texts)
        different = [
            text
            for text, found, row in zip(texts, ids, rows, strict=True)
            if found.tolist() != row[name.replace("-", "_")]
        ]
        begins = [*final_sigmas, *_LONG_WORDS]
        self.assertLen(different, len(begins))
        for begin in begins:
            self.assertTrue(any(text.startswith(begin) for text in different))
        # Other tests check the tokenizer's offsets, so compare with it.
        wanted = self._tokenize(tf.constant([*texts, *_INVALID]))
        answer, _ = self._run([*texts, *_INVALID])
        for name, values in wanted.items():
            self.assertAllEqual(answer[name], values)

    @parameterized.parameters(("uncased", True, [0x3A3]), ("cased", False, []))
    @pytest.mark.slow
    def test_only_sigma_differs_from_the_original(
        self, name, lower_case, exceptions
    ):
        self._read(name, lower_case)
        expected = np.load(golden(f"tokenization/codepoints_{name}.npz"))
        code_points = expected["codepoints"].tolist()
        _, ids = self._run([f"he{chr(c)}llo w{chr(c)}" for c in code_points])
        wanted = np.split(expected["ids"], np.cumsum(expected["lengths"])[:-1])
        different = [
            code_point
            for code_point, found, one in zip(
                code_points, ids, wanted, strict=True
            )
            if found.tolist() != one.tolist()
        ]
        self.assertEqual(different, exceptions)
        # No token has one of the other letters, so their words are [UNK].
        others = {*range(1, 0xD800), *range(0xE000, 0x110000)} - set(
            code_points
        )
        for first, last in normalizer.CJK_RANGES:
            others -= set(range(first, last + 1))
        answer, _ = self._run([f"he{chr(c)}llo" for c in others])
        unknown = self.tokenizer.vocabulary.unk_id
        self.assertAllEqual(answer["splits"], np.arange(len(others) + 1))
        self.assertAllEqual(answer["ids"], np.full(len(others), unknown))


if __name__ == "__main__":
    tf.test.main()
