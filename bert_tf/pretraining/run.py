"""Pretraining, from the flags to the model directory."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from bert_tf import errors
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.config import BertConfig
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.distribute.batches import StepPlan
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import paths
from bert_tf.io import terminal
from bert_tf.io import train_log
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import encoder
from bert_tf.pretraining import data as pretraining_input
from bert_tf.pretraining import evaluation
from bert_tf.pretraining import plateau
from bert_tf.pretraining import samples
from bert_tf.text.vocabulary import MASK
from bert_tf.training import losses
from bert_tf.training import metrics as training_metrics
from bert_tf.training import optimizer as optimizers
from bert_tf.training import output as training_output
from bert_tf.training import resume as resume_checks
from bert_tf.training import state as training_state
from bert_tf.training import unpad as unpadding
from bert_tf.training.checkpoints import Checkpoint
from bert_tf.training.preemption import Preemption
from bert_tf.training.step import TrainingStep
from bert_tf.training.trainer import Trainer
from bert_tf.training.trainer import TrainerConfig
from bert_tf.training.xla import Compilation

EVAL_RESULTS_FILE = "eval_results.txt"
# Tokens per micro-batch: more are hardly faster, but take more memory.
_TOKENS_AT_ONCE = {"CPU": 1 << 12, "GPU": 1 << 15, "TPU": 1 << 15}
# Without the next-sentence task, these weights keep their initial values.
_NEXT_SENTENCE_PARTS = ("bert/pooler/", "cls/seq_relationship/")

_ACTIVATION_NAMES = {
    "gelu": "gelu, the tanh form (--hidden_act=gelu_erf is the exact one)",
    "gelu_erf": "gelu_erf, the exact form",
}
# Commands that use the model; left-to-right models cannot run fill_mask.py.
_NEXT_COMMANDS = (
    "python run/fill_mask.py --model_dir={} --text='The [MASK] is here.'",
    "python run/finetune_classifier.py --pretrained_model_dir={} ...",
)


def run(config: Flags, devices: Devices, preemption: Preemption) -> None:
    """Runs pretraining as the flags of run/pretrain.py specify.

    Raises:
      Preempted: On SIGTERM or Ctrl-C, after a checkpoint was written.
      UserError: For errors that the user can fix.
    """
    trainer = _PretrainingTrainer(config, devices, preemption)
    trainer.restore_or_initialize()
    if devices.coordinator.is_chief:
        train_log.open_in(config.output_dir)
    trainer.train_and_evaluate()


class _PretrainingTrainer(Trainer):
    """Pretrains and evaluates; each worker of a run has one trainer."""

    _data: pretraining_input.PretrainingData
    _input: PretrainingInput | None = None
    _eval_input: PretrainingInput | None = None
    _held_out: evaluation.HeldOut | None = None
    # Only the chief watches the plateau: on other workers, `_watch` stays None.
    _watch: plateau.Watch | None = None

    def __init__(
        self, config: Flags, devices: Devices, preemption: Preemption
    ) -> None:
        super().__init__(config, config.output_dir, devices, preemption)
        self._unpad: bool | None = None  # None before it is chosen.
        self._is_new_phase = False
        self._start: dict[str, Any] = {}
        self._tokens_before: int | None = None

    def identify(self) -> Mapping[str, Any]:
        """Reads model configuration, records and vocabulary."""
        config = self._flags
        self._data = data = pretraining_input.read_data(config)
        self._flags = config = dataclasses.replace(
            config,
            max_predictions_per_seq=pretraining_input.find_predictions(
                config.max_predictions_per_seq, data.manifest
            ),
        )
        # Remove old files only now, when the inputs are known to be good.
        training_output.start_over(config, self.coordinator)
        return resume_checks.describe(
            config,
            data.bert_config,
            data.record_files,
            data.manifest,
            data.vocabulary.hash if data.vocabulary else None,
        )

    def check_resume(self, checkpoint: Checkpoint | None) -> None:
        config = self._flags
        resume_checks.log_start(config, checkpoint)
        # All workers must find equal checkpoints: check before one is written.
        self.coordinator.agree(
            resume_checks.describe_for_workers(
                config, self.identity, checkpoint
            ),
            "flags, records and checkpoints",
        )
        if checkpoint is None:
            return
        metadata = checkpoint.metadata
        if not config.do_train:
            resume_checks.check_model(
                metadata, self.identity, config.allow_changed_data
            )
            return
        self._is_new_phase = resume_checks.check_continuation(
            metadata, self.identity, checkpoint.step, config
        )

    def build(
        self, checkpoint: Checkpoint | None
    ) -> tuple[TrainingStep, TrainerConfig]:
        """Builds the model, with new weights or with --init_checkpoint."""
        config = self._flags
        metadata = checkpoint.metadata if checkpoint else {}
        self._earlier_devices = metadata.get("devices", {})
        if not self._is_new_phase:  # A new phase makes a new choice.
            self._unpad = metadata.get("unpad")
        self._start = metadata.get("initial_weights", {})
        self._tokens_before = metadata.get("tokens_seen")
        if config.do_eval:
            # Read the evaluation input now, to report errors before training.
            self._eval_input = pretraining_input.build_evaluation_input(
                config,
                metadata.get("vocabulary_hash")
                or self.identity["vocabulary_hash"],
            )
        if config.do_train:
            data = self._data
            self._input = pretraining_input.build_input(
                config, data.record_files, data.vocabulary, data.manifest
            )
        start = None
        if checkpoint is None and config.init_checkpoint:
            start = self._read_start(config.init_checkpoint)
            self._start = {
                "model": paths.base_names(start.source),
                "optimizer state": (
                    "of the model" if config.init_optimizer_state else "new"
                ),
            }
        training_step = build_training(
            config,
            self._data.bert_config,
            self.devices,
            # New phases may have longer sequences: drop the micro-batch size.
            0 if self._is_new_phase else metadata.get("micro_batch_size", 0),
        )
        schedule = TrainerConfig(
            last_step=min(
                config.stop_at_step or config.num_train_steps,
                config.num_train_steps,
            ),
            metrics_every=config.iterations_per_loop,
            examples_per_step=training_step.plan.batch_size,
            tokens_per_example=config.max_seq_length,
        )
        if start is not None:
            self._initialize(training_step, start, schedule.last_step)
        return training_step, schedule

    def _read_start(self, path: str) -> StoredModel:
        """Reads --init_checkpoint; its values are loaded later."""
        stored = checkpoint_loading.read(path, self._data.bert_config)
        checkpoint_loading.check_vocabulary(
            stored,
            self.identity["vocabulary_hash"],
            "the records",
            self._flags.allow_changed_data,
        )
        if self.coordinator.num_workers > 1:
            self.coordinator.agree(
                {"--init_checkpoint": stored.fingerprint}, "initial weights"
            )
        return stored

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores weights and step, and the training state if training."""
        if self._flags.do_train:
            super().restore(checkpoint)
            return
        checkpoint_loading.load_into(
            self.model, checkpoint.tensors, checkpoint.prefix
        )
        self.training_step.optimizer.iterations.assign(checkpoint.step)

    def _initialize(
        self, training_step: TrainingStep, stored: StoredModel, last_step: int
    ) -> None:
        """Loads weights and, with --init_optimizer_state, slots and step."""
        checkpoint_loading.load_weights(training_step.model, stored)
        if not self._flags.init_optimizer_state:
            return
        training_state.assign_optimizer(
            bert_model.named_variables(training_step.model),
            training_step.optimizer,
            stored.optimizer_state,
            stored.path,
        )
        step = training_step.global_step
        logging.info(
            "Step and Adam's moments are those of %s: training continues at "
            "step %d.",
            stored.path,
            step,
        )
        if self._flags.do_train and step >= last_step:
            raise UserError(
                f"{stored.path} has done {step} steps, and this run ends at "
                f"step {last_step} (--num_train_steps, --stop_at_step), so "
                "there is nothing to train; give it more steps, or drop "
                "--init_optimizer_state."
            )

    def train_and_evaluate(self) -> None:
        config = self._flags
        first_step = self.step
        if config.do_train:
            self._train()
        results = self._evaluate() if config.do_eval else None
        if not config.do_train:
            return
        if results is not None:
            self.write_summaries("eval", results)
        if self.coordinator.is_chief:
            vocabulary = self._data.vocabulary
            samples.fill_in(self.output_dir, vocabulary, self.model)
            self._write_output(results, first_step)
            training_output.print_report(
                config.output_dir,
                {"evaluation": results} if results else {},
                self._next_commands,
                {
                    "Language:": self._watch.describe() if self._watch else "",
                    "Masked words:": "\n".join(
                        samples.describe(self.output_dir)
                    ),
                },
            )
        if not self.coordinator.from_chief(self.checkpoints.wait()):
            raise UserError(
                f"The checkpoint of step {self.step} could not be written to "
                f"{config.output_dir}, so training cannot resume from it; the "
                "model is there. Free some space and rerun the same command."
            )

    def _write_output(
        self, results: Mapping[str, float] | None, first_step: int
    ) -> None:
        """Draws the curves; writes the model unless it exists for this step."""
        config, data, step = self._flags, self._data, self.step
        training_output.draw_learning_curves(
            config.output_dir, [results] if results else []
        )
        if step == first_step and training_output.read_task(
            config.output_dir, step
        ):
            return
        training_output.write_model_directory(
            config.output_dir,
            data.bert_config,
            self.weights(),
            data.vocabulary,
            data.tokenizer_settings,
            {
                "kind": "pretraining",
                "max_seq_length": config.max_seq_length,
                "max_predictions_per_seq": config.max_predictions_per_seq,
                "use_next_sentence": config.use_next_sentence,
                "global_step": step,
            },
            self._build_card(results or {}),
        )

    @property
    def _next_commands(self) -> Sequence[str]:
        return _NEXT_COMMANDS[self._data.bert_config.left_to_right :]

    def _build_card(self, results: Mapping[str, float]) -> str:
        words = dict(enumerate(samples.describe(self.output_dir), 1))
        manifest = self._data.manifest
        records = map(paths.base_names, self._data.record_files)
        data = {"record files": ", ".join(records)}
        if manifest:
            data |= {
                "manifest": paths.base_names(manifest.source),
                "documents": manifest.num_documents,
            }
        return model_directory.build_card(
            "A pretrained BERT",
            "A BERT with its pretraining heads, trained for "
            f"{self.step} steps with run/pretrain.py of bert_tf.",
            {
                "Training data": data,
                "Flags (others: default, or no effect)": options.for_card(
                    self._flags
                ),
                **({"Initial weights": self._start} if self._start else {}),
                "Devices of the last steps": self._describe_devices(),
                "Metrics": dict(results),
                **({"Masked words": words} if words else {}),
            },
            errors.name_programs(self._next_commands[0].format(".")),
            model_directory.card_header(
                {"kind": "pretraining", "results": {"validation": results}},
                self._flags.init_checkpoint or "",
            ),
        )

    def _train(self) -> None:
        config, data, source = self._flags, self._data, self._input
        self.store.clean()
        if self.coordinator.is_chief:
            training_output.describe_checkpoints(
                config.output_dir, data.bert_config, data.vocabulary
            )
        if self.step > self.last_step:
            raise UserError(
                f"{config.output_dir} has done {self.step} steps, and this run "
                f"ends at step {self.last_step} (--num_train_steps, "
                "--stop_at_step); give another --output_dir, or only --do_eval "
                "to evaluate the last checkpoint."
            )
        if self.step == self.last_step:
            logging.info("All %d steps are done already.", self.last_step)
            return
        logging.info(
            "%d records, %d per step.", source.num_records, source.batch_size
        )
        vocab_size = data.bert_config.vocab_size
        with pretraining_input.reading(source, self.devices, vocab_size):
            plan = self.training_step.plan
            width = data.bert_config.hidden_size
            self._choose_unpad(
                lambda: unpadding.pays(
                    pretraining_input.share_of_tokens(source, self.step),
                    plan.micro_batch_size * config.max_seq_length * width,
                )
            )
            self._watch_progress(source, width)
            self.run_steps(
                lambda step: pretraining_input.read_from(
                    source,
                    step,
                    self.training_step.plan,
                    self.devices,
                    vocab_size,
                    self._unpad,
                ),
                functools.partial(pretraining_input.read_batch, source),
            )

    def _watch_progress(self, source: PretrainingInput, width: int) -> None:
        """Finds the frequency line, and prepares scores on held-out records."""
        if self.coordinator.is_chief:
            if self._data.manifest:
                pretraining_input.warn_of_little_text(
                    self._flags, self._data.manifest, self.step
                )
            vocab_size = self._data.bert_config.vocab_size
            text = plateau.sample(
                pretraining_input.read_epoch(source, vocab_size),
                vocab_size,
                self._data.bert_config.left_to_right,
            )
            self._watch = plateau.Watch(
                self._flags, text, width, self.step, self._tokens_before
            )
            if self.checkpoints.step is None:
                self._fill_in_before(source)
        if self._flags.eval_input_file and self._eval_input:
            # If workers had unequal records, one could wait for others forever.
            pretraining_input.agree(self._eval_input, self.devices)
            self._held_out = evaluation.HeldOut(
                self._build_evaluation(evaluation.HELD_OUT_BATCHES, False)
            )
            self._held_out.start()

    def _fill_in_before(self, source: PretrainingInput) -> None:
        """Fills in sentences, of held-out records if there are any."""
        config, data, found = self._flags, self._data, []
        if config.eval_input_file and self._eval_input:
            source = self._eval_input
        vocab_size = data.bert_config.vocab_size
        has_masks = not data.bert_config.left_to_right
        if has_masks and MASK in (data.vocabulary or ()):
            with pretraining_input.explaining(source, vocab_size):
                dataset = source.evaluation_dataset()
                found = samples.choose(dataset, data.vocabulary)
        samples.fill_in(self.output_dir, data.vocabulary, self.model, found)

    def describe_progress(self, step: int) -> dict[str, float]:
        values = {"tokens_seen": self._watch.tokens(step)}
        if math.isfinite(self._watch.line):
            values["masked_lm_frequency_loss"] = self._watch.line
        return values

    def after_call(
        self, step: int, num_steps: int, sums: Mapping[str, float]
    ) -> None:
        """Scores held-out records and warns of a plateau, when due."""
        watch, held_out = self._watch, self._held_out
        if watch:
            watch.add(sums["masked_lm_loss"] / num_steps, num_steps)
        # All workers must evaluate together, so the chief's clock decides when.
        if held_out and self.coordinator.from_chief(held_out.is_due):
            vocab_size = self._data.bert_config.vocab_size
            with pretraining_input.explaining(self._eval_input, vocab_size):
                results = held_out.score(step)
            self._dev_score = f"held out {results['masked_lm_accuracy']:.1%}"
            logging.info("Held out: %s.", training_metrics.describe(results))
            self.write_line(step, results, training_metrics.HELD_OUT)
            if watch:
                watch.add_held_out(results["masked_lm_loss"])
        if watch and (warning := watch.warning(step)):
            logging.warning("%s", errors.name_programs(warning))

    def _choose_unpad(self, is_faster: Callable[[], bool]) -> None:
        """Chooses whether to leave padding out, or keeps the run's choice."""
        chosen = unpadding.choose(
            self._flags.unpad, self.devices.kind, is_faster, self._unpad
        )
        # Workers may sample different records, so all use the chief's choice.
        self._unpad = self.coordinator.from_chief(chosen)

    def _describe_devices(self) -> dict[str, Any]:
        compiled = self.training_step.compiled
        if not compiled and self._earlier_devices:
            return self._earlier_devices  # This process has done no step.
        return resume_checks.describe_devices(self.devices, compiled)

    def metadata(self) -> dict[str, Any]:
        return dict(self.identity) | {
            "devices": self._describe_devices(),
            "micro_batch_size": self.training_step.plan.micro_batch_size,
            "unpad": self._unpad,
            "tokens_seen": self._watch and self._watch.tokens(self.step),
            **({"initial_weights": self._start} if self._start else {}),
        }

    def _evaluate(self) -> dict[str, float]:
        config, source = self._flags, self._eval_input
        if not self.step and not config.init_checkpoint:
            logging.info("The model to evaluate is new and untrained.")
        # If training has not chosen a layout, evaluate with padding.
        self._choose_unpad(lambda: False)
        vocab_size = self._data.bert_config.vocab_size
        with pretraining_input.reading(source, self.devices, vocab_size):
            compute = self._build_evaluation(
                config.max_eval_steps, self.coordinator.is_chief
            )
            results = compute(self.step)
        logging.info("Evaluation: %s", training_metrics.describe(results))
        if self.coordinator.is_chief:
            self._write_results(results)
        return results

    def _build_evaluation(
        self, num_batches: int, show_progress: bool
    ) -> Callable[[int], dict[str, float]]:
        return evaluation.build_evaluation(
            self.model,
            pretraining_input.check_ids(
                self._eval_input.evaluation_dataset(),
                self._data.bert_config.vocab_size,
            ),
            num_batches,
            self.devices.strategy,
            self._flags.use_next_sentence,
            show_progress,
            self._unpad,
        )

    def _write_results(self, results: Mapping[str, float]) -> None:
        config = self._flags
        path = os.path.join(config.output_dir, EVAL_RESULTS_FILE)
        try:
            with training_output.writing("The results", path):
                training_output.write_results(path, results)
        except UserError as error:
            if not config.do_train:
                raise
            # Only log the error: the trained model must still be written.
            logging.error("%s", error)


# === Model and step ===


def build_training(
    config: Flags,
    bert_config: BertConfig,
    devices: Devices,
    preferred_micro_batch: int = 0,
) -> TrainingStep:
    """Builds model, optimizer and training step, with new weights; logs sizes.

    With --micro_batch_size=auto, the micro-batch size is
    `preferred_micro_batch`, unless this is 0 or does not divide the batch.
    """
    strategy = devices.strategy
    keras.utils.set_random_seed(config.seed)
    if config.remat:
        encoder.keep_recomputation(len(strategy.extended.worker_devices))
    with strategy.scope():
        model = bert_model.BertForPretraining(
            bert_config,
            fuse=devices.fuse,
            remat=config.remat,
            dtype=devices.precision.policy,
        )
        variables = bert_model.named_variables(model)
        optimizer = _build_optimizer(config, variables)
    num_weights = sum(v.value.shape.num_elements() for v in variables.values())
    logging.info(
        "The model has %s parameters; its activation is %s.",
        f"{num_weights:,}",
        _ACTIVATION_NAMES.get(bert_config.hidden_act, bert_config.hidden_act),
    )
    plan = _plan(config, devices, preferred_micro_batch)
    return TrainingStep(
        strategy,
        model,
        losses.PretrainingObjective(config.use_next_sentence),
        optimizer,
        plan,
        devices.precision.needs_loss_scale,
        Compilation(
            config.xla, devices.kind, deterministic=devices.deterministic
        ),
        devices.all_reduce_dtype,
    )


def _build_optimizer(
    config: Flags, variables: Mapping[str, keras.Variable]
) -> optimizers.BertOptimizer:
    """Builds the optimizer with the variables that the losses reach."""
    untrained = ()
    if not config.use_next_sentence:
        untrained = _NEXT_SENTENCE_PARTS
        terminal.detail(
            "Without the next-sentence loss %s keep their initial values.",
            " and ".join(untrained),
        )
    optimizer = optimizers.build_optimizer(
        config.optimizer,
        config.learning_rate,
        config.num_train_steps,
        config.num_warmup_steps,
        config.weight_decay_rate,
        config.schedule_start_step,
        config.schedule,
        beta_2=config.adam_beta2,
    )
    trained = [y for x, y in variables.items() if not x.startswith(untrained)]
    optimizer.build(trained)
    return optimizer


def _plan(
    config: Flags, devices: Devices, preferred_micro_batch: int
) -> StepPlan:
    """Splits a step over replicas and micro-batches."""
    batch_size = config.train_batch_size
    num_replicas = devices.strategy.num_replicas_in_sync
    # Ignore gradient accumulation: a micro-batch is a part of one batch.
    whole = StepPlan(batch_size, num_replicas).per_replica
    if config.micro_batch_size == "auto":
        most = _TOKENS_AT_ONCE[devices.kind] // config.max_seq_length
        sizes = range(1, max(1, min(whole, most)) + 1)
        # Try the largest size: if memory runs out, `recover` halves it.
        micro = max(size for size in sizes if whole % size == 0)
        # A resumed run keeps its micro-batch size, so that it rounds equally.
        if preferred_micro_batch and whole % preferred_micro_batch == 0:
            micro = preferred_micro_batch
    else:
        micro = int(config.micro_batch_size) or whole
    return StepPlan(
        batch_size * config.gradient_accumulation_steps, num_replicas, micro
    )
