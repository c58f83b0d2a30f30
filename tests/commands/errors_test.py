"""Tests that scripts print an error as one sentence and exit with status 1."""

import os
import pathlib
import tempfile

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.io import files
from tests.support import scripts
from tests.support import tiny_model

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
class ErrorsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cases = cls._cases()
        cls.ended = dict(zip(cases, scripts.run(*cases.values()), strict=True))

    @classmethod
    def _path(cls, name, contents=None):
        path = os.path.join(cls.folder, name)
        if contents is not None:
            files.write_text(path, contents)
        return path

    @classmethod
    def _cases(cls):
        """Returns command lines and the folders that they run in, by name."""
        vocabulary = cls._path("vocab.txt", "\n".join(tiny_model.TOKENS) + "\n")
        commands = {
            "learn_vocabulary": [
                "run/learn_vocabulary.py",
                f"--input_file={cls._path('text.txt', 'a b')}",
                f"--output_file={cls._path('learned.txt')}",
                "--vocab_size=1000",
            ],
            "create_pretraining_data": [
                "run/create_pretraining_data.py",
                f"--input_file={cls._path('nothing_*')}",
                f"--output_file={cls._path('x.tfrecord')}",
                f"--vocab_file={vocabulary}",
            ],
            "fill_mask": [
                "run/fill_mask.py",
                f"--model_dir={tiny_model.write(cls._path('model'))}",
                *("--text=the cat", "--top_k=2"),
            ],
            "verify": [
                "export/verify.py",
                *("--export_dir=nothing", "--model_dir=nothing"),
            ],
        }
        return {name: (line, str(_ROOT)) for name, line in commands.items()}

    def _stderr(self, name):
        """Returns what a script has printed, of which the last line matters."""
        ended = self.ended[name]
        self.assertEqual(ended.status, 1, ended.stderr)
        self.assertNotIn("Traceback", ended.stderr + ended.stdout)
        return ended.stderr

    @parameterized.parameters(
        ("learn_vocabulary", "ERROR: .*1000 is too small.*"),
        ("create_pretraining_data", "ERROR: --input_file matches no"),
        ("fill_mask", "ERROR: The text must contain"),
    )
    def test_last_line(self, name, message):
        self.assertRegex(self._stderr(name).splitlines()[-1], f"^{message}")
        self.assertEqual(self.ended["fill_mask"].stdout, "")

    def test_verify(self):
        lines = self._stderr("verify").splitlines()
        (line,) = [x for x in lines if "ERROR: " in x]
        self.assertStartsWith(line, "ERROR: --export_dir: no such directory")
        self.assertEqual(self.ended["verify"].stdout, "")


if __name__ == "__main__":
    tf.test.main()
