"""Flags of all fine-tuning scripts, and the grid of hyperparameters.

Names and defaults come from the original's run_classifier.py and run_squad.py
where these have the flag.
"""

import dataclasses
import itertools
from typing import Any

from bert_tf.config import HEAD_TYPES
from bert_tf.config import NORMALIZATIONS
from bert_tf.config import option
from bert_tf.errors import UserError
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.checks import require_dropout
from bert_tf.flags.checks import require_rate
from bert_tf.flags.checks import require_seed
from bert_tf.flags.devices import TrainingDeviceConfig
from bert_tf.flags.pretrain import OPTIMIZERS

DEFAULT_RATE = "5e-5"


@dataclasses.dataclass(frozen=True)
class TrialConfig:
    """The hyperparameters of one trial of the grid search (section A.3).

    Attributes:
      learning_rate: The peak rate.
      train_batch_size: Examples per step.
      num_train_epochs: Passes over the training data, possibly fractional.
      seed: Seed of the head, the order and dropout.
      name: The trial's folder name, unique among the trials.
    """

    learning_rate: float
    train_batch_size: int
    num_train_epochs: float
    seed: int
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingDeviceConfig):
    """Flags of all fine-tuning tasks; the original's flags first."""

    output_dir: str = option(
        help_text="Directory for checkpoints, predictions, logs and the model.",
        group="output",
        affects="place",
    )
    bert_config_file: str | None = option(
        None,
        "Configuration of --init_checkpoint, bert_config.json.",
        group="model",
        affects="place",
    )
    vocab_file: str | None = option(
        None, "Vocabulary of --init_checkpoint.", group="model", affects="place"
    )
    init_checkpoint: str | None = option(
        None,
        "Pretrained model: any format, or a checkpoint's prefix.",
        group="model",
        affects="place",
    )
    do_lower_case: bool | None = option(
        None,
        "Lower-case the text for --vocab_file (default: as the model states, "
        "else unless a vocabulary entry has an upper-case letter). Not "
        "needed with --pretrained_model_dir.",
        group="data",
    )
    max_seq_length: int = option(
        128,
        "Maximum sequence length, in tokens; longer texts are truncated.",
        group="data",
    )
    do_train: bool = option(
        False, "Train.", group="training", affects="nothing"
    )
    do_eval: bool = option(
        False,
        "Evaluate on the dev set.",
        group="evaluation and prediction",
        affects="nothing",
    )
    do_predict: bool = option(
        False,
        "Predict the test set.",
        group="evaluation and prediction",
        affects="nothing",
    )
    train_batch_size: str = option(
        "32",
        "Examples per step (sentences for taggers, windows for SQuAD); a "
        "list such as 16,32 trains one trial for each value.",
        group="training",
    )
    eval_batch_size: int = option(
        8,
        "Batch size for the dev set.",
        group="evaluation and prediction",
        affects="nothing",
    )
    predict_batch_size: int = option(
        8,
        "Batch size for the test set.",
        group="evaluation and prediction",
        affects="nothing",
    )
    learning_rate: str = option(
        DEFAULT_RATE,
        "Peak learning rate; a list such as 5e-5,3e-5 trains one trial for "
        "each value.",
        group="training",
    )
    num_train_epochs: str = option(
        "3.0",
        "Passes over the data; a list such as 2,3,4 trains one trial for "
        "each value.",
        group="training",
    )
    warmup_proportion: float = option(
        0.1, "Share of the steps used for linear warmup.", group="training"
    )
    save_checkpoints_steps: int = option(
        1000, "Steps between checkpoints.", group="output", affects="nothing"
    )
    iterations_per_loop: int | None = option(
        None,
        "Steps between lines of metrics (default: a hundredth of the run; "
        "the original's 1000 exceeds many runs).",
        group="output",
        affects="nothing",
    )

    pretrained_model_dir: str | None = option(
        None,
        "Pretrained model with its vocabulary: a model directory or any "
        "other format; replaces --init_checkpoint, --bert_config_file and "
        "--vocab_file.",
        group="model",
        affects="place",
    )
    normalization: str | None = option(
        None,
        "Text normalization: original, or ascii_lower as in MediaPipe and "
        "the TensorFlow Lite Task Library, so that a .tflite file agrees "
        "with the trained model on the device (default: the pretrained "
        "model's).",
        group="data",
        choices=NORMALIZATIONS,
    )
    num_restarts: int = option(
        1,
        "Trials per combination of hyperparameters; they differ only in the "
        "seed.",
        group="training",
        affects="nothing",
    )
    seed: int = option(
        12345,
        "Random seed of the head, the order and dropout.",
        group="training",
    )
    num_length_buckets: int = option(
        0,
        "Lengths that batches are padded to: 0 uses every multiple of 8; 1 "
        "pads all to --max_seq_length, as the original does; larger numbers "
        "choose the lengths with the least padding (for TPUs, which compile "
        "each).",
        group="hardware",
    )
    micro_batch_size: int = option(
        0,
        "Examples computed at once in training; 0 means the whole batch.",
        group="hardware",
        affects="nothing",
    )
    optimizer: str = option(
        "bert_adam",
        "Optimizer. bert_adam is the original's: AdamW without bias "
        "correction.",
        group="training",
        choices=OPTIMIZERS,
    )
    weight_decay_rate: float = option(
        0.01, "Decoupled weight decay.", group="training"
    )
    layer_decay: float = option(
        1.0,
        "Factor between the learning rates of adjacent encoder layers: each "
        "layer uses this times the rate of the layer above it, the "
        "embeddings this times the rate of the first layer.",
        group="training",
    )
    num_frozen_layers: int = option(
        0,
        "Number of frozen encoder layers, from the first; above 0, the "
        "embeddings are frozen too.",
        group="training",
    )
    hidden_dropout_prob: float | None = option(
        None,
        "Dropout of embeddings and layer outputs (default: the "
        "configuration's).",
        group="training",
    )
    attention_probs_dropout_prob: float | None = option(
        None,
        "Dropout of attention probabilities (default: the configuration's).",
        group="training",
    )
    left_to_right: bool | None = option(
        None,
        "Attention to the left only, Table 5 (default: the configuration's).",
        group="model",
    )
    head: str = option(
        "linear",
        "Task head: linear, or bilstm with a new bidirectional LSTM below it "
        "(Table 5).",
        group="model",
        choices=HEAD_TYPES,
    )
    new_pooler: bool = option(
        False,
        "Initialize the pooler randomly, for encoders whose pooler was never "
        "trained.",
        group="model",
    )
    keep_best: bool = option(
        False,
        "Keep the model of the best evaluation on the dev set, instead of "
        "the last one.",
        group="evaluation and prediction",
    )
    early_stopping_patience: int = option(
        0,
        "Stop after this many evaluations without improvement and keep the "
        "best model; 0 means never.",
        group="evaluation and prediction",
    )
    evaluate_every_steps: int = option(
        0,
        "Steps between evaluations during training, for --keep_best and "
        "--early_stopping_patience; 0 means one epoch.",
        group="evaluation and prediction",
    )
    keep_checkpoint_max: int = option(
        1, "Number of checkpoints to keep.", group="output", affects="nothing"
    )

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
        require_dropout(
            self, "hidden_dropout_prob", "attention_probs_dropout_prob"
        )
        require_seed(self.seed)
        require_seed(self.seed + self.num_restarts - 1)
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
            len(self.trials()) == 1 or not self.do_train or self.may_score_dev,
            "Several trials need --do_eval, to keep the best one on dev.",
        )
        require(
            not self.selects_evaluation
            or (self.do_train and self.may_score_dev),
            "--keep_best and --early_stopping_patience need --do_train and "
            "--do_eval, as they select by the dev set.",
        )

    def _check_start(self) -> None:
        trio = (self.bert_config_file, self.vocab_file, self.init_checkpoint)
        if self.pretrained_model_dir:
            require(
                not any(trio),
                "--pretrained_model_dir replaces --init_checkpoint, "
                "--bert_config_file and --vocab_file. Received both; drop one.",
            )
        elif any(trio) or self.do_train:
            require(
                bool(self.bert_config_file and self.vocab_file),
                "Give --pretrained_model_dir, or --bert_config_file, "
                "--vocab_file and --init_checkpoint.",
            )

    def requested_splits(self) -> dict[str, str]:
        """Returns the splits to process, each with the flag that selects it."""
        flags = (
            ("train", "do_train"),
            ("dev", "do_eval"),
            ("test", "do_predict"),
        )
        return {
            kind: f"--{flag}" for kind, flag in flags if getattr(self, flag)
        }

    def _require_own_files(self, folder_flag: str | None = None) -> None:
        """Raises `UserError` if one of --train_file, ... is not set.

        Args:
          folder_flag: A flag that names a folder with these files instead.
        """
        if folder_flag and getattr(self, folder_flag):
            return
        hint = f", or --{folder_flag}" if folder_flag else ""
        for kind, flag in self.requested_splits().items():
            require(
                getattr(self, f"{kind}_file") is not None,
                f"{flag} needs --{kind}_file{hint}.",
            )

    def _require_one_source(self, folder_flag: str) -> None:
        """Raises `UserError` for a folder and files at the same time."""
        set_flags = [
            f"--{kind}_file"
            for kind in ("train", "dev", "test")
            if getattr(self, f"{kind}_file") is not None
        ]
        require(
            not (getattr(self, folder_flag) and set_flags),
            f"--{folder_flag} replaces --train_file, --dev_file and "
            f"--test_file. Received: --{folder_flag} and "
            f"{', '.join(set_flags)}.",
        )

    @property
    def may_score_dev(self) -> bool:
        """True if there may be a dev set to select by."""
        return self.do_eval

    @property
    def selects_evaluation(self) -> bool:
        """True if training evaluates on dev, to select one of its steps."""
        return self.keep_best or self.early_stopping_patience > 0

    def trials(self) -> tuple[TrialConfig, ...]:
        """Returns the trials: all combinations of the hyperparameters.

        Raises:
          UserError: If a flag holds anything other than numbers.
        """
        rates = self._numbers("learning_rate", float)
        sizes = self._numbers("train_batch_size", int)
        epochs = self._numbers("num_train_epochs", float)
        return tuple(
            TrialConfig(
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
                noun = "whole number" if kind is int else "number"
                raise UserError(
                    f"--{name} must be a {noun} above 0, or several, separated "
                    f"by commas. Received: {getattr(self, name)!r}."
                )
            values.append(value)
        if len(set(values)) < len(values):
            raise UserError(
                f"--{name} names a value twice. Received: "
                f"{getattr(self, name)!r}."
            )
        return tuple(values)
