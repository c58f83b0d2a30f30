"""Runs the examples in the docstrings of the public names."""

import contextlib
import doctest
import os

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from tests.support import made_once
from tools import docs_data


class _Checker(doctest.OutputChecker):
    """Accepts what is printed where the example shows nothing."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def _example(name):
    """Returns the example of a public name, parsed."""
    value = getattr(bert_tf, name)
    names = {"bert_tf": bert_tf, "np": np, "os": os}
    return doctest.DocTestParser().get_doctest(
        value.__doc__, names, name, None, None
    )


@pytest.mark.slow
class ExamplesTest(tf.test.TestCase):
    def test_every_public_name_has_an_example_that_runs(self):
        made = made_once.folder("documentation", docs_data.write)
        folder = self.create_tempdir().full_path
        for name in os.listdir(made):
            os.symlink(os.path.join(made, name), os.path.join(folder, name))
        # Exporters read what `save_model` writes.
        names = sorted(bert_tf.__all__, key=lambda x: x.startswith("export"))
        with contextlib.chdir(folder):
            for name in names:
                with self.subTest(name):
                    example = _example(name)
                    self.assertNotEmpty(example.examples)
                    printed = []
                    runner = doctest.DocTestRunner(_Checker())
                    runner.run(example, out=printed.append)
                    self.assertEqual("".join(printed), "")


if __name__ == "__main__":
    tf.test.main()
