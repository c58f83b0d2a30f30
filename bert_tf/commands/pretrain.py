r"""Pretrains a BERT on the records of run/create_pretraining_data.py.

  python run/pretrain.py --flagfile=base.flags

Flags can also be given one by one:

  python run/pretrain.py --bert_config_file=configs/tiny/bert_config.json \
      --input_file=data/pretraining/*.tfrecord --output_dir=output/tiny \
      --do_train --do_eval --num_train_steps=1000 --num_warmup_steps=100

Rerun the same command to resume from the last checkpoint. --init_checkpoint
loads the weights of a model of any format. --init_optimizer_state also loads
the optimizer's state and the step, to continue that model's training.
"""

import dataclasses
import functools
import os

from bert_tf.config import HIDDEN_ACTS
from bert_tf.errors import program
from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig
from bert_tf.flags.groups import TrainingDeviceConfig

_masking = functools.partial(
    options.training, **options.SHARE, needs="dynamic_masking"
)


@dataclasses.dataclass(frozen=True)
class PretrainConfig(TrainingDeviceConfig, ModelSourceConfig):
    """Flags of run/pretrain.py; most of the first block are the original's."""

    bert_config_file: str = options.model_file(
        "Model configuration, bert_config.json. bert_tf has configs/tiny/, "
        "configs/base/ and configs/large/bert_config.json, and others such as "
        "configs/L-3_H-768_A-12/ for the sizes of Table 6 and of the 24 "
        "miniatures; their vocab_size becomes the vocabulary's size.",
        options.REQUIRED,
    )
    input_file: str = options.data(
        "Records to train on: comma-separated globs.",
        options.REQUIRED,
        reads="files",
    )
    output_dir: str = options.target(
        "Directory for checkpoints, logs and the model.", options.REQUIRED
    )
    init_checkpoint: str | None = options.start_model(
        "Model to start from: any format, or a checkpoint's prefix."
    )
    max_seq_length: int = options.data(
        "Sequence length of the records, in tokens.", 128, at_least=1
    )
    max_predictions_per_seq: int | None = options.data(
        "Predicted tokens per record (default: as the records' manifest "
        "states, else 20).",
        at_least=1,
    )
    do_eval: bool = options.scoring("Evaluate.", False)
    train_batch_size: int = options.training(
        "Sequences per batch, over all replicas.", 32, at_least=1
    )
    eval_batch_size: int = options.scoring(
        "Sequences per evaluation step.", 8, at_least=1
    )
    learning_rate: float = options.training(
        "Peak learning rate.", 5e-5, above=0
    )
    num_train_steps: int = options.training(
        "Steps of the whole schedule.", 100000, at_least=1
    )
    num_warmup_steps: int = options.training("Steps of linear warmup.", 10000)
    schedule: str = options.training(
        "Learning rate after the warmup: linear, decay to 0; or wsd, stable "
        "until the last fifth of the steps, then decay to 0.",
        "linear",
        choices=("linear", "wsd"),
    )
    # At 0, bias correction would take the logarithm of 0.
    adam_beta2: float = options.training(
        "Decay rate of the mean of squared gradients.", 0.999, above=0, below=1
    )
    iterations_per_loop: int = options.reporting(
        "Steps between lines of metrics.", 1000, at_least=1
    )
    max_eval_steps: int = options.scoring(
        "Maximum number of evaluation steps.", 100, at_least=1
    )

    eval_input_file: str | None = options.evaluation(
        "Records to evaluate on (default: --input_file).",
        affects="place",
        reads="files",
    )
    vocab_file: str | None = options.data_file(
        "Vocabulary of the records (default: the one next to them)."
    )
    do_lower_case: bool | None = options.data(
        "The vocabulary is lower-cased (default: as the records' manifest "
        "states)."
    )
    seed: int = options.training(
        "Random seed of weights, order, masks and dropout.",
        12345,
        below=1 << 32,
    )
    gradient_accumulation_steps: int = options.training(
        "Batches of --train_batch_size per optimizer step.", 1, at_least=1
    )
    micro_batch_size: str = options.hardware(
        "Sequences computed at once: a number, auto (as many as make a step "
        "faster) or 0 (all). Does not change the result.",
        "0",
    )
    dynamic_masking: bool = options.training(
        "Draw new masks in each epoch.", False
    )
    masked_lm_prob: float = _masking(
        "Share of tokens to predict, for --dynamic_masking.",
        0.15,
    )
    final_masked_lm_prob: float | None = _masking(
        "Value that --masked_lm_prob approaches linearly until the last step "
        "(default: no change)."
    )
    mask_rate: float | None = _masking(
        "Share of chosen tokens replaced with [MASK], for --dynamic_masking "
        "(Table 8; default: as in the records, or 0.8 if --same_rate or "
        "--random_rate is set)."
    )
    same_rate: float | None = _masking(
        "Share of chosen tokens left unchanged, for --dynamic_masking "
        "(default: as in the records, or 0.1 if --mask_rate or --random_rate "
        "is set)."
    )
    random_rate: float | None = _masking(
        "Share of chosen tokens replaced with a random one, for "
        "--dynamic_masking (default: as in the records, or 0.1 if --mask_rate "
        "or --same_rate is set)."
    )
    use_next_sentence: bool = options.training(
        "Include the next-sentence loss.", True
    )
    stop_at_step: int | None = options.training(
        "Stop at this step, before the end of the schedule.",
        affects="nothing",
        at_least=1,
    )
    hidden_act: str | None = options.model(
        "Activation function (default: the configuration's).",
        choices=HIDDEN_ACTS,
    )
    init_optimizer_state: bool = options.model(
        "Continue training of --init_checkpoint: load Adam's moments and the "
        "step too.",
        False,
        affects="nothing",
        needs="init_checkpoint",
    )
    keep_checkpoint_max: int = options.reporting(
        "Number of checkpoints to keep.", 5, at_least=1
    )
    schedule_start_step: int = options.training(
        "First step of the learning-rate schedule, for a second phase: "
        "--num_warmup_steps counts from here, --num_train_steps still from "
        "step 0.",
        0,
    )
    max_corrupt_records: int = options.data(
        "Number of corrupt records to skip before the run fails.",
        0,
        affects="nothing",
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.do_train or self.do_eval,
            "At least one of --do_train and --do_eval must be set.",
        )
        self._resolve_mask_rates()
        options.require(
            self.schedule_start_step < self.num_train_steps,
            "--schedule_start_step must be below --num_train_steps="
            f"{self.num_train_steps}, where the schedule ends. Received: "
            f"{self.schedule_start_step}.",
        )
        options.require(
            self.micro_batch_size == "auto" or self.micro_batch_size.isdigit(),
            "--micro_batch_size must be a number, auto or 0. Received: "
            f"{self.micro_batch_size!r}.",
        )

    def _resolve_mask_rates(self) -> None:
        given = options.set_values(self, *options.MASK_RATES)
        if not given:
            return
        for name, value in (options.MASK_RATES | given).items():
            object.__setattr__(self, name, value)
        options.require_mask_rates(self)

    def unread_inputs(self) -> frozenset[str]:
        """Returns the flags of the input files that this run does not read."""
        unread = set() if self.do_eval else {"eval_input_file"}
        if "://" in self.output_dir or os.path.isdir(self.output_dir):
            unread.add("init_checkpoint")  # A resumed run does not read it.
        return frozenset(unread)

    def input_hints(self) -> dict[str, str]:
        """Returns advice on how to make missing input files, by flag."""
        vocab_file = self.vocab_file or "vocab.txt"
        records = self.input_file.split(",")[0].replace("*", "train")
        more = "" if self.use_next_sentence else " --nonext_sentence_pairs"
        if count := self.max_predictions_per_seq:
            more += f" --max_predictions_per_seq={count}"
        return {
            "input_file": "create the records with "
            f"`{program('run/learn_vocabulary.py')} --input_file=YOUR_TEXT "
            f"--output_file={vocab_file}` and "
            f"`{program('run/create_pretraining_data.py')} "
            "--input_file=YOUR_TEXT "
            f"--output_file={records} --vocab_file={vocab_file} "
            f"--max_seq_length={self.max_seq_length}{more}`."
        }


def main(config: PretrainConfig) -> None:
    from bert_tf.io import files
    from bert_tf.text.vocabulary import Vocabulary

    bert_config = files.read_bert_config(config.bert_config_file)
    longest = bert_config.max_position_embeddings
    options.require_length(config, longest, config.bert_config_file)
    if config.vocab_file:
        Vocabulary.from_file(config.vocab_file)  # Fails before slow imports.
    from bert_tf.pretraining import run as pretraining
    from bert_tf.training import preemption as preemptions

    with preemptions.prepare(config) as (devices, requests):
        pretraining.run(config, devices, requests)
