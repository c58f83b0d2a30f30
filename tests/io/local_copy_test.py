"""Tests for bert_tf.io.local_copy."""

import os
import pickle
import tempfile
from unittest import mock

import tensorflow as tf

from bert_tf.io import local_copy


class LocalCopyTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.shared = self.create_tempdir("shared")
        self.shared.create_file("a", "one")
        self.shared.create_file("b", "two")
        self.temporary = self.create_tempdir("temporary").full_path
        self.enter_context(
            mock.patch.object(tempfile, "tempdir", self.temporary)
        )

    def test_is_made_once_and_removed_by_the_last_user(self):
        first = local_copy.LocalCopy(self.shared.full_path)
        second = pickle.loads(pickle.dumps(first))
        path = first.open()
        self.assertCountEqual(os.listdir(path), ["a", "b"])
        self.assertNotEqual(path, self.shared.full_path)
        with open(os.path.join(path, "a"), "w") as file:
            file.write("changed, as one can tell")
        self.assertEqual(second.open(), path)
        first.close()
        with open(os.path.join(path, "a")) as file:
            self.assertEqual(file.read(), "changed, as one can tell")
        second.close()
        self.assertFalse(os.path.exists(path))
        # Used again, it is made again.
        with open(os.path.join(second.open(), "a")) as file:
            self.assertEqual(file.read(), "one")
        second.close()
        second.close()
        self.assertEmpty(os.listdir(self.temporary))

    def test_instances_have_separate_copies(self):
        copies = [local_copy.LocalCopy(self.shared.full_path) for _ in range(2)]
        paths = [copy.open() for copy in copies]
        self.assertNotEqual(*paths)
        for copy in copies:
            copy.close()


if __name__ == "__main__":
    tf.test.main()
