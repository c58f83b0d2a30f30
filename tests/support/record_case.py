"""Test-case mixin that makes pretraining data from a small text."""

import os

import numpy as np

from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.text.vocabulary import Vocabulary

_WORDS = "the cat sat on a mat dog ran home and ate fish ##s ##ed . ,".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]


def make_text(num_documents: int, seed: int = 1) -> str:
    """Returns documents of unequal lengths, one sentence per line."""
    rng = np.random.default_rng(seed)
    words = [word for word in _WORDS if word.isalpha()]
    documents = []
    for _ in range(num_documents):
        lines = [
            " ".join(rng.choice(words, rng.integers(2, 9))) + "."
            for _ in range(rng.integers(3, 12))
        ]
        documents.append("\n".join(lines))
    return "\n\n".join(documents) + "\n"


class RecordCase:
    """Mixin of test cases: a text, its vocabulary, and flags for both."""

    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.vocab_file = self._path("words.txt")
        Vocabulary(TOKENS).write(self.vocab_file)
        self.text_file = self._write_text("text.txt", make_text(30))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _write_text(self, name: str, text: str | bytes) -> str:
        path = self._path(name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return path

    def _config(self, **flags) -> CreatePretrainingDataConfig:
        return CreatePretrainingDataConfig(
            **{
                "input_file": self.text_file,
                "output_file": self._path("out/x.tfrecord"),
                "vocab_file": self.vocab_file,
                "generator": "original",
                "max_seq_length": 32,
                "max_predictions_per_seq": 5,
                "dupe_factor": 3,
                **flags,
            }
        )

    def _contents(self, folder: str = "out") -> dict[str, bytes]:
        contents = {}
        for name in os.listdir(self._path(folder)):
            with open(self._path(f"{folder}/{name}"), "rb") as file:
                contents[name] = file.read()
        return contents
