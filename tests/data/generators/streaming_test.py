import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators import streaming_worker
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter
from bert_tf.errors import UserError
from bert_tf.io import worker_processes
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import record_files

_ROOT = str(pathlib.Path(__file__).resolve().parents[3])
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."),
    *(first + second for first in _LETTERS for second in _LETTERS),
    *("##" + letter for letter in _LETTERS),
    *_LETTERS,
]
# Small parts, so that a little text makes many.
_SMALL_PARTS = 3000


def text(rng, num_documents, num_lines=5, num_sentences=3):
    """Paragraphs of sentences of words of two to five letters."""
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
        """Returns the result, and the contents of its files."""
        paths = [
            os.path.join(self.folder, f"{name}-{number}.tfrecord")
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
        return os.path.join(self.folder, f"{name}.work")

    def threads(self):
        """Lets the work be done in this process, which starts faster."""

        @contextlib.contextmanager
        def pool(num_processes):
            with concurrent.futures.ThreadPoolExecutor(num_processes) as made:
                yield made

        return mock.patch.object(worker_processes, "pool", pool)


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
        # A random token may be [MASK] too.
        self.assertNear(counts.num_masked, masked, 5)
        self.assertNear(counts.num_masked / counts.num_predicted, 0.8, 0.03)
        self.assertGreater(counts.num_truncated, 0)

    def test_each_pass_uses_the_text_of_its_document(self):
        flags = {"next_sentence_pairs": False, "short_seq_prob": 0.0}
        rates = {"mask_rate": 0.0, "same_rate": 1.0, "random_rate": 0.0}
        result = self.generate(
            max_seq_length=128, dupe_factor=2, **flags, **rates
        )
        store = TokenStore.open(
            os.path.join(self.work_dir(), "tokens"), len(_TOKENS)
        )
        found = []
        for path in result.files:
            records = record_files.read(path)
            inside = (records["input_mask"] == 1) & (records["input_ids"] > 3)
            found.append(records["input_ids"][inside])
        expected = np.bincount(store.tokens, minlength=len(_TOKENS)) * 2
        actual = np.bincount(np.concatenate(found), minlength=len(_TOKENS))
        # All but what truncation took, and nothing else.
        self.assertTrue((actual <= expected).all())
        self.assertGreater(actual.sum(), 0.8 * expected.sum())

    def test_sentences_are_split_by_default(self):
        split = self.generate("a")
        unsplit = self.generate("b", split_sentences=False)
        self.assertEqual(split.num_documents, unsplit.num_documents)
        self.assertGreater(split.num_sentences, 1.5 * unsplit.num_sentences)
        with open(self.input_file, encoding="utf-8") as file:
            lines = [line for line in file.read().split("\n") if line]
        self.assertEqual(unsplit.num_sentences, len(lines))

    def test_seed_decides(self):
        first = self.generate("a")
        again = self.generate("b")
        other = self.generate("c", random_seed=1)
        self.assertEqual(contents(first.files), contents(again.files))
        self.assertNotEqual(contents(first.files), contents(other.files))

    def test_one_segment(self):
        result = self.generate(next_sentence_pairs=False)
        records = record_files.read(next(iter(result.files)))
        self.assertFalse(records["segment_ids"].any())
        self.assertFalse(records["next_sentence_labels"].any())
        self.assertAllEqual(
            (records["input_ids"] == 3).sum(axis=1) >= 1,
            [True] * len(records["input_ids"]),
        )

    def test_left_to_right(self):
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

    def test_whole_words_and_runs(self):
        rates = {"mask_rate": 1.0, "same_rate": 0.0, "random_rate": 0.0}
        many = {"max_seq_length": 64, "max_predictions_per_seq": 20}
        continues = np.array([token.startswith("##") for token in _TOKENS])
        runs = {}
        for flags in ({"do_whole_word_mask": True}, {"max_ngram": 3}):
            result = self.generate(
                str(len(runs)), 1, masked_lm_prob=0.3, **many, **flags, **rates
            )
            records = record_files.read(next(iter(result.files)))
            masked = records["input_ids"] == 4
            restored = records["input_ids"].copy()
            np.put_along_axis(
                restored,
                records["masked_lm_positions"],
                np.where(
                    records["masked_lm_weights"] > 0,
                    records["masked_lm_ids"],
                    2,
                ),
                axis=1,
            )
            # Truncation can cut a word at [CLS] and [SEP].
            inner = continues[restored[:, 2:]] & (restored[:, 1:-1] > 3)
            self.assertGreater(inner.mean(), 0.2)
            self.assertAllEqual(masked[:, 2:][inner], masked[:, 1:-1][inner])
            runs[len(runs)] = np.mean(
                masked[:, 1:] & masked[:, :-1] & ~continues[restored[:, 1:]]
            )
        # Adjacent words.
        self.assertGreater(runs[1], 1.5 * runs[0])

    def test_too_little_text_for_the_number_of_files(self):
        path = self.write("little.txt", "Ab cd ef.\n\nGh ij.\n")
        with self.assertRaisesRegex(UserError, "--dupe_factor=3; .* at most 6"):
            self.generate(num_files=7, input_files=[path])
        result = self.generate(num_files=6, input_files=[path])
        self.assertGreater(min(f["records"] for f in result.files.values()), 0)

    def test_text_without_a_token(self):
        path = self.write("empty.txt", "\u200b\n\n\u0007\n")
        with self.assertRaisesRegex(UserError, "corpus is empty: no token"):
            self.generate(input_files=[path])


class RestartTest(StreamingGeneratorTestCase):
    def test_tokenization_resumes(self):
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
            finished = glob.glob(os.path.join(self.folder, "out-*"))
            # One file; that which was growing is removed.
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

    @pytest.mark.slow
    def test_killed_run_continues_to_the_same_bytes(self):
        flags = {"num_processes": 2, "dupe_factor": 30}
        with self.threads():
            expected = contents(self.generate("whole", 4, **flags).files)
        values = {"folder": str(self.folder), "input": self.input_file}
        flags_file = self.write("flags.json", json.dumps(values))
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, flags_file],
            cwd=_ROOT,
            stderr=subprocess.DEVNULL,
        )
        first = os.path.join(self.folder, "out-0.tfrecord")
        _wait_until(lambda: os.path.exists(first) or process.poll() is not None)
        children = _children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertFalse(
            os.path.exists(os.path.join(self.folder, "out-3.tfrecord"))
        )
        self.assertNotEmpty(children)
        _wait_until(lambda: not any(map(_is_running, children)))
        self.assertEqual(contents([first]), expected[:1])
        actual = contents(self.generate("out", 4, **flags).files)
        self.assertEqual(actual, expected)


_KILLED = """
import json, sys
from tests.data.generators import streaming_test as t

if __name__ == "__main__":
    values = json.load(open(sys.argv[1]))
    case = t.StreamingGeneratorTestCase()
    case.setUpClass()
    case.folder, case.input_file = values["folder"], values["input"]
    t.streaming_generator.TOKENS_PER_PART = t._SMALL_PARTS
    case.generate("out", 4, num_processes=2, dupe_factor=30)
"""


def _wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{condition} did not come true.")
        time.sleep(0.002)


def _stat(process):
    """Returns the state and the parent of a process."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0], int(fields[1])


def _is_running(process):
    return _stat(process)[0] not in "XZ"


def _children(parent):
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [process for process in processes if _stat(process)[1] == parent]


if __name__ == "__main__":
    tf.test.main()
