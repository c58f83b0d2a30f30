import dataclasses
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.config import fields_affecting
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records import manifest
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

    def test_relative_paths(self):
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

        self.assertNotIn("sample", recipe().flags)
        sampled = recipe(sample=0.1)
        self.assertNotEqual(sampled.hash(), recipe().hash())
        self.assertEqual(
            run_folder.changes(
                manifest.flatten(vars(recipe())),
                manifest.flatten(vars(sampled)),
            ),
            ["--sample was 1.0 and is 0.1 now"],
        )

    def test_places_are_those_of_the_flags(self):
        # Also without the flags: data sets made before keep their hash.
        self.assertEqual(
            {*manifest._PLACES},
            fields_affecting(CreatePretrainingDataConfig, "place"),
        )


if __name__ == "__main__":
    tf.test.main()
