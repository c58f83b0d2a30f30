"""What the scripts that fine-tune can be told: one frozen dataclass a script.

Names and defaults are those of the original's run_classifier.py and
run_squad.py where these have the flag. Nothing here imports TensorFlow.
"""

import dataclasses
import itertools
from typing import Any

from bert_tf.config import APPROACHES
from bert_tf.config import HEAD_TYPES
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.config import NORMALIZATIONS
from bert_tf.config import option
from bert_tf.errors import UserError
from bert_tf.run_config import OPTIMIZERS
from bert_tf.run_config import TrainingDeviceConfig
from bert_tf.run_config import require
from bert_tf.run_config import require_at_least
from bert_tf.run_config import require_rate

_RATE = "5e-5"


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """One run of the paper's selection (section A.3).

    Attributes:
      learning_rate: The peak rate.
      train_batch_size: Examples of a step.
      num_train_epochs: Passes over the training data, maybe with a fraction.
      seed: Seed of head, order and dropout.
      name: A folder's name that tells it from the other runs.
    """

    learning_rate: float
    train_batch_size: int
    num_train_epochs: float
    seed: int
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingDeviceConfig):
    """The flags that all tasks have; those of the original first."""

    output_dir: str = option(help_text="Where everything made is kept.")
    bert_config_file: str | None = option(
        None, "The shape of the model that --init_checkpoint holds."
    )
    vocab_file: str | None = option(
        None, "The vocabulary of the model that --init_checkpoint holds."
    )
    init_checkpoint: str | None = option(
        None, "The pretrained model: of any format, or a checkpoint's prefix."
    )
    do_lower_case: bool | None = option(
        None,
        "Whether --vocab_file is lower case (default: yes, as in the "
        "original). A --pretrained_model_dir knows by itself.",
    )
    max_seq_length: int = option(
        128, "The most pieces of a sequence; longer ones are truncated."
    )
    do_train: bool = option(False, "Whether to train.")
    do_eval: bool = option(False, "Whether to score the dev set.")
    do_predict: bool = option(False, "Whether to predict the test set.")
    train_batch_size: str = option(
        "32",
        "Examples a step (of taggers sentences, of SQuAD windows); several, as "
        "16,32, are tried in turn.",
    )
    eval_batch_size: int = option(8, "Examples computed at once on dev.")
    predict_batch_size: int = option(8, "Examples computed at once on test.")
    learning_rate: str = option(
        _RATE, "Peak learning rate; several, as 5e-5,3e-5, are tried in turn."
    )
    num_train_epochs: str = option(
        "3.0", "Passes over the data; several, as 2,3,4, are tried in turn."
    )
    warmup_proportion: float = option(
        0.1, "Share of the steps in which the learning rate rises."
    )
    save_checkpoints_steps: int = option(1000, "Steps between checkpoints.")
    iterations_per_loop: int | None = option(
        None,
        "Steps between metrics lines (default: a hundredth of the run; the "
        "original's 1000 is more than many runs have).",
    )

    pretrained_model_dir: str | None = option(
        None,
        "The pretrained model with its vocabulary: a model directory or any "
        "other format; in place of --init_checkpoint, --bert_config_file and "
        "--vocab_file.",
    )
    normalization: str | None = option(
        None,
        "How text is read: original; or ascii_lower, as MediaPipe and the "
        "TensorFlow Lite Task Library do on the device, so that a .tflite file "
        "agrees there with what was trained (default: as the pretrained "
        "model).",
        choices=NORMALIZATIONS,
    )
    num_restarts: int = option(
        1, "Runs of each kind, which differ in their seed only."
    )
    seed: int = option(12345, "Seed of the head, of the order and dropout.")
    num_length_buckets: int = option(
        0,
        "Lengths that batches are padded to: 0 takes every multiple of 8, 1 "
        "pads all to --max_seq_length as the original does, others choose the "
        "lengths with the least padding (for TPUs, which compile each).",
    )
    micro_batch_size: int = option(
        0, "Examples computed at once in training; 0 means all of a step."
    )
    optimizer: str = option(
        "bert_adam",
        "bert_adam: the original's, without bias correction.",
        choices=OPTIMIZERS,
    )
    weight_decay_rate: float = option(0.01, "Decoupled weight decay.")
    layer_decay: float = option(
        1.0,
        "Each encoder layer learns at this times the rate of the layer above "
        "it, the embeddings at that of a layer below the first.",
    )
    num_frozen_layers: int = option(
        0,
        "Encoder layers, from the first, that keep their weights, as then do "
        "the embeddings.",
    )
    hidden_dropout_prob: float | None = option(
        None, "Overrides the configuration's dropout of layers."
    )
    attention_probs_dropout_prob: float | None = option(
        None, "Overrides the configuration's dropout of attention."
    )
    left_to_right: bool | None = option(
        None, "Overrides the configuration's direction of attention (Table 5)."
    )
    head: str = option(
        "linear",
        "bilstm puts a new bidirectional LSTM under the head (Table 5).",
        choices=HEAD_TYPES,
    )
    new_pooler: bool = option(
        False,
        "Whether the pooler begins anew, as for encoders whose pooler was "
        "never trained.",
    )
    keep_best: bool = option(
        False,
        "Whether the model is that of the best evaluation on dev, not the "
        "last one.",
    )
    early_stopping_patience: int = option(
        0,
        "Training ends after so many evaluations without a better one; 0 means "
        "never. The model is then that of the best one.",
    )
    evaluate_every_steps: int = option(
        0,
        "Steps between evaluations in training, for --keep_best and "
        "--early_stopping_patience; 0 means an epoch.",
    )
    keep_checkpoint_max: int = option(1, "Checkpoints to keep.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.do_train or self.do_eval or self.do_predict,
            "At least one of --do_train, --do_eval and --do_predict must be "
            "set.",
        )
        self._check_start()
        require_at_least(
            self,
            1,
            "eval_batch_size",
            "predict_batch_size",
            "save_checkpoints_steps",
            "iterations_per_loop",
            "num_restarts",
            "keep_checkpoint_max",
        )
        require_at_least(
            self,
            0,
            "num_length_buckets",
            "micro_batch_size",
            "num_frozen_layers",
            "early_stopping_patience",
            "evaluate_every_steps",
        )
        require_rate(self, "warmup_proportion", "layer_decay")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            require(
                value is None or 0 <= value < 1,
                f"--{name} must be at least 0 and below 1. Received: {value}.",
            )
        require(
            self.layer_decay > 0,
            f"--layer_decay must be above 0. Received: {self.layer_decay}.",
        )
        require(
            not self.new_pooler or self.head == "linear",
            "--new_pooler has no effect with --head=bilstm, which does not "
            "read the pooler; drop one of the two.",
        )
        require(
            not self.evaluate_every_steps or self.selects_evaluation,
            "--evaluate_every_steps needs --keep_best or "
            "--early_stopping_patience.",
        )
        require(
            len(self.runs()) == 1 or not self.do_train or self.do_eval,
            "Several runs need --do_eval, as the best of them on dev is kept.",
        )
        require(
            not self.selects_evaluation or (self.do_train and self.do_eval),
            "--keep_best and --early_stopping_patience need --do_train and "
            "--do_eval, as they choose by the dev set.",
        )

    def _check_start(self) -> None:
        trio = (self.bert_config_file, self.vocab_file, self.init_checkpoint)
        if self.pretrained_model_dir:
            require(
                not any(trio),
                "--pretrained_model_dir takes the place of --init_checkpoint, "
                "--bert_config_file and --vocab_file. Received both; drop one.",
            )
        elif any(trio) or self.do_train:
            require(
                bool(self.bert_config_file and self.vocab_file),
                "Give --pretrained_model_dir, or --bert_config_file, "
                "--vocab_file and --init_checkpoint.",
            )

    @property
    def selects_evaluation(self) -> bool:
        """Whether dev is evaluated in training, to choose among its steps."""
        return self.keep_best or self.early_stopping_patience > 0

    def runs(self) -> tuple[RunSettings, ...]:
        """Returns the settings of each run: all combinations of the values.

        Raises:
          UserError: If a flag holds something else than numbers.
        """
        rates = self._numbers("learning_rate", float)
        sizes = self._numbers("train_batch_size", int)
        epochs = self._numbers("num_train_epochs", float)
        return tuple(
            RunSettings(
                rate,
                size,
                epoch,
                self.seed + restart,
                f"rate_{rate:g}_batch_{size}_epochs_{epoch:g}"
                f"_seed_{self.seed + restart}",
            )
            for rate, size, epoch, restart in itertools.product(
                rates, sizes, epochs, range(self.num_restarts)
            )
        )

    def _numbers(self, name: str, kind: type) -> tuple[Any, ...]:
        values = []
        for text in getattr(self, name).split(","):
            try:
                value = kind(text)
            except ValueError:
                value = 0
            if not 0 < value < float("inf"):
                what = "whole number" if kind is int else "number"
                raise UserError(
                    f"--{name} must be a {what} above 0, or several with "
                    f"commas between. Received: {getattr(self, name)!r}."
                )
            values.append(value)
        if len(set(values)) < len(values):
            raise UserError(
                f"--{name} names a value twice. Received: "
                f"{getattr(self, name)!r}."
            )
        return tuple(values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(FinetuneConfig):
    """Flags of run/finetune_classifier.py."""

    task_name: str = option(
        help_text="cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, "
        "xnli, snli, or custom for own files."
    )
    data_dir: str | None = option(
        None, "The folder with the task's official files."
    )
    language: str | None = option(
        None,
        "XNLI's language (default: that of the model, if it is not trained "
        "now, else zh, as in the original).",
    )
    train_file: str | None = option(None, "custom: what to train on.")
    dev_file: str | None = option(None, "custom: what to score.")
    test_file: str | None = option(None, "custom: what to predict.")
    text_column: str | None = option(
        None, "custom: the column of the text (default: text)."
    )
    text_pair_column: str | None = option(
        None, "custom: the column of the second text of a pair."
    )
    label_column: str | None = option(
        None,
        "custom: the column of the label (default: label); several, with "
        "commas between, hold 0 or 1 each, of a multi_label problem.",
    )
    label_separator: str | None = option(
        None,
        "custom: what stands between the labels of a multi_label row (default: "
        "a comma).",
    )
    problem_type: str | None = option(
        None,
        "custom: what the labels are (default: single_label).",
        choices=("single_label", "multi_label", "regression"),
    )
    class_weights: str | None = option(
        None,
        "balanced, or label:weight,label:weight,...: how much the loss of an "
        "example with that label counts (default: 1).",
    )
    doc_stride: int | None = option(
        None,
        "Texts that are too long are read in windows that begin so many pieces "
        "after each other (default: they are truncated).",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the encoder and the head."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {
            name: getattr(self, name)
            for name in (
                "train_file",
                "dev_file",
                "test_file",
                "text_column",
                "text_pair_column",
                "label_column",
                "label_separator",
                "problem_type",
            )
        }
        given = [
            f"--{name}" for name, value in own.items() if value is not None
        ]
        if self.is_custom:
            require(
                self.data_dir is None and self.language is None,
                "--data_dir and --language are for the tasks with official "
                "files; --task_name=custom takes --train_file, --dev_file and "
                "--test_file.",
            )
            for flag, name in (
                ("do_train", "train_file"),
                ("do_eval", "dev_file"),
                ("do_predict", "test_file"),
            ):
                require(
                    not getattr(self, flag) or own[name] is not None,
                    f"--{flag} needs --{name}.",
                )
        else:
            require(
                not given,
                f"{', '.join(given)}: these are for --task_name=custom; "
                f"{self.task_name} has its official files in --data_dir.",
            )
            require(
                self.data_dir is not None,
                f"--task_name={self.task_name} needs --data_dir, the folder "
                "with its official files.",
            )
        require_at_least(self, 1, "doc_stride")
        require(
            0 <= self.head_dropout_prob < 1,
            "--head_dropout_prob must be at least 0 and below 1. Received: "
            f"{self.head_dropout_prob}.",
        )

    @property
    def is_custom(self) -> bool:
        """Whether the user's own files are meant."""
        return self.task_name.lower() == "custom"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Flags of run/finetune_squad.py; those of the original first."""

    train_file: str | None = option(
        None, "SQuAD JSON to train on: train-v1.1.json."
    )
    predict_file: str | None = option(
        None,
        "SQuAD JSON to predict, and to score if it has answers: dev-v1.1.json.",
    )
    max_seq_length: int = option(
        384, "The most pieces of question and paragraph together."
    )
    doc_stride: int = option(
        128,
        "Paragraphs that are too long are read in windows that begin so many "
        "pieces after each other.",
    )
    max_query_length: int = option(
        64, "The most pieces of a question; longer ones are truncated."
    )
    do_eval: bool = option(
        False, "Whether --predict_file must have answers to score."
    )
    do_predict: bool = option(
        False,
        "Whether to predict --predict_file, and to score it if it has answers.",
    )
    eval_batch_size: int | None = option(
        None,
        "Windows computed at once for scores (default: --predict_batch_size).",
    )
    predict_batch_size: int = option(
        8, "Windows computed at once in prediction."
    )
    n_best_size: int = option(
        20, "Answers a question in nbest_predictions.json."
    )
    max_answer_length: int = option(30, "The most pieces of an answer.")
    version_2_with_negative: bool = option(
        False, "Whether some questions have no answer, as in SQuAD 2.0."
    )
    null_score_diff_threshold: float | None = option(
        None,
        "No answer is given where null_odds is above this (default: that of a "
        "model that is only used, else what gives --predict_file the best F1, "
        "else 0).",
    )
    verbose_logging: bool = option(
        False, "Whether all questions that are left out are named."
    )
    triviaqa_file: str | None = option(
        None,
        "wikipedia-train.json of TriviaQA, to fine-tune on before SQuAD, in "
        "<output_dir>/triviaqa.",
    )
    triviaqa_evidence_dir: str | None = option(
        None, "TriviaQA's folder evidence/wikipedia, with its documents."
    )
    ensemble_nbest_files: str | None = option(
        None,
        "nbest_predictions.json of several runs, with commas between or as "
        "globs: they predict --predict_file together, and no model is needed.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.do_train or self.train_file is not None,
            "--do_train needs --train_file.",
        )
        require(
            not (self.do_eval or self.do_predict)
            or self.predict_file is not None,
            "--do_predict and --do_eval need --predict_file.",
        )
        require_at_least(
            self,
            1,
            "doc_stride",
            "max_query_length",
            "n_best_size",
            "max_answer_length",
        )
        require(
            self.max_seq_length > self.max_query_length + 3,
            "--max_seq_length must be greater than --max_query_length + 3 = "
            f"{self.max_query_length + 3}. Received: {self.max_seq_length}.",
        )
        require(
            not self.new_pooler,
            "--new_pooler has no effect on SQuAD, whose head does not read the "
            "pooler; drop it.",
        )
        self._check_triviaqa()
        require(
            not (self.ensemble_nbest_files and self.do_train),
            "--ensemble_nbest_files combines what is predicted already. "
            "Received: --do_train; drop one of the two.",
        )

    def _check_triviaqa(self) -> None:
        require(
            bool(self.triviaqa_file) == bool(self.triviaqa_evidence_dir),
            "--triviaqa_file and --triviaqa_evidence_dir belong together. "
            f"Received: {self.triviaqa_file}, {self.triviaqa_evidence_dir}.",
        )
        require(
            self.do_train or not self.triviaqa_file,
            "--triviaqa_file needs --do_train.",
        )
        require(
            not self.triviaqa_file or len(self.runs()) == self.num_restarts,
            "--triviaqa_file is trained on once, so that --learning_rate, "
            "--train_batch_size and --num_train_epochs must have one value. To "
            "try several on SQuAD give --pretrained_model_dir="
            "<output_dir>/triviaqa/model instead.",
        )


_OWN_CHOICE_FLAGS = (
    "train_file",
    "dev_file",
    "test_file",
    "context_column",
    "choice_columns",
    "label_column",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceConfig(FinetuneConfig):
    """Flags of run/finetune_multiple_choice.py."""

    task_name: str = option(
        help_text="What to learn: a data set in --data_dir, or custom for own "
        "files.",
        choices=("swag", "codah", "comve_a", "comve_b", "custom"),
    )
    data_dir: str | None = option(
        None, "The folder with the task's official files."
    )
    train_file: str | None = option(None, "custom: what to train on.")
    dev_file: str | None = option(None, "custom: what to score.")
    test_file: str | None = option(None, "custom: what to predict.")
    context_column: str | None = option(
        None,
        "custom: the column of what the choices continue or answer (default: "
        "context); --context_column= if there is none.",
    )
    choice_columns: str | None = option(
        None,
        "custom: the columns of the choices, with commas between; a single "
        "one, of a .jsonl or .json file, holds lists of choices (default: "
        "choices).",
    )
    label_column: str | None = option(
        None,
        "custom: the column of the right choice, by its index from 0 or the "
        "name of its column (default: label).",
    )
    head_dropout_prob: float = option(
        0.1, "Dropout between the encoder and the head."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_custom:
            self._check_own_files()
        else:
            self._check_official_files()
        require(
            0 <= self.head_dropout_prob < 1,
            "--head_dropout_prob must be at least 0 and below 1. Received: "
            f"{self.head_dropout_prob}.",
        )

    def _check_own_files(self) -> None:
        require(
            self.data_dir is None,
            "--data_dir is for the tasks with official files; "
            "--task_name=custom takes --train_file, --dev_file and "
            "--test_file.",
        )
        for flag, name in (
            ("do_train", "train_file"),
            ("do_eval", "dev_file"),
            ("do_predict", "test_file"),
        ):
            require(
                not getattr(self, flag) or getattr(self, name) is not None,
                f"--{flag} needs --{name}.",
            )
        require(
            self.label_column != "",
            "--label_column must not be empty; a test set need not have it.",
        )
        columns = [
            *self.choices_of_flag(),
            *(x for x in (self.context_column, self.label_column) if x),
        ]
        require(
            len(set(columns)) == len(columns) and "" not in columns,
            "--choice_columns, --context_column and --label_column must each "
            f"name other columns. Received: {', '.join(map(repr, columns))}.",
        )

    def _check_official_files(self) -> None:
        given = [
            f"--{name}"
            for name in _OWN_CHOICE_FLAGS
            if getattr(self, name) is not None
        ]
        require(
            not given,
            f"{', '.join(given)}: these are for --task_name=custom; "
            f"{self.task_name} has its official files in --data_dir.",
        )
        require(
            self.data_dir is not None,
            f"--task_name={self.task_name} needs --data_dir, the folder with "
            "its official files.",
        )

    @property
    def is_custom(self) -> bool:
        """Whether the user's own files are meant."""
        return self.task_name == "custom"

    def choices_of_flag(self) -> tuple[str, ...]:
        """Returns the names in --choice_columns, none if it is not given."""
        if self.choice_columns is None:
            return ()
        return tuple(name.strip() for name in self.choice_columns.split(","))


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
            default = _FEATURE_BASED_RATE if is_new else _RATE
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
        require(
            0 <= self.head_dropout_prob < 1,
            "--head_dropout_prob must be at least 0 and below 1. Received: "
            f"{self.head_dropout_prob}.",
        )
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
        for flag, name in (
            ("do_train", "train_file"),
            ("do_eval", "dev_file"),
            ("do_predict", "test_file"),
        ):
            require(
                not getattr(self, flag)
                or bool(self.data_dir or getattr(self, name)),
                f"--{flag} needs --{name}, or --data_dir.",
            )

    def _check_approach(self) -> None:
        has_lstms = self.head == "bilstm"
        if self.approach == "feature_based":
            require(
                not has_lstms,
                "--head is for --approach=fine_tuning: the feature-based one "
                "has its own two BiLSTMs. Received: --head=bilstm.",
            )
            for name in _ENCODER_FLAGS:
                default = getattr(FinetuneConfig, name)
                require(
                    getattr(self, name) == default,
                    f"--{name} has no effect with --approach=feature_based, "
                    "which does not train the encoder. Received: "
                    f"{getattr(self, name)}; drop it.",
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
