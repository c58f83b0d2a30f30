r"""Learns a WordPiece vocabulary from text files.

A report next to the vocabulary has tokens per word and the share of [UNK].

  python run/learn_vocabulary.py --input_file='corpus/*.txt.gz' \
      --output_file=data/vocab.txt --vocab_size=30522
"""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.groups import CorpusConfig


@dataclasses.dataclass(frozen=True)
class LearnVocabularyConfig(CorpusConfig):
    """Flags of run/learn_vocabulary.py."""

    input_file: str = options.data(
        "Text files (also .gz, .bz2, .xz, .zst): comma-separated globs.",
        options.REQUIRED,
        reads="files",
    )
    output_file: str = options.output(
        "Vocabulary file to write.", options.REQUIRED, endings=".txt"
    )
    vocab_size: int = options.training(
        "Number of lines in the vocabulary, exactly.", 30522
    )
    num_unused: int = options.training(
        "Number of [unusedN] lines reserved for new words.", 994, at_least=99
    )
    min_frequency: int = options.training(
        "Minimum count of a word; rarer words are not used for learning.",
        2,
        at_least=1,
    )
    character_coverage: float = options.training(
        "Share of the text's characters that the vocabulary must cover.",
        0.9999,
        **options.SHARE,
    )
    heldout_fraction: float = options.evaluation(
        "Share of the documents held out for the report.", 0.02, **options.SHARE
    )
    num_processes: int = options.speed(
        "Worker processes; 0 means one per core.", 0, not_with="runner"
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.vocab_size > self.num_unused + 5,
            "--vocab_size must exceed the 5 special and the "
            f"--num_unused={self.num_unused} unused lines: it is at least "
            f"{self.num_unused + 6}, and more by the characters of the text. "
            f"Received: {self.vocab_size}; raise it, or lower --num_unused, "
            "which is at least 99.",
        )


def main(config: LearnVocabularyConfig) -> None:
    from bert_tf.io import compression
    from bert_tf.io import text_files

    text_files.check_starts(config.input_file, compression.read_blocks)
    from bert_tf.data import vocabulary_building

    vocabulary_building.run(config)
