import dataclasses
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import features
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.config import fields_affecting
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records import manifest
from bert_tf.data.records import serializer
from bert_tf.data.records.manifest import Manifest
from bert_tf.errors import UserError
from bert_tf.io import run_folder
from tests.support import files_case


def _make(files, fingerprint="f1", **changes) -> Manifest:
    counts = RecordCounts(num_instances=8, num_random_next=4, num_pieces=77)
    made = Manifest(
        version=1,
        flags={"dupe_factor": 3, "random_seed": 17, "max_seq_length": 64},
        num_output_files=1,
        vocabulary_hash="abcd",
        inputs=[{"name": "a.txt", "bytes": 12, "sha256": "12ab"}],
        fingerprint=fingerprint,
        generator="streaming",
        seed=17,
        vocab_size=30522,
        do_lower_case=True,
        strip_accents=False,
        max_seq_length=64,
        max_predictions_per_seq=10,
        files=files,
        num_documents=5,
        num_sentences=60,
        counts=counts.to_dict(),
        random_next_share=0.5,
    )
    return dataclasses.replace(made, **changes)


class ManifestTest(files_case.FilesCase):
    def _write(self, output_file, names, **changes) -> list[str]:
        paths = [self.path(name) for name in names]
        files = {
            path: {"records": number + 3, "bytes": 100 + number}
            for number, path in enumerate(paths)
        }
        _make(files, **changes).write(self.path(output_file))
        return paths

    def test_some_shards_find_the_manifest_they_share(self):
        names = [f"wiki-{index:05d}-of-00004.tfrecord" for index in range(4)]
        paths = self._write("wiki.tfrecord", names)

        found = manifest.find([paths[2], paths[0]])

        self.assertEqual(
            found.files,
            {
                paths[2]: {"records": 5, "bytes": 102},
                paths[0]: {"records": 3, "bytes": 100},
            },
        )
        self.assertEqual(found.vocab_file, self.path("wiki.tfrecord.vocab.txt"))

    def test_folder_can_be_moved(self):
        self._write("wiki", ["wiki-00000-of-00001"])
        moved = f"{self.folder}_moved"
        os.rename(self.folder, moved)

        found = manifest.find([f"{moved}/wiki-00000-of-00001"])

        self.assertEqual(found.vocab_file, f"{moved}/wiki.vocab.txt")
        self.assertLen(found.files, 1)

    def test_relative_paths_find_the_manifest(self):
        self._write("wiki", ["wiki-00000-of-00001"])
        previous = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, previous)

        for path in ("wiki-00000-of-00001", "./wiki-00000-of-00001"):
            self.assertIn(path, manifest.find([path]).files)

    def test_files_of_one_command_count_once(self):
        names = ["a.tfrecord", "b.tfrecord"]
        self._write("a.tfrecord", names)
        paths = self._write("b.tfrecord", names)

        found = manifest.find(paths)

        self.assertEqual(found.counts["num_instances"], 8)
        self.assertLen(found.files, 2)

    def test_compatible_data_sets_are_combined(self):
        more = RecordCounts(
            num_instances=2, num_random_next=2, num_pieces=3
        ).to_dict()
        paths = self._write("a.tfrecord", ["a.tfrecord"])
        paths += self._write(
            "b.tfrecord",
            ["b.tfrecord"],
            fingerprint="f2",
            flags={"dupe_factor": 4, "random_seed": 17, "max_seq_length": 64},
            counts=more,
            num_documents=2,
        )

        found = manifest.find(paths)

        self.assertEqual(found.counts["num_instances"], 10)
        self.assertAlmostEqual(found.random_next_share, 0.6)
        self.assertEqual(found.num_documents, 7)
        self.assertEqual(found.flags, {"random_seed": 17, "max_seq_length": 64})
        self.assertCountEqual(found.files, paths)

    @parameterized.parameters(
        ("vocabulary_hash", "ef01"),
        ("do_lower_case", False),
        ("strip_accents", True),
        ("max_seq_length", 128),
        ("max_predictions_per_seq", 20),
    )
    def test_incompatible_data_sets_are_rejected(self, field, value):
        paths = self._write("a.tfrecord", ["a.tfrecord"])
        paths += self._write(
            "b.tfrecord", ["b.tfrecord"], fingerprint="f2", **{field: value}
        )
        mine = getattr(_make({}), field)

        message = f"{field} is {mine} in .*a.tfre.* but {value} in .*b.tfre"
        with self.assertRaisesRegex(UserError, message):
            manifest.find(paths)

    def test_warns_about_files_without_manifest(self):
        paths = self._write("a.tfrecord", ["a.tfrecord"])

        with self.assertLogs(level="WARNING") as logs:
            found = manifest.find([*paths, self.path("theirs.tfrecord")])

        self.assertIn("1 of 2 record files have no manifest", logs.output[0])
        self.assertEqual(list(found.files), paths)

    def test_shard_of_an_earlier_data_set_is_rejected(self):
        self._write("wiki", ["wiki-00000-of-00001"])

        with self.assertRaisesRegex(UserError, "wiki-00000-of-00007 is not"):
            manifest.find([self.path("wiki-00000-of-00007")])

    @parameterized.named_parameters(
        ("no_json", "{", "is not valid JSON"),
        ("foreign", '{"name": "a web page"}', "is not a manifest of"),
        ("list", "[1]", "is not a manifest of"),
    )
    def test_damaged_manifest_is_rejected(self, text, message):
        with open(self.path("x.tfrecord.manifest.json"), "w") as file:
            file.write(text)

        with self.assertRaisesRegex(UserError, f"x.tfrecord.*{message}"):
            manifest.find([self.path("x.tfrecord")])

    def test_error_for_another_vocabulary_has_both_hashes(self):
        (path,) = self._write("x.tfrecord", ["x.tfrecord"])
        found = manifest.find([path])

        found.check_vocabulary("abcd", "mine.txt")
        with self.assertRaisesRegex(UserError, "hash abcd, mine.txt has 99ff"):
            found.check_vocabulary("99ff", "mine.txt")


class SampleTest(tf.test.TestCase):
    def test_whole_corpora_have_the_hash_of_earlier_versions(self):
        path = self.create_tempfile("a.txt", "x\n").full_path

        def recipe(**flags):
            config = CreatePretrainingDataConfig(
                input_file=path, output_file="b", vocab_file="c", **flags
            )
            return manifest.build_recipe(config, [path], 1, "abcd")

        self.assertNotIn("sample", recipe()["flags"])
        sampled = recipe(sample=0.1)
        self.assertNotEqual(sampled["fingerprint"], recipe()["fingerprint"])
        self.assertEqual(
            run_folder.changes(
                manifest.flatten(recipe()), manifest.flatten(sampled)
            ),
            ["--sample was 1.0 and is 0.1 now"],
        )

    def test_places_are_those_of_the_flags(self):
        # The hash leaves places out, so both lists must have each of them.
        self.assertEqual(
            {*manifest._PLACES},
            fields_affecting(CreatePretrainingDataConfig, "place"),
        )


def make_batch(
    num_records: int,
    max_seq_length: int = 16,
    max_predictions_per_seq: int = 5,
    vocab_size: int = 30522,
) -> dict[str, np.ndarray]:
    """Returns records whose values differ everywhere, of unequal lengths."""
    rng = np.random.default_rng(num_records + vocab_size)
    lengths = rng.integers(3, max_seq_length + 1, num_records)[:, np.newaxis]
    predictions = rng.integers(1, max_predictions_per_seq + 1, num_records)
    places = np.arange(max_seq_length)
    weights = np.arange(max_predictions_per_seq) < predictions[:, np.newaxis]
    drawn = rng.integers(1, vocab_size, (num_records, max_seq_length))
    labels = rng.integers(1, vocab_size, weights.shape)
    positions = np.sort(rng.integers(1, max_seq_length, weights.shape), axis=1)
    return {
        "input_ids": (drawn * (places < lengths)).astype(np.int32),
        "input_mask": (places < lengths).astype(np.int32),
        "segment_ids": ((lengths // 2 <= places) & (places < lengths)).astype(
            np.int32
        ),
        "masked_lm_positions": (positions * weights).astype(np.int32),
        "masked_lm_ids": (labels * weights).astype(np.int32),
        "masked_lm_weights": weights.astype(np.float32) * 0.75,
        "next_sentence_labels": rng.integers(0, 2, (num_records, 1)),
    }


def serialize_with_tensorflow(batch: dict[str, np.ndarray], row: int) -> bytes:
    stored = {}
    for feature in features.PRETRAINING:
        values = batch[feature.name][row]
        if feature.stored_dtype == "int64":
            as_list = {"int64_list": tf.train.Int64List(value=values)}
        else:
            as_list = {"float_list": tf.train.FloatList(value=values)}
        stored[feature.name] = tf.train.Feature(**as_list)
    example = tf.train.Example(features=tf.train.Features(feature=stored))
    return example.SerializeToString(deterministic=True)


class ExampleSerializerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("ids_of_one_byte", 7, 16, 5, 100),
        ("ids_of_two_bytes", 7, 16, 5, 16000),
        ("ids_of_three_bytes", 40, 128, 20, 119547),
        ("ids_of_five_bytes", 3, 16, 5, 2**31 - 1),
        ("one_record", 1, 64, 10, 30522),
        ("positions_of_two_bytes", 3, 512, 77, 30522),
        ("long_records", 2, 20000, 3000, 30522),
        ("several_blocks", 1300, 16, 5, 300),
    )
    def test_bytes_equal_tensorflow(
        self, num_records, max_seq_length, max_predictions_per_seq, vocab_size
    ):
        batch = make_batch(
            num_records, max_seq_length, max_predictions_per_seq, vocab_size
        )
        path = f"{self.create_tempdir().full_path}/expected.tfrecord"
        with tf.io.TFRecordWriter(path) as writer:
            for row in range(num_records):
                writer.write(serialize_with_tensorflow(batch, row))
        with open(path, "rb") as file:
            expected = file.read()

        self.assertEqual(serializer.serialize(batch), expected)

    @parameterized.parameters(200, 30522, 2**20, 2**31 - 1)
    def test_zeros_may_be_anywhere(self, vocab_size):
        batch = make_batch(9, vocab_size=vocab_size)
        batch["input_ids"] = batch["input_ids"].astype(np.int64)
        batch["input_ids"][:, 0] = vocab_size - 1
        batch["input_ids"][2, 1] = 0
        batch["masked_lm_ids"][:] = 0
        data = serializer.serialize(batch)
        begin = 12
        for row in range(9):
            expected = serialize_with_tensorflow(batch, row)
            self.assertEqual(data[begin : begin + len(expected)], expected)
            begin += len(expected) + 16
        self.assertLen(data, begin - 12)

    def test_negative_integers_are_rejected(self):
        batch = make_batch(2)
        batch["input_ids"][1, 3] = -4

        with self.assertRaisesRegex(ValueError, "must not be negative.*-4"):
            serializer.serialize(batch)

    @parameterized.parameters(1, 2, 4)
    def test_different_numbers_of_rows_are_rejected(self, num_rows):
        batch = make_batch(3)
        batch["input_mask"] = make_batch(4)["input_mask"][:num_rows]

        with self.assertRaisesRegex(ValueError, f"'input_mask': {num_rows}"):
            serializer.serialize(batch)


if __name__ == "__main__":
    tf.test.main()
