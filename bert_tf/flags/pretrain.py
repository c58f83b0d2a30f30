"""What run/pretrain.py can be told."""

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
        help_text="The shape of the model: bert_config.json."
    )
    input_file: str = option(
        help_text="Records to train on: comma-separated globs."
    )
    output_dir: str = option(help_text="Where everything made is kept.")
    init_checkpoint: str | None = option(
        None, "Model to start from: of any format, or a checkpoint's prefix."
    )
    max_seq_length: int = option(128, "Length of a record's sequence.")
    max_predictions_per_seq: int = option(
        20, "Number of a record's predictions."
    )
    do_train: bool = option(False, "Whether to train.")
    do_eval: bool = option(False, "Whether to evaluate.")
    train_batch_size: int = option(32, "Sequences per step, all replicas.")
    eval_batch_size: int = option(8, "Sequences per evaluation step.")
    learning_rate: float = option(5e-5, "Peak learning rate.")
    num_train_steps: int = option(100000, "Steps of the whole schedule.")
    num_warmup_steps: int = option(10000, "Steps of linear warm-up.")
    save_checkpoints_steps: int = option(1000, "Steps between checkpoints.")
    iterations_per_loop: int = option(1000, "Steps between metrics lines.")
    max_eval_steps: int = option(100, "Most evaluation steps.")

    eval_input_file: str | None = option(
        None, "Records to evaluate on (default: --input_file)."
    )
    vocab_file: str | None = option(
        None, "The records' vocabulary (default: the one beside them)."
    )
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is lower case (default: the manifest's)."
    )
    seed: int = option(12345, "Seed of weights, order, masks and dropout.")
    optimizer: str = option(
        "bert_adam",
        "bert_adam: the original's, without bias correction.",
        choices=OPTIMIZERS,
    )
    weight_decay_rate: float = option(0.01, "Decoupled weight decay.")
    gradient_accumulation_steps: int = option(
        1, "Batches of --train_batch_size that make one step."
    )
    micro_batch_size: str = option(
        "0",
        "Sequences computed at once: a number, auto (what fits in memory) or "
        "0 (all). The result does not depend on it.",
    )
    dynamic_masking: bool = option(
        False, "Whether masks are drawn anew in each epoch."
    )
    masked_lm_prob: float = option(
        0.15, "With --dynamic_masking: share of pieces to predict."
    )
    use_next_sentence: bool = option(
        True, "Whether the next-sentence loss takes part."
    )
    stop_at_step: int | None = option(
        None, "Stop here, though the schedule goes on."
    )
    hidden_act: str | None = option(
        None, "Overrides the configuration's activation.", choices=HIDDEN_ACTS
    )
    left_to_right: bool | None = option(
        None, "Overrides the configuration's direction of attention."
    )
    init_optimizer_state: bool = option(
        False,
        "Whether Adam's moments and the step come from --init_checkpoint too, "
        "so that training goes on from there.",
    )
    keep_checkpoint_max: int = option(5, "Checkpoints to keep.")
    schedule_start_step: int = option(
        0,
        "The step at which the schedule of the learning rate begins, for a "
        "further phase: --num_warmup_steps counts from there, "
        "--num_train_steps, where it ends, as ever from the first step.",
    )
    max_corrupt_records: int = option(
        0, "Damaged records that are left out before the run ends."
    )
    tf_data_service: str | None = option(
        None,
        "Machines that read the records (run/data_service.py): "
        "grpc://host:port of each, separated by commas.",
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
            "records have their masks. Received: "
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
            "--tf_data_service is of use with --do_train only. Received: "
            f"{self.tf_data_service!r}.",
        )
        require(
            self.tf_data_service is None or not self.max_corrupt_records,
            "--max_corrupt_records cannot be had with --tf_data_service, whose "
            "workers read the records where they are. Received: "
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
            "--init_optimizer_state needs --init_checkpoint, the checkpoint to "
            "take it from.",
        )
