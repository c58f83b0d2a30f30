"""Tests that scripts print an error as one sentence and exit with status 1."""

import os
import pathlib
import tempfile

import pytest
import tensorflow as tf

from bert_tf.io import files
from tests.support import scripts
from tests.support import tiny_model
from tests.support import tiny_pretraining

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
class ErrorsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cases = {
            "learn_vocabulary": cls._learn_vocabulary(),
            "create_pretraining_data": cls._create_pretraining_data(),
            "tokenize_file": cls._tokenize_file(),
            "fill_mask": cls._fill_mask(),
            "verify": cls._verify(),
            "pretrain": cls._pretrain(),
            "pretrain_base": cls._pretrain_base(),
        }
        cls.ended = dict(zip(cases, scripts.run(*cases.values()), strict=True))

    @classmethod
    def _path(cls, name, contents=None):
        path = os.path.join(cls.folder, name)
        if contents is not None:
            files.write_text(path, contents)
        return path

    @classmethod
    def _learn_vocabulary(cls):
        return [
            "run/learn_vocabulary.py",
            f"--input_file={cls._path('text.txt', 'a b')}",
            f"--output_file={cls._path('learned.txt')}",
            "--vocab_size=1000",
        ], str(_ROOT)

    @classmethod
    def _create_pretraining_data(cls):
        vocab_file = cls._path("vocab.txt", "\n".join(tiny_model.TOKENS) + "\n")
        return [
            "run/create_pretraining_data.py",
            f"--input_file={cls._path('nothing_*')}",
            f"--output_file={cls._path('x.tfrecord')}",
            f"--vocab_file={vocab_file}",
        ], str(_ROOT)

    @classmethod
    def _tokenize_file(cls):
        """Returns the command line of another folder, as an absolute path."""
        vocab_file = cls._path("bad/vocab.txt", "[PAD]\n[UNK]\nhe\n\n")
        return [
            str(_ROOT / "run/tokenize_file.py"),
            f"--vocab_file={vocab_file}",
            f"--input_file={cls._path('in.txt', 'he!')}",
            f"--output_file={cls._path('out.jsonl')}",
        ], cls.folder

    @classmethod
    def _fill_mask(cls):
        return [
            "run/fill_mask.py",
            f"--model_dir={tiny_model.write(cls._path('model'))}",
            "--text=the cat",
            "--top_k=2",
        ], str(_ROOT)

    @classmethod
    def _verify(cls):
        return [
            "export/verify.py",
            "--export_dir=nothing",
            "--model_dir=nothing",
        ], str(_ROOT)

    @classmethod
    def _pretrain(cls):
        folder = cls._path("pretraining")
        os.mkdir(folder)
        flags = tiny_pretraining.write_flags(folder, max_seq_length=17)
        cls.pretrained = flags["output_dir"]
        return tiny_pretraining.command_line("run/pretrain.py", **flags), str(
            _ROOT
        )

    @classmethod
    def _pretrain_base(cls):
        """Returns the command line of a checkout without data."""
        root = cls._path("checkout")
        os.mkdir(root)
        for entry in _ROOT.iterdir():
            if entry.name not in ("data", "output"):
                os.symlink(entry, os.path.join(root, entry.name))
        return ["run/pretrain.py", "--flagfile=base.flags"], root

    def _stderr(self, name):
        """Returns what a script has printed, of which the last line matters."""
        ended = self.ended[name]
        self.assertEqual(ended.status, 1, ended.stderr)
        self.assertNotIn("Traceback", ended.stderr + ended.stdout)
        return ended.stderr

    def _last_line(self, name):
        return self._stderr(name).splitlines()[-1]

    def test_learn_vocabulary(self):
        self.assertRegex(
            self._last_line("learn_vocabulary"),
            "^ERROR: .*1000 is too small.*",
        )

    def test_create_pretraining_data(self):
        self.assertRegex(
            self._last_line("create_pretraining_data"),
            "^ERROR: --input_file matches no",
        )

    def test_tokenize_file(self):
        self.assertRegex(
            self._last_line("tokenize_file"),
            r"^ERROR: .*vocab\.txt, line 4: empty",
        )

    def test_fill_mask(self):
        self.assertRegex(
            self._last_line("fill_mask"), "^ERROR: The text must contain"
        )
        self.assertEqual(self.ended["fill_mask"].stdout, "")

    def test_verify(self):
        lines = self._stderr("verify").splitlines()
        (line,) = [x for x in lines if "ERROR: " in x]
        self.assertStartsWith(line, "ERROR: --export_dir: no such directory")
        self.assertEqual(self.ended["verify"].stdout, "")

    def test_pretrain(self):
        self.assertStartsWith(
            self._last_line("pretrain"),
            "ERROR: --max_seq_length must be at most",
        )
        self.assertFalse(os.path.exists(self.pretrained))

    def test_missing_data_error_says_how_to_make_it(self):
        text = self._stderr("pretrain_base")
        for needed in (
            "data/pretraining/*.tfrecord",
            "run/learn_vocabulary.py",
            "run/create_pretraining_data.py",
        ):
            self.assertIn(needed, text)


if __name__ == "__main__":
    tf.test.main()
