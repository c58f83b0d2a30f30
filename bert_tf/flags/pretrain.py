"""Flags of run/pretrain.py."""

import dataclasses

from bert_tf.config import HIDDEN_ACTS
from bert_tf.config import option
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least
from bert_tf.flags.checks import require_rate
from bert_tf.flags.checks import require_seed
from bert_tf.flags.devices import TrainingDeviceConfig

OPTIMIZERS = ("bert_adam", "adamw", "lamb")


@dataclasses.dataclass(frozen=True)
class PretrainConfig(TrainingDeviceConfig):
    """Flags of run/pretrain.py; the first block is the original's."""

    bert_config_file: str = option(
        help_text="Model configuration, bert_config.json.",
        group="model",
        affects="place",
    )
    input_file: str = option(
        help_text="Records to train on: comma-separated globs.", group="data"
    )
    output_dir: str = option(
        help_text="Directory for checkpoints, logs and the model.",
        group="output",
        affects="place",
    )
    init_checkpoint: str | None = option(
        None,
        "Model to start from: any format, or a checkpoint's prefix.",
        group="model",
        affects="place",
    )
    max_seq_length: int = option(
        128, "Sequence length of the records, in tokens.", group="data"
    )
    max_predictions_per_seq: int = option(
        20, "Masked tokens per record.", group="data"
    )
    do_train: bool = option(
        False, "Train.", group="training", affects="nothing"
    )
    do_eval: bool = option(
        False, "Evaluate.", group="evaluation and prediction", affects="nothing"
    )
    train_batch_size: int = option(
        32, "Sequences per batch, over all replicas.", group="training"
    )
    eval_batch_size: int = option(
        8,
        "Sequences per evaluation step.",
        group="evaluation and prediction",
        affects="nothing",
    )
    learning_rate: float = option(5e-5, "Peak learning rate.", group="training")
    num_train_steps: int = option(
        100000, "Steps of the whole schedule.", group="training"
    )
    num_warmup_steps: int = option(
        10000, "Steps of linear warmup.", group="training"
    )
    save_checkpoints_steps: int = option(
        1000, "Steps between checkpoints.", group="output", affects="nothing"
    )
    iterations_per_loop: int = option(
        1000,
        "Steps between lines of metrics.",
        group="output",
        affects="nothing",
    )
    max_eval_steps: int = option(
        100,
        "Maximum number of evaluation steps.",
        group="evaluation and prediction",
        affects="nothing",
    )

    eval_input_file: str | None = option(
        None,
        "Records to evaluate on (default: --input_file).",
        group="evaluation and prediction",
        affects="place",
    )
    vocab_file: str | None = option(
        None,
        "Vocabulary of the records (default: the one next to them).",
        group="data",
        affects="place",
    )
    do_lower_case: bool | None = option(
        None,
        "The vocabulary is lower-cased (default: as the records' manifest "
        "states).",
        group="data",
    )
    seed: int = option(
        12345,
        "Random seed of weights, order, masks and dropout.",
        group="training",
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
    gradient_accumulation_steps: int = option(
        1, "Batches of --train_batch_size per optimizer step.", group="training"
    )
    micro_batch_size: str = option(
        "0",
        "Sequences computed at once: a number, auto (as many as fit in "
        "memory) or 0 (all). Does not change the result.",
        group="hardware",
    )
    dynamic_masking: bool = option(
        False, "Draw new masks in each epoch.", group="training"
    )
    masked_lm_prob: float = option(
        0.15,
        "Share of tokens to predict, for --dynamic_masking.",
        group="training",
    )
    use_next_sentence: bool = option(
        True, "Include the next-sentence loss.", group="training"
    )
    stop_at_step: int | None = option(
        None,
        "Stop at this step, before the end of the schedule.",
        group="training",
        affects="nothing",
    )
    hidden_act: str | None = option(
        None,
        "Activation function (default: the configuration's).",
        group="model",
        choices=HIDDEN_ACTS,
    )
    left_to_right: bool | None = option(
        None,
        "Attention to the left only, Table 5 (default: the configuration's).",
        group="model",
    )
    init_optimizer_state: bool = option(
        False,
        "Continue training of --init_checkpoint: load Adam's moments and the "
        "step too.",
        group="model",
        affects="nothing",
    )
    keep_checkpoint_max: int = option(
        5, "Number of checkpoints to keep.", group="output", affects="nothing"
    )
    schedule_start_step: int = option(
        0,
        "First step of the learning-rate schedule, for a second phase: "
        "--num_warmup_steps counts from here, --num_train_steps still from "
        "step 0.",
        group="training",
    )
    max_corrupt_records: int = option(
        0,
        "Number of corrupt records to skip before the run fails.",
        group="data",
        affects="nothing",
    )
    tf_data_service: str | None = option(
        None,
        "Machines that read the records (run/data_service.py): "
        "grpc://host:port of each, separated by commas.",
        group="data",
        affects="place",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.do_train or self.do_eval,
            "At least one of --do_train and --do_eval must be set.",
        )
        require_at_least(
            self,
            1,
            "max_seq_length",
            "max_predictions_per_seq",
            "train_batch_size",
            "eval_batch_size",
            "num_train_steps",
            "save_checkpoints_steps",
            "iterations_per_loop",
            "max_eval_steps",
            "gradient_accumulation_steps",
            "stop_at_step",
            "keep_checkpoint_max",
        )
        require_seed(self.seed)
        require(
            self.dynamic_masking
            or self.masked_lm_prob == PretrainConfig.masked_lm_prob,
            "--masked_lm_prob has no effect without --dynamic_masking: the "
            "records are masked already. Received: "
            f"{self.masked_lm_prob}.",
        )
        require_at_least(
            self,
            0,
            "num_warmup_steps",
            "schedule_start_step",
            "max_corrupt_records",
        )
        require(
            self.schedule_start_step < self.num_train_steps,
            "--schedule_start_step must be below --num_train_steps="
            f"{self.num_train_steps}, where the schedule ends. Received: "
            f"{self.schedule_start_step}.",
        )
        require(
            self.tf_data_service is None or self.do_train,
            "--tf_data_service is for --do_train only. Received: "
            f"{self.tf_data_service!r}.",
        )
        require(
            self.tf_data_service is None or not self.max_corrupt_records,
            "--max_corrupt_records does not work with --tf_data_service, whose "
            "workers read the records on their own machines. Received: "
            f"{self.max_corrupt_records}; drop one of the two.",
        )
        require_rate(self, "masked_lm_prob")
        require(
            self.learning_rate > 0,
            f"--learning_rate must be positive. Received: "
            f"{self.learning_rate}.",
        )
        require(
            self.micro_batch_size == "auto" or self.micro_batch_size.isdigit(),
            "--micro_batch_size must be a number, auto or 0. Received: "
            f"{self.micro_batch_size!r}.",
        )
        require(
            bool(self.init_checkpoint) or not self.init_optimizer_state,
            "--init_optimizer_state needs --init_checkpoint, the checkpoint "
            "that holds it.",
        )
