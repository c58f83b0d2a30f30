"""Flags of all fine-tuning scripts, and the grid of hyperparameters.

Names and defaults are from the original's run_classifier.py and run_squad.py.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any
from typing import ClassVar

from bert_tf.config import HEAD_TYPES
from bert_tf.config import NORMALIZATIONS
from bert_tf.config import fields_affecting
from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig
from bert_tf.flags.groups import TrainingDeviceConfig

DEFAULT_RATE = "5e-5"
# Declare flags that apply only to the user's own files.
own_files = functools.partial(options.data, needs="task_name=custom")
_own_file = functools.partial(own_files, affects="place", reads="file")


@dataclasses.dataclass(frozen=True)
class TrialConfig:
    """The hyperparameters of one trial of the grid search (section A.3).

    Attributes:
      train_batch_size: Examples per step.
      num_train_epochs: Passes over the training data, possibly fractional.
      name: The trial's folder name, unique among the trials.
      layer_combination: The layers that a feature-based tagger reads, or None.
    """

    learning_rate: float
    train_batch_size: int
    num_train_epochs: float
    seed: int
    name: str
    layer_combination: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingDeviceConfig, ModelSourceConfig):
    """Flags of all fine-tuning tasks; the original's flags first."""

    # If the head does not read the pooler's output, --new_pooler is refused.
    reads_pooler: ClassVar[bool] = True

    output_dir: str = options.target(
        "Directory for checkpoints, predictions, logs and the model.",
        options.REQUIRED,
    )
    bert_config_file: str | None = options.model_file(
        "Configuration of --init_checkpoint, bert_config.json."
    )
    vocab_file: str | None = options.model_file(
        "Vocabulary of --init_checkpoint."
    )
    init_checkpoint: str | None = options.start_model(
        "Pretrained model: any format, or a checkpoint's prefix."
    )
    do_lower_case: bool | None = options.data(
        "Lower-case the text for --vocab_file (default: as the model states, "
        "else if less than 5% of the vocabulary have capital letters). Not "
        "needed with --pretrained_model_dir."
    )
    max_seq_length: int = options.data(
        "Maximum sequence length, in tokens; longer texts are truncated.",
        128,
        at_least=3,
    )
    dev_fraction: float | None = options.data(
        "Share of each label's texts in --train_file to hold out as the dev "
        "set, such as 0.1. A hash chooses the same texts in each run; both "
        "parts are written to <output_dir>/split.",
        above=0,
        below=1,
        needs="train_file",
        not_with=("dev_file", "predict_file"),
    )
    do_eval: bool = options.scoring("Evaluate on the dev set.", False)
    do_predict: bool = options.scoring("Predict the test set.", False)
    train_batch_size: str = options.training(
        "Examples per step (sentences for taggers, windows for SQuAD); a "
        "list such as 16,32 trains one trial for each value.",
        "32",
    )
    eval_batch_size: int = options.scoring(
        "Batch size for the dev set.", 8, at_least=1
    )
    predict_batch_size: int = options.scoring(
        "Batch size for the test set.", 8, at_least=1
    )
    learning_rate: str = options.training(
        "Peak learning rate; a list such as 5e-5,3e-5 trains one trial for "
        "each value.",
        DEFAULT_RATE,
    )
    num_train_epochs: str = options.training(
        "Passes over the data; a list such as 2,3,4 trains one trial for "
        "each value.",
        "3.0",
    )
    warmup_proportion: float = options.training(
        "Share of the steps used for linear warmup.", 0.1, **options.SHARE
    )
    iterations_per_loop: int | None = options.reporting(
        "Steps between lines of metrics (default: a hundredth of the run; "
        "the original's 1000 exceeds many runs).",
        at_least=1,
    )

    pretrained_model_dir: str | None = options.start_model(
        "Pretrained model with its vocabulary: a model directory or any "
        "other format; replaces --init_checkpoint, --bert_config_file and "
        "--vocab_file.",
        not_with=("init_checkpoint", "bert_config_file", "vocab_file"),
    )
    normalization: str | None = options.data(
        "Text normalization: original, or ascii_lower as in MediaPipe and "
        "the TensorFlow Lite Task Library, so that a .tflite file agrees "
        "with the trained model on the device (default: the pretrained "
        "model's).",
        choices=NORMALIZATIONS,
    )
    num_restarts: int = options.training(
        "Trials per combination of hyperparameters; they differ only in the "
        "seed.",
        1,
        affects="nothing",
        at_least=1,
    )
    seed: int = options.training(
        "Random seed of the head, the order and dropout.", 12345, below=1 << 32
    )
    num_length_buckets: int = options.length_buckets("--max_seq_length")
    micro_batch_size: int = options.speed(
        "Examples computed at once in training; 0 means the whole batch.", 0
    )
    layer_decay: float = options.training(
        "Factor between the learning rates of adjacent encoder layers: each "
        "layer uses this times the rate of the layer above it, the "
        "embeddings this times the rate of the first layer.",
        1.0,
        above=0,
        at_most=1,
        not_with="approach=feature_based",
    )
    num_frozen_layers: int = options.training(
        "Number of frozen encoder layers, from the first; above 0, the "
        "embeddings are frozen too.",
        0,
        not_with="approach=feature_based",
    )
    hidden_dropout_prob: float | None = options.training(
        "Dropout of embeddings and layer outputs (default: the "
        "configuration's).",
        below=1,
        not_with="approach=feature_based",
    )
    attention_probs_dropout_prob: float | None = options.training(
        "Dropout of attention probabilities (default: the configuration's).",
        below=1,
        not_with="approach=feature_based",
    )
    head: str = options.model(
        "Task head: linear, or bilstm with a new bidirectional LSTM below it "
        "(Table 5).",
        "linear",
        choices=HEAD_TYPES,
        not_with="approach=feature_based",
    )
    new_pooler: bool = options.model(
        "Initialize the pooler randomly, for encoders whose pooler was never "
        "trained.",
        False,
        not_with=("head=bilstm", "approach=feature_based"),
    )
    reinit_layers: int = options.model(
        "Number of encoder layers to initialize randomly, from the top; above "
        "0, the pooler is initialized randomly too (Zhang et al., 2020).",
        0,
        not_with="approach=feature_based",
    )
    head_initializer_range: float | None = options.model(
        "Standard deviation of the initial output weights of a new head "
        "(default: the configuration's initializer_range).",
        above=0,
        below=math.inf,
    )
    keep_best: bool = options.evaluation(
        "Keep the model of the best evaluation on the dev set, instead of "
        "the last one.",
        False,
        needs="do_train",
    )
    early_stopping_patience: int = options.evaluation(
        "Stop after this many evaluations without improvement and keep the "
        "best model; 0 means never.",
        0,
        needs="do_train",
    )
    evaluate_every_steps: int = options.evaluation(
        "Steps between evaluations during training, for --keep_best and "
        "--early_stopping_patience; 0 means one epoch.",
        0,
        needs=("keep_best", "early_stopping_patience"),
    )
    keep_checkpoint_max: int = options.reporting(
        "Number of checkpoints to keep.", 1, at_least=1
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.do_train or self.do_eval or self.do_predict,
            "At least one of --do_train, --do_eval and --do_predict must be "
            "set.",
        )
        self._check_start()
        options.require(
            self.seed + self.num_restarts <= 1 << 32,
            f"--seed must be below {1 << 32}, also with --num_restarts added. "
            f"Received: {self.seed}.",
        )
        options.require(
            not self.reinit_layers
            or not self.bert_config_file
            or self.init_checkpoint,
            "--reinit_layers has no effect without --init_checkpoint: all "
            f"layers are random. Received: {self.reinit_layers}; drop it.",
        )
        has_choice = len(self.trials()) > 1 and self.do_train
        options.require(
            self.may_score_dev or not (has_choice or self.selects_evaluation),
            "Several trials, --keep_best and --early_stopping_patience need "
            "--do_eval, as they select by the dev set.",
        )
        options.require(
            self.reads_pooler or not self.new_pooler,
            "--new_pooler has no effect on this task, whose head does not read "
            "the pooler; drop it.",
        )

    def _check_start(self) -> None:
        has_files = self.bert_config_file and self.vocab_file
        is_needed = self.do_train or self.init_checkpoint
        is_needed = is_needed or self.bert_config_file or self.vocab_file
        options.require(
            self.pretrained_model_dir or has_files or not is_needed,
            "Give --pretrained_model_dir, or --bert_config_file, --vocab_file "
            "and --init_checkpoint.",
        )

    def requested_splits(self) -> dict[str, str]:
        """Returns the splits to process, each with the flag that selects it."""
        flags = {"train": "do_train", "dev": "do_eval", "test": "do_predict"}
        return {x: f"--{y}" for x, y in flags.items() if getattr(self, y)}

    def named_files(self) -> dict[str, str | None]:
        """Returns the file that a flag names, for each split to process."""
        return {x: getattr(self, f"{x}_file") for x in self.requested_splits()}

    def unread_inputs(self) -> frozenset[str]:
        """Returns the names of input flags that this command does not read."""
        unread = {"train", "dev", "test"} - self.requested_splits().keys()
        unread = {f"{kind}_file" for kind in unread}
        if self.dev_fraction and self.do_eval:
            unread -= {"train_file"}
        if not self.do_train:  # A trained model may replace these files.
            unread |= {"bert_config_file", "vocab_file", "init_checkpoint"}
        return frozenset(unread)

    def _require_own_files(self, hint: str = "") -> None:
        """Raises `UserError` if a requested split has no file."""
        for kind, flag in self.requested_splits().items():
            is_dev = kind == "dev"
            options.require(
                getattr(self, f"{kind}_file") is not None
                or (is_dev and self.dev_fraction),
                f"{flag} needs --{kind}_file{hint}"
                f"{', or --dev_fraction=0.1 of --train_file' * is_dev}.",
            )

    @property
    def may_score_dev(self) -> bool:
        """True if there may be a dev set to select the best step."""
        return self.do_eval

    @property
    def selects_evaluation(self) -> bool:
        """True if training evaluates on the dev set to select a step."""
        return self.keep_best or self.early_stopping_patience > 0

    def trials(self) -> tuple[TrialConfig, ...]:
        """Returns the trials: all combinations of the hyperparameters."""
        rates = options.values(self, "learning_rate", float)
        sizes = options.values(self, "train_batch_size", int)
        epochs = options.values(self, "num_train_epochs", float)
        combinations = self.layer_combinations()
        return tuple(
            TrialConfig(
                rate,
                size,
                epoch,
                self.seed + restart,
                f"rate_{rate:g}_batch_{size}_epochs_{epoch:g}"
                + (f"_layers_{layers}" if len(combinations) > 1 else "")
                + f"_seed_{self.seed + restart}",
                layers,
            )
            for layers, rate, size, epoch, restart in itertools.product(
                combinations, rates, sizes, epochs, range(self.num_restarts)
            )
        )

    def identity(self, trial: TrialConfig) -> dict[str, Any]:
        """Returns the flags that must not change when a trial resumes."""
        # Replace the lists of values in flags by the values of this trial.
        values = dataclasses.asdict(self) | dataclasses.asdict(trial)
        counted = fields_affecting(type(self), "weights")
        return {f"--{name}": values[name] for name in values if name in counted}

    def layer_combinations(self) -> tuple[str | None, ...]:
        """Returns the values of --layer_combination, a flag of taggers only."""
        return (None,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTaskConfig(FinetuneConfig):
    """Flags of scripts with --task_name: a data set, or custom files."""

    task_name: str | None = options.data("Task, or custom.")
    data_dir: str | None = options.data_folder(
        "Directory with the task's official files.", not_with="task_name=custom"
    )
    train_file: str | None = _own_file("custom: training set.")
    dev_file: str | None = _own_file("custom: dev set.")
    test_file: str | None = _own_file("custom: test set.", affects="nothing")
    head_dropout_prob: float = options.training(
        "Dropout between the encoder and the head.", 0.1, below=1
    )

    def __post_init__(self) -> None:
        if self.task_name is None:
            own = self.train_file or self.dev_file or self.test_file
            options.require(
                own,
                "Give --train_file, --dev_file or --test_file for your own "
                "files, or --task_name and --data_dir. Received: none of them.",
            )
            # Without --task_name, set "custom". Otherwise, a resumed run that
            # adds --task_name=custom would report a changed flag.
            object.__setattr__(self, "task_name", "custom")
        super().__post_init__()

    @property
    def is_custom(self) -> bool:
        """True if the task reads the user's own files."""
        return self.task_name.lower() == "custom"

    def check(self) -> None:
        super().check()
        if self.is_custom:
            self._require_own_files()
        options.require(
            self.is_custom or self.data_dir is not None,
            f"--task_name={self.task_name} needs --data_dir, the folder with "
            "its official files.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesConfig(FinetuneConfig):
    """Flags of scripts that read a folder of files, or single files."""

    data_dir: str | None = options.data_folder(
        "Directory with the task's official files; for taggers eng.train, "
        "eng.testa and eng.testb of CoNLL-2003, or train, dev (valid) and test "
        "files that end in .txt, .conll or .tsv.",
        not_with=("train_file", "dev_file", "test_file"),
    )
    train_file: str | None = options.data_file(
        "Training set; for taggers one word and its columns per line."
    )
    dev_file: str | None = options.data_file("Dev set.")
    test_file: str | None = options.data_file("Test set.", affects="nothing")
    head_dropout_prob: float = options.training(
        "Dropout between the encoder and the head.", 0.1, below=1
    )

    def check(self) -> None:
        super().check()
        if not self.data_dir:
            self._require_own_files(", or --data_dir")
