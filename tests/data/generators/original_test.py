import json
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import features
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import original as original_generator
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import record_files
from tests.support.shared_data import golden

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _make_tokenizer(
    words="the cat sat on ##s ##ting a mat dog ran .",
) -> BertTokenizer:
    return BertTokenizer(Vocabulary(_SPECIAL + words.split()))


def _make_config(**flags) -> CreatePretrainingDataConfig:
    return CreatePretrainingDataConfig(
        **{
            "input_file": "unused",
            "output_file": "unused",
            "vocab_file": "unused",
            "generator": "original",
            **flags,
        }
    )


class GoldenTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("default", "whole_word", "cased_two_files")
    def test_records_are_the_originals(self, name):
        with open(golden(f"pretraining_data/{name}.json")) as file:
            expected = json.load(file)
        flags = {
            field: expected[field]
            for field in CreatePretrainingDataConfig.__dataclass_fields__
            if field in expected
        }
        self.assertIn("do_whole_word_mask", flags)
        vocab_file = golden(f"vocab/{expected['vocab']}")
        tokenizer = BertTokenizer.from_vocab_file(
            vocab_file, flags["do_lower_case"]
        )
        folder = self.create_tempdir().full_path
        num_files = expected["num_output_files"]
        names = [
            f"{name}.{index}-of-{num_files}.tfrecord"
            for index in range(num_files)
        ]
        paths = [os.path.join(folder, name) for name in names]

        result = original_generator.generate(
            _make_config(**flags),
            [
                golden(f"pretraining_data/{text}")
                for text in expected["input_files"]
            ],
            tokenizer,
            paths,
            work_dir="",
        )

        for name, path in zip(names, paths, strict=True):
            made, theirs = (
                record_files.read(path),
                record_files.read(golden(f"pretraining_data/{name}")),
            )
            for feature in features.PRETRAINING:
                self.assertAllEqual(made[feature.name], theirs[feature.name])
            self.assertLen(made["input_ids"], result.files[path]["records"])
        counts = result.counts
        self.assertEqual(counts.num_instances, expected["num_instances"])
        self.assertEqual(counts.num_random_next, expected["num_random_next"])
        self.assertEqual(counts.length_histogram.sum(), counts.num_instances)
        self.assertEqual(
            counts.num_predicted,
            counts.num_masked + counts.num_same + counts.num_random,
        )


class OriginalGeneratorTest(tf.test.TestCase, parameterized.TestCase):
    def _write_text(self, text: str, name: str = "text.txt") -> str:
        return self.create_tempfile(name, text).full_path

    def test_lines_without_tokens_are_left_out(self):
        # U+00AD is no white space, but the tokenizer removes it.
        text = self._write_text("\u00ad\n\nthe cat\n\u00ad\nsat\n\n\u00ad\n")

        documents = original_generator.read_documents(
            _make_config(), [text], _make_tokenizer()
        )

        self.assertEqual([len(document) for document in documents], [2])

    def test_corpus_without_tokens_is_rejected(self):
        text = self._write_text("\u00ad\n\n\u00ad\n")

        with self.assertRaisesRegex(UserError, "corpus is empty.*text.txt"):
            original_generator.read_documents(
                _make_config(), [text], _make_tokenizer()
            )

    @parameterized.parameters(5, 9, 40)
    def test_single_document_gives_valid_records(self, max_seq_length):
        text = self._write_text(
            "the cat sat on the mat.\ndogs ran.\nthe dog ran on a mat.\n"
        )
        tokenizer = _make_tokenizer()
        path = f"{self.create_tempdir().full_path}/x.tfrecord"
        config = _make_config(
            max_seq_length=max_seq_length, max_predictions_per_seq=3
        )

        result = original_generator.generate(
            config, [text], tokenizer, [path], ""
        )

        made = record_files.read(path)
        vocabulary = tokenizer.vocabulary
        self.assertEqual(result.num_documents, 1)
        self.assertEqual(made["input_ids"].shape[1], max_seq_length)
        self.assertTrue(np.all(made["input_ids"][:, 0] == vocabulary.cls_id))
        for row in range(len(made["input_ids"])):
            length = made["input_mask"][row].sum()
            ids = made["input_ids"][row]
            separators = np.flatnonzero(ids == vocabulary.sep_id)
            self.assertEqual(separators[-1], length - 1)
            self.assertAllEqual(ids[length:], np.zeros(max_seq_length - length))
            # Segment 1 must begin after the first [SEP] and have tokens.
            segment_start = np.argmax(made["segment_ids"][row])
            self.assertIn(segment_start - 1, separators)
            self.assertLess(segment_start, length - 1)


if __name__ == "__main__":
    tf.test.main()
