"""Tests for bert_tf.errors."""

import errno
import importlib.util
import os
import subprocess
import sys
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import errors


class ExtrasTest(tf.test.TestCase):
    def test_missing_package_of_an_extra_is_named_with_the_command(self):
        # With None, an import fails as if the package were not installed.
        self.enter_context(mock.patch.dict(sys.modules, {"starlette": None}))
        with (
            self.assertRaisesRegex(
                errors.UserError,
                r"package starlette, which is not installed: "
                r'pip install "bert_tf\[serve\]"$',
            ),
            errors.extras(),
        ):
            from starlette import routing  # noqa: F401

    def test_extra_is_required_without_importing_it(self):
        find_spec = importlib.util.find_spec
        errors.require("serve")
        with (
            mock.patch.object(
                importlib.util,
                "find_spec",
                lambda name: None if name == "uvicorn" else find_spec(name),
            ),
            self.assertRaisesRegex(
                errors.UserError, "package uvicorn, .*serve"
            ),
        ):
            errors.require("serve")

    def test_exports_import_no_package_of_the_server(self):
        program = (
            "import sys; sys.modules['starlette'] = None; "
            "import bert_tf.export.savedmodel, bert_tf.export.tflite.run"
        )
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_other_missing_modules_are_not_explained(self):
        with self.assertRaises(ModuleNotFoundError), errors.extras():
            import no_such_package  # noqa: F401


class UserErrorTest(tf.test.TestCase):
    def test_full_disk_is_one_sentence(self):
        text = os.strerror(errno.ENOSPC)
        for error in (
            OSError(errno.ENOSPC, text, "a.txt"),
            RuntimeError(f"a.txt; {text}\n[Op:Save]"),  # TensorFlow's form.
            OSError("9 requested and 3 written"),  # NumPy's form.
            OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
        ):
            with self.assertRaisesRegex(
                errors.UserError, r"^The disk is full: .*[^]]; free some space"
            ):
                with errors.full_disks():
                    raise error

    def test_errors_about_files_name_them(self):
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            with self.assertRaisesRegex(errors.UserError, ": 'a.txt'; "):
                with errors.full_disks(), errors.naming("a.txt"):
                    raise OSError(code, os.strerror(code))

    def test_unknown_file_systems_are_one_sentence(self):
        with self.assertRaisesRegex(errors.UserError, "s3.*; copy the file to"):
            with errors.full_disks():
                tf.io.gfile.exists("s3://a/b")

    def test_other_errors_are_not_of_full_disks(self):
        for error in (
            OSError(errno.EIO, os.strerror(errno.EIO)),
            MemoryError(),
            errors.UserError(os.strerror(errno.ENOSPC)),
        ):
            with self.assertRaises(type(error)) as raised:
                with errors.full_disks():
                    raise error
            self.assertIs(raised.exception, error)

    def test_names_from_files_cannot_fill_or_command_a_terminal(self):
        error = errors.UserError("a\x1b[31m\ud800\n\té")
        self.assertEqual(str(error), "a\\x1b[31m\\ud800\n\té")
        text = str(errors.UserError(f"begin {'x' * 100_000} end"))
        self.assertLess(len(text), 5000)
        self.assertStartsWith(text, "begin x")
        self.assertEndsWith(text, "x end")


class DidYouMeanTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("loadmodel", ["load_model", "pack"], "load_model"),
        ("batch_size", ["train_batch_size", "seed"], "train_batch_size"),
        (
            "classify",
            ["finetune-squad", "finetune-classifier"],
            "finetune-clas",
        ),
        ("hf", ["tf1", "huggingface"], "huggingface"),
        ("Sports", ["sports", "news"], "sports"),
        ("sprots", ["sports", "news"], "sports"),
        ("label_kind", ["several", "label"], "label"),
        ("model_name", ["do_train", "the_model_dir"], "the_model_dir"),
        ("AutoModel", ["load_model", "save_model"], "load_model"),
    )
    def test_names_what_is_like_it(self, name, choices, expected):
        hint = errors.did_you_mean(name, choices)
        self.assertStartsWith(hint, f"; did you mean {expected}")
        self.assertEndsWith(hint, "?")

    def test_names_up_to_three_and_nothing_else(self):
        names = ["a_file", "b_file", "c_file", "d_file"]
        self.assertEqual(
            errors.did_you_mean("file", names, "--{}"),
            "; did you mean --a_file or --b_file or --c_file?",
        )
        for name in ("zebra", "x", "", "(", "7"):
            self.assertEqual(errors.did_you_mean(name, names), ".")


class NameProgramsTest(tf.test.TestCase):
    _TEXT = "start run/fill_mask.py (python export/verify.py), not a/run/b.py"

    def test_names_subcommands_for_their_users(self):
        with mock.patch.object(sys, "argv", ["bert-tf serve"]):
            self.assertEqual(
                errors.name_programs(self._TEXT),
                "start bert-tf fill-mask (bert-tf verify-export), not "
                "a/run/b.py",
            )

    def test_keeps_scripts_in_a_clone(self):
        with mock.patch.object(sys, "argv", ["run/serve.py"]):
            self.assertEqual(errors.name_programs(self._TEXT), self._TEXT)


if __name__ == "__main__":
    tf.test.main()
