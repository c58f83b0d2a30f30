"""Tests for bert_tf.flags.flag_files."""

import contextlib
import os
import pathlib
from unittest import mock

import tensorflow as tf
from absl import flags
from absl.testing import parameterized

from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags import flag_files
from bert_tf.io import files

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RECIPES = sorted(path.name for path in _ROOT.glob("*.flags"))


class FlagFilesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir()
        self.enter_context(contextlib.chdir(self.folder.full_path))

    @parameterized.parameters(*_RECIPES)
    def test_recipes_are_the_same_in_every_folder(self, name):
        word = f"--flagfile={name}"
        elsewhere = flag_files.expand([word])
        of_the_clone = flag_files.expand([f"--flagfile={_ROOT / name}"])
        with contextlib.chdir(_ROOT):
            at_the_root = flag_files.expand([word])
            values = flags.FlagValues()
            read_config = cli.define_flags(PretrainConfig, values)
            values(["pretrain.py", word])
            by_absl = read_config()
        self.assertEqual(elsewhere, at_the_root)
        self.assertEqual(of_the_clone, at_the_root)
        self.assertGreater(len(elsewhere), 10)
        values = flags.FlagValues()
        read_config = cli.define_flags(PretrainConfig, values)
        values(["pretrain.py", *elsewhere])
        self.assertEqual(read_config(), by_absl)
        files.read_bert_config(by_absl.bert_config_file)

    def test_file_of_the_current_folder_wins(self):
        self.folder.create_file("base.flags", "--train_batch_size=7\n")
        self.assertEqual(
            flag_files.expand(["--flagfile=base.flags"]),
            ["--train_batch_size=7"],
        )

    def test_nested_file_is_found_beside_the_file_that_names_it(self):
        self.folder.create_file("a/one.flags", "# x\n\n--a=1\n--flagfile=b/two")
        self.folder.create_file("a/b/two", "// x\n  --b=2 3  \n--flagfile=c")
        self.folder.create_file("a/b/c", "--c\n")
        self.folder.create_file("a/c", "--wrong\n")
        path = os.path.join("a", "one.flags")
        for words in (["--flagfile", path], [f"-flagfile={path}"]):
            self.assertEqual(
                flag_files.expand(["--z", *words, "--a=4"]),
                ["--z", "--a=1", "--b=2 3", "--c", "--a=4"],
            )

    def test_home_and_no_file(self):
        self.folder.create_file("mine.flags", "--a=1\n")
        home = {"HOME": self.folder.full_path}
        with mock.patch.dict(os.environ, home), contextlib.chdir("/"):
            words = ["--flagfile=", "--flagfile=~/mine.flags", "--flagfile"]
            self.assertEqual(flag_files.expand(words), ["--a=1"])

    def test_words_after_two_dashes_are_no_flags(self):
        words = ["--a=1", "--", "--flagfile=none"]
        self.assertEqual(flag_files.expand(words), words)

    def test_refuses_a_file_that_is_missing_or_includes_itself(self):
        self.folder.create_file("a.flags", "--flagfile=a.flags\n")
        with self.assertRaisesRegex(UserError, "a.flags: .* includes itself"):
            flag_files.expand(["--flagfile=a.flags"])
        with self.assertRaisesRegex(
            UserError, "b.flags: no such file. .* base.flags, base_phase2"
        ):
            flag_files.expand(["--flagfile=b.flags"])


if __name__ == "__main__":
    tf.test.main()
