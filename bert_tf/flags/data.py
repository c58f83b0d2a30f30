"""What the scripts that make vocabularies and training data can be told."""

import dataclasses

from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.checks import require_defaults
from bert_tf.flags.checks import require_rate

# What runs Apache Beam's pipelines.
RUNNERS = ("DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """The flags of the scripts whose work Apache Beam can do.

    Without it `num_processes` do it, which these scripts have, too.
    """

    runner: str | None = option(
        None,
        "Apache Beam's runner that does the work, with the same result "
        "(default: processes of this machine, without Beam).",
        choices=RUNNERS,
    )
    beam_options: str = option(
        "", "Further options for Apache Beam, written as for a shell."
    )

    def __post_init__(self) -> None:
        """Refuses flags that have no effect with or without a runner."""
        require(
            self.runner is not None or not self.beam_options,
            "--beam_options has no effect without --runner. Received: "
            f"{self.beam_options!r}; give --runner too, or drop it.",
        )
        require(
            self.runner is None or not self.num_processes,
            "--num_processes has no effect with --runner. Received: "
            f"{self.num_processes}; say it to the runner, in --beam_options.",
        )


@dataclasses.dataclass(frozen=True)
class TokenizeFileConfig:
    """Flags of run/tokenize_file.py."""

    vocab_file: str = option(help_text="The vocabulary, one piece a line.")
    input_file: str = option(help_text="UTF-8 text; lines end at \\n only.")
    output_file: str = option(
        help_text="JSON lines: ids, tokens and byte offsets of each line."
    )
    do_lower_case: bool = option(True, "Whether to lower-case the text.")
    strip_accents: bool | None = option(
        None, "Whether to strip accents (default: as --do_lower_case)."
    )
    preserve_special_tokens: bool = option(
        False, "Whether [MASK] and its like, typed in the text, stay whole."
    )


@dataclasses.dataclass(frozen=True)
class LearnVocabularyConfig(BeamConfig):
    """Flags of run/learn_vocabulary.py."""

    input_file: str = option(
        help_text="Text files (also .gz): comma-separated globs."
    )
    output_file: str = option(help_text="The vocabulary to write.")
    vocab_size: int = option(30522, "Number of lines, exactly.")
    do_lower_case: bool = option(True, "Whether to lower-case the text.")
    strip_accents: bool | None = option(
        None, "Whether to strip accents (default: as --do_lower_case)."
    )
    num_unused: int = option(
        994, "Number of [unusedN] lines kept for words to come."
    )
    min_frequency: int = option(
        2, "Words seen less often do not take part in the learning."
    )
    character_coverage: float = option(
        0.9999, "Share of the text's characters that the pieces must cover."
    )
    heldout_fraction: float = option(
        0.02, "Share of the documents the report is measured on, not learnt."
    )
    num_processes: int = option(0, "Workers that count; 0 means one a core.")
    replace_invalid_utf8: bool = option(
        False, "Whether bytes that are not UTF-8 are replaced by U+FFFD."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 99, "num_unused")
        require_at_least(self, 1, "min_frequency")
        require_at_least(self, 0, "num_processes")
        require_rate(self, "character_coverage", "heldout_fraction")
        require(
            self.vocab_size > self.num_unused + 5,
            "--vocab_size must leave room beside the 5 special and the "
            f"--num_unused={self.num_unused} unused lines. Received: "
            f"{self.vocab_size}.",
        )


@dataclasses.dataclass(frozen=True)
class CreatePretrainingDataConfig(BeamConfig):
    """Flags of run/create_pretraining_data.py.

    The first twelve are the original's (create_pretraining_data.py:30-65).
    """

    input_file: str = option(
        help_text="Text files (also .gz): comma-separated globs."
    )
    output_file: str = option(
        help_text="Record files to write, separated by commas; with "
        "--num_shards one name, which the shards share."
    )
    vocab_file: str = option(help_text="The vocabulary, one piece a line.")
    do_lower_case: bool = option(True, "Whether to lower-case the text.")
    do_whole_word_mask: bool = option(
        False, "Whether all pieces of a word are masked together."
    )
    max_seq_length: int = option(128, "Length of a sequence, in pieces.")
    max_predictions_per_seq: int = option(
        20, "Most masked pieces in a sequence."
    )
    random_seed: int = option(12345, "Seed of every draw.")
    dupe_factor: int = option(
        10, "How often each document is used, with other masks."
    )
    masked_lm_prob: float = option(0.15, "Share of pieces to predict.")
    short_seq_prob: float = option(
        0.1, "Share of document passes made of shorter sequences."
    )
    generator: str = option(
        "streaming",
        "streaming: bounded memory, all cores; original: the original's "
        "algorithm, record for record.",
        choices=("streaming", "original"),
    )
    strip_accents: bool | None = option(
        None, "Whether to strip accents (default: as --do_lower_case)."
    )
    num_shards: int = option(
        0,
        "Number of files, named NAME-00000-of-NNNNN.ENDING for "
        "--output_file=NAME.ENDING; 0 writes just the files that "
        "--output_file names.",
    )
    num_processes: int = option(0, "Worker processes; 0 means one a core.")
    split_sentences: bool | None = option(
        None,
        "Whether lines are paragraphs to split into sentences (default: yes "
        "with the streaming generator, impossible with the original one).",
    )
    one_document_per_file: bool = option(
        False, "Whether a file is one document; blank lines mean nothing then."
    )
    replace_invalid_utf8: bool = option(
        False, "Whether bytes that are not UTF-8 are replaced by U+FFFD."
    )
    next_sentence_pairs: bool = option(
        True, "Off: one segment per sequence, no next-sentence task (Table 5)."
    )
    left_to_right: bool = option(
        False,
        "Data for a left-to-right model: nothing is masked, each piece is "
        "predicted from those before it (Table 5); of more than "
        "--max_predictions_per_seq pieces as many, drawn evenly.",
    )
    mask_rate: float = option(
        0.8, "Share of chosen pieces replaced by [MASK] (Table 8)."
    )
    same_rate: float = option(0.1, "Share of chosen pieces kept (Table 8).")
    random_rate: float = option(
        0.1, "Share of chosen pieces replaced by a random one (Table 8)."
    )
    max_ngram: int = option(
        1,
        "Longest run of neighbouring words masked together; above 1, words are "
        "masked whole, and runs of k words are drawn with weight 1/k.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 5, "max_seq_length")
        require_at_least(
            self, 1, "max_predictions_per_seq", "dupe_factor", "max_ngram"
        )
        require_at_least(self, 0, "num_shards", "num_processes")
        require(
            self.max_predictions_per_seq <= self.max_seq_length,
            "--max_predictions_per_seq must be at most --max_seq_length="
            f"{self.max_seq_length}. Received: {self.max_predictions_per_seq}.",
        )
        rates = ("mask_rate", "same_rate", "random_rate")
        require_rate(self, "masked_lm_prob", "short_seq_prob", *rates)
        total = sum(getattr(self, rate) for rate in rates)
        require(
            abs(total - 1) < 1e-6,
            "--mask_rate, --same_rate and --random_rate must add up to 1. "
            f"Received: {total:g}.",
        )
        if self.generator == "original":
            self._check_original()
        if self.left_to_right:
            self._check_left_to_right()

    def _check_left_to_right(self) -> None:
        """Where nothing is masked, what says how to mask has no effect."""
        require_defaults(
            self,
            "--left_to_right",
            "do_whole_word_mask",
            "masked_lm_prob",
            "mask_rate",
            "same_rate",
            "random_rate",
            "max_ngram",
        )

    def _check_original(self) -> None:
        """The original's algorithm has none of the streaming options."""
        require(
            not self.split_sentences,
            "--generator=original reads one sentence a line and cannot split "
            "paragraphs. Received: --split_sentences; drop one of the two.",
        )
        require_defaults(
            self,
            "--generator=original",
            "num_shards",
            "num_processes",
            "runner",
            "next_sentence_pairs",
            "left_to_right",
            "mask_rate",
            "same_rate",
            "random_rate",
            "max_ngram",
        )


@dataclasses.dataclass(frozen=True)
class DataServiceConfig:
    """Flags of run/data_service.py."""

    port: int = option(help_text="The port that --tf_data_service names.")
    worker_port: int = option(
        0, "The port that batches are fetched from; 0 means --port + 1."
    )
    host: str | None = option(
        None, "What the trainers call this machine (default: its name)."
    )

    def __post_init__(self) -> None:
        for name, least in (("port", 1), ("worker_port", 0)):
            value = getattr(self, name)
            require(
                least <= value < 65536,
                f"--{name} must lie between {least} and 65535. Received: "
                f"{value}.",
            )
        require(
            self.port != self.worker_port,
            f"--port and --worker_port must differ. Received: {self.port}.",
        )
