"""Tests for bert_tf.io.run_folder."""

import os
from unittest import mock

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import run_folder
from bert_tf.io.run_folder import Made
from bert_tf.io.run_folder import RunFolder
from tests.support import files_case

_RECIPE = {"--seed": 1, "the text": "a" * 32}


class RunFolderTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.output = self.path("out/x.txt")
        self.names = [self.path("out/x-0.txt"), self.path("out/x-1.txt")]

    def _begin(self, *names, recipe=_RECIPE):
        """Starts a run that is killed after it has written some files."""
        with RunFolder(self.output, recipe) as run:
            is_begun = run.resume(self.names)
            for name in names:
                files.write_json(name, name)
            files.write_json(f"{run.work_dir}/part", "")
        return is_begun

    def _left(self):
        return sorted(os.listdir(self.path("out")))

    def test_other_recipes_are_refused_in_one_sentence(self):
        self.assertFalse(self._begin())
        self.assertTrue(self._begin(self.names[0]))
        other = {"--seed": 2, "the text": "b" * 32}
        for fits_any in (False, True):
            with (
                RunFolder(self.output, other) as run,
                self.assertRaisesRegex(
                    UserError,
                    "--seed was 1 and is 2 now; the text was changed or repl",
                ),
            ):
                run.resume(self.names, fits_any)
        os.remove(self.names[0])
        with RunFolder(self.output, other) as run:
            self.assertTrue(run.resume(self.names, fits_any=True))
            self.assertTrue(os.path.exists(f"{run.work_dir}/part"))

    def test_start_over_removes_exactly_what_is_registered(self):
        self._begin(*self.names)
        foreign = ["x-2.txt", "x.txt", "x.txt.json", "y-0.txt"]
        for name in foreign:
            self.write(f"out/{name}", "mine")
        os.rename(self.path("out"), self.path("moved"))
        with RunFolder(self.path("moved/x.txt"), {}) as run:
            with self.assertRaisesRegex(UserError, "would remove --a=.*x-1"):
                run.start_over([("--a", self.path("moved/x-1.txt"))])
            self.assertLen(os.listdir(self.path("moved")), 8)
            run.start_over()
        self.assertEqual(sorted(os.listdir(self.path("moved"))), foreign)

    def test_foreign_files_are_never_replaced(self):
        self.write("out/x-1.txt", "mine")
        with (
            RunFolder(self.output, _RECIPE) as run,
            self.assertRaisesRegex(
                UserError, "No run has registered .*x-1.txt, which"
            ),
        ):
            run.start_over()
            run.resume(self.names)
        self.assertEqual(self._left(), ["x-1.txt"])

    def test_work_of_a_killed_removal_is_not_used(self):
        self._begin()
        with (
            mock.patch.object(files.shutil, "rmtree", side_effect=KeyError),
            self.assertRaises(KeyError),
            RunFolder(self.output, {}) as run,
        ):
            run.start_over()
        self.assertTrue(os.path.exists(f"{self.output}.work/part"))
        with RunFolder(self.output, {}) as run:
            self.assertFalse(run.resume(self.names))
            self.assertEqual(os.listdir(run.work_dir), ["recipe.json"])

    def test_finished_needs_same_recipe_and_sizes(self):
        self._begin(*self.names)
        sizes = {name: os.path.getsize(name) for name in self.names}
        for recipe, made, is_finished in (
            (_RECIPE, [Made(_RECIPE, sizes, ["missing"])], True),
            (_RECIPE, [Made(_RECIPE, sizes), None], False),
            (_RECIPE, [Made(_RECIPE, sizes | {self.names[0]: 1})], False),
            (_RECIPE, [Made(_RECIPE, {"missing": None})], False),
            ({}, [Made(_RECIPE, sizes)], False),
            (_RECIPE, [], False),
        ):
            run = RunFolder(self.output, recipe, lambda made=made: made)
            self.assertEqual(run.ends_at_once(), is_finished)
        self.write("out/x-0.txt.tmp-9999999-00c0ffee", "half")
        with RunFolder(
            self.output, _RECIPE, lambda: [Made(_RECIPE, sizes)]
        ) as run:
            self.assertTrue(run.ends_at_once())
        self.assertEqual(self._left(), ["x-0.txt", "x-1.txt"])

    def test_second_process_is_refused(self):
        with RunFolder(self.output, {}):
            with self.assertRaisesRegex(UserError, "Another process"):
                with RunFolder(self.output, {}):
                    self.fail("Entered.")
        self.assertFalse(os.path.exists(self.path("out")))

    def test_changes_name_the_file_of_a_hash(self):
        before = {"--a": 1, "x": "f" * 64, "y": "f" * 64}
        now = {"--a": 1, "x": "e" * 64, "z": "f" * 64}
        self.assertEqual(
            run_folder.changes(before, now, {"x": "file", "z": "other"}),
            [
                "x was changed or replaced: file",
                "y was used and is not now",
                "z was not used and is now: other",
            ],
        )


if __name__ == "__main__":
    tf.test.main()
