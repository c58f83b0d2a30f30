import glob
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators import streaming_worker
from bert_tf.data.token_store import TokenStoreWriter
from bert_tf.errors import UserError
from bert_tf.io import worker_processes
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import record_files

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."),
    *(first + second for first in _LETTERS for second in _LETTERS),
    *("##" + letter for letter in _LETTERS),
    *_LETTERS,
]
# Tokens per part: few, so that a little text makes many parts.
_SMALL_PARTS = 3000


def text(rng, num_documents, num_lines=5, num_sentences=3):
    """Returns documents of sentences; words have two to five letters."""
    documents = []
    for _ in range(num_documents):
        lines = []
        for _ in range(rng.integers(1, num_lines + 1)):
            sentences = []
            for _ in range(rng.integers(1, num_sentences + 1)):
                letters = rng.integers(26, size=(rng.integers(2, 12), 5))
                words = [
                    "".join(_LETTERS[i] for i in word[: 2 + word[0] % 4])
                    for word in letters
                ]
                sentences.append(" ".join(words).capitalize() + ".")
            lines.append(" ".join(sentences))
        documents.append("\n".join(lines))
    return "\n\n".join(documents) + "\n"


def contents(paths):
    return [open(path, "rb").read() for path in paths]  # noqa: SIM115


class StreamingGeneratorTestCase(files_case.FilesCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = BertTokenizer(Vocabulary(_TOKENS))

    def setUp(self):
        super().setUp()
        self.input_file = self.write(
            "in.txt", text(np.random.default_rng(1), 200)
        )
        patch = mock.patch.object(
            streaming_generator, "TOKENS_PER_PART", _SMALL_PARTS
        )
        self.enter_context(patch)

    def config(self, **flags):
        values = {
            "input_file": self.input_file,
            "output_file": "unused",
            "vocab_file": "unused",
            "max_seq_length": 32,
            "max_predictions_per_seq": 5,
            "dupe_factor": 3,
            "num_processes": 1,
        }
        return CreatePretrainingDataConfig(**(values | flags))

    def generate(self, name="out", num_files=3, input_files=None, **flags):
        """Writes `num_files` files of records; returns the result."""
        paths = [
            self.path(f"{name}-{number}.tfrecord")
            for number in range(num_files)
        ]
        result = streaming_generator.generate(
            self.config(**flags),
            input_files or [self.input_file],
            self.tokenizer,
            paths,
            self.work_dir(name),
        )
        self.assertEqual(list(result.files), paths)
        return result

    def work_dir(self, name="out"):
        return self.path(f"{name}.work")

    def threads(self):
        """Replaces worker processes by threads, which start faster."""
        return mock.patch.object(worker_processes, "pool", ThreadPoolExecutor)


class ResultTest(StreamingGeneratorTestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(self.threads())

    def test_counts_agree_with_the_records(self):
        result = self.generate()
        counts = result.counts
        self.assertEqual(result.num_documents, 200)
        self.assertGreater(counts.num_instances, 1000)
        total = masked = random_next = 0
        for path, file in result.files.items():
            records = record_files.read(path)
            self.assertLen(records["input_ids"], file["records"])
            self.assertEqual(os.path.getsize(path), file["bytes"])
            self.assertAllEqual(
                records["input_ids"][:, 0], [2] * file["records"]
            )
            total += file["records"]
            masked += int((records["input_ids"] == 4).sum())
            random_next += int(records["next_sentence_labels"].sum())
        self.assertEqual(counts.num_instances, total)
        self.assertEqual(counts.num_random_next, random_next)
        # A random token may be [MASK], too, so a few more tokens are.
        self.assertNear(counts.num_masked, masked, 5)
        self.assertNear(counts.num_masked / counts.num_predicted, 0.8, 0.03)
        self.assertGreater(counts.num_truncated, 0)

    # If a digest changes, equal flags no longer make equal data sets.
    @parameterized.parameters(
        ("a49e2359dd70e251", {}),
        (
            "3a113f1cb4c567f1",
            {"next_sentence_pairs": False, "short_seq_prob": 0.5},
        ),
        (
            "8d3f42604d8f3d21",
            {"do_whole_word_mask": True, "masked_lm_prob": 0.3},
        ),
        ("e804f880353ed789", {"max_ngram": 3, "random_seed": 1}),
        (
            "78fd75dcc1bf7e2b",
            {"left_to_right": True, "max_predictions_per_seq": 4},
        ),
        (
            "da2393e33832254b",
            {"mask_rate": 0.5, "same_rate": 0.2, "random_rate": 0.3},
        ),
        ("dd721149c1d6689e", {"split_sentences": False, "dupe_factor": 9}),
    )
    def test_records_are_those_of_earlier_versions(self, digest, flags):
        made = b"".join(contents(self.generate(**flags).files))
        self.assertStartsWith(hashlib.sha256(made).hexdigest(), digest)

    def test_left_to_right_predicts_each_following_token(self):
        every = {"left_to_right": True, "max_predictions_per_seq": None}
        result = self.generate(**every)
        self.assertEqual(result.counts.num_masked, 0)
        records = record_files.read(next(iter(result.files)))
        self.assertEqual(records["masked_lm_ids"].shape[1], 29)
        single = self.config(**every, next_sentence_pairs=False)
        self.assertEqual(single.max_predictions_per_seq, 30)
        masked = self.config(max_predictions_per_seq=None)
        self.assertEqual(masked.max_predictions_per_seq, 20)
        ids, places = records["input_ids"], records["masked_lm_positions"]
        following = np.take_along_axis(ids, places + 1, axis=1)
        weights = records["masked_lm_weights"] > 0
        self.assertAllEqual(
            following[weights], records["masked_lm_ids"][weights]
        )
        tokens = (ids > 3).sum(axis=1)
        self.assertAllEqual(weights.sum(axis=1), tokens)

    @parameterized.parameters(
        {"do_whole_word_mask": True},
        {"masked_lm_prob": 0.2},
        {"mask_rate": 0.9, "same_rate": 0.0},
        {"max_ngram": 2},
    )
    def test_masking_flags_are_rejected_without_masking(self, **flags):
        with self.assertRaisesRegex(UserError, "with --left_to_right"):
            self.config(left_to_right=True, **flags)

    def test_refuses_too_little_text_for_the_number_of_files(self):
        path = self.write("little.txt", "Ab cd ef.\n\nGh ij.\n")
        with self.assertRaisesRegex(UserError, "--dupe_factor=3; .* at most 6"):
            self.generate(num_files=7, input_files=[path])
        result = self.generate(num_files=6, input_files=[path])
        self.assertGreater(min(f["records"] for f in result.files.values()), 0)

    def test_refuses_text_without_a_token(self):
        path = self.write("empty.txt", "\u200b\n\n\u0007\n")
        with self.assertRaisesRegex(UserError, "corpus is empty: no token"):
            self.generate(input_files=[path])


class RestartTest(StreamingGeneratorTestCase):
    def test_tokenization_resumes_to_the_same_files(self):
        append = TokenStoreWriter.append
        appended = []

        def append_at_most(writer, *sentences):
            if len(appended) == limit:
                raise KeyboardInterrupt
            appended.append(sentences)
            append(writer, *sentences)

        small = mock.patch.multiple(
            streaming_generator, _CHARACTERS_PER_BATCH=900, _BATCHES_PER_SAVE=3
        )
        with self.threads(), small:
            limit = None
            with mock.patch.object(TokenStoreWriter, "append", append_at_most):
                expected = contents(self.generate("whole").files)
                num_batches, limit = len(appended), len(appended) // 2
                appended.clear()
                with self.assertRaises(KeyboardInterrupt):
                    self.generate()
                limit = None
                appended.clear()
                actual = contents(self.generate().files)
        self.assertGreater(num_batches, 20)
        self.assertBetween(len(appended), num_batches // 2, num_batches - 8)
        self.assertEqual(actual, expected)

    def test_only_missing_parts_and_files_are_written(self):
        write_part = streaming_worker.write_part
        written = []

        def write_some(plan, part):
            if len(written) == limit:
                raise KeyboardInterrupt
            written.append(part)
            write_part(plan, part)

        with (
            self.threads(),
            mock.patch.object(streaming_worker, "write_part", write_some),
        ):
            limit = None
            expected = contents(self.generate("whole").files)
            num_parts = len(written)
            written.clear()
            limit = num_parts // 2
            with self.assertRaises(KeyboardInterrupt):
                self.generate()
            finished = glob.glob(self.path("out-*"))
            # One file is finished; the unfinished file was removed.
            self.assertLen(finished, 1)
            limit = None
            result = self.generate()
        self.assertCountEqual(written, range(num_parts))
        self.assertEqual(contents(result.files), expected)

    def test_a_deleted_file_is_written_again(self):
        with self.threads():
            paths = list(self.generate().files)
            expected = contents(paths)
            os.remove(paths[1])
            self.generate()
        self.assertEqual(contents(paths), expected)

    def test_a_lost_worker_is_reported(self):
        with self.assertRaisesRegex(UserError, "rerun the same command"):
            with worker_processes.pool(1) as pool:
                pool.submit(os._exit, 1).result()


if __name__ == "__main__":
    tf.test.main()
