import dataclasses
import errno
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data import create as pretraining_data
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records import manifest
from bert_tf.data.records import serializer
from bert_tf.errors import UserError
from bert_tf.io import locks
from bert_tf.text.vocabulary import Vocabulary
from tests.support import record_case
from tests.support import record_files

_BESIDE = ("manifest.json", "vocab.txt", "report.json", "report.png")
_SHARDS = {"num_shards": 2, "generator": "streaming", "num_processes": 1}


class CreateTest(record_case.RecordCase):
    @parameterized.parameters(
        ({"generator": "original"},),
        ({"generator": "streaming", "num_processes": 1},),
    )
    def test_everything_is_named_after_the_output_file(self, flags):
        made = pretraining_data.create(self._config(**flags))

        self.assertCountEqual(
            os.listdir(self.path("out")),
            ["x.tfrecord", *(f"x.tfrecord.{x}" for x in _BESIDE)],
        )
        path = self.path("out/x.tfrecord")
        examples = record_files.read(path)
        found = manifest.find([path])
        vocabulary = Vocabulary(record_case.TOKENS)
        self.assertEqual(found.vocabulary_hash, vocabulary.hash)
        stored = Vocabulary.from_file(found.vocab_file)
        self.assertEqual(stored.hash, vocabulary.hash)
        count, size = len(examples["input_ids"]), os.path.getsize(path)
        self.assertEqual(found.files[path], {"records": count, "bytes": size})
        self.assertEqual(found.num_documents, 30)
        share = examples["next_sentence_labels"].mean()
        self.assertAlmostEqual(found.random_next_share, share)
        for name, column in (
            ("num_pieces", "input_mask"),
            ("num_predicted", "masked_lm_weights"),
        ):
            self.assertEqual(found.counts[name], examples[column].sum())
        self.assertEqual(found.flags["dupe_factor"], 3)
        self.assertEqual(found.seed, 12345)
        self.assertEqual(made.fingerprint, found.fingerprint)

    def test_records_are_dealt_to_files_in_turn(self):
        names = ["a.tfrecord", "b.tfrecord", "c.tfrecord"]
        outputs = ",".join(self.path(f"out/{name}") for name in names)
        pretraining_data.create(self._config())
        whole = record_files.read(self.path("out/x.tfrecord"))

        pretraining_data.create(self._config(output_file=outputs))

        for index, path in enumerate(outputs.split(",")):
            part = record_files.read(path)
            for name in whole:
                self.assertAllEqual(part[name], whole[name][index::3])
        found = manifest.find(outputs.split(","))
        self.assertLen(found.files, 3)
        self.assertEqual(found.counts["num_instances"], len(whole["input_ids"]))

    def test_finished_data_set_is_not_written_again(self):
        made = pretraining_data.create(self._config())
        before = self._contents()
        times = [
            entry.stat().st_mtime_ns for entry in os.scandir(self.path("out"))
        ]

        again = pretraining_data.create(self._config(num_processes=0))

        self.assertEqual(again, made)
        self.assertEqual(self._contents(), before)
        self.assertEqual(
            times,
            [
                entry.stat().st_mtime_ns
                for entry in os.scandir(self.path("out"))
            ],
        )

    def test_copies_of_text_and_vocabulary_are_accepted(self):
        made = pretraining_data.create(self._config())
        os.mkdir(self.path("copies"))
        for path in (self.text_file, self.vocab_file):
            copy = self.path(f"copies/{os.path.basename(path)}")
            with open(path, "rb") as source, open(copy, "wb") as target:
                target.write(source.read())

        again = pretraining_data.create(
            self._config(
                input_file=self.path("copies/text.txt"),
                vocab_file=self.path("copies/words.txt"),
            )
        )

        self.assertEqual(again, made)

    @parameterized.parameters(
        ({"dupe_factor": 2}, "--dupe_factor was 3 and is 2 now"),
        ({"do_lower_case": False}, "--do_lower_case was True and is False"),
        ({"generator": "streaming"}, "was 'original' and is 'streaming'"),
        ({"input_file": "other.txt"}, "the text was changed"),
        ({"vocab_file": "other_words.txt"}, "the vocabulary was changed"),
    )
    def test_another_data_set_of_this_name_is_rejected(self, flags, message):
        self.write("other.txt", record_case.make_text(30, seed=2))
        Vocabulary([*record_case.TOKENS, "more"]).write(
            self.path("other_words.txt")
        )
        pretraining_data.create(self._config())
        before = self._contents()
        flags = {
            flag: self.path(value) if flag.endswith("_file") else value
            for flag, value in flags.items()
        }

        with self.assertRaisesRegex(UserError, f"other flags or .*{message}"):
            pretraining_data.create(self._config(**flags))

        self.assertEqual(self._contents(), before)

    @parameterized.parameters(os.remove, lambda path: os.truncate(path, 1000))
    def test_spoiled_file_is_written_again(self, spoil):
        pretraining_data.create(self._config())
        before = self._contents()
        spoil(self.path("out/x.tfrecord"))

        pretraining_data.create(self._config())

        self.assertEqual(self._contents(), before)


class InterruptedRunTest(record_case.RecordCase):
    def _interrupt(self, config):
        """Interrupts a run before it tidies up, as a kill would."""
        with mock.patch.object(
            pretraining_data.reports,
            "write_report",
            side_effect=KeyboardInterrupt,
        ):
            with self.assertRaises(KeyboardInterrupt):
                pretraining_data.create(config)

    @parameterized.parameters("original", "streaming")
    def test_resumes_after_a_kill(self, generator):
        flags = {"generator": generator, "num_processes": 0}
        if generator == "streaming":
            flags |= {"num_processes": 1, "num_shards": 2}
        pretraining_data.create(self._config(**flags))
        expected = self._contents()
        killed = self._config(
            **flags, output_file=self.path("killed/x.tfrecord")
        )
        self._interrupt(killed)
        self.assertIn("x.tfrecord.work", os.listdir(self.path("killed")))
        shard = "-00000-of-00002" if generator == "streaming" else ""
        self.write(
            f"killed/x{shard}.tfrecord.tmp-9999999-00c0ffee", "half a reco"
        )

        pretraining_data.create(killed)

        made = self._contents("killed")
        # A manifest names its output file, so the two differ.
        del (
            made["x.tfrecord.manifest.json"],
            expected["x.tfrecord.manifest.json"],
        )
        self.assertEqual(made, expected)

    @parameterized.parameters("original", "streaming")
    def test_a_second_process_is_refused(self, generator):
        config = self._config(generator=generator)
        with locks.one_writer(f"{config.output_file}.work", "", True):
            temporary = self.write("out/x.tfrecord.tmp-17-2f", "half a reco")
            with self.assertRaisesRegex(UserError, "Another process writes"):
                pretraining_data.create(config)
        self.assertTrue(os.path.exists(temporary))

    @parameterized.parameters(
        OSError(errno.ENOSPC, "No space left on device"),
        tf.errors.ResourceExhaustedError(
            None, None, "x.tfrecord; No space left on device"
        ),
    )
    def test_full_disk_is_a_user_error(self, full):
        with mock.patch.object(serializer, "serialize", side_effect=full):
            with self.assertRaisesRegex(UserError, "disk is full"):
                pretraining_data.create(self._config())

        self.assertEqual(os.listdir(self.path("out")), ["x.tfrecord.work"])
        pretraining_data.create(self._config())
        self.assertNotIn("x.tfrecord.work", os.listdir(self.path("out")))


class StartOverTest(record_case.RecordCase):
    @parameterized.parameters(({}, _SHARDS), (_SHARDS, {}))
    @pytest.mark.slow
    def test_another_data_set_is_replaced(self, before, after):
        pretraining_data.create(self._config(**before, random_seed=6))
        for name in ("notes.txt", "x.tfrecord.backup", "x-1.tfrecord"):
            self.write(f"out/{name}", "mine")
        pretraining_data.create(
            self._config(**after, overwrite_output_dir=True)
        )
        made = self._contents()
        for name in ("notes.txt", "x.tfrecord.backup", "x-1.tfrecord"):
            self.assertEqual(made.pop(name), b"mine")
        pretraining_data.create(
            self._config(**after, output_file=self.path("new/x.tfrecord"))
        )
        expected = self._contents("new")
        self.assertEqual(set(made), set(expected))
        for name in made:
            if name.endswith(".tfrecord"):
                self.assertEqual(made[name], expected[name])


class BadInputTest(record_case.RecordCase):
    def _assert_refused(self, message, **flags):
        before = sorted(os.listdir(self.folder))
        with self.assertRaisesRegex(UserError, message):
            pretraining_data.create(self._config(**flags))
        # A refused run may leave an empty folder, but nothing in it.
        if os.path.exists(self.path("out")):
            self.assertEqual(os.listdir(self.path("out")), [])
            os.rmdir(self.path("out"))
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    @parameterized.parameters(
        ("--input_file .*nothing_", {"input_file": "nothing_*"}),
        ("--vocab_file: no", {"vocab_file": "nowhere.txt"}),
        ("must name a file.*directory: '/'", {"output_file": "/"}),
        ("names a value twice", {"output_file": "a,a"}),
        ("--output_file must", {"output_file": "a,,b"}),
        ("--output_file must", {"output_file": ""}),
        (
            "must name one file",
            {"output_file": "a,b", "num_shards": 2, "generator": "streaming"},
        ),
    )
    def test_wrong_paths_are_refused(self, message, flags):
        self._assert_refused(message, **flags)

    @parameterized.parameters("original", "streaming")
    def test_empty_corpus_is_refused(self, generator):
        self.write("text.txt", "\n \n\t\n")
        self._assert_refused("is empty", generator=generator, num_processes=0)

    @parameterized.parameters("original", "streaming")
    def test_refuses_text_that_is_not_utf8(self, generator):
        self.write("text.txt", b"the cat\n\nsat \xe9t\xe9\n")
        self._assert_refused("at byte 13.*--replace", generator=generator)

    def test_file_of_unknown_origin_is_not_overwritten(self):
        path = self.write("precious.tfrecord", "made by hand")

        self._assert_refused("No run has registered", output_file=path)

        with open(path) as file:
            self.assertEqual(file.read(), "made by hand")

    @parameterized.parameters("original", "streaming")
    def test_allows_more_predictions_than_tokens(self, generator):
        config = self._config(
            generator=generator, max_predictions_per_seq=33, masked_lm_prob=1.0
        )
        pretraining_data.create(config)
        path = self.path("out/x.tfrecord")
        examples = record_files.read(path)
        weights = examples["masked_lm_weights"]
        self.assertEqual(weights.shape[1], 33)
        # All tokens but [CLS] and two [SEP] are predicted.
        expected = examples["input_mask"].sum(axis=1) - 3
        self.assertAllEqual(weights.sum(axis=1), expected)

    def test_refuses_too_short_sequences(self):
        with self.assertRaisesRegex(UserError, "max_seq_length.*at least 5"):
            self._config(max_seq_length=4)


_MASK_ID = 4


def _make_config(**flags) -> CreatePretrainingDataConfig:
    return CreatePretrainingDataConfig(
        **{
            "input_file": "text.txt",
            "output_file": "x.tfrecord",
            "vocab_file": "vocab.txt",
            "max_seq_length": 40,
            **flags,
        }
    )


def _make_result(**changes) -> GenerationResult:
    histogram = np.zeros(41, np.int64)
    histogram[[7, 39, 40]] = [1, 2, 5]
    counts = RecordCounts(
        num_instances=8,
        num_random_next=4,
        num_truncated=6,
        num_pieces=285,
        num_predicted=40,
        num_masked=30,
        num_same=6,
        num_random=4,
        length_histogram=histogram,
    )
    return GenerationResult({}, 3, 17, dataclasses.replace(counts, **changes))


class RecordCountsTest(tf.test.TestCase):
    def _make_batch(self) -> dict[str, np.ndarray]:
        rows = {
            "input_ids": [[2, 4, 11, 9, 3, 0], [2, 4, 21, 22, 8, 3]],
            "input_mask": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
            "masked_lm_positions": [[1, 2, 3, 0], [1, 4, 0, 0]],
            # Row 0: [MASK], kept, random; row 1: [MASK], random. Where the
            # weight is 0, the id of position 0 must not count as kept.
            "masked_lm_ids": [[10, 11, 12, 2], [20, 24, 2, 2]],
            "masked_lm_weights": np.float32([[1, 1, 1, 0], [1, 1, 0, 0]]),
            "next_sentence_labels": [[1], [0]],
        }
        return {
            name: x if isinstance(x, np.ndarray) else np.int32(x)
            for name, x in rows.items()
        }

    def test_counts_the_tokens_of_a_batch(self):
        counts = RecordCounts()
        counts.add_batch(self._make_batch(), _MASK_ID, num_truncated=1)

        self.assertEqual(
            counts.to_dict(),
            {
                "num_instances": 2,
                "num_random_next": 1,
                "num_truncated": 1,
                "num_pieces": 11,
                "num_predicted": 5,
                "num_masked": 2,
                "num_same": 1,
                "num_random": 2,
                "length_histogram": [0, 0, 0, 0, 0, 1, 1],
            },
        )

    def test_left_to_right_replaces_nothing(self):
        counts = RecordCounts()
        counts.add_batch(self._make_batch(), _MASK_ID, 0, left_to_right=True)

        self.assertEqual(counts.num_predicted, 5)
        self.assertEqual(counts.num_same, 5)
        self.assertEqual(counts.num_masked + counts.num_random, 0)


class DataReportTest(tf.test.TestCase, parameterized.TestCase):
    def test_shares_follow_from_the_counts(self):
        report = pretraining_data.build_report(_make_config(), _make_result())

        expected = {
            "num_documents": 3,
            "num_sentences": 17,
            "mean_length": 285 / 8,
            "padding_share": 35 / 320,
            "masked_share": 40 / 285,
            "replaced_by_mask_share": 0.75,
            "kept_share": 0.15,
            "replaced_by_random_share": 0.1,
            "random_next_share": 0.5,
            "truncated_share": 0.75,
        }
        for name, value in expected.items():
            self.assertAlmostEqual(report[name], value, msg=name)
        self.assertEqual(report["warnings"], [])

    @parameterized.parameters(16, 40, 128, 512)
    def test_length_bars_count_every_record(self, max_seq_length):
        histogram = np.arange(max_seq_length + 1)
        result = _make_result(length_histogram=histogram)
        config = _make_config(
            max_seq_length=max_seq_length, max_predictions_per_seq=5
        )

        bars = pretraining_data.build_report(config, result)["length_histogram"]

        self.assertLessEqual(len(bars), 32)
        self.assertEqual(
            sum(bar["records"] for bar in bars), int(histogram.sum())
        )
        self.assertEqual((bars[0]["from"], bars[-1]["to"]), (1, max_seq_length))
        for before, after in zip(bars, bars[1:], strict=False):
            self.assertEqual(before["to"] + 1, after["from"])

    @parameterized.parameters(
        (60, True, True, False),
        (61, True, True, True),
        (61, False, True, True),
        (100, True, False, False),
    )
    def test_warns_about_paragraphs_instead_of_sentences(
        self, num_random, split_sentences, next_sentence_pairs, warns
    ):
        config = _make_config(
            split_sentences=split_sentences,
            next_sentence_pairs=next_sentence_pairs,
        )
        result = _make_result(num_instances=100, num_random_next=num_random)

        report = pretraining_data.build_report(config, result)

        self.assertEqual(bool(report["warnings"]), warns)
        if warns:
            self.assertIn("61.0% of the pairs", report["warnings"][0])
            self.assertEqual(
                "--split_sentences" in report["warnings"][0],
                not split_sentences,
            )

    @parameterized.parameters(
        # 1, 2 and 5 records of 7, 39 and 40 tokens. 3 tokens are special (2
        # in one segment), so the longest record has 37 (38) predictions.
        ({"left_to_right": True}, None),
        (
            {"left_to_right": True, "max_predictions_per_seq": 36},
            "5 of 8 records .*=36: 5 of 261 are left out; 37 would hold all",
        ),
        (
            {
                "left_to_right": True,
                "max_predictions_per_seq": 20,
                "next_sentence_pairs": False,
            },
            "7 of 8 records .*=20: 124 of 269 are left out; 38 would hold all",
        ),
        ({"max_predictions_per_seq": 6}, None),
        # 15% of 7, 39 and 40 tokens are 1, 6 and 6: 1 + 2*6 + 5*6 = 43.
        ({"max_predictions_per_seq": 5}, "7 of 43 are .*; 6 would"),
    )
    def test_warns_of_predictions_that_do_not_fit(self, flags, message):
        report = pretraining_data.build_report(
            _make_config(**flags), _make_result()
        )

        if message is None:
            self.assertEqual(report["warnings"], [])
        else:
            (warning,) = report["warnings"]
            self.assertRegex(warning, message)

    def test_report_of_no_record_has_zeros(self):
        report = pretraining_data.build_report(
            _make_config(), GenerationResult({}, 0, 0, RecordCounts())
        )

        self.assertEqual(report["num_instances"], 0)
        self.assertEqual(report["random_next_share"], 0)


if __name__ == "__main__":
    tf.test.main()
