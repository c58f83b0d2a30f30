"""What each script can be told: one frozen dataclass per script.

Field names are flag names unless `name=` says otherwise. Names and defaults
are the original's where the original has the flag. Nothing here imports
TensorFlow.
"""

import dataclasses
from typing import Any

from bert_tf.config import HIDDEN_ACTS
from bert_tf.config import option
from bert_tf.errors import UserError

PRECISIONS = ("float32", "bfloat16", "float16", "auto")
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored")
# What a replica's step is compiled with XLA.
XLA_MODES = ("auto", "on", "off")
OPTIMIZERS = ("bert_adam", "adamw", "lamb")
# What runs Apache Beam's pipelines.
RUNNERS = ("DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner")
# What runs the models of a server.
ENGINES = ("savedmodel", "litert")
# The formats of checkpoints that are read and written.
FORMATS = ("tf1", "huggingface", "keras_hub", "model_garden", "bert_tf")


def require(condition: bool, message: str) -> None:
    """Raises `UserError` unless the condition holds."""
    if not condition:
        raise UserError(message)


def require_at_least(config: Any, least: int, *names: str) -> None:
    """Raises `UserError` if a flag, unless it is None, is below `least`."""
    for name in names:
        value = getattr(config, name)
        require(
            value is None or value >= least,
            f"--{name} must be at least {least}. Received: {value}.",
        )


def require_rate(config: Any, *names: str) -> None:
    """Raises `UserError` if a flag does not lie between 0 and 1."""
    for name in names:
        value = getattr(config, name)
        require(
            0 <= value <= 1,
            f"--{name} must lie between 0 and 1. Received: {value}.",
        )


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
        for field in dataclasses.fields(self):
            if field.name in (
                "do_whole_word_mask",
                "masked_lm_prob",
                "mask_rate",
                "same_rate",
                "random_rate",
                "max_ngram",
            ):
                value = getattr(self, field.name)
                require(
                    value == field.default,
                    f"--{field.name} has no effect with --left_to_right. "
                    f"Received: {value}; drop one of the two.",
                )

    def _check_original(self) -> None:
        """The original's algorithm has none of the streaming options."""
        require(
            not self.split_sentences,
            "--generator=original reads one sentence a line and cannot split "
            "paragraphs. Received: --split_sentences; drop one of the two.",
        )
        for field in dataclasses.fields(self):
            if field.name in (
                "num_shards",
                "num_processes",
                "runner",
                "next_sentence_pairs",
                "left_to_right",
                "mask_rate",
                "same_rate",
                "random_rate",
                "max_ngram",
            ):
                value = getattr(self, field.name)
                require(
                    value == field.default,
                    f"--{field.name} has no effect with --generator=original. "
                    f"Received: {value}; drop one of the two.",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """The flags of all scripts that choose devices, and how precisely."""

    use_tpu: bool = option(False, "Same as --distribution_strategy=tpu.")
    tpu_name: str | None = option(None, "Same as --tpu.")
    tpu: str | None = option(None, "Address of the TPU.")
    distribution_strategy: str = option(
        "one_device",
        "Where to compute.",
        choices=(*STRATEGIES, "tpu", "parameter_server"),
    )
    num_gpus: int = option(
        0, "GPUs of a machine (or logical CPUs) to use; 0 means all."
    )
    worker_hosts: str | None = option(
        None,
        "The workers of --distribution_strategy=multi_worker_mirrored, as "
        "host:port, comma-separated, the same on all of them; in place of "
        "TF_CONFIG.",
    )
    task_index: int | None = option(
        None, "Which of --worker_hosts this one is, counted from 0."
    )
    mixed_precision: str = option(
        "float32",
        "Precision of the arithmetic; auto takes bfloat16 where the hardware "
        "has it. Weights stay float32.",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        require(
            self.distribution_strategy != "parameter_server",
            "--distribution_strategy=parameter_server cannot be had: Keras 3 "
            "keeps no variables on parameter servers "
            "(https://github.com/keras-team/keras/issues/18624); use "
            "multi_worker_mirrored.",
        )
        require_at_least(self, 0, "num_gpus")
        require(
            (self.worker_hosts is None) == (self.task_index is None),
            "--worker_hosts and --task_index belong together. Received: "
            f"--worker_hosts={self.worker_hosts}, "
            f"--task_index={self.task_index}.",
        )
        if self.worker_hosts is None:
            return
        num_hosts = len(self.worker_hosts.split(","))
        require(
            0 <= self.task_index < num_hosts,
            f"--task_index must be at least 0 and below {num_hosts}, the "
            f"number of --worker_hosts. Received: {self.task_index}.",
        )
        require(
            self.distribution_strategy in ("auto", "multi_worker_mirrored")
            and not self.use_tpu,
            "--worker_hosts is for --distribution_strategy="
            "multi_worker_mirrored. Received: "
            f"{'tpu' if self.use_tpu else self.distribution_strategy}.",
        )

    def common_flags(self) -> dict[str, Any]:
        """Returns by name the flags that all workers must have alike."""
        return {
            f"--{name}": value
            for name, value in dataclasses.asdict(self).items()
            if name != "task_index"
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingDeviceConfig(DeviceConfig):
    """The same for scripts whose originals ran on the TPUs of their time."""

    tpu_zone: str | None = option(None, "Of the original; has no meaning now.")
    gcp_project: str | None = option(
        None, "Of the original; has no meaning now."
    )
    master: str | None = option(None, "Of the original; has no meaning now.")
    num_tpu_cores: int | None = option(
        None, "Of the original; has no meaning now."
    )
    xla: str = option(
        "auto",
        "on compiles the whole step of a device with XLA; off compiles "
        "nothing; auto does what suits the device. The log says what was "
        "compiled.",
        choices=XLA_MODES,
    )
    remat: bool = option(
        False,
        "Whether layers are computed again in the backward pass, which takes "
        "a third longer and far less memory.",
    )
    allow_changed_data: bool = option(
        False, "Whether a resumed run may have other data or options."
    )


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


@dataclasses.dataclass(frozen=True)
class FillMaskConfig:
    """Flags of run/fill_mask.py."""

    model_dir: str = option(
        help_text="A model of any format, with its vocabulary."
    )
    text: str = option(help_text="Text with one or more [MASK].")
    top_k: int = option(5, "Candidates per [MASK].")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "top_k")


@dataclasses.dataclass(frozen=True)
class ExtractFeaturesConfig:
    """Flags of run/extract_features.py; all but the last are the original's.

    A model of any format may stand in --model_dir as in --init_checkpoint; the
    original's flags are needed where it lies without what they name.
    """

    input_file: str = option(
        help_text="One text a line; ' ||| ' stands between the two of a pair."
    )
    output_file: str = option(help_text="JSON lines in the original's form.")
    layers: str = option("-1,-2,-3,-4", "Layers to write.")
    bert_config_file: str | None = option(
        None, "The shape of the model (default: what lies beside it)."
    )
    max_seq_length: int = option(128, "Longest sequence, in pieces.")
    init_checkpoint: str | None = option(
        None, "The model to read: of any format, or a checkpoint's prefix."
    )
    vocab_file: str | None = option(
        None, "The vocabulary, one piece a line (default: the model's)."
    )
    do_lower_case: bool = option(True, "Whether to lower-case the text.")
    batch_size: int = option(32, "Texts computed at once.")
    use_tpu: bool = option(False, "Of the original; has no meaning now.")
    master: str | None = option(None, "Of the original; has no meaning now.")
    num_tpu_cores: int | None = option(
        None, "Of the original; has no meaning now."
    )
    use_one_hot_embeddings: bool = option(
        False, "Of the original; has no meaning now."
    )
    model_dir: str | None = option(
        None,
        "A model of any format, in place of --bert_config_file, "
        "--init_checkpoint and --vocab_file.",
    )

    def __post_init__(self) -> None:
        require_at_least(self, 3, "max_seq_length")
        require_at_least(self, 1, "batch_size")
        trio = (self.bert_config_file, self.init_checkpoint, self.vocab_file)
        if self.model_dir:
            require(
                not any(trio),
                "--model_dir takes the place of --bert_config_file, "
                "--init_checkpoint and --vocab_file. Received both; drop one.",
            )
        else:
            require(
                bool(self.init_checkpoint),
                "Give --model_dir, or --init_checkpoint with "
                "--bert_config_file and --vocab_file unless they lie beside "
                "it.",
            )


@dataclasses.dataclass(frozen=True)
class ConvertCheckpointConfig:
    """Flags of run/convert_checkpoint.py."""

    target_format: str = option(
        help_text="The format to write.", name="to", choices=FORMATS
    )
    input: str = option(
        help_text="A local directory; for checkpoints of TensorFlow also a "
        "prefix such as bert_model.ckpt."
    )
    output: str = option(help_text="The local directory to write.")
    source_format: str | None = option(
        None,
        "The format of --input (default: recognised).",
        name="from",
        choices=FORMATS,
    )
    overwrite: bool = option(
        False, "Whether --output may replace a directory that is there."
    )
    allow_missing: str | None = option(
        None,
        "Regular expression: weights whose name it matches may be missing "
        "(they begin anew) or unused.",
    )
    allow_activation_change: bool = option(
        False,
        "Whether a model with the exact GELU may go to KerasHub, which has "
        "only the tanh form; prints what that changes.",
    )
    do_lower_case: bool | None = option(
        None,
        "Whether the model reads lower case, where its format does not say "
        "(default: as its vocabulary shows).",
    )


@dataclasses.dataclass(frozen=True)
class ExtendVocabularyConfig:
    """Flags of run/extend_vocabulary.py."""

    input: str = option(
        help_text="The model: a model directory, or any format that "
        "convert_checkpoint.py reads."
    )
    output: str = option(help_text="The model directory to write.")
    new_words_file: str | None = option(
        None, "New words, one a line; a line such as ##itis continues words."
    )
    use_unused: bool = option(
        True,
        "Whether new words take [unusedN] lines first; the table grows by "
        "the others.",
    )
    max_position_embeddings: int | None = option(
        None, "The new length of the position table, filled by copying."
    )
    do_lower_case: bool | None = option(
        None,
        "Whether the model reads lower case, where its format does not say "
        "(default: as its vocabulary shows).",
    )
    overwrite: bool = option(
        False, "Whether --output may replace a directory that is there."
    )

    def __post_init__(self) -> None:
        require(
            bool(self.new_words_file or self.max_position_embeddings),
            "Give --new_words_file, --max_position_embeddings, or both.",
        )
        require(
            bool(self.new_words_file) or self.use_unused,
            "--nouse_unused is of use with --new_words_file only.",
        )
        require_at_least(self, 1, "max_position_embeddings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PredictionConfig(DeviceConfig):
    """What scripts that predict with fine-tuned models have in common."""

    batch_size: int = option(32, "Rows computed at once.")
    num_length_buckets: int = option(
        0,
        "Lengths that batches are padded to: 0 takes every multiple of 8, 1 "
        "pads all to the model's max_seq_length as the original does, others "
        "choose the lengths with the least padding (for TPUs, which compile "
        "each).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "batch_size")
        require_at_least(self, 0, "num_length_buckets")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(_PredictionConfig):
    """Flags of run/predict.py."""

    model_dir: str = option(
        help_text="A fine-tuned model of any format, with its vocabulary."
    )
    input_file: str = option(
        help_text="What to predict, with the columns of the training data: "
        ".csv, .tsv, .jsonl, .json, .txt or .conll, each also .gz. Labels are "
        "not read."
    )
    output_file: str = option(
        help_text="JSON lines: one object for each row, in the input's order."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSubmissionConfig(_PredictionConfig):
    """Flags of run/glue_submission.py."""

    model_dirs: str = option(
        help_text="The fine-tuned models, one for each task: comma-separated "
        "globs of directories. Each says itself which task it is for."
    )
    glue_dir: str = option(
        help_text="The folder with GLUE's folders: CoLA, SST-2, MNLI, AX, ..."
    )
    output_file: str = option(
        "submission.zip", "The zip file for the leaderboard."
    )
    allow_missing_tasks: bool = option(
        False,
        "Whether tasks without a model or a folder are left out; the "
        "leaderboard takes no such file.",
    )


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Flags of run/serve.py; names are TensorFlow Serving's where it has them.

    The flags that say how requests are merged may be left out (None).
    """

    model_base_path: str | None = option(
        None, "The folder that holds the model's versions: 1, 2, ..."
    )
    model_name: str | None = option(
        None, "What requests call the model (default: the folder's name)."
    )
    model_config_file: str | None = option(
        None,
        "A text file of ModelServerConfig, for several models, version labels "
        "or other versions than the newest.",
    )
    engine: str = option(
        "savedmodel",
        "What runs the models: savedmodel runs any, as TensorFlow Serving "
        "does; litert, the fastest on an x86 CPU, those that were exported "
        "with --litert.",
        choices=ENGINES,
    )
    host: str = option(
        "127.0.0.1", "The address to listen at; 0.0.0.0 means all."
    )
    port: int = option(8500, "The port of gRPC; 0 means none.")
    rest_api_port: int = option(
        8501, "The port of REST, the page and /metrics; 0 means none."
    )
    rest_api_timeout_in_ms: int = option(
        30000, "How long a REST request may take, in milliseconds."
    )
    file_system_poll_wait_seconds: float = option(
        1.0, "Seconds between two looks for new versions; 0: no second look."
    )
    enable_model_warmup: bool = option(
        True,
        "Whether a new version first answers the requests in its "
        "assets.extra/tf_serving_warmup_requests.",
    )
    enable_batching: bool = option(
        True,
        "Whether rows of different requests may go into one call of the model.",
    )
    batching_parameters_file: str | None = option(
        None, "A text file of BatchingParameters, instead of the next four."
    )
    max_batch_size: int | None = option(
        None, "The most rows that are merged (default: 64)."
    )
    batch_timeout_micros: int | None = option(
        None,
        "How long a request waits for others while a thread is free, in "
        "microseconds (default: 0).",
    )
    max_enqueued_batches: int | None = option(
        None,
        "Full batches that may wait for a signature; requests beyond that are "
        "refused (default: 10).",
    )
    num_batch_threads: int | None = option(
        None, "Calls of models at once (default: one a core)."
    )
    tensorflow_intra_op_parallelism: int = option(
        0, "Threads inside one operator, or LiteRT's; 0 means one a core."
    )
    tensorflow_inter_op_parallelism: int = option(
        0, "Operators at once; 0 means one a core."
    )

    def __post_init__(self) -> None:
        require(
            bool(self.model_base_path) != bool(self.model_config_file),
            "Give either --model_base_path or --model_config_file.",
        )
        require(
            self.model_base_path is not None or self.model_name is None,
            "--model_name is of use with --model_base_path only.",
        )
        require_at_least(self, 0, "file_system_poll_wait_seconds")
        require_at_least(self, 1, "rest_api_timeout_in_ms")
        require_at_least(
            self,
            0,
            "tensorflow_intra_op_parallelism",
            "tensorflow_inter_op_parallelism",
            "batch_timeout_micros",
        )
        require_at_least(self, 1, "max_batch_size", "max_enqueued_batches")
        require_at_least(self, 1, "num_batch_threads")
        self._check_ports()
        self._check_batching()

    def batching(self) -> dict[str, int]:
        """Returns the flags that say how requests are merged."""
        names = (
            "max_batch_size",
            "batch_timeout_micros",
            "max_enqueued_batches",
            "num_batch_threads",
        )
        values = {name: getattr(self, name) for name in names}
        return {name: x for name, x in values.items() if x is not None}

    def _check_ports(self) -> None:
        for name in ("port", "rest_api_port"):
            require(
                0 <= getattr(self, name) < 65536,
                f"--{name} must lie between 0 and 65535. Received: "
                f"{getattr(self, name)}.",
            )
        require(
            self.port != self.rest_api_port,
            "--port and --rest_api_port must differ. Received: both "
            f"{self.port}.",
        )

    def _check_batching(self) -> None:
        flags = list(self.batching())
        if self.batching_parameters_file is not None:
            require(
                not flags,
                f"--{', --'.join(flags)} and --batching_parameters_file say "
                "the same; drop one of the two.",
            )
            flags = ["batching_parameters_file"]
        require(
            self.enable_batching or not flags,
            f"--{', --'.join(flags)} is of use with --enable_batching only.",
        )


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Flags of run/demo.py."""

    output_dir: str = option(".demo", "Where everything made is kept.")
    num_train_steps: int = option(
        0, "Pretraining steps; 0 means the number that the demo is judged by."
    )

    def __post_init__(self) -> None:
        require_at_least(self, 0, "num_train_steps")
