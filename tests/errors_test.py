"""Tests for bert_tf.errors."""

import sys
from unittest import mock

import tensorflow as tf

from bert_tf import errors


class ExtrasTest(tf.test.TestCase):
    def test_missing_package_of_an_extra_is_named_with_the_command(self):
        # As when it is not installed.
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

    def test_other_missing_modules_are_not_explained(self):
        with self.assertRaises(ModuleNotFoundError), errors.extras():
            import no_such_package  # noqa: F401


if __name__ == "__main__":
    tf.test.main()
