"""One fine-tuning run: from the pretrained model to the best of its steps."""

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
from bert_tf.finetuning import task_model
from bert_tf.finetuning.early_stopping import DevSelection
from bert_tf.finetuning.evaluate import Evaluator
from bert_tf.finetuning.experiment import Experiment
from bert_tf.finetuning.input import FinetuneInput
from bert_tf.flags.finetune import TrialConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import remat
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import DEV
from bert_tf.training import checkpoints
from bert_tf.training import memory_watch
from bert_tf.training import optimizer as optimizers
from bert_tf.training import resume as resume_checks
from bert_tf.training import state as training_state
from bert_tf.training import xla
from bert_tf.training.async_checkpoints import AsyncCheckpoints
from bert_tf.training.async_checkpoints import State
from bert_tf.training.memory_watch import MemoryWatch
from bert_tf.training.step import TrainingLoop
from bert_tf.training.trainer import Trainer
from bert_tf.training.trainer import TrainerConfig
from bert_tf.training.xla import Compilation

BEST_FOLDER = "best"

# Of a run, unless --iterations_per_loop says otherwise.
_METRICS_LINES = 100


class Trial:
    """One run, which continues where its last checkpoint is.

    Args:
      experiment: What all runs share.
      trial_config: What this one has for itself.
      output_dir: Where its checkpoints and metrics are.

    Attributes:
      model: The model, trained as far as it is.
      step: Steps done.
    """

    def __init__(
        self, experiment: Experiment, trial_config: TrialConfig, output_dir: str
    ) -> None:
        self._experiment = experiment
        self._trial_config = trial_config
        self._output_dir = output_dir
        config = experiment.config
        is_chief = experiment.devices.coordinator.is_chief
        self._store = checkpoints.CheckpointStore(
            output_dir, config.keep_checkpoint_max, is_chief
        )
        self._best = checkpoints.CheckpointStore(
            os.path.join(output_dir, BEST_FOLDER), 1, is_chief
        )
        self._identity = experiments.describe(experiment, trial_config)
        self._devices = resume_checks.describe_devices(experiment.devices)
        checkpoint = self._store.restore_latest()
        # Until all have read it nobody writes there.
        experiment.devices.coordinator.agree(
            {"the last checkpoint": checkpoint and checkpoint.describe()},
            f"view of {output_dir}, a folder that they share",
        )
        self._checkpoints = AsyncCheckpoints(
            self._store, self._read_state, checkpoint and checkpoint.step
        )
        if checkpoint is not None:
            experiments.check_continuation(
                checkpoint,
                self._identity,
                self._devices,
                output_dir,
                config.allow_changed_data,
            )
        num_examples, self._features = experiment.supervision.read()
        self._batch_size = finetuning_input.rows_per_step(
            experiment.task,
            trial_config.train_batch_size,
            num_examples,
            len(self._features),
        )
        self._plan = StepPlan(
            self._batch_size,
            experiment.devices.strategy.num_replicas_in_sync,
            config.micro_batch_size,
        )
        self._last_step = finetuning_input.count_steps(
            len(self._features), self._batch_size, trial_config
        )
        self._selection = DevSelection(
            config,
            experiment.task,
            len(self._features) / self._batch_size,
            self._last_step,
        )
        keras.utils.set_random_seed(trial_config.seed)
        if config.remat:
            remat.keep_recomputation(
                len(experiment.devices.strategy.extended.worker_devices)
            )
        self.model = task_model.build_model(
            experiment.stored,
            experiment.task,
            experiment.devices,
            config.new_pooler,
            remat=config.remat,
            **experiment.supervision.model_arguments,
        )
        self._objective = experiment.supervision.build_objective(self.model)
        self._weights = bert_model.named_variables(self.model)
        # Those of checkpoints, of which the model is a part.
        self._variables = self._weights | dict(self._objective.variables)
        self._input = FinetuneInput(
            self._features,
            self._batch_size,
            trial_config.seed,
            self._last_step,
            task_prediction.allowed_lengths(
                self._features.lengths,
                experiment.task.max_seq_length,
                config.num_length_buckets,
            ),
            xla.most_lengths(
                config.xla, experiment.devices.kind, config.num_length_buckets
            ),
        )
        self._optimizer, self._loop = self._build_loop()
        if checkpoint is not None:
            self._restore(checkpoint)

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self._loop.step

    @property
    def chosen_step(self) -> int:
        """The step that the model is of once training is over."""
        if self._experiment.config.selects_evaluation:
            return self._selection.best_step
        return self.step

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The metrics of dev on the way, each with its `global_step`."""
        return [
            {"global_step": values["step"]}
            | {name: x for name, x in values.items() if name != "step"}
            for values in self._selection.evaluations
        ]

    def weights(self) -> dict:
        """Returns the weights of the model by canonical name."""
        return {name: v.numpy() for name, v in self._weights.items()}

    def train(self) -> Trainer:
        """Trains to the end; afterwards the model is the one that was chosen.

        Raises:
          NotFiniteError: If a loss or gradient is not finite.
        """
        config = self._experiment.config
        self._store.clean()
        run = Trainer(
            self._loop,
            TrainerConfig(
                last_step=self._last_step,
                metrics_every=(
                    config.iterations_per_loop
                    or max(1, self._last_step // _METRICS_LINES)
                ),
                save_every=config.save_checkpoints_steps,
                examples_per_step=self._batch_size,
                tokens_per_example=self._input.pieces_per_example(),
                doing="fine-tuning",
            ),
            self._output_dir,
            self._checkpoints,
            self._experiment.devices.coordinator,
            self._experiment.preemption,
        )
        iterator = None
        evaluator = None
        while True:
            # First of all, for a run that was stopped while it evaluated.
            if self._selection.is_due(self.step):
                evaluator = evaluator or self.evaluator(config.eval_batch_size)
                self._evaluate(evaluator, run)
            if self.step >= self._last_step or self._selection.should_stop():
                break
            if iterator is None:
                iterator = batches_lib.distribute_batches(
                    self._experiment.devices.strategy,
                    functools.partial(self._input.dataset, self.step),
                    self._plan,
                )
            stop = self._selection.next_stop(self.step)
            run.train(iterator, self._input.read, stop)
        self._checkpoints.wait()
        if config.selects_evaluation:
            self._take_best()
        return run

    def evaluator(self, batch_size: int) -> Evaluator:
        """Returns an evaluator of the model."""
        return Evaluator(
            self.model,
            self._experiment.reader,
            batch_size,
            self._experiment.config.num_length_buckets,
            self._experiment.devices.strategy,
            self._experiment.devices.coordinator.is_chief,
        )

    def release(self) -> None:
        """Gives the memory of weights and slots back; the run is over then.

        TensorFlow keeps the gradient functions of every graph for good, and
        with them the variables they refer to, so these are emptied.
        """
        variables = [*self._variables.values(), *self._optimizer.variables]
        for variable in variables:
            for (
                part
            ) in self._experiment.devices.strategy.experimental_local_results(
                variable.value
            ):
                tf.raw_ops.AssignVariableOp(
                    resource=part.handle, value=tf.zeros([0], part.dtype)
                )

    def _build_loop(self) -> tuple[optimizers.BertOptimizer, TrainingLoop]:
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
        loop = TrainingLoop(
            devices.strategy,
            self.model,
            self._objective,
            optimizer,
            self._plan,
            devices.precision.needs_loss_scale,
            Compilation(config.xla, devices.kind, self._input.row_shapes()),
            self._watch_memory(),
        )
        return optimizer, loop

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
        if self._loop.loss_scale is not None:
            self._loop.loss_scale.restore(checkpoint.metadata)

    def _read_state(self) -> State:
        """Returns what a checkpoint holds, as it is now."""
        metadata = {
            "identity": self._identity,
            "devices": self._devices,
            "evaluations": self._selection.evaluations,
        }
        if self._loop.loss_scale is not None:
            metadata |= self._loop.loss_scale.state()
        tensors = training_state.snapshot(self._variables, self._optimizer)
        return tensors, metadata

    # === Evaluations on the way ===

    def _evaluate(self, evaluator: Evaluator, run: Trainer) -> None:
        """Scores dev, and keeps what is known then."""
        try:
            metrics = self._choose_by_dev(evaluator)
            run.write_summaries("eval", metrics)
        except BaseException:
            # Above all if the run is asked to stop: it goes on from here.
            with self._experiment.devices.coordinator.finishing():
                if self._checkpoints.step != self.step:
                    self._checkpoints.save(self.step)
                self._checkpoints.wait()
            raise
        self._checkpoints.save(self.step)

    def _choose_by_dev(self, evaluator: Evaluator) -> dict[str, float]:
        """Scores dev; keeps the weights if they are the best so far."""
        task = self._experiment.task
        (split, *_) = task.splits(DEV)
        evaluated = evaluator.evaluate(split, task, tune=True)
        coordinator = self._experiment.devices.coordinator
        # All choose by the same numbers.
        metrics = coordinator.from_chief(evaluated.metrics)
        values = {"step": self.step} | metrics
        if self._selection.is_best(values):
            metadata = {"evaluation": values}
            if not coordinator.from_chief(
                self._best.save(self.step, self.weights(), metadata)
            ):
                raise UserError(
                    "The best model so far could not be written to "
                    f"{self._output_dir}; make room and start the same command "
                    "again."
                )
        self._selection.evaluations.append(values)
        return metrics

    def _take_best(self) -> None:
        """Sets the weights to those of the best evaluation."""
        best = self._best.restore_latest()
        best_step = self._selection.best_step
        if best is None or best.step != best_step:
            raise UserError(
                f"The best model of {self._output_dir}, that of step "
                f"{best_step}, is not in {BEST_FOLDER}/; remove --output_dir "
                "to start anew."
            )
        for name, variable in self._weights.items():
            variable.assign(best.tensors[name])
        logging.info(
            "The model is that of step %d, the best on dev.", best.step
        )
