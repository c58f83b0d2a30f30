"""Pretraining, from the flags to the model directory."""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_weights
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.data.input_pipeline import PretrainingInput
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
from bert_tf.pretraining.data import PretrainingData
from bert_tf.pretraining.reader import TrainingReader
from bert_tf.pretraining.setup import TrainingSetup
from bert_tf.training import checkpoints
from bert_tf.training import metrics as training_metrics
from bert_tf.training import output as training_output
from bert_tf.training import resume as resume_checks
from bert_tf.training import state as training_state
from bert_tf.training.checkpoints import AsyncCheckpoints
from bert_tf.training.checkpoints import Checkpoint
from bert_tf.training.checkpoints import State
from bert_tf.training.preemption import Preemption
from bert_tf.training.trainer import Trainer
from bert_tf.training.trainer import TrainerConfig

EVAL_RESULTS_FILE = "eval_results.txt"


def train_and_evaluate(config: PretrainConfig) -> None:
    """Runs pretraining as the flags of run/pretrain.py specify.

    Raises:
      Preempted: On SIGTERM, after a checkpoint was written.
      UserError: For errors that the user can fix.
    """
    keras_backend.require_tensorflow()
    with Preemption() as preemption:
        # Workers must connect before TensorFlow computes anything.
        devices = device_setup.prepare(config)
        with devices.together():
            run = _PretrainingRun(config, devices, preemption)
            run.restore_or_initialize()
            run.train_and_evaluate()


class _PretrainingRun:
    """One process of a pretraining run.

    Call `restore_or_initialize` first.
    """

    _data: PretrainingData
    _identity: dict[str, Any]
    _setup: TrainingSetup
    _eval_input: PretrainingInput | None = None
    _last_saved: int | None = None

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
        self._store = checkpoints.CheckpointStore(
            config.output_dir,
            config.keep_checkpoint_max,
            writable=self._coordinator.is_chief,
        )
        self._budget = Budget(0)
        self._left_out_before: list[dict[str, Any]] = []

    def restore_or_initialize(self) -> None:
        """Builds the model and restores the last checkpoint, if there is one.

        Otherwise the weights are new, or those of --init_checkpoint.
        """
        config = self._config
        if self._coordinator.is_chief:
            files.require_checkpoint_folder(config.output_dir, "--output_dir")
        self._data = data = pretraining_input.read_data(config)
        self._identity = resume_checks.describe(
            config,
            data.bert_config,
            data.record_files,
            data.manifest,
            data.vocabulary.hash if data.vocabulary else None,
        )
        checkpoint = self._store.restore_latest()
        resume_checks.log_start(config, checkpoint)
        training_output.warn_of_flags(config, training_output.MEANINGLESS_FLAGS)
        self._check_resume(checkpoint)
        metadata = checkpoint.metadata if checkpoint else {}
        self._left_out_before = metadata.get("corrupt_records", [])
        self._last_saved = checkpoint and checkpoint.step
        if config.do_eval:
            # Errors in the evaluation data are raised before training.
            self._eval_input = pretraining_input.build_evaluation_input(
                config,
                metadata.get("vocabulary_hash")
                or self._identity["vocabulary_hash"],
            )
        start = None
        if checkpoint is None and config.init_checkpoint:
            start = self._read_start(config.init_checkpoint)
        self._setup = training_setup.build_training(
            config,
            data.bert_config,
            self._devices,
            metadata.get("micro_batch_size", 0),
        )
        if checkpoint is not None:
            self._restore(checkpoint)
        elif start is not None:
            self._initialize(start)

    def _check_resume(self, checkpoint: Checkpoint | None) -> None:
        """Compares this process with the other workers and the checkpoint."""
        # Nothing is written before this, so all workers read the same
        # checkpoints.
        self._coordinator.agree(
            resume_checks.describe_for_workers(
                self._config, self._identity, checkpoint
            ),
            "flags, records and checkpoints",
        )
        if checkpoint is None:
            return
        metadata = checkpoint.metadata
        allow_changes = self._config.allow_changed_data
        if not self._config.do_train:
            resume_checks.check_model(metadata, self._identity, allow_changes)
            return
        resume_checks.check_continuation(
            metadata, self._identity, checkpoint.step, allow_changes
        )
        resume_checks.log_devices(
            metadata.get("devices", {}),
            resume_checks.describe_devices(self._devices),
            checkpoint.step,
        )

    def _read_start(self, path: str) -> StoredModel:
        """Reads --init_checkpoint; its values are loaded later."""
        stored = checkpoint_loading.read(path, self._data.bert_config)
        checkpoint_loading.check_vocabulary(
            stored,
            self._identity["vocabulary_hash"],
            "the records",
            self._config.allow_changed_data,
        )
        if self._coordinator.num_workers > 1:
            self._coordinator.agree(
                {"--init_checkpoint": stored.fingerprint()}, "initial weights"
            )
        return stored

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restores weights and step, and the training state if training."""
        setup = self._setup
        if not self._config.do_train:
            model_weights.load_into(
                setup.model, checkpoint.tensors, checkpoint.prefix
            )
            setup.optimizer.iterations.assign(checkpoint.step)
            return
        training_state.assign(
            setup.variables,
            setup.optimizer,
            checkpoint.tensors,
            checkpoint.prefix,
        )
        if setup.training_step.loss_scale is not None:
            setup.training_step.loss_scale.restore(checkpoint.metadata)

    def _initialize(self, stored: StoredModel) -> None:
        """Loads initial weights and, with the flag for it, slots and step."""
        setup = self._setup
        checkpoint_loading.load_weights(setup.model, stored)
        if not self._config.init_optimizer_state:
            return
        training_state.assign_optimizer(
            setup.variables,
            setup.optimizer,
            stored.optimizer_state,
            stored.path,
        )
        step = setup.global_step
        logging.info(
            "Step and Adam's moments are those of %s: training continues at "
            "step %d.",
            stored.path,
            step,
        )
        last_step = self._last_step()
        if self._config.do_train and step >= last_step:
            raise UserError(
                f"{stored.path} has done {step} steps, and this run ends at "
                f"step {last_step} (--num_train_steps, --stop_at_step), so "
                "there is nothing to train; give it more steps, or drop "
                "--init_optimizer_state."
            )

    def train_and_evaluate(self) -> None:
        """Trains, evaluates and writes the results."""
        config = self._config
        first_step = self._setup.global_step
        trainer = self._train() if config.do_train else None
        results = self._evaluate() if config.do_eval else None
        if trainer is None:
            return
        if results is not None:
            trainer.write_summaries("eval", results)
        if self._coordinator.is_chief:
            self._write_output(results, first_step)
        if not self._coordinator.from_chief(trainer.is_saved()):
            raise UserError(
                f"The checkpoint of step {self._setup.global_step} could not "
                f"be written to {config.output_dir}, so training cannot resume "
                "from it; the model is there. Free some space and rerun the "
                "same command."
            )

    def _write_output(
        self, results: Mapping[str, float] | None, first_step: int
    ) -> None:
        """Writes curves and model, unless the model of this step exists.

        Args:
          results: The results of the evaluation, if there was one.
          first_step: Steps done by earlier processes.
        """
        config, setup, data = self._config, self._setup, self._data
        training_output.draw_learning_curves(
            config.output_dir, [results] if results else []
        )
        step = setup.global_step
        if step == first_step and training_output.model_is_written(
            config.output_dir, step
        ):
            return
        pretraining_output.write_model(
            config,
            data.bert_config,
            {name: v.numpy() for name, v in setup.variables.items()},
            step,
            data.text,
            pretraining_output.build_card(
                config,
                step,
                data.record_files,
                data.manifest,
                results,
                self._describe_devices(),
            ),
        )

    def _train(self) -> Trainer:
        config, setup, data = self._config, self._setup, self._data
        self._store.clean()
        if self._coordinator.is_chief:
            pretraining_output.describe_checkpoints(
                config.output_dir, data.bert_config, data.vocabulary
            )
        source = pretraining_input.build_input(
            config,
            data.record_files,
            data.vocabulary,
            data.manifest,
            self._coordinator.is_chief,
        )
        last_step = self._last_step()
        trainer = Trainer(
            setup.training_step,
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
        step = setup.global_step
        if step > last_step:
            raise UserError(
                f"{config.output_dir} has done {step} steps, and this run ends "
                f"at step {last_step} (--num_train_steps, --stop_at_step); "
                "give another --output_dir, or only --do_eval to evaluate the "
                "last checkpoint."
            )
        if step == last_step:
            logging.info("All %d steps are done already.", last_step)
            return trainer
        logging.info(
            "%d records, %d per step.", source.num_records, source.batch_size
        )
        self._budget = source.budget
        reader = TrainingReader(
            config,
            source,
            self._devices,
            setup.plan,
            data.bert_config.vocab_size,
        )
        pretraining_reader.leave_out_damaged(
            "training",
            lambda: trainer.train(
                reader.read_from(setup.global_step), reader.read_batch
            ),
            source,
            self._devices,
            data.bert_config.vocab_size,
            reader.explain,
        )
        return trainer

    def _last_step(self) -> int:
        config = self._config
        return min(
            config.stop_at_step or config.num_train_steps,
            config.num_train_steps,
        )

    def _describe_devices(self) -> dict[str, Any]:
        return resume_checks.describe_devices(
            self._devices, self._setup.training_step.compiled
        )

    def _read_state(self) -> State:
        """Returns the current tensors and metadata for a checkpoint."""
        setup = self._setup
        metadata = self._identity | {
            "devices": self._describe_devices(),
            "micro_batch_size": setup.plan.micro_batch_size,
            "corrupt_records": self._budget.describe(self._left_out_before),
        }
        if setup.training_step.loss_scale is not None:
            metadata |= setup.training_step.loss_scale.state()
        tensors = training_state.snapshot(setup.variables, setup.optimizer)
        return tensors, metadata

    def _evaluate(self) -> dict[str, float]:
        config, setup, source = self._config, self._setup, self._eval_input
        if not setup.global_step and not config.init_checkpoint:
            logging.info("The model to evaluate is new and untrained.")
        results = pretraining_reader.leave_out_damaged(
            "evaluation",
            lambda: pretraining_evaluation.evaluate(
                setup.model,
                source.evaluation_dataset(),
                setup.global_step,
                config.max_eval_steps,
                setup.strategy,
                config.use_next_sentence,
                self._coordinator.is_chief,
            ),
            source,
            self._devices,
            self._data.bert_config.vocab_size,
        )
        logging.info("Evaluation: %s", training_metrics.describe(results))
        if self._coordinator.is_chief:
            self._write_results(results)
        return results

    def _write_results(self, results: Mapping[str, float]) -> None:
        config = self._config
        path = os.path.join(config.output_dir, EVAL_RESULTS_FILE)
        try:
            training_output.write_results(path, results)
        except (OSError, tf.errors.OpError) as error:
            if not config.do_train:
                raise UserError(
                    f"{path} could not be written: {error}."
                ) from error
            # The model is more important; it is written next.
            logging.error("%s could not be written: %s", path, error)
