"""What all scripts that fine-tune can be told.

Names and defaults are those of the original's run_classifier.py and
run_squad.py where these have the flag.
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
        "Whether text is made lower case for --vocab_file (default: as the "
        "model says, else unless a piece has an upper-case letter). A "
        "--pretrained_model_dir knows by itself.",
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
        DEFAULT_RATE,
        "Peak learning rate; several, as 5e-5,3e-5, are tried in turn.",
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
            len(self.runs()) == 1 or not self.do_train or self.may_score_dev,
            "Several runs need --do_eval, as the best of them on dev is kept.",
        )
        require(
            not self.selects_evaluation
            or (self.do_train and self.may_score_dev),
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

    def asked_kinds(self) -> dict[str, str]:
        """Returns the kinds of data that are asked for, and by which flag."""
        flags = (
            ("train", "do_train"),
            ("dev", "do_eval"),
            ("test", "do_predict"),
        )
        return {
            kind: f"--{flag}" for kind, flag in flags if getattr(self, flag)
        }

    def _require_own_files(self, folder_flag: str | None = None) -> None:
        """Raises `UserError` if one of --train_file, ... is not given.

        Args:
          folder_flag: What names a folder with them instead, if anything does.
        """
        if folder_flag and getattr(self, folder_flag):
            return
        hint = f", or --{folder_flag}" if folder_flag else ""
        for kind, flag in self.asked_kinds().items():
            require(
                getattr(self, f"{kind}_file") is not None,
                f"{flag} needs --{kind}_file{hint}.",
            )

    @property
    def may_score_dev(self) -> bool:
        """Whether there may be a dev set to choose by."""
        return self.do_eval

    @property
    def selects_evaluation(self) -> bool:
        """Whether dev is evaluated in training, to choose among its steps."""
        return self.keep_best or self.early_stopping_patience > 0

    def runs(self) -> tuple[TrialConfig, ...]:
        """Returns the settings of each run: all combinations of the values.

        Raises:
          UserError: If a flag holds something else than numbers.
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
