"""Test-case mixin that makes pretraining data from a small text."""

import pathlib

import numpy as np

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case

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


class RecordCase(files_case.FilesCase):
    """Test case with a text, its vocabulary, and flags for both."""

    def setUp(self):
        super().setUp()
        self.vocab_file = self.path("words.txt")
        Vocabulary(TOKENS).write(self.vocab_file)
        self.text_file = self.write("text.txt", make_text(30))

    def _config(self, **flags) -> CreatePretrainingDataConfig:
        return CreatePretrainingDataConfig(
            **{
                "input_file": self.text_file,
                "output_file": self.path("out/x.tfrecord"),
                "vocab_file": self.vocab_file,
                "generator": "original",
                "max_seq_length": 32,
                "max_predictions_per_seq": 5,
                "dupe_factor": 3,
                **flags,
            }
        )

    def _contents(self, folder: str = "out") -> dict[str, bytes]:
        files = pathlib.Path(self.path(folder)).iterdir()
        return {x.name: x.read_bytes() for x in files}
