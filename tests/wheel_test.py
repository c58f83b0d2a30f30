"""Tests of the wheel, installed without the repository on the path."""

import json
import os
import pathlib
import shutil

import pytest
import tensorflow as tf

from tests.support import environments

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] hello , world ##ly ! ας 中 σας"
).split()
_TEXT = "  HÉLLO,\u00a0wo\u0301rldly!中 ΣΑΣ x"
_CODE = """
import json, sys
import bert_tf
tokenizer = bert_tf.BertTokenizer.from_vocab_file(sys.argv[1])
json.dump(
    {
        "file": bert_tf.__file__,
        "ids": tokenizer.tokenize([sys.argv[2]]).to_list()[0],
        "parameters": bert_tf.BertConfig(vocab_size=9).hidden_size,
    },
    sys.stdout,
)
"""


@pytest.mark.environment
class WheelTest(tf.test.TestCase):
    def _install(self):
        """Installs a copy of the sources; a build leaves folders in them."""
        source = os.path.join(self.create_tempdir().full_path, "source")
        os.mkdir(source)
        for name in ("LICENSE", "README.md", "pyproject.toml"):
            shutil.copy(_ROOT / name, source)
        shutil.copy(_ROOT / "requirements.in", source)
        shutil.copytree(
            _ROOT / "bert_tf",
            os.path.join(source, "bert_tf"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        python = environments.make("wheel", "-r", "requirements.in")
        pip = (python, "-m", "pip", "install", "--quiet", "--force-reinstall")
        environments.run(
            *pip, "--no-deps", source, env=environments.clean_environment()
        )
        environments.run(python, "-m", "pip", "check")
        return python

    def test_carries_the_tables_of_the_tokenizer(self):
        python = self._install()
        folder = self.create_tempdir().full_path
        vocab_file = os.path.join(folder, "vocab.txt")
        with open(vocab_file, "w", encoding="utf-8") as file:
            file.write("\n".join(_VOCABULARY) + "\n")
        output = environments.run(
            *(python, "-c", _CODE, vocab_file, _TEXT),
            cwd=folder,
            env=environments.clean_environment(),
        )
        result = json.loads(output.splitlines()[-1])
        self.assertIn("site-packages", result["file"])
        tokens = [_VOCABULARY[i] for i in result["ids"]]
        self.assertEqual(
            tokens,
            ["hello", ",", "world", "##ly", "!", "中", "σας", "[UNK]"],
        )


if __name__ == "__main__":
    tf.test.main()
