r"""Makes pretraining records from text.

Each line of text is a paragraph, or with --nosplit_sentences one sentence;
blank lines separate documents.

  python run/create_pretraining_data.py --input_file='text/*.txt.gz' \
      --vocab_file=data/vocab.txt --output_file=data/pretraining/text.tfrecord \
      --max_seq_length=128 --max_predictions_per_seq=20
"""

import dataclasses
import functools
import math

from bert_tf.flags import options
from bert_tf.flags.groups import CorpusConfig

_rate = functools.partial(
    options.masking,
    **options.SHARE,
    not_with=("generator=original", "left_to_right"),
)


@dataclasses.dataclass(frozen=True)
class CreatePretrainingDataConfig(CorpusConfig):
    """Flags of run/create_pretraining_data.py.

    The first ten flags are the original's (create_pretraining_data.py:30-65).
    """

    input_file: str = options.data(
        "Text files (also .gz, .bz2, .xz, .zst): comma-separated globs.",
        options.REQUIRED,
        affects="place",
        reads="files",
    )
    output_file: str = options.target(
        "Record files to write, separated by commas; with "
        "--num_shards, one name for all shards.",
        options.REQUIRED,
        endings=".tfrecord",
    )
    vocab_file: str = options.data_file(
        "Vocabulary, one token a line.", options.REQUIRED
    )
    do_whole_word_mask: bool = options.masking(
        "Mask all tokens of a word together.", False, not_with="left_to_right"
    )
    max_seq_length: int = options.data(
        "Sequence length, in tokens.", 128, at_least=5
    )
    max_predictions_per_seq: int | None = options.masking(
        "Maximum number of predicted tokens per sequence (default: 20; with "
        "--left_to_right, all of them).",
        at_least=1,
    )
    random_seed: int = options.data("Random seed.", 12345, at_least=-math.inf)
    dupe_factor: int = options.data(
        "Number of times each document is used, with different masks.",
        10,
        at_least=1,
    )
    masked_lm_prob: float = options.masking(
        "Share of tokens to predict.",
        0.15,
        **options.SHARE,
        not_with="left_to_right",
    )
    short_seq_prob: float = options.data(
        "Probability that a pass over a document makes shorter sequences.",
        0.1,
        **options.SHARE,
    )
    generator: str = options.data(
        "Algorithm: streaming uses bounded memory and all cores; original "
        "reproduces the original's records one by one.",
        "streaming",
        choices=("streaming", "original"),
    )
    num_shards: int = options.output(
        "Number of files, named NAME-00000-of-NNNNN.ENDING for "
        "--output_file=NAME.ENDING; 0 writes exactly the files in "
        "--output_file.",
        0,
        not_with="generator=original",
    )
    num_processes: int = options.devices(
        "Worker processes; 0 means one per core.",
        0,
        not_with=("generator=original", "runner"),
    )
    split_sentences: bool | None = options.data(
        "Treat lines as paragraphs and split them into sentences (default: "
        "true with the streaming generator; the original one cannot).",
        not_with="generator=original",
    )
    one_document_per_file: bool = options.data(
        "Treat each file as one document and ignore blank lines.", False
    )
    next_sentence_pairs: bool = options.data(
        "Make pairs for next-sentence prediction; --nonext_sentence_pairs "
        "makes one segment per sequence (Table 5).",
        True,
        not_with="generator=original",
    )
    left_to_right: bool = options.masking(
        "Make data for a left-to-right model (Table 5): no masks, each token "
        "is predicted from the tokens before it. With a smaller "
        "--max_predictions_per_seq they are drawn evenly.",
        False,
        not_with="generator=original",
    )
    mask_rate: float = _rate(
        "Share of chosen tokens replaced with [MASK] (Table 8).",
        options.MASK_RATES["mask_rate"],
    )
    same_rate: float = _rate(
        "Share of chosen tokens left unchanged (Table 8).",
        options.MASK_RATES["same_rate"],
    )
    random_rate: float = _rate(
        "Share of chosen tokens replaced with a random one (Table 8).",
        options.MASK_RATES["random_rate"],
    )
    max_ngram: int = options.masking(
        "Maximum number of adjacent words masked together. Above 1, whole "
        "words are masked, and runs of k words have weight 1/k.",
        1,
        at_least=1,
        not_with=("generator=original", "left_to_right"),
    )
    overwrite_output_dir: bool = options.reporting(
        "Remove the records, manifest, report and unfinished work of an "
        "earlier run with this --output_file, and start over; other files "
        "stay. Drop it to resume.",
        False,
    )

    def __post_init__(self) -> None:
        if self.max_predictions_per_seq is None:
            default = options.DEFAULT_PREDICTIONS
            if self.left_to_right:
                default = self.max_seq_length - self.num_special_tokens
            object.__setattr__(self, "max_predictions_per_seq", default)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        options.require_mask_rates(self)

    @property
    def num_special_tokens(self) -> int:
        """Number of [CLS] and [SEP] tokens in a record."""
        return 3 if self.next_sentence_pairs else 2


def main(config: CreatePretrainingDataConfig) -> None:
    from bert_tf.io import compression
    from bert_tf.io import text_files
    from bert_tf.text.vocabulary import Vocabulary

    Vocabulary.from_file(config.vocab_file)  # Fails before slow imports.
    text_files.check_starts(config.input_file, compression.read_blocks)
    from bert_tf.data import create as pretraining_data

    pretraining_data.create(config)
