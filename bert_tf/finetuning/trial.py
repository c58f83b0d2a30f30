"""A fine-tuning trial: trains one model, with checkpoints and evaluations."""

import functools
import math
import os

import keras
import tensorflow as tf
from absl import logging

from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import input as finetuning_input
from bert_tf.finetuning import parameter_groups
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.finetuning.early_stopping import DevSelection
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.experiment import Experiment
from bert_tf.finetuning.input import FinetuneInput
from bert_tf.flags.finetune import TrialConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import remat
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import Features
from bert_tf.training import checkpoints
from bert_tf.training import memory_watch
from bert_tf.training import optimizer as optimizers
from bert_tf.training import resume as resume_checks
from bert_tf.training import state as training_state
from bert_tf.training import xla
from bert_tf.training.checkpoints import AsyncCheckpoints
from bert_tf.training.checkpoints import State
from bert_tf.training.memory_watch import MemoryWatch
from bert_tf.training.step import TrainingStep
from bert_tf.training.trainer import Trainer
from bert_tf.training.trainer import TrainerConfig
from bert_tf.training.xla import Compilation

BEST_FOLDER = "best"

# Metrics lines of a trial, unless --iterations_per_loop is set.
_METRICS_LINES = 100


class Trial:
    """One trial, which resumes from its last checkpoint.

    Args:
      experiment: Everything that the trials of the command share.
      trial_config: The trial's own settings.
      output_dir: The folder for checkpoints and metrics.

    Attributes:
      model: The model in its current state, once `restore_or_initialize` has
        built it.
    """

    model: keras.Model

    def __init__(
        self, experiment: Experiment, trial_config: TrialConfig, output_dir: str
    ) -> None:
        self._experiment = experiment
        self._trial_config = trial_config
        self._output_dir = output_dir
        is_chief = experiment.devices.coordinator.is_chief
        self._store = checkpoints.CheckpointStore(
            output_dir, experiment.config.keep_checkpoint_max, is_chief
        )
        self._best = checkpoints.CheckpointStore(
            os.path.join(output_dir, BEST_FOLDER), 1, is_chief
        )

    def restore_or_initialize(self) -> None:
        """Builds the model and its training, from the last checkpoint if any.

        Raises:
          UserError: If the checkpoint belongs to another trial, or the data is
            too small for a step.
        """
        self._identity = experiments.trial_identity(
            self._experiment, self._trial_config
        )
        self._devices = resume_checks.describe_devices(self._experiment.devices)
        checkpoint = self._find_checkpoint()
        self._checkpoints = AsyncCheckpoints(
            self._store, self._read_state, checkpoint and checkpoint.step
        )
        features = self._plan_steps()
        self._build_model()
        self._input = self._build_input(features)
        self._optimizer, self._training_step = self._build_training_step()
        if checkpoint is not None:
            self._restore(checkpoint)

    def _find_checkpoint(self) -> checkpoints.Checkpoint | None:
        """Returns the last checkpoint, if any, after the resume check."""
        experiment = self._experiment
        checkpoint = self._store.restore_latest()
        # Also keeps the chief from writing there before all have read it.
        experiment.devices.coordinator.agree(
            {"the last checkpoint": checkpoint and checkpoint.describe()},
            f"view of {self._output_dir}, a folder that they share",
        )
        if checkpoint is not None:
            experiments.check_resume(
                checkpoint,
                self._identity,
                self._devices,
                self._output_dir,
                experiment.config,
            )
        return checkpoint

    def _plan_steps(self) -> Features:
        """Counts the steps and plans their evaluations; returns the data."""
        experiment, config = self._experiment, self._experiment.config
        num_examples, features = experiment.objective_source.read()
        self._batch_size = finetuning_input.rows_per_step(
            experiment.task,
            self._trial_config.train_batch_size,
            num_examples,
            len(features),
        )
        self._plan = StepPlan(
            self._batch_size,
            experiment.devices.strategy.num_replicas_in_sync,
            config.micro_batch_size,
        )
        self._last_step = finetuning_input.count_steps(
            len(features), self._batch_size, self._trial_config
        )
        self._selection = DevSelection(
            config,
            experiment.task,
            len(features) / self._batch_size,
            self._last_step,
        )
        return features

    def _build_model(self) -> None:
        """Builds the model and its objective with their initial weights."""
        experiment, config = self._experiment, self._experiment.config
        keras.utils.set_random_seed(self._trial_config.seed)
        if config.remat:
            remat.keep_recomputation(
                len(experiment.devices.strategy.extended.worker_devices)
            )
        self.model = pretrained_models.build_model(
            experiment.stored,
            experiment.task,
            experiment.devices,
            config.new_pooler,
            remat=config.remat,
            **experiment.objective_source.model_arguments,
        )
        self._objective = experiment.objective_source.build_objective(
            self.model
        )
        self._weights = bert_model.named_variables(self.model)
        # The variables saved in checkpoints.
        self._variables = self._weights | dict(self._objective.variables)

    def _build_input(self, features: Features) -> FinetuneInput:
        experiment, config = self._experiment, self._experiment.config
        return FinetuneInput(
            features,
            self._batch_size,
            self._trial_config.seed,
            self._last_step,
            task_prediction.allowed_lengths(
                features.lengths,
                experiment.task.max_seq_length,
                config.num_length_buckets,
            ),
            xla.max_lengths(
                config.xla, experiment.devices.kind, config.num_length_buckets
            ),
        )

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self._training_step.global_step

    @property
    def chosen_step(self) -> int:
        """The step of the final model, known once training has finished."""
        if self._experiment.config.selects_evaluation:
            return self._selection.best_step
        return self.step

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The dev metrics during training, each with its `global_step`."""
        return [
            {"global_step": values["step"]}
            | {name: x for name, x in values.items() if name != "step"}
            for values in self._selection.evaluations
        ]

    def weights(self) -> dict:
        """Returns the weights of the model by canonical name."""
        return {name: v.numpy() for name, v in self._weights.items()}

    def train(self) -> Trainer:
        """Trains to the end; then the model has the selected weights.

        Raises:
          NotFiniteError: If a loss or gradient is not finite.
        """
        config = self._experiment.config
        self._store.clean()
        trainer = Trainer(
            self._training_step,
            TrainerConfig(
                last_step=self._last_step,
                metrics_every=(
                    config.iterations_per_loop
                    or max(1, self._last_step // _METRICS_LINES)
                ),
                save_every=config.save_checkpoints_steps,
                examples_per_step=self._batch_size,
                tokens_per_example=self._input.tokens_per_example(),
                description="fine-tuning",
            ),
            self._output_dir,
            self._checkpoints,
            self._experiment.devices.coordinator,
            self._experiment.preemption,
        )
        iterator = None
        evaluator = None
        while True:
            # Evaluate first: the trial may have stopped during an evaluation.
            if self._selection.is_due(self.step):
                evaluator = evaluator or self._experiment.build_evaluator(
                    self.model, config.eval_batch_size
                )
                self._evaluate(evaluator, trainer)
            if self.step >= self._last_step or self._selection.should_stop():
                break
            if iterator is None:
                iterator = batches_lib.distribute_batches(
                    self._experiment.devices.strategy,
                    functools.partial(self._input.dataset, self.step),
                    self._plan,
                )
            stop = self._selection.next_stop(self.step)
            trainer.train(iterator, self._input.read, stop)
        self._checkpoints.wait()
        if config.selects_evaluation:
            self._restore_best()
        return trainer

    def release(self) -> None:
        """Frees the memory of weights and slots, which ends the trial.

        TensorFlow never frees the gradient functions of a graph, nor the
        variables that they refer to, so the variables are emptied.
        """
        strategy = self._experiment.devices.strategy
        for variable in [
            *self._variables.values(),
            *self._optimizer.variables,
        ]:
            for part in strategy.experimental_local_results(variable.value):
                tf.raw_ops.AssignVariableOp(
                    resource=part.handle, value=tf.zeros([0], part.dtype)
                )

    def _build_training_step(
        self,
    ) -> tuple[optimizers.BertOptimizer, TrainingStep]:
        config, trial_config = self._experiment.config, self._trial_config
        devices = self._experiment.devices
        trained = parameter_groups.choose(
            self._variables,
            config.num_frozen_layers,
            parameter_groups.find_reached(
                devices.strategy,
                self.model,
                self._objective,
                self._variables,
                self._input.read(0),
            ),
        )
        with devices.strategy.scope():
            optimizer = optimizers.build_optimizer(
                config.optimizer,
                trial_config.learning_rate,
                self._last_step,
                int(self._last_step * config.warmup_proportion),
                config.weight_decay_rate,
            )
            optimizer.build(list(trained.values()))
        num_layers = self._experiment.stored.config.num_hidden_layers
        optimizer.set_rate_factors(
            lambda path: parameter_groups.rate_factor(
                path, num_layers, config.layer_decay
            )
        )
        training_step = TrainingStep(
            devices.strategy,
            self.model,
            self._objective,
            optimizer,
            self._plan,
            devices.precision.needs_loss_scale,
            Compilation(config.xla, devices.kind, self._input.row_shapes()),
            self._watch_memory(),
        )
        return optimizer, training_step

    def _watch_memory(self) -> MemoryWatch:
        devices = self._experiment.devices
        longest = self._input.row_shapes()[-1][INPUT_IDS.name]
        sizes = memory_watch.sizes_of(
            devices,
            self._experiment.stored.config,
            self.model.count_params(),
            math.prod(longest),
            0,
            self._experiment.config.remat,
        )
        return MemoryWatch(sizes, self._plan)

    def _restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        logging.info(
            "Resumed at step %d: %s.", checkpoint.step, checkpoint.prefix
        )
        training_state.assign(
            self._variables,
            self._optimizer,
            checkpoint.tensors,
            checkpoint.prefix,
        )
        self._selection.restore(checkpoint.metadata["evaluations"])
        if self._training_step.loss_scale is not None:
            self._training_step.loss_scale.restore(checkpoint.metadata)

    def _read_state(self) -> State:
        """Returns the tensors and metadata of a checkpoint of this step."""
        metadata = {
            "identity": self._identity,
            "devices": self._devices,
            "evaluations": self._selection.evaluations,
        }
        if self._training_step.loss_scale is not None:
            metadata |= self._training_step.loss_scale.state()
        tensors = training_state.snapshot(self._variables, self._optimizer)
        return tensors, metadata

    # === Evaluations during training ===

    def _evaluate(self, evaluator: Evaluator, trainer: Trainer) -> None:
        """Scores dev and saves a checkpoint that includes the scores."""
        try:
            metrics = self._score_dev(evaluator)
            trainer.write_summaries("eval", metrics)
        except BaseException:
            # Preemption above all: the trial resumes at this step.
            with self._experiment.devices.coordinator.finishing():
                if self._checkpoints.step != self.step:
                    self._checkpoints.save(self.step)
                self._checkpoints.wait()
            raise
        self._checkpoints.save(self.step)

    def _score_dev(self, evaluator: Evaluator) -> dict[str, float]:
        """Scores dev; saves the weights if they are the best so far."""
        task = self._experiment.task
        (split, *_) = task.splits(DEV)
        evaluated = evaluator.evaluate(split, task, select_threshold=True)
        coordinator = self._experiment.devices.coordinator
        # All workers compare the same numbers.
        metrics = coordinator.from_chief(evaluated.metrics)
        values = {"step": self.step} | metrics
        if self._selection.is_best(values):
            metadata = {"evaluation": values}
            if not coordinator.from_chief(
                self._best.save(self.step, self.weights(), metadata)
            ):
                raise UserError(
                    "The best model so far could not be written to "
                    f"{self._output_dir}; free disk space and rerun the same "
                    "command to resume."
                )
        self._selection.evaluations.append(values)
        return metrics

    def _restore_best(self) -> None:
        """Sets the weights to those of the best evaluation."""
        best = self._best.restore_latest()
        best_step = self._selection.best_step
        if best is None or best.step != best_step:
            raise UserError(
                f"The best model of {self._output_dir}, from step {best_step}, "
                f"is missing in {BEST_FOLDER}/; remove --output_dir to start "
                "over."
            )
        for name, variable in self._weights.items():
            variable.assign(best.tensors[name])
        logging.info(
            "The final model is from step %d, the best on dev.", best.step
        )
