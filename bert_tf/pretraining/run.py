"""Pretraining, from the flags to the model directory."""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import assign
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.data.records import manifest as manifests
from bert_tf.data.records.repair import Budget
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.io import files
from bert_tf.pretraining import data as pretraining_input
from bert_tf.pretraining import evaluate as pretraining_evaluation
from bert_tf.pretraining import output as pretraining_output
from bert_tf.pretraining import reader as pretraining_reader
from bert_tf.pretraining import setup as training_setup
from bert_tf.pretraining.reader import TrainingReader
from bert_tf.training import checkpoints
from bert_tf.training import metrics as training_metrics
from bert_tf.training import resume as resume_checks
from bert_tf.training import state as training_state
from bert_tf.training.async_checkpoints import AsyncCheckpoints
from bert_tf.training.async_checkpoints import State
from bert_tf.training.preemption import Preemption
from bert_tf.training.trainer import Trainer
from bert_tf.training.trainer import TrainerConfig

EVAL_RESULTS_FILE = "eval_results.txt"


def train_and_evaluate(config: PretrainConfig) -> None:
    """Does what run/pretrain.py is asked for.

    Raises:
      Preempted: If it was asked to stop; what is done is kept.
      UserError: For whatever the user can mend.
    """
    keras_backend.require_tensorflow()
    with Preemption() as preemption:
        # Workers must find each other before anything is computed.
        devices = device_setup.prepare(config)
        with devices.together():
            _Pretraining(config, devices, preemption).run()


class _Pretraining:
    """One process of a pretraining run."""

    def __init__(
        self,
        config: PretrainConfig,
        devices: Devices,
        preemption: Preemption,
    ):
        self._config = config
        self._devices = devices
        self._coordinator = devices.coordinator
        self._preemption = preemption
        if self._coordinator.is_chief:
            files.require_checkpoint_folder(config.output_dir, "--output_dir")
        self._bert_config = pretraining_input.read_model_config(config)
        self._record_files = pretraining_input.find_records(config)
        self._store = checkpoints.CheckpointStore(
            config.output_dir,
            config.keep_checkpoint_max,
            writable=self._coordinator.is_chief,
        )
        checkpoint = self._store.restore_latest()
        resume_checks.log_start(config, checkpoint)
        pretraining_output.warn_of_flags(
            config, pretraining_output.MEANINGLESS_FLAGS
        )
        self._manifest = manifests.find(self._record_files)
        self._text = pretraining_input.find_text_settings(
            config, self._bert_config, self._manifest
        )
        self._vocabulary = self._text.vocabulary if self._text else None
        pretraining_input.check_objectives(
            config, self._bert_config, self._manifest
        )
        self._identity = resume_checks.describe(
            config,
            self._bert_config,
            self._record_files,
            self._manifest,
            self._vocabulary.hash if self._vocabulary else None,
        )
        metadata = checkpoint.metadata if checkpoint else {}
        # Before that nobody writes, so all have read the same checkpoints.
        self._coordinator.agree(
            resume_checks.describe_for_workers(
                config, self._identity, checkpoint
            ),
            "flags, records and checkpoints",
        )
        if checkpoint is not None and config.do_train:
            resume_checks.check_continuation(
                metadata,
                self._identity,
                checkpoint.step,
                config.allow_changed_data,
            )
            resume_checks.log_devices(
                metadata.get("devices", {}),
                resume_checks.describe_devices(self._devices),
                checkpoint.step,
            )
        elif checkpoint is not None:
            resume_checks.check_model(
                metadata, self._identity, config.allow_changed_data
            )
        self._left_out_before = metadata.get("corrupt_records", [])
        self._budget = Budget(0)
        self._last_saved = checkpoint and checkpoint.step
        self._model_vocabulary_hash = (
            metadata.get("vocabulary_hash") or self._identity["vocabulary_hash"]
        )
        # What is wrong there is said before training.
        self._eval_input = None
        if config.do_eval:
            self._eval_input = pretraining_input.build_evaluation_input(
                config, self._model_vocabulary_hash
            )
        start = None
        if checkpoint is None and config.init_checkpoint:
            start = self._read_start(config.init_checkpoint)
        self._parts = training_setup.build_training(
            config,
            self._bert_config,
            self._devices,
            metadata.get("micro_batch_size", 0),
        )
        if checkpoint is not None:
            self._restore(checkpoint)
        elif start is not None:
            self._initialize(start)

    def run(self) -> None:
        """Trains, evaluates and writes what is left of it."""
        config = self._config
        first_step = self._parts.step
        run = self._train() if config.do_train else None
        results = self._evaluate() if config.do_eval else None
        if run is None:
            return
        if results is not None:
            run.write_summaries("eval", results)
        if self._coordinator.is_chief:
            self._write_deliverables(results, first_step)
        if not self._coordinator.from_chief(run.is_saved()):
            raise UserError(
                f"The checkpoint of step {self._parts.step} could not be "
                f"written to {config.output_dir}, so nothing can go on from "
                "it; the model is there. Make room and start the same command "
                "again."
            )

    def _write_deliverables(
        self, results: Mapping[str, float] | None, first_step: int
    ) -> None:
        """Writes curves and model, unless they are there and no step was done.

        Args:
          results: Those of the evaluation, if there was one.
          first_step: Steps done by earlier processes.
        """
        config = self._config
        pretraining_output.draw_learning_curves(
            config.output_dir, [results] if results else []
        )
        step = self._parts.step
        if step == first_step and pretraining_output.model_is_written(
            config.output_dir, step
        ):
            return
        pretraining_output.write_model(
            config,
            self._bert_config,
            {name: v.numpy() for name, v in self._parts.variables.items()},
            step,
            self._text,
            pretraining_output.write_card(
                config,
                step,
                self._record_files,
                self._manifest,
                results,
                self._describe_devices(),
            ),
        )

    def _read_start(self, path: str) -> StoredModel:
        """Reads what a new run begins with; values are read later."""
        stored = checkpoint_loading.read(path, self._bert_config)
        checkpoint_loading.check_vocabulary(
            stored,
            self._identity["vocabulary_hash"],
            "the records",
            self._config.allow_changed_data,
        )
        if self._coordinator.num_workers > 1:
            self._coordinator.agree(
                {"--init_checkpoint": stored.fingerprint()}, "first weights"
            )
        return stored

    def _restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Takes over weights and step, and for training all the rest."""
        if not self._config.do_train:
            assign.load_into(
                self._parts.model, checkpoint.tensors, checkpoint.prefix
            )
            self._parts.optimizer.iterations.assign(checkpoint.step)
            return
        training_state.assign(
            self._parts.variables,
            self._parts.optimizer,
            checkpoint.tensors,
            checkpoint.prefix,
        )
        if self._parts.loop.loss_scale is not None:
            self._parts.loop.loss_scale.restore(checkpoint.metadata)

    def _initialize(self, stored: StoredModel) -> None:
        """Takes weights from elsewhere and, if asked to, slots and step."""
        checkpoint_loading.load_weights(self._parts.model, stored)
        if not self._config.init_optimizer_state:
            return
        training_state.assign_optimizer(
            self._parts.variables,
            self._parts.optimizer,
            stored.optimizer_state,
            stored.path,
        )
        step = self._parts.step
        logging.info(
            "Step and Adam's moments are those of %s: training goes on at step "
            "%d.",
            stored.path,
            step,
        )
        last_step = self._last_step()
        if self._config.do_train and step >= last_step:
            raise UserError(
                f"{stored.path} has done {step} steps, and this run ends at "
                f"step {last_step} (--num_train_steps, --stop_at_step), so "
                "there is nothing to train; give it more steps, or leave out "
                "--init_optimizer_state."
            )

    def _train(self) -> Trainer:
        config = self._config
        self._store.clean()
        if self._coordinator.is_chief:
            pretraining_output.describe_checkpoints(
                config.output_dir, self._bert_config, self._vocabulary
            )
        source = pretraining_input.build_input(
            config,
            self._record_files,
            self._vocabulary,
            self._manifest,
            self._coordinator.is_chief,
        )
        last_step = self._last_step()
        run = Trainer(
            self._parts.loop,
            TrainerConfig(
                last_step=last_step,
                metrics_every=config.iterations_per_loop,
                save_every=config.save_checkpoints_steps,
                examples_per_step=source.batch_size,
                tokens_per_example=config.max_seq_length,
            ),
            config.output_dir,
            AsyncCheckpoints(self._store, self._read_state, self._last_saved),
            self._coordinator,
            self._preemption,
        )
        if self._parts.step > last_step:
            raise UserError(
                f"{config.output_dir} has done {self._parts.step} steps, and "
                f"this run ends at step {last_step} (--num_train_steps, "
                "--stop_at_step); give another --output_dir, or only --do_eval "
                "to evaluate what is there."
            )
        if self._parts.step == last_step:
            logging.info("All %d steps are done already.", last_step)
            return run
        logging.info(
            "%d records, of which a step takes %d.",
            source.num_records,
            source.batch_size,
        )
        reader = TrainingReader(
            config,
            source,
            self._devices,
            self._parts.plan,
            self._bert_config.vocab_size,
        )
        self._budget = source.budget
        pretraining_reader.leave_out_damaged(
            "training",
            lambda: run.train(
                reader.read_from(self._parts.step), reader.read_batch
            ),
            source,
            self._devices,
            self._bert_config.vocab_size,
            reader.explain,
        )
        return run

    def _last_step(self) -> int:
        config = self._config
        return min(
            config.stop_at_step or config.num_train_steps,
            config.num_train_steps,
        )

    def _describe_devices(self) -> dict[str, Any]:
        return resume_checks.describe_devices(
            self._devices, self._parts.loop.compiled
        )

    def _read_state(self) -> State:
        """Returns what a checkpoint holds, as it is now."""
        parts = self._parts
        metadata = self._identity | {
            "devices": self._describe_devices(),
            "micro_batch_size": parts.plan.micro_batch_size,
            "corrupt_records": self._budget.describe(self._left_out_before),
        }
        if parts.loop.loss_scale is not None:
            metadata |= parts.loop.loss_scale.state()
        tensors = training_state.snapshot(parts.variables, parts.optimizer)
        return tensors, metadata

    def _evaluate(self) -> dict[str, float]:
        config, parts = self._config, self._parts
        source = self._eval_input
        if not parts.step and not config.init_checkpoint:
            logging.info("The model to evaluate is new and has learnt nothing.")
        results = pretraining_reader.leave_out_damaged(
            "evaluation",
            lambda: pretraining_evaluation.evaluate(
                parts.model,
                source.evaluation_dataset(),
                parts.step,
                config.max_eval_steps,
                parts.strategy,
                config.use_next_sentence,
                self._coordinator.is_chief,
            ),
            source,
            self._devices,
            self._bert_config.vocab_size,
        )
        logging.info("Evaluation: %s", training_metrics.describe(results))
        if self._coordinator.is_chief:
            self._write_results(results)
        return results

    def _write_results(self, results: Mapping[str, float]) -> None:
        config = self._config
        path = os.path.join(config.output_dir, EVAL_RESULTS_FILE)
        try:
            pretraining_evaluation.write_results(path, results)
        except (OSError, tf.errors.OpError) as error:
            if not config.do_train:
                raise UserError(
                    f"{path} could not be written: {error}."
                ) from error
            # The model matters more; it is written next.
            logging.error("%s could not be written: %s", path, error)
