"""What run/finetune_tagger.py can be told."""

import dataclasses

from bert_tf.config import APPROACHES
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.checks import require_defaults
from bert_tf.flags.checks import require_dropout
from bert_tf.flags.finetune import DEFAULT_RATE
from bert_tf.flags.finetune import FinetuneConfig

# What a frozen encoder cannot be told.
_ENCODER_FLAGS = (
    "num_frozen_layers",
    "layer_decay",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "new_pooler",
    "remat",
)


# The paper names none for its feature-based tagger; weights that begin at
# random need more than those that are only fine-tuned.
_FEATURE_BASED_RATE = "1e-3"
# What a tagger is trained with where the flags do not say it.
_TAGGER_DEFAULTS = {
    "word_column": "0",
    "tag_column": "-1",
    "context": "document",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerConfig(FinetuneConfig):
    """Flags of run/finetune_tagger.py."""

    data_dir: str | None = option(
        None,
        "The folder with eng.train, eng.testa and eng.testb of CoNLL-2003, or "
        "with train, dev (valid) and test that end in .txt, .conll or .tsv.",
    )
    train_file: str | None = option(
        None, "What to train on: a word and its columns a line."
    )
    dev_file: str | None = option(None, "What to score.")
    test_file: str | None = option(None, "What to predict.")
    word_column: str | None = option(
        None,
        "The column of the words, numbered from 0 (from -1 backwards); or its "
        "name, if the first line names the columns (default: that of the "
        "model, if it is not trained now, else 0).",
    )
    tag_column: str | None = option(
        None,
        "The same for the tags, in IOB1 or IOB2 (default: that of the model, "
        "if it is not trained now, else -1).",
    )
    approach: str = option(
        "fine_tuning",
        "feature_based keeps the encoder as it is and trains two BiLSTMs on "
        "top of it (section 5.3).",
        choices=APPROACHES,
    )
    layer_combination: str | None = option(
        None,
        "feature_based: what the BiLSTMs read of the encoder (Table 7; "
        "default: the best there, concat_last_four_hidden).",
        choices=LAYER_COMBINATIONS,
    )
    lstm_size: int | None = option(
        None, "Units of each direction of a BiLSTM (default: 768)."
    )
    context: str | None = option(
        None,
        "What a window may reach over: the document, which -DOCSTART- lines "
        "begin, or the sentence alone (default: that of the model, if it is "
        "not trained now, else document).",
        choices=("document", "sentence"),
    )
    doc_stride: int | None = option(
        None,
        "Windows begin so many pieces after each other, and a word is read "
        "where it has the most context (default: that of the model, if it is "
        "not trained now, else half of --max_seq_length); 0 makes one window, "
        "behind which words are tagged O.",
    )
    learning_rate: str | None = option(
        None,
        "Peak learning rate; several, as 5e-5,3e-5, are tried in turn "
        "(default: 5e-5; feature_based: 1e-3).",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout before the classification layer."
    )

    def __post_init__(self) -> None:
        if self.learning_rate is None:
            is_new = self.approach == "feature_based"
            default = _FEATURE_BASED_RATE if is_new else DEFAULT_RATE
            object.__setattr__(self, "learning_rate", default)
        if self.do_train:
            # Else what is not given is the model's.
            for name, default in _TAGGER_DEFAULTS.items():
                if getattr(self, name) is None:
                    object.__setattr__(self, name, default)
        super().__post_init__()
        self._check_files()
        self._check_approach()
        require_at_least(self, 0, "doc_stride")
        require_at_least(self, 1, "lstm_size")
        require(
            self.max_seq_length >= 3,
            "--max_seq_length must be at least 3, for a piece between [CLS] "
            f"and [SEP]. Received: {self.max_seq_length}.",
        )
        require(
            (self.doc_stride or 0) <= self.max_seq_length - 2,
            "--doc_stride must be at most --max_seq_length - 2, or pieces "
            f"between windows are lost. Received: {self.doc_stride} with "
            f"--max_seq_length={self.max_seq_length}.",
        )
        require_dropout(self, "head_dropout_prob")
        columns = [self.parse_column(x) for x in ("word_column", "tag_column")]
        if None not in columns:
            require_tagger_columns(*columns)

    def _check_files(self) -> None:
        given = [
            f"--{kind}_file"
            for kind in ("train", "dev", "test")
            if getattr(self, f"{kind}_file") is not None
        ]
        require(
            not (self.data_dir and given),
            "--data_dir takes the place of --train_file, --dev_file and "
            f"--test_file. Received: --data_dir and {', '.join(given)}.",
        )
        self._require_own_files("data_dir")

    def _check_approach(self) -> None:
        has_lstms = self.head == "bilstm"
        if self.approach == "feature_based":
            require(
                not has_lstms,
                "--head is for --approach=fine_tuning: the feature-based one "
                "has its own two BiLSTMs. Received: --head=bilstm.",
            )
            require_defaults(
                self,
                "--approach=feature_based, which does not train the encoder",
                *_ENCODER_FLAGS,
            )
            has_lstms = True
        else:
            require(
                not self.new_pooler,
                "--new_pooler has no effect on a tagger, which does not read "
                "the pooler; drop it.",
            )
            require(
                self.layer_combination is None,
                "--layer_combination is for --approach=feature_based. "
                f"Received: {self.layer_combination}; drop it or add that.",
            )
        require(
            has_lstms or self.lstm_size is None,
            "--lstm_size is for --approach=feature_based and --head=bilstm. "
            f"Received: {self.lstm_size}.",
        )

    def parse_column(self, name: str) -> int | str | None:
        """Returns what --word_column or --tag_column means, None if nothing."""
        value = getattr(self, name)
        if value is None:
            return None
        is_number = value.removeprefix("-").isdecimal()
        return int(value) if is_number else value


def require_tagger_columns(
    word_column: int | str, tag_column: int | str
) -> None:
    """Raises `UserError` if words and tags cannot lie there together."""
    require(
        isinstance(word_column, int) == isinstance(tag_column, int)
        and word_column != tag_column,
        "--word_column and --tag_column must be two different numbers, or two "
        f"different names. Received: {word_column} and {tag_column}.",
    )
